"""`Pressure`: whether, and how much, the sources of a stage that is behind slow down.

Readings of the stages become a pressure, which reaches the sources as a signal; the gate decides
how it affects them. All of this is pure: `FlowController` has the clock, the threads and the log.

Row counts are compared with exact fractions of the thresholds, so that a lag of exactly 0.7 times
its threshold is not below that, although 0.7 is inexact as a float.

An unknown reading is None or negative. It neither activates nor releases backpressure: the last
known reading remains in force, and a release needs both readings.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, Self

from batchqueue.groups.skew import PartitionReading, partition_lag
from batchqueue.pipeline.contract import GraphError, Lag, Limit
from batchqueue.pipeline.settings import BackpressureConfig, Gate


class Pressure(NamedTuple):
    """The pressure of a stage after a reading: all that the next reading needs to know of it."""

    lag: int | None
    """Rows still to read, as last known; None if never known."""
    queue_rows: int | None
    """Rows accepted but not completed, as last known; None if never known."""
    is_lag_known: bool
    """Whether the last reading had the lag."""
    is_queue_known: bool
    """Whether the last reading had the rows in the queue."""
    ratio: float | None
    """The larger of lag and queue, each divided by its threshold; None if neither is known."""
    is_active: bool
    """Whether backpressure is active."""
    early_warning: bool
    """Whether the ratio is above `early_warning_ratio`."""
    slow_down_factor: float
    """From 0.0 (stop) to 1.0 (full speed)."""


NO_PRESSURE = Pressure(None, None, False, False, None, False, False, 1.0)
"""Before the first reading."""


def next_pressure(
    before: Pressure, lag: int | None, queue_rows: int | None, config: BackpressureConfig
) -> Pressure:
    """Return the pressure after a reading.

    Args:
        before: The pressure after the last reading; `NO_PRESSURE` if there is none.
        lag: Rows that the stage still has to read; None or negative if unknown.
        queue_rows: Rows that it has accepted but not completed; None or negative if unknown.
        config: The thresholds.

    Example:
        >>> config = BackpressureConfig()
        >>> high = next_pressure(NO_PRESSURE, 6_000, 0, config)
        >>> high.is_active, high.slow_down_factor
        (True, 0.0)
        >>> falling = next_pressure(high, 4_500, 0, config)
        >>> falling.is_active, falling.slow_down_factor
        (True, 0.3)
    """
    lag, queue_rows = _known(lag), _known(queue_rows)
    is_lag_known, is_queue_known = lag is not None, queue_rows is not None
    lag = before.lag if lag is None else lag
    queue_rows = before.queue_rows if queue_rows is None else queue_rows
    ratios = [
        Fraction(rows, threshold)
        for rows, threshold in (
            (lag, config.lag_threshold),
            (queue_rows, config.queue_size_threshold),
        )
        if rows is not None
    ]
    highest = max(ratios, default=Fraction(0))
    is_known = is_lag_known and is_queue_known
    # A remembered reading can be above 1 only if it has already activated backpressure.
    is_active = highest > 1 or (
        before.is_active and not (is_known and highest < _exact(config.release_ratio))
    )
    factor = slow_down_factor(highest, config)
    if is_active and not is_known:
        factor = min(factor, before.slow_down_factor)  # a rise would be half a release
    return Pressure(
        lag=lag,
        queue_rows=queue_rows,
        is_lag_known=is_lag_known,
        is_queue_known=is_queue_known,
        ratio=float(highest) if ratios else None,
        is_active=is_active,
        early_warning=highest > _exact(config.early_warning_ratio),
        slow_down_factor=factor,
    )


def slow_down_factor(ratio: Fraction, config: BackpressureConfig) -> float:
    """Return the factor for a pressure: 1.0 up to `release_ratio`, 0.0 from 1, linear between.

    It is rounded down to a multiple of `slow_down_factor_step`.

    Example:
        >>> [slow_down_factor(Fraction(lag, 5_000), BackpressureConfig())
        ...  for lag in (3_500, 3_600, 4_000, 4_500, 5_000)]
        [1.0, 0.9, 0.6, 0.3, 0.0]
    """
    release, step = _exact(config.release_ratio), _exact(config.slow_down_factor_step)
    if ratio <= release:
        return 1.0
    if ratio >= 1:
        return 0.0
    return float((1 - ratio) / (1 - release) // step * step)


def reason_of(
    pressure: Pressure, config: BackpressureConfig, busy_ratio: float | None = None
) -> str:
    """Return why a stage slows its sources down, or warns; empty if it does neither.

    Args:
        pressure: The pressure.
        config: Its thresholds.
        busy_ratio: The share of time that the workers of the stage are busy, from 0 to 1. Default:
            None, it is not mentioned.

    Example:
        >>> config = BackpressureConfig()
        >>> reason_of(next_pressure(NO_PRESSURE, 6_000, 10, config), config, 0.98)
        'lag 6000 > 5000, workers 98 % busy'
    """
    parts = [*_beyond_limits(pressure, config)]
    if pressure.is_active:
        parts += [f"{name} unknown" for name in _unknown(pressure)]
    elif pressure.early_warning:
        parts.append("early warning")
    if parts and busy_ratio is not None:
        parts.append(f"workers {round(100 * busy_ratio)} % busy")
    return ", ".join(parts)


def readings_of(pressure: Pressure) -> str:
    """Return lag and queue for the log, for instance `lag 120, queue unknown`."""
    lag = pressure.lag if pressure.is_lag_known else "unknown"
    queue = pressure.queue_rows if pressure.is_queue_known else "unknown"
    return f"lag {lag}, queue {queue}"


def _beyond_limits(pressure: Pressure, config: BackpressureConfig) -> Iterator[str]:
    release, early = _exact(config.release_ratio), _exact(config.early_warning_ratio)
    for name, rows, is_known, threshold in (
        ("lag", pressure.lag, pressure.is_lag_known, config.lag_threshold),
        ("queue", pressure.queue_rows, pressure.is_queue_known, config.queue_size_threshold),
    ):
        if rows is None or not is_known:
            continue
        if rows > threshold:
            yield f"{name} {rows} > {threshold}"
        elif pressure.is_active and rows >= threshold * release:
            yield f"{name} {rows} >= {math.ceil(threshold * release)}"
        elif not pressure.is_active and rows > threshold * early:
            yield f"{name} {rows} > {math.floor(threshold * early)}"


def _unknown(pressure: Pressure) -> list[str]:
    known = {"lag": pressure.is_lag_known, "queue": pressure.is_queue_known}
    return [name for name, is_known in known.items() if not is_known]


def _known(rows: int | None) -> int | None:
    return None if rows is None or rows < 0 else rows


@lru_cache(maxsize=64)
def _exact(share: float) -> Fraction:
    """Return the fraction that a setting is written as: 7/10 for 0.7."""
    return Fraction(str(share))


# Signals: how the pressure of a stage reaches the stages and sources before it.
#
# The effective pressure of a stage is the highest of all stages from it to the end. So a source
# learns of pressure at its last stage at the next check, before the stages in between are full.


class BackpressureSignal(NamedTuple):
    """Backpressure is active at a stage, or at one after it."""

    stage: str
    """The stage that asks those before it to slow down."""
    slow_down_factor: float
    """From 0.0 (stop) to 1.0 (full speed)."""
    reason: str
    """Why, for instance `lag 6000 > 5000, workers 98 % busy`: the readings of `cause`."""
    timestamp: float
    """When it was checked, in seconds since 1970."""
    cause: str
    """The stage where it began."""


class StagePressure(NamedTuple):
    """The pressure that a stage reports for itself."""

    slow_down_factor: float
    is_active: bool
    early_warning: bool
    reason: str


class EffectivePressure(NamedTuple):
    """The combined pressure of a stage and all stages after it."""

    slow_down_factor: float = 1.0
    """The lowest factor of all."""
    is_active: bool = False
    """Whether backpressure is active at any of them."""
    early_warning: bool = False
    """Whether any of them warns."""
    reason: str = ""
    """The reason of `cause`; empty if there is none."""
    cause: str | None = None
    """The stage where it began; of equally slow stages the last, because it holds up those before
    it. None if nothing slows down."""
    missing: frozenset[str] = frozenset()
    """The stages whose pressure is unknown; they count as 1.0."""

    @property
    def asks_to_pause(self) -> bool:
        """Whether a source should not produce, because backpressure is active or near."""
        return self.is_active or self.early_warning


class Propagated(NamedTuple):
    """The pressure at one stage of a graph."""

    heard: EffectivePressure
    """The pressure of the stages after it, which a source has to follow."""
    effective: EffectivePressure
    """The same, including its own pressure."""


def downstream_first(downstream: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the stages of a graph, each after those downstream of it.

    Args:
        downstream: The names of the stages that follow each stage. Stages without a key have none.

    Raises:
        GraphError: A stage follows itself.

    Example:
        >>> downstream_first({"orders": ["totals"], "totals": ["store"]})
        ('store', 'totals', 'orders')
    """
    try:
        return tuple(TopologicalSorter(downstream).static_order())
    except CycleError as error:
        circle = " -> ".join(map(repr, reversed(error.args[1])))
        raise GraphError(
            f"the stages {circle} make a circle; let data flow in one direction"
        ) from error


