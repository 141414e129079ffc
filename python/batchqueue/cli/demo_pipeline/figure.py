"""The picture of a run: how fast the source was read, and how full the slow sink was."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from batchqueue.cli.demo_pipeline.board import Stall
from batchqueue.cli.demo_pipeline.recorder import Sample

_RATE, _DEPTH, _FACTOR = "#0072B2", "#E69F00", "#009E73"
_SMOOTHED = 5
"""Samples that a rate is the mean of: half a second."""


def draw(path: Path, samples: Sequence[Sample], stall: Stall | None, bound: int) -> None:
    """Write the picture as PNG.

    Args:
        path: The file to write.
        samples: The run, at least two samples.
        stall: When the sink stood still; None if it did not.
        bound: The most flights that may wait for the sink.
    """
    began = samples[0].at
    times = [sample.at - began for sample in samples]
    with matplotlib.rc_context({"font.size": 10}):
        figure = Figure(figsize=(11, 7), layout="constrained")
        rate, depth, factor = figure.subplots(3, 1, height_ratios=[2, 2, 1], sharex=True)
        rate.step(times, _rates(samples), color=_RATE)
        rate.set_title("Flights read per second")
        depth.step(times, [sample.depth for sample in samples], color=_DEPTH)
        depth.axhline(bound, color="0.4", linestyle="--", linewidth=1)
        depth.text(0, bound, " bound", va="bottom", color="0.4")
        depth.set_ylim(0, bound * 1.25)
        depth.set_title("Flights in front of the slow sink")
        factor.step(times, [sample.factor for sample in samples], color=_FACTOR, where="post")
        factor.set_ylim(-0.05, 1.05)
        factor.set_title("Its slow-down factor: 1 as fast as possible, 0 stop")
        factor.set_xlabel("seconds")
        for axes in (rate, depth):
            axes.yaxis.set_major_formatter(EngFormatter())
            axes.set_ylim(bottom=0)
        if stall is not None:
            for axes in (rate, depth, factor):
                _mark(axes, stall.began - began, stall.ended - began)
            rate.text(stall.began - began, 0.92, " the sink stands still", **_in_axes(rate))
        figure.savefig(path, dpi=120)


def _rates(samples: Sequence[Sample]) -> list[float]:
    rates = []
    for number, sample in enumerate(samples):
        earlier = samples[max(0, number - _SMOOTHED)]
        passed = sample.at - earlier.at
        rates.append((sample.rows - earlier.rows) / passed if passed > 0 else 0.0)
    return rates


def _mark(axes: Axes, began: float, ended: float) -> None:
    axes.axvspan(began, ended, color="0.9", zorder=0)


def _in_axes(axes: Axes) -> dict[str, object]:
    return {"transform": axes.get_xaxis_transform()}
