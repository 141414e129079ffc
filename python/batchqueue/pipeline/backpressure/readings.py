"""Readings: what a run knows about a stage at one moment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from batchqueue.groups.skew import PartitionReading, partition_lag
from batchqueue.pipeline.contract import Lag

Partition = int | str
"""The number or the name of a partition; all of one stage are of one type."""


@dataclass(frozen=True, kw_only=True)
class PartitionProgress:
    """How far a partition has been read.

    Attributes:
        latest: The rows that were ever added, or the next offset to be written; None if not known.
        committed: The rows that are done, or the next offset to be read; None if nothing was
            committed, which counts as 0.
        low: The lowest offset that still exists. Default: 0.
        rate_per_s: Rows that are done per second. Default: None, not known.
        owner: The worker that reads it. Default: None, there is none or it is not known.
        seconds: Seconds that it is behind. Default: None, they follow from the rate, or are not
            known.
    """

    latest: int | None
    committed: int | None = None
    low: int = 0
    rate_per_s: float | None = None
    owner: str | None = None
    seconds: float | None = None

    @property
    def lag(self) -> int | None:
        """Rows that are not done; None if not known, as when it would be negative."""
        return partition_lag(self.latest, self.committed, self.low)

    @property
    def lag_seconds(self) -> float | None:
        """Seconds that it is behind, infinite at rate 0; None if not known."""
        return PartitionReading(
            partition=0, lag=self.lag, rate_per_s=self.rate_per_s, seconds=self.seconds
        ).time_lag_s

    @classmethod
    def of_lag(cls, lag: Lag, *, owner: str | None = None) -> Self:
        """Return the progress of a partition of which a source knows the lag alone."""
        rate = lag.records / lag.seconds if lag.records is not None and lag.seconds else None
        return cls(latest=lag.records, rate_per_s=rate, owner=owner, seconds=lag.seconds)


@dataclass(frozen=True, kw_only=True)
class StageReading:
    """A stage at one moment. What could not be read is None, never 0.

    Attributes:
        lag: Rows that the stage has still to read, see `lag_of`. A stage behind a queue of this
            process has 0: its rows are in `queue_rows`.
        queue_rows: Rows that it has accepted and not completed.
        partitions: The progress of its partitions, by number or name. Default: none.
        rate_per_s: Rows that it completes per second. Default: None, not known.
        busy_ratio: The share of the time in which its workers are busy, from 0 to 1. Default: None,
            not known.
    """

    lag: int | None
    queue_rows: int | None
    partitions: Mapping[Partition, PartitionProgress] = field(default_factory=dict)
    rate_per_s: float | None = None
    busy_ratio: float | None = None


def lag_of(partitions: Iterable[PartitionProgress]) -> int | None:
    """Return the sum of the lags; None if any of them is not known.

    Example:
        >>> lag_of([PartitionProgress(latest=7, committed=3), PartitionProgress(latest=2)])
        6
    """
    total = 0
    for partition in partitions:
        lag = partition.lag
        if lag is None:
            return None
        total += lag
    return total