def propagate(
    downstream: Mapping[str, Sequence[str]],
    own: Mapping[str, StagePressure],
    order: Sequence[str] | None = None,
) -> dict[str, Propagated]:
    """Return the pressure at each stage of a graph.

    Args:
        downstream: The names of the stages that follow each stage.
        own: The pressure that each stage reports for itself. A missing stage counts as 1.0 and is
            named in `missing`.
        order: The result of `downstream_first`. Default: None, which calls it.

    Raises:
        GraphError: A stage follows itself.

    Example:
        >>> slow = StagePressure(0.0, True, True, "lag 6000 > 5000")
        >>> fast = StagePressure(1.0, False, False, "")
        >>> graph = {"a": ["b"], "b": ["c"]}
        >>> propagate(graph, {"a": fast, "b": fast, "c": slow})["a"].effective.cause
        'c'
    """
    found: dict[str, Propagated] = {}
    for stage in downstream_first(downstream) if order is None else order:
        heard = _combined(found[each].effective for each in downstream.get(stage, ()))
        found[stage] = Propagated(heard, _combined((heard, _own(stage, own.get(stage)))))
    return found


def _own(stage: str, pressure: StagePressure | None) -> EffectivePressure:
    if pressure is None:
        return EffectivePressure(missing=frozenset((stage,)))
    slows = pressure.is_active or pressure.early_warning or pressure.slow_down_factor < 1
    if not slows:
        return EffectivePressure()
    return EffectivePressure(*pressure, stage, frozenset())


