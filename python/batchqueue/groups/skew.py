"""Lag and skew: how far partitions are behind, and which of them are hot.

The report and the decision differ. The *report* has the usual statistics, of which `skew_ratio` is
the largest lag divided by the mean. That ratio cannot exceed 2.0 with two partitions, and is 4.0
for a single record in four partitions, so the *decision* uses other criteria: a partition is hot
when it is far behind in records, in time if known, and relative to the others, twice in a row.

Everything here is pure: the caller reads the lags, logs and acts. An unknown lag is None and left
out of every figure; it never counts as 0.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from batchqueue.base.checks import check_finite, check_switch

_CALM_RATIO = 0.7
"""A hot partition is calm again below this share of a limit."""

_NAMED = 10
"""The most hot partitions that a warning names; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class SkewDetectionConfig:
    """The limits above which partitions count as skewed.

    Attributes:
        enabled: Whether to detect hot partitions. Reports are made in any case. Default: True.
        check_interval_s: Seconds between two readings. Default: 10.
        skew_threshold: The multiple that the lag of a partition must exceed: of the mean in the
            report, of the median of the others in the decision. Default: 2.
        min_records: The smallest lag of a hot partition, in records. Default: 1000.
        min_seconds: The smallest lag of a hot partition, in seconds at its drain rate, if known.
            Default: 10.

    Raises:
        ConfigError: A number is out of range; the message names the setting and its limit.
    """

    enabled: bool = True
    check_interval_s: float = 10.0
    skew_threshold: float = 2.0
    min_records: int = 1_000
    min_seconds: float = 10.0

    def __post_init__(self) -> None:
        check_switch("skew: enabled", self.enabled)
        for name, least in (
            ("check_interval_s", 0.1),
            ("skew_threshold", 1),
            ("min_records", 1),
            ("min_seconds", 0.1),
        ):
            check_finite(f"skew: {name}", getattr(self, name), least)


@dataclass(frozen=True, kw_only=True)
class PartitionReading:
    """A partition at one moment.

    Attributes:
        partition: Its number.
        lag: The number of records that are not done; None if unknown.
        rate_per_s: Records done per second; None if unknown.
        owner: The name of the worker that owns it, or None.
        seconds: The time that it is behind, in seconds; None if it follows from the rate, or is
            unknown.
    """

    partition: int
    lag: int | None
    rate_per_s: float | None = None
    owner: str | None = None
    seconds: float | None = None

    @property
    def time_lag_s(self) -> float | None:
        """The time that it is behind in seconds, infinite at rate 0; None if unknown."""
        if self.seconds is not None:
            return self.seconds
        if self.lag is None or (self.lag > 0 and self.rate_per_s is None):
            return None
        if self.lag == 0:
            return 0.0
        return self.lag / self.rate_per_s if self.rate_per_s else math.inf


@dataclass(frozen=True)
class SkewReport:
    """The statistics of one reading, over the partitions with a known lag.

    Attributes:
        partition_lags: Lag per partition, in records; None if unknown.
        avg_lag: Mean lag; None if no lag is known.
        max_lag: Largest lag; None if no lag is known.
        min_lag: Smallest lag; None if no lag is known.
        std: Population standard deviation of the lags; None if no lag is known.
        skew_ratio: `max_lag / avg_lag`; 0.0 if `avg_lag` is 0 or unknown.
        skew_threshold: The threshold of `seed_skewed`.
        seed_skewed: Whether `skew_ratio` is above the threshold.
        skewed_partitions: Partitions whose lag is above the threshold times `avg_lag`.
    """

    partition_lags: dict[int, int | None]
    avg_lag: float | None
    max_lag: int | None
    min_lag: int | None
    std: float | None
    skew_ratio: float
    skew_threshold: float
    seed_skewed: bool
    skewed_partitions: tuple[int, ...]


def partition_lag(latest: int | None, committed: int | None, low: int = 0) -> int | None:
    """Return how many records are not done; None if unknown.

    Args:
        latest: The number of records ever added, or the next offset to be written.
        committed: The number of records that are done, or the next offset to be read; None if the
            group has not committed.
        low: The lowest position that still exists. Trimmed records do not count. Default: 0.

    Returns:
        `latest - max(committed, low)`. None if `latest` is None, or below the committed position:
        then one of the two was read too late, or went back.
    """
    if latest is None:
        return None
    lag = latest - max(committed or 0, low)
    return lag if lag >= 0 else None


def skew_report(
    readings: Iterable[PartitionReading], config: SkewDetectionConfig | None = None
) -> SkewReport:
    """Return the statistics of a reading.

    Args:
        readings: The partitions of a stream, each once.
        config: Provides `skew_threshold`. Default: None, a threshold of 2.0.

    Example:
        >>> readings = [PartitionReading(partition=p, lag=lag) for p, lag in enumerate([1000, 100])]
        >>> report = skew_report(readings)
        >>> report.avg_lag, round(report.skew_ratio, 2), report.seed_skewed
        (550.0, 1.82, False)
    """
    threshold = (config or SkewDetectionConfig()).skew_threshold
    lags = {reading.partition: reading.lag for reading in readings}
    known = {partition: lag for partition, lag in lags.items() if lag is not None}
    if not known:
        return SkewReport(lags, None, None, None, None, 0.0, threshold, False, ())
    average, largest = fmean(known.values()), max(known.values())
    ratio = largest / average if average else 0.0
    return SkewReport(
        partition_lags=lags,
        avg_lag=average,
        max_lag=largest,
        min_lag=min(known.values()),
        std=pstdev(known.values()),
        skew_ratio=ratio,
        skew_threshold=threshold,
        seed_skewed=ratio > threshold,
        skewed_partitions=tuple(
            sorted(partition for partition, lag in known.items() if lag > threshold * average)
        ),
    )


