"""The picture of a run: mean delay of every hour, and items per drain thread."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

_NEW_YORK = ZoneInfo("America/New_York")

_LATE_MINUTES = 60.0
"""The darkest colour; the few hours above it share it, because they would bleach all others."""


def draw(
    path: Path, hourly_delay: Mapping[int, float | None], load: Sequence[Sequence[int]]
) -> None:
    """Write the picture as PNG.

    Args:
        path: The file to write.
        hourly_delay: Mean departure delay in minutes by hour (its first second since the epoch,
            UTC); None for an hour in which all flights were cancelled. At least one hour.
        load: For each micro-batch, the number of items that drain thread 0, 1, ... handled.
    """
    with matplotlib.rc_context({"date.converter": "concise"}):
        figure = Figure(figsize=(12, 8), layout="constrained")
        delays, threads = figure.subplots(2, 1, height_ratios=[2, 1])
        _draw_delays(delays, hourly_delay)
        _draw_load(threads, load)
        figure.savefig(path, dpi=120)


def delays_by_day(
    hourly_delay: Mapping[int, float | None],
) -> tuple[date, npt.NDArray[np.float64]]:
    """Arrange delays by day and hour of New York, where the flights are scheduled.

    Args:
        hourly_delay: As for `draw`.

    Returns:
        The first day, and the delays, of shape (24, days): NaN for an hour without departures.
        When summer time ends, the hour that repeats shows the later delay; no flight of the demo
        leaves in it.
    """
    hours = {
        datetime.fromtimestamp(bucket, _NEW_YORK): delay
        for bucket, delay in sorted(hourly_delay.items())
    }
    first = min(hour.date() for hour in hours)
    days = (max(hour.date() for hour in hours) - first).days + 1
    delays = np.full((24, days), np.nan)
    for hour, delay in hours.items():
        delays[hour.hour, (hour.date() - first).days] = np.nan if delay is None else delay
    return first, delays


def _draw_delays(axes: Axes, hourly_delay: Mapping[int, float | None]) -> None:
    """Draw a column per day and a row per hour, so that a year of hours stays readable."""
    first, delays = delays_by_day(hourly_delay)
    edges: Any = [  # untyped: matplotlib converts dates
        first + timedelta(days=day) for day in range(delays.shape[1] + 1)
    ]
    mesh = axes.pcolormesh(edges, np.arange(25), delays, cmap="YlOrRd", vmin=0, vmax=_LATE_MINUTES)
    axes.set_yticks(np.arange(0, 24, 3) + 0.5, [f"{hour:02d}:00" for hour in range(0, 24, 3)])
    axes.set_facecolor("0.92")
    axes.set_ylabel("hour of scheduled departure, New York time")
    axes.set_title("Mean departure delay of each hour, flights from New York (grey: no departures)")
    axes.figure.colorbar(mesh, ax=axes, extend="both", label="minutes")


def _draw_load(axes: Axes, load: Sequence[Sequence[int]]) -> None:
    """Draw a group of bars per micro-batch, with a bar per drain thread."""
    threads = max((len(items) for items in load), default=0)
    width = 0.8 / max(threads, 1)
    total = sum(map(sum, load))
    for thread in range(threads):
        items = [counts[thread] if thread < len(counts) else 0 for counts in load]
        offsets = np.arange(len(load)) + (thread - (threads - 1) / 2) * width
        axes.bar(offsets, items, width, label=f"drain thread {thread}: {sum(items) / total:.0%}")
    axes.set_xticks(range(len(load)))
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.set_xlabel("micro-batch")
    axes.set_ylabel("items handled")
    axes.set_title("Load per drain thread (L1, all tasks)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=8, frameon=False)
