"""Pressure: from how far a stage is behind to whether, and how much, its sources slow down.

Pure. Numbers of rows are compared with exact fractions of the thresholds, so that a lag of exactly
0.7 of its threshold is not below it, whatever floats make of 0.7.

A reading that is not known is None; a negative one is not known either. It neither activates nor
releases backpressure: what was last known remains in force, and the release needs both readings.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from batchqueue.pipeline.backpressure.config import BackpressureConfig


class Pressure(NamedTuple):
    """The pressure of a stage after a reading, all that the next one needs to know of it."""

    lag: int | None
    """Rows still to read, as last known; None if never known."""
    queue_rows: int | None
    """Rows accepted and not completed, as last known; None if never known."""
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
    """From 0.0, stop, to 1.0, as fast as possible."""


NO_PRESSURE = Pressure(None, None, False, False, None, False, False, 1.0)
"""Before the first reading."""


def next_pressure(
    before: Pressure, lag: int | None, queue_rows: int | None, config: BackpressureConfig
) -> Pressure:
    """Return the pressure after a reading.

    Args:
        before: The pressure after the last reading; `NO_PRESSURE` if there is none.
        lag: Rows that the stage has still to read; None or negative if not known.
        queue_rows: Rows that it has accepted and not completed; None or negative if not known.
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
    # What is only remembered can be above 1 only if it has activated backpressure already.
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
    """Return the factor for a pressure: 1.0 up to `release_ratio`, 0.0 from 1 on, linear between.

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
        busy_ratio: The share of the time in which the workers of the stage are busy, from 0 to 1.
            Default: None, it is not mentioned.

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


def _unknown(pressure: Pressure) -> Iterator[str]:
    if not pressure.is_lag_known:
        yield "lag"
    if not pressure.is_queue_known:
        yield "queue"


def _known(rows: int | None) -> int | None:
    return None if rows is None or rows < 0 else rows


@lru_cache(maxsize=64)
def _exact(share: float) -> Fraction:
    """The fraction that a setting is written as: 0.7 is 7/10."""
    return Fraction(str(share))
