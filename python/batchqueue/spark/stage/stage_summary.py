"""Counts of the items of a stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from batchqueue import BatchQueueStats


@dataclass(frozen=True)
class StageSummary:
    """Counts of items of one stage: one queue, or the queues of all attempts that count.

    Attributes:
        peak_used_percent: Highest use of the fullest partition that was seen, 0..100.
    """

    produced: int
    consumed: int
    failed: int
    refused: int
    unhandled: int
    abandoned: int
    peak_used_percent: float

    @classmethod
    def from_stats(cls, stats: BatchQueueStats, peak_used_percent: float) -> Self:
        """Take the counts of a queue that is shut down."""
        return cls(
            produced=stats.produced,
            consumed=stats.consumed,
            failed=stats.failed,
            refused=stats.refused,
            unhandled=stats.unhandled,
            abandoned=stats.abandoned,
            peak_used_percent=round(peak_used_percent, 2),
        )

    @classmethod
    def total(cls, stages: Sequence["StageSummary"]) -> Self:
        """Add up queues that ran side by side."""
        return cls(
            produced=sum(stage.produced for stage in stages),
            consumed=sum(stage.consumed for stage in stages),
            failed=sum(stage.failed for stage in stages),
            refused=sum(stage.refused for stage in stages),
            unhandled=sum(stage.unhandled for stage in stages),
            abandoned=sum(stage.abandoned for stage in stages),
            peak_used_percent=max((stage.peak_used_percent for stage in stages), default=0.0),
        )

    @property
    def lost(self) -> int:
        """Items that were not consumed."""
        return self.failed + self.refused + self.unhandled + self.abandoned
