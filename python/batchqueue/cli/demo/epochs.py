"""The sums of the ledger's summaries over micro-batches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from batchqueue.outputs import SqliteStore

OUTCOMES = ("produced", "consumed", "failed", "refused", "unhandled", "abandoned")
"""The outcomes by which a stage counts its items."""

EpochSummary = dict[str, Any]
"""The summary of an epoch; `batchqueue.spark` defines its fields."""


def read_epochs(store: SqliteStore, sink_id: str) -> list[EpochSummary]:
    """Return the summaries of all applied epochs, the oldest first."""
    return [epoch.summary for epoch in store.summaries(sink_id)]


@dataclass(frozen=True)
class EpochTotals:
    """Sums over epochs.

    Attributes:
        rows: Number of rows read.
        items: Number of items made of them.
        refused: Number of items that any stage refused.
        stages: Number of items by outcome, for each stage.
        peak_used_percent: Peak use of the fullest partition, 0 to 100, for each stage.
        drain_cpu_s: CPU seconds of drain threads, with their handlers.
        rest_cpu_s: CPU seconds of the Python workers without drain threads.
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
        """Return the sums over `epochs`; all are 0 without epochs."""
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
