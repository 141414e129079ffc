"""The fingerprint of a job: what its numbers mean, so that a changed job does not mix them up.

The store keeps the fingerprint of the job that wrote last.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from batchqueue.outputs.layout import columns_of, shown
from batchqueue.outputs.ledger import accuracy_of
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.steps import ArrowAggregation


def fingerprint(job: AggregationJob, shards: int | None) -> dict[str, Any]:
    """Describe what the numbers of a job mean, as far as it is declared.

    Functions are not compared.

    Args:
        job: The job.
        shards: See `SinkOptions`.

    Returns:
        `metrics`: table, columns and limit by name; `aggregations`: keys, window and measures of
        each; `shards`. It can be written as JSON.
    """
    metrics = {
        metric.name: {
            "table": metric.table,
            "columns": {name: shown(kind) for name, kind in columns_of(metric)},
            "limit": getattr(metric, "limit", None),
            **accuracy_of(metric),
        }
        for metric in job.metrics
    }
    aggregations = [_aggregation(step) for step in job.arrow if isinstance(step, ArrowAggregation)]
    return {"metrics": metrics, "aggregations": aggregations, "shards": shards}


def _aggregation(step: ArrowAggregation) -> str:
    if step.null_keys is None:
        return step.aggregation.text
    rule = step.null_keys if step.null_keys == "skip" else sorted(dict(step.null_keys).items())
    return f"{step.aggregation.text} with null_keys {rule}"


def remembered(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the store keeps of a job: what functions do not say stays what it was.

    Otherwise a job of functions would erase the aggregations of the job before, and the one after
    could declare others.

    Args:
        before: The stored fingerprint; None if the sink is new.
        now: The fingerprint of the job.
    """
    if before is None or now["aggregations"]:
        return dict(now)
    return {**now, "aggregations": before["aggregations"]}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the differences between two fingerprints; empty if there are none."""
    return [
        *_metric_differences(before["metrics"], now["metrics"]),
        *_aggregation_differences(before["aggregations"], now["aggregations"]),
    ]


def incompatible_metrics(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the metrics whose table or columns have changed, which no store could merge."""
    pairs = (
        (name, metric, now["metrics"].get(name, metric))
        for name, metric in sorted(before["metrics"].items())
    )
    return [
        _change(name, old, new)
        for name, old, new in pairs
        if {**old, "limit": 0} != {**new, "limit": 0}
    ]


def _metric_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if name not in before:
            yield f"metric {name!r} is new"
        elif name not in now:
            yield f"metric {name!r} is gone"
        elif before[name] != now[name]:
            yield _change(name, before[name], now[name])


def _aggregation_differences(before: list[str], now: list[str]) -> Iterator[str]:
    # A job that makes the same metrics by functions only, or by declarations only, has not changed
    # their meaning.
    if not before or not now:
        return
    old, new = Counter(before), Counter(now)
    gone, added = list(old - new), list(new - old)
    if gone and added:
        yield f"an aggregation was {gone[0]} and is {added[0]}"
    elif gone or added:
        yield f"an aggregation is {'gone' if gone else 'new'}: {(gone or added)[0]}"


def _change(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return f"metric {name!r} was {_text(before)} and is {_text(now)}"


def _text(metric: Mapping[str, Any]) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in metric["columns"].items())
    limit = "" if metric["limit"] is None else f", limit {metric['limit']}"
    accuracy = f", accuracy {metric['accuracy']}" if "accuracy" in metric else ""
    return f"{metric['table']} ({columns}{limit}{accuracy})"
