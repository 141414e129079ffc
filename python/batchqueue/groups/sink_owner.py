"""Whose a sink of metrics is: what its description says of the group that writes to it.

The store keeps one description for each sink. That of a group has its `kind`, "group", and
`group`, `stream` and `metrics`, the table, columns and limit of each metric by its name.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from batchqueue.exceptions import ConfigError
from batchqueue.groups.fence import FencedBatch

if TYPE_CHECKING:
    from batchqueue.aggregation import Metrics
    from batchqueue.outputs import StoreTransaction


def admit_group(
    transaction: "StoreTransaction", sink: str, batch: FencedBatch
) -> Mapping[str, Any]:
    """Return the description of a sink; a new one gets its first.

    Args:
        transaction: Of the sink.
        sink: Names the sink in the message.
        batch: What is to be stored.

    Raises:
        ConfigError: Another group, stream or kind of job has written to the sink.
    """
    found = transaction.description()
    owner = {"kind": "group", "group": batch.group, "stream": batch.stream}
    if found is None and not transaction.known_queries():
        found = {**owner, "metrics": {}}
        transaction.describe(found)
    if found is None or any(found.get(name) != value for name, value in owner.items()):
        raise ConfigError(
            f"{sink} was written by {_writer(found)}, and {_writer(owner)} would count its records "
            "beside those: give each group, stream and job its own sink_id"
        )
    return found


def admit_metrics(
    transaction: "StoreTransaction",
    sink: str,
    description: Mapping[str, Any],
    partials: "Iterable[Metrics]",
) -> None:
    """Enter metrics that are new into the description of a sink.

    Args:
        transaction: Of the sink.
        sink: Names the sink in the message.
        description: What `admit_group` returned.
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
                "which cannot be merged: give the metric another name, or this worker another "
                "sink_id"
            )
    if not now.keys() <= known.keys():
        transaction.describe({**description, "metrics": {**known, **now}})


def _writer(description: Mapping[str, Any] | None) -> str:
    if description is None or description.get("kind") != "group":
        return "another kind of job, such as a Spark query"
    return f'group "{description["group"]}" on stream "{description["stream"]}"'


def _layout(metric: "type[Metrics]") -> dict[str, Any]:
    return {
        "table": metric.table,
        "columns": {name: kind.__name__ for name, kind in metric.columns.items()},
        "limit": getattr(metric, "limit", None),
    }


def _text(layout: Mapping[str, Any]) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in layout["columns"].items())
    limit = "" if layout["limit"] is None else f", limit {layout['limit']}"
    return f"{layout['table']} ({columns}{limit})"