def _combined(pressures: Iterable[EffectivePressure]) -> EffectivePressure:
    """Return the highest pressure; among equals the first gives reason and cause."""
    combined = list(pressures)
    if not combined:
        return EffectivePressure()
    # Active first, so that a signal names a stage where backpressure is active.
    first = min(combined, key=_rank)
    return EffectivePressure(
        slow_down_factor=min(each.slow_down_factor for each in combined),
        is_active=first.is_active,
        early_warning=any(each.early_warning for each in combined),
        reason=first.reason,
        cause=first.cause,
        missing=frozenset().union(*(each.missing for each in combined)),
    )


def _rank(pressure: EffectivePressure) -> tuple[bool, float, bool]:
    return not pressure.is_active, pressure.slow_down_factor, not pressure.early_warning


# The gate: how signals affect a source.


class GateDecision(NamedTuple):
    """What a source may do until the next check."""

    may_plan: bool = True
    """Whether it may plan, or accept pushed rows."""
    factor: float = 1.0
    """The share of its limit that it may plan."""
    cause: str | None = None
    """The stage that pauses it or slows it down; None if none does."""
    reason: str = ""
    """The reason of that stage."""

    def limited(self, limit: Limit) -> Limit:
        """Return a limit times the factor, at least one row and one byte.

        Example:
            >>> GateDecision(factor=0.3).limited(Limit(rows=2_000, bytes=1 << 20))
            Limit(rows=600, bytes=314572)
        """
        if self.factor == 1.0:
            return limit
        return Limit(*(max(1, int(most * self.factor)) for most in limit))


