"""Whose a sink of metrics is: what its description in a store says of those that write to it.

The store keeps one description for each sink. That of a Spark job is its fingerprint. Others have
their `kind`, such as "group", the fields that name the owner, and `metrics`: the table, columns and
limit of each metric by its name.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from batchqueue.aggregation import Metrics
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.layout import columns_of, shown
from batchqueue.outputs.store import StoreTransaction

_KINDS = {
    "group": 'group "{group}" on stream "{stream}"',
    "pipeline": 'pipeline "{pipeline}"',
}


def check_owner(
    transaction: StoreTransaction, sink: str, owner: Mapping[str, str]
) -> Mapping[str, Any] | None:
    """Return the description of a sink; None if it is new.

    Args:
        transaction: Of the sink.
        sink: Names the sink in the message.
        owner: Its `kind`, and the fields that name the owner among those of its kind.

    Raises:
        ConfigError: Another owner has written to the sink.
    """
    found = transaction.description()
    if found is None and not transaction.known_queries():
        return None
    if found is None or any(found.get(name) != value for name, value in owner.items()):
        raise ConfigError(
            f"{sink} was written by {owner_text(found)}, and {owner_text(owner)} would count its "
            "records beside those: give each group, stream, pipeline and job its own sink_id"
        )
    return found


def admit_owner(
    transaction: StoreTransaction, sink: str, owner: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return the description of a sink; a new one gets its first.

    Raises:
        ConfigError: As `check_owner`.
    """
    found = check_owner(transaction, sink, owner)
    if found is None:
        found = {**owner, "metrics": {}}
        transaction.describe(found)
    return found


def admit_metrics(
    transaction: StoreTransaction,
    sink: str,
    description: Mapping[str, Any],
    partials: Iterable[Metrics],
) -> Mapping[str, Any]:
    """Enter metrics that are new into the description of a sink, and return it.

    Args:
        transaction: Of the sink.
        sink: Names the sink in the message.
        description: What `admit_owner` returned.
        partials: What is to be stored.

    Raises:
        ConfigError: A metric has another table, other columns or another limit than before.
    """
    known = description["metrics"]
    now = {each.name: _layout(each) for each in {type(partial) for partial in partials}}
    for name, layout in sorted(now.items()):
        before = known.get(name, layout)
        if before != layout:
            raise ConfigError(
                f"{sink} has metric {name!r} as {_text(before)}, and now it is {_text(layout)}, "
                f"which cannot be merged: give the metric another name, or {_writer(description)} "
                "another sink_id"
            )
    if now.keys() <= known.keys():
        return description
    entered = {**description, "metrics": {**known, **now}}
    transaction.describe(entered)
    return entered


def owner_text(
    description: Mapping[str, Any] | None,
    other: str = "another kind of job, such as a Spark query",
) -> str:
    """Name the owner that a description is about; `other` if its kind is not known."""
    pattern = None if description is None else _KINDS.get(str(description.get("kind")))
    return other if description is None or pattern is None else pattern.format(**description)


def _writer(description: Mapping[str, Any]) -> str:
    return "this worker" if description["kind"] == "group" else f"this {description['kind']}"


def _layout(metric: type[Metrics]) -> dict[str, Any]:
    return {
        "table": metric.table,
        "columns": {name: shown(kind) for name, kind in columns_of(metric)},
        "limit": getattr(metric, "limit", None),
        **accuracy_of(metric),
    }


def accuracy_of(metric: type[Metrics]) -> dict[str, float]:
    """Return the accuracy of a metric type for its description; empty if it has none."""
    accuracy = getattr(metric, "accuracy", None)
    return {} if accuracy is None else {"accuracy": accuracy}


def _text(layout: Mapping[str, Any]) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in layout["columns"].items())
    limit = "" if layout["limit"] is None else f", limit {layout['limit']}"
    accuracy = f", accuracy {layout['accuracy']}" if "accuracy" in layout else ""
    return f"{layout['table']} ({columns}{limit}{accuracy})"
