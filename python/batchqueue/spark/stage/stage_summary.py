"""The counts with which a stage ends."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from batchqueue import BatchQueueStats


@dataclass(frozen=True)
class StageSummary:
    """Counts of the items of one stage: one queue, or the queues of all successful attempts.

    Attributes:
        produced: Items that the queue accepted.
        consumed: Items that a handler took.
        failed: Items whose handler raised, after all retries.
        refused: Items that the queue did not accept.
        unhandled: Items without a handler.
        abandoned: Items that a shutdown left behind.
        peak_used_percent: Highest observed fill of the fullest partition, 0 to 100.
        dead_lettered: Items whose handler raised, and that the `dead_letter` of the config kept.
    """

    produced: int
    consumed: int
    failed: int
    refused: int
    unhandled: int
    abandoned: int
    peak_used_percent: float
    dead_lettered: int = 0

    @classmethod
    def from_stats(cls, stats: BatchQueueStats, peak_used_percent: float) -> Self:
        """Return the counts of a queue that has shut down."""
        return cls(
            produced=stats.produced,
            consumed=stats.consumed,
            failed=stats.failed,
            refused=stats.refused,
            unhandled=stats.unhandled,
            abandoned=stats.abandoned,
            peak_used_percent=round(peak_used_percent, 2),
            dead_lettered=stats.dead_lettered,
        )

    @classmethod
    def total(cls, stages: Sequence["StageSummary"]) -> Self:
        """Return the sum over queues that ran concurrently."""
        return cls(
            produced=sum(stage.produced for stage in stages),
            consumed=sum(stage.consumed for stage in stages),
            failed=sum(stage.failed for stage in stages),
            refused=sum(stage.refused for stage in stages),
            unhandled=sum(stage.unhandled for stage in stages),
            abandoned=sum(stage.abandoned for stage in stages),
            peak_used_percent=max((stage.peak_used_percent for stage in stages), default=0.0),
            dead_lettered=sum(stage.dead_lettered for stage in stages),
        )

    def with_merged(self, items: int) -> Self:
        """Return the counts with items that did not need the queue, and are merged."""
        return replace(self, produced=self.produced + items, consumed=self.consumed + items)

    @property
    def lost(self) -> int:
        """Items that were neither consumed nor kept as dead letters."""
        return self.failed + self.refused + self.unhandled + self.abandoned