OPEN = GateDecision()
"""Nothing is held back."""


def decide(heard: EffectivePressure, gate: Gate) -> GateDecision:
    """Return what a source may do.

    Args:
        heard: The pressure of the stages after the source. Its own is not included: a source that
            is behind has to read more, not less.
        gate: The `gate` of the `BackpressureConfig`.

    Example:
        >>> heard = EffectivePressure(0.6, False, False, "", "totals")
        >>> decide(heard, "both").factor, decide(heard, "credit").factor
        (0.6, 1.0)
    """
    if gate == "credit":
        return OPEN
    waits_for_release = gate == "signal" and heard.is_active
    pauses = heard.early_warning or heard.slow_down_factor == 0 or waits_for_release
    if not pauses and heard.slow_down_factor == 1:
        return OPEN
    return GateDecision(not pauses, heard.slow_down_factor, heard.cause, heard.reason)


# Readings: what a run knows about a stage at one moment.


Partition = int | str
"""The number or the name of a partition; all partitions of a stage use the same type."""


@dataclass(frozen=True, kw_only=True)
class PartitionProgress:
    """How far a partition has been read.

    Attributes:
        latest: The rows ever added, or the next offset to be written; None if unknown.
        committed: The rows that are done, or the next offset to be read; None if nothing was
            committed, which counts as 0.
        low: The lowest offset that still exists. Default: 0.
        rate_per_s: Rows that are done per second. Default: None, not known.
        owner: The worker that reads it. Default: None, there is none or it is not known.
        seconds: Seconds that it is behind. Default: None, derived from the rate, or unknown.
    """

    latest: int | None
    committed: int | None = None
    low: int = 0
    rate_per_s: float | None = None
    owner: str | None = None
    seconds: float | None = None

    @property
    def lag(self) -> int | None:
        """Rows that are not done; None if unknown or if the result would be negative."""
        return partition_lag(self.latest, self.committed, self.low)

    @property
    def lag_seconds(self) -> float | None:
        """Seconds that it is behind, infinite at rate 0; None if unknown."""
        return PartitionReading(
            partition=0, lag=self.lag, rate_per_s=self.rate_per_s, seconds=self.seconds
        ).time_lag_s

    @classmethod
    def of_lag(cls, lag: Lag, *, owner: str | None = None) -> Self:
        """Return the progress of a partition for which a source knows only the lag."""
        rate = lag.records / lag.seconds if lag.records is not None and lag.seconds else None
        return cls(latest=lag.records, rate_per_s=rate, owner=owner, seconds=lag.seconds)


@dataclass(frozen=True, kw_only=True)
class StageReading:
    """A stage at one moment. Values that could not be read are None, never 0.

    Attributes:
        lag: Rows that the stage still has to read, see `lag_of`. A stage fed by a queue of this
            process has 0: its rows are in `queue_rows`.
        queue_rows: Rows that it has accepted but not completed.
        partitions: The progress of its partitions, by number or name. Default: none.
        rate_per_s: Rows that it completes per second. Default: None, not known.
        busy_ratio: The share of time that its workers are busy, from 0 to 1. Default: None, not
            known.
    """

    lag: int | None
    queue_rows: int | None
    partitions: Mapping[Partition, PartitionProgress] = field(default_factory=dict)
    rate_per_s: float | None = None
    busy_ratio: float | None = None


def lag_of(partitions: Iterable[PartitionProgress]) -> int | None:
    """Return the sum of the lags; None if any of them is unknown.

    Example:
        >>> lag_of([PartitionProgress(latest=7, committed=3), PartitionProgress(latest=2)])
        6
    """
    lags = [partition.lag for partition in partitions]
    return None if None in lags else sum(filter(None, lags))
