"""The picture of a run: who owned which partition when, and how fast each worker was."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from batchqueue.cli.demo_groups.timeline import Timeline

_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"),
    "#999999",
)
"""The colours of Okabe and Ito, which colour-blind people can distinguish, and a grey."""

_DARK = ("#0072B2", "#000000", "#009E73", "#D55E00")
_UNOWNED: Any = {"facecolor": "white", "edgecolor": "0.65", "hatch": "////", "linewidth": 0}
_BAR = 0.72
_LEAST_SHARE_WITH_TEXT = 0.03
_INTERVALS = 80


def draw(path: Path, timeline: Timeline, carriers: Mapping[int, Sequence[str]]) -> None:
    """Write the picture as PNG.

    Args:
        path: The file to write.
        timeline: The run.
        carriers: The carriers of each partition.
    """
    with matplotlib.rc_context({"font.size": 10}):
        figure = Figure(figsize=(12, 7.5), layout="constrained")
        owners, rates = figure.subplots(2, 1, height_ratios=[2, 1], sharex=True)
        _draw_owners(owners, timeline, carriers)
        _draw_rates(rates, timeline)
        _mark_changes(owners, rates, timeline)
        figure.legend(
            handles=_legend(timeline), loc="outside lower center", ncols=10, frameon=False
        )
        figure.savefig(path, dpi=120)


def _colours(timeline: Timeline) -> dict[str, str]:
    return dict(zip(timeline.story.names, _COLOURS, strict=False))


def _draw_owners(axes: Axes, timeline: Timeline, carriers: Mapping[int, Sequence[str]]) -> None:
    """Draw a row per partition, with a bar per owner that has its number."""
    colours = _colours(timeline)
    pad = 0.006 * timeline.end
    for span in timeline.spans:
        length, colour = span.ended - span.began, colours[span.worker]
        axes.barh(span.partition, length, _BAR, span.began, color=colour, linewidth=0)
        if length >= _LEAST_SHARE_WITH_TEXT * timeline.end:
            ink = "white" if colour in _DARK else "black"
            number = span.worker.removeprefix("worker-")
            axes.text(span.began + pad, span.partition, number, va="center", color=ink)
    for gap in timeline.gaps:
        axes.barh(gap.partition, gap.seconds, _BAR, gap.began, **_UNOWNED)
    numbers = sorted(timeline.partitions)
    labels = [f"{' '.join(carriers[number]) or 'no flights'}   {number}" for number in numbers]
    axes.set_yticks(numbers, labels)
    axes.set_ylim(max(numbers) + 0.6, min(numbers) - 0.6)
    axes.set_xlim(0, timeline.end)
    axes.set_ylabel("carriers and number of the partition")
    axes.set_title("Owner of each partition", pad=22)


def _draw_rates(axes: Axes, timeline: Timeline) -> None:
    """Draw the workers' rates on top of each other."""
    edges = np.linspace(0, timeline.end, _INTERVALS + 1)
    colours = _colours(timeline)
    below = np.zeros(_INTERVALS)
    for name, colour in colours.items():
        rates = timeline.rates(name, edges)
        axes.bar(edges[:-1], rates, np.diff(edges), below, align="edge", color=colour, linewidth=0)
        below += rates
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.set_xlabel("seconds since the first flight was produced")
    axes.set_ylabel("flights per second")
    axes.set_title("Flights stored by each worker")


def _mark_changes(owners: Axes, rates: Axes, timeline: Timeline) -> None:
    story = timeline.story
    changes = (
        (timeline.killed_at, f"{story.killed} killed", "right"),
        (timeline.joined_at, f"{story.joined} joined", "left"),
    )
    for at, text, side in changes:
        for axes in (owners, rates):
            axes.axvline(at, color="black", linestyle="--", linewidth=1)
        owners.text(at, 1.01, f" {text} ", transform=owners.get_xaxis_transform(), ha=side)


def _legend(timeline: Timeline) -> list[Patch]:
    owners = [Patch(color=colour, label=name) for name, colour in _colours(timeline).items()]
    return [*owners, Patch(label="no owner", **_UNOWNED)]