class SkewDetector:
    """Decides after each reading which partitions are hot.

    A partition is hot when, in two readings in a row, its lag is at least `min_records`, takes at
    least `min_seconds` at its drain rate, and is above `skew_threshold` times the median lag of the
    other partitions. If the seconds are unknown, the other two decide. It is calm again when one of
    the three is below 0.7 of its limit. While the lag is unknown, a hot partition stays hot, and
    any other one has to start its two readings over.

    Not thread-safe.

    Attributes:
        hot: The hot partitions of the last reading.

    Example:
        >>> detector = SkewDetector()
        >>> readings = [
        ...     PartitionReading(partition=0, lag=12_000, rate_per_s=500),
        ...     PartitionReading(partition=1, lag=90, rate_per_s=500),
        ... ]
        >>> sorted(detector.update(readings)), sorted(detector.update(readings))
        ([], [0])
    """

    def __init__(self, config: SkewDetectionConfig | None = None) -> None:
        """Start without hot partitions.

        Args:
            config: The limits. Default: None, those of `SkewDetectionConfig()`.
        """
        self.hot: frozenset[int] = frozenset()
        self._config = config or SkewDetectionConfig()
        self._above: frozenset[int] = frozenset()  # not hot, and above all limits once

    def update(self, readings: Sequence[PartitionReading]) -> frozenset[int]:
        """Evaluate a reading of all partitions, and return the hot ones.

        A partition that is missing from the reading is forgotten.
        """
        if not self._config.enabled:
            return self.hot
        lags = sorted(reading.lag for reading in readings if reading.lag is not None)
        above: set[int] = set()
        hot: set[int] = set()
        for reading in readings:
            partition, shares = reading.partition, self._shares(reading, lags)
            if partition in self.hot:
                if not any(share is not None and share < _CALM_RATIO for share in shares):
                    hot.add(partition)
            elif _is_above_all(*shares):
                (hot if partition in self._above else above).add(partition)
        self.hot, self._above = frozenset(hot), frozenset(above)
        return self.hot

    def _shares(
        self, reading: PartitionReading, lags: list[int]
    ) -> tuple[float | None, float | None, float | None]:
        """The lag as a share of each limit: in records, in seconds, and relative to the others."""
        if reading.lag is None:
            return None, None, None
        others, time_lag = _median_of_others(lags, reading.lag), reading.time_lag_s
        beside = None if others is None else self._config.skew_threshold * others
        return (
            reading.lag / self._config.min_records,
            None if time_lag is None else time_lag / self._config.min_seconds,
            None if beside is None else reading.lag / beside if beside else math.inf,
        )


def skew_warning(stream: str, report: SkewReport, hot: Sequence[PartitionReading]) -> str:
    """Return the log line for partitions that have become hot.

    Args:
        stream: The name of the stream.
        report: The statistics of the reading.
        hot: The readings of the hot partitions. The line names those furthest behind.
    """
    average = "unknown" if report.avg_lag is None else f"{report.avg_lag:.1f}"
    largest = "unknown" if report.max_lag is None else report.max_lag
    parts = [
        f"Partition skew detected in {stream}: max_lag={largest}, avg_lag={average}, "
        f"skew_ratio={report.skew_ratio:.2f}, threshold={report.skew_threshold}"
    ]
    worst = sorted(hot, key=lambda reading: (-(reading.lag or 0), reading.partition))
    parts += map(_described, worst[:_NAMED])
    if len(worst) > _NAMED:
        parts.append(f"{len(worst) - _NAMED} more")
    return "; ".join((*parts, "add workers, or make the handler faster"))


def _described(reading: PartitionReading) -> str:
    match reading.time_lag_s:
        case None:
            behind = "unknown time"
        case math.inf:
            behind = "not drained"
        case seconds:
            behind = f"{seconds:.0f} s"
    owner = "no owner" if reading.owner is None else f"owner {reading.owner}"
    lag = "unknown" if reading.lag is None else reading.lag
    return f"partition {reading.partition}: lag {lag}, {behind}, {owner}"


def _is_above_all(records: float | None, seconds: float | None, beside: float | None) -> bool:
    if records is None or beside is None:
        return False
    # Unknown seconds decide nothing: many sources know only their rows.
    return records >= 1 and beside > 1 and (seconds is None or seconds >= 1)


def _median_of_others(lags: list[int], lag: int) -> float | None:
    """The median of sorted lags, excluding one equal to `lag`; None if there are no others."""
    count = len(lags) - 1
    if count == 0:
        return None
    place = bisect_left(lags, lag)
    low, high = (
        lags[index if index < place else index + 1] for index in ((count - 1) // 2, count // 2)
    )
    return (low + high) / 2
