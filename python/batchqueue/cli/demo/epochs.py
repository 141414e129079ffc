"""What the ledger says about the micro-batches, added up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from batchqueue.outputs import SqliteStore

OUTCOMES = ("produced", "consumed", "failed", "refused", "unhandled", "abandoned")
"""What a stage counts its items as."""

EpochSummary = dict[str, Any]
"""The entry of one epoch; `batchqueue.spark` defines its fields."""


def read_epochs(store: SqliteStore, sink_id: str) -> list[EpochSummary]:
    """Returns the entries of all epochs that are applied, the oldest first."""
    return [epoch.summary for epoch in store.summaries(sink_id)]


@dataclass(frozen=True)
class Totals:
    """Sums over epochs.

    Attributes:
        rows: Rows read.
        items: Items made of them.
        refused: Items that any stage refused.
        stages: Counts of items by outcome, by stage.
        peak_used_percent: Highest use of the fullest partition, 0..100, by stage.
        drain_cpu_s: CPU seconds of drain threads, their handlers included.
        rest_cpu_s: CPU seconds of the rest of the Python workers.
    """

    rows: int
    items: int
    refused: int
    stages: dict[str, Counter[str]]
    peak_used_percent: dict[str, float]
    drain_cpu_s: float
    rest_cpu_s: float

    @classmethod
    def of(cls, epochs: Sequence[EpochSummary]) -> Self:
        """Adds up `epochs`, of which there may be none."""
        stages: dict[str, Counter[str]] = {}
        peaks: dict[str, float] = {}
        for epoch in epochs:
            for stage, counts in epoch["stages"].items():
                stages.setdefault(stage, Counter()).update(
                    {name: counts[name] for name in OUTCOMES}
                )
                peaks[stage] = max(peaks.get(stage, 0.0), counts["peak_used_percent"])
        return cls(
            rows=sum(epoch["rows"] for epoch in epochs),
            items=sum(epoch["items"] for epoch in epochs),
            refused=sum(counts["refused"] for counts in stages.values()),
            stages=stages,
            peak_used_percent=peaks,
            drain_cpu_s=sum(epoch["drain_cpu_s"] + epoch["commit_drain_cpu_s"] for epoch in epochs),
            rest_cpu_s=sum(epoch["rest_cpu_s"] + epoch["commit_rest_cpu_s"] for epoch in epochs),
        )
