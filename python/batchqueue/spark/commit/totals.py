"""Running totals of a sink, carried from the summary of one epoch to that of the next.

The ledger keeps only the newest summaries. Because each of them carries the totals, the last one
says what the sink has done since it began, however seldom the ledger is read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from typing import Any, Self

from batchqueue.outputs import Epoch

OUTCOMES = ("consumed", "failed", "refused", "unhandled", "abandoned")
"""Each item that was offered to a stage ends in exactly one of these."""

STAGES = ("l1", "l2", "persist")
"""The queues that an item passes: L1 in the tasks, L2 and the store writer in the commit."""

_KEY = "totals"


@dataclass(frozen=True)
class SinkTotals:
    """Sums over the epochs of a sink. They never fall, even when an overwrite deletes results.

    Attributes:
        epochs: Applied epochs, including batch writes.
        rows: Rows from Spark.
        skipped: Rows that steps left out because of a null key.
        bad_rows: Rows that could not be read, and were left out.
        late: Partials for time buckets that were final.
        items: Items made of them.
        partials: What L1 left of them.
        commit_bytes: Bytes of the partials on their way to the commit.
        commit_wall_s: Seconds that the commits took.
        cpu_s: CPU seconds by place, "tasks" or "commit", and by threads, "drain" or "rest".
        stages: Items by stage and outcome, see `STAGES` and `OUTCOMES`.
    """

    epochs: int = 0
    rows: int = 0
    skipped: int = 0
    bad_rows: int = 0
    late: int = 0
    items: int = 0
    partials: int = 0
    commit_bytes: int = 0
    commit_wall_s: float = 0.0
    cpu_s: Mapping[str, Mapping[str, float]] = field(
        default_factory=lambda: {
            place: {"drain": 0.0, "rest": 0.0} for place in ("tasks", "commit")
        }
    )
    stages: Mapping[str, Mapping[str, int]] = field(
        default_factory=lambda: {stage: dict.fromkeys(OUTCOMES, 0) for stage in STAGES}
    )

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any]) -> Self:
        """Return what one epoch adds. A field that the summary lacks counts as 0."""
        stages = summary.get("stages", {})

        def cpu_s(name: str) -> float:
            return float(summary.get(name, 0.0))

        return cls(
            epochs=1,
            rows=summary.get("rows", 0),
            skipped=summary.get("skipped", 0),
            bad_rows=summary.get("bad_rows", 0),
            late=summary.get("late", 0),
            items=summary.get("items", 0),
            partials=summary.get("partials", 0),
            commit_bytes=summary.get("commit_bytes", 0),
            commit_wall_s=summary.get("commit_wall_s", 0.0),
            cpu_s={
                "tasks": {"drain": cpu_s("drain_cpu_s"), "rest": cpu_s("rest_cpu_s")},
                "commit": {
                    "drain": cpu_s("commit_drain_cpu_s"),
                    "rest": cpu_s("commit_rest_cpu_s"),
                },
            },
            stages={
                stage: {outcome: stages.get(stage, {}).get(outcome, 0) for outcome in OUTCOMES}
                for stage in STAGES
            },
        )

    @classmethod
    def carried_by(cls, summary: Mapping[str, Any]) -> "SinkTotals | None":
        """Return the totals that a summary carries; None if its writer was too old to add them."""
        totals = summary.get(_KEY)
        if totals is None:
            return None
        known = {attribute.name for attribute in fields(cls)} & totals.keys()
        return cls(**{name: totals[name] for name in known})

    @classmethod
    def sum(cls, totals: Iterable["SinkTotals"]) -> "SinkTotals":
        """Return the sum, for instance over the shards of a sink."""
        return reduce(SinkTotals.__add__, totals, SinkTotals())

    def __add__(self, other: "SinkTotals") -> "SinkTotals":
        return SinkTotals(**_added(asdict(self), asdict(other)))


def with_totals(summary: Mapping[str, Any], before: SinkTotals) -> dict[str, Any]:
    """Return the summary of an epoch with the totals as of its end.

    Args:
        summary: See `epoch_summary`.
        before: The totals before the epoch.
    """
    return {**summary, _KEY: asdict(before + SinkTotals.from_summary(summary))}


def latest_totals(summaries: Callable[[int | None], list[Epoch]]) -> SinkTotals:
    """Return the totals of a sink as of its last epoch.

    Args:
        summaries: Reads that many of the newest summaries; None: all that the ledger keeps.
    """
    newest = summaries(1)
    if newest and SinkTotals.carried_by(newest[0].summary) is None:
        newest = summaries(None)
    total = SinkTotals()
    for epoch in newest:
        total = SinkTotals.carried_by(epoch.summary) or total + SinkTotals.from_summary(
            epoch.summary
        )
    return total


def _added(left: Any, right: Any) -> Any:
    if isinstance(left, Mapping):
        return {name: _added(value, right[name]) for name, value in left.items()}
    return left + right
