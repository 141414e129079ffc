"""What the store remembers of a job, so that a changed one does not mix its results with those before."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.steps import ArrowAggregation


def describe(job: AggregationJob, shards: int | None) -> dict[str, Any]:
    """Describe what the numbers of a job mean, as far as it is declared; JSON can hold it.

    Args:
        job: The job.
        shards: See `SinkOptions`.

    Returns:
        `metrics`: table, columns and limit by name; `aggregations`: keys, window and measures of
        each; `shards`. Functions are not compared.
    """
    metrics = {
        one.name: {
            "table": one.table,
            "columns": {name: kind.__name__ for name, kind in one.columns.items()},
            "limit": getattr(one, "limit", None),
        }
        for one in job.metrics
    }
    aggregations = [
        step.aggregation.text for step in job.arrow if isinstance(step, ArrowAggregation)
    ]
    return {"metrics": metrics, "aggregations": aggregations, "shards": shards}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name what differs between two descriptions; empty if nothing does."""
    return [*_of_metrics(before["metrics"], now["metrics"]), *_of_aggregations(before, now)]


def incompatible_metrics(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the metrics that have other tables or columns than before, which no store could merge."""
    pairs = (
        (name, one, now["metrics"].get(name, one))
        for name, one in sorted(before["metrics"].items())
    )
    return [
        _change(name, one, other)
        for name, one, other in pairs
        if {**one, "limit": 0} != {**other, "limit": 0}
    ]


def _of_metrics(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if name not in before:
            yield f"metric {name!r} is new"
        elif name not in now:
            yield f"metric {name!r} is gone"
        elif before[name] != now[name]:
            yield _change(name, before[name], now[name])


def _of_aggregations(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    counts = Counter(before["aggregations"]), Counter(now["aggregations"])
    gone, new = list(counts[0] - counts[1]), list(counts[1] - counts[0])
    # A job that makes the same metrics by functions only, or by declarations only, has not changed
    # their meaning.
    if not before["aggregations"] or not now["aggregations"]:
        return
    if gone and new:
        yield f"an aggregation was {gone[0]} and is {new[0]}"
    elif gone or new:
        yield f"an aggregation is {'gone' if gone else 'new'}: {(gone or new)[0]}"


def _change(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return f"metric {name!r} was {_text(before)} and is {_text(now)}"


def _text(metric: Mapping[str, Any]) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in metric["columns"].items())
    limit = "" if metric["limit"] is None else f", limit {metric['limit']}"
    return f"{metric['table']} ({columns}{limit})"
