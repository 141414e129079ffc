"""The load of each thread and partition, before and after balancing, as SVG."""

import os
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from batchqueue._paths import LocalPath, local_path
from batchqueue._type_names import type_name
from batchqueue.display.text import duration
from batchqueue.exceptions import ConfigError

if TYPE_CHECKING:
    from batchqueue.stats import BatchQueueStats, PartitionStats

_WIDTH, _BAR, _ROW, _LEFT, _TOP = 760, 560, 22, 90, 46
_SMALLEST = 1.0
"""Partitions that are narrower are drawn together."""

_OTHER_FORMATS = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pdf", ".ps"}

_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#F0E442", "#E69F00", "#D55E00", "#CC79A7")
"""Of Okabe and Ito, which colour-blind people can distinguish."""


def draw(stats: "BatchQueueStats", path: LocalPath) -> None:
    """Write the picture into a file.

    Raises:
        ConfigError: `path` is not one, or names a file of another format.
    """
    file = local_path("picture: path", path)
    stem, suffix = os.path.splitext(os.fspath(path))
    if suffix.lower() in _OTHER_FORMATS:
        raise ConfigError(
            f"picture: path is {os.fspath(path)!r}, and the picture is an SVG; give "
            f"{stem + '.svg'!r}, which a browser shows and can print"
        )
    file.write_text(picture(stats), encoding="utf-8")


def picture(stats: "BatchQueueStats") -> str:
    """Return two bars for each drain thread: as partitions were dealt, and as they are now.

    A partition is as wide as the time that handlers were called for its items. If no call has
    taken any time, it is as wide as its attempts.
    """
    partitions = [stats.partition(index) for index in range(stats.partition_count)]
    is_timed = any(partition.busy_s > 0 for partition in partitions)
    loads = [part.busy_s if is_timed else float(part.attempts) for part in partitions]
    # A queue deals its partitions in turn; spare threads have none at first.
    before = [partition.index % stats.thread_count for partition in partitions]
    now = [partition.owner for partition in partitions]
    threads = max(stats.thread_count, max(now, default=0) + 1)
    panels = [_by_thread(loads, owners, threads) for owners in (before, now)]
    most = max((sum(thread) for panel in panels for thread in panel), default=0.0) or 1.0
    unit = "time in handlers" if is_timed else "items"
    height = 2 * (_TOP + _ROW * threads) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{escape(stats.name)}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    titles = (
        f"{stats.name}: {unit} by thread, without balancing",
        f"with {stats.moves:_} moves in {stats.rebalances:_} runs of the balancer",
    )
    top = 0
    for title, owners in zip(titles, (before, now), strict=True):
        parts.append(f'<text x="10" y="{top + 28}" font-weight="bold">{escape(title)}</text>')
        for thread in range(threads):
            mine = [
                (part, loads[part.index]) for part in partitions if owners[part.index] == thread
            ]
            parts += _bar(thread, mine, top + _TOP + thread * _ROW, _BAR / most, is_timed)
        top += _TOP + _ROW * threads
    return "\n".join([*parts, "</svg>", ""])


def _by_thread(loads: list[float], owners: list[int], threads: int) -> list[list[float]]:
    by_thread: list[list[float]] = [[] for _ in range(threads)]
    for load, owner in zip(loads, owners, strict=True):
        by_thread[owner].append(load)
    return by_thread


def _bar(
    thread: int,
    mine: "Sequence[tuple[PartitionStats, float]]",
    y: float,
    scale: float,
    is_timed: bool,
) -> Iterator[str]:
    def text(load: float) -> str:
        return duration(load) if is_timed else f"{load:_.0f}"

    total = sum(load for _, load in mine)
    yield f'<text x="10" y="{y + 13}">thread {thread}</text>'
    x, small = float(_LEFT), 0.0
    for partition, load in sorted(mine, key=lambda each: -each[1]):
        width = load * scale
        if width < _SMALLEST:
            small += load
            continue
        names = ", ".join(type_name(kind) for kind in partition.types[:5])
        tip = f"partition {partition.index}: {text(load)}" + (f", {names}" if names else "")
        colour = _COLOURS[partition.index % len(_COLOURS)]
        yield _rect(x, y, width, colour, tip)
        x += width
    if small * scale >= _SMALLEST:
        yield _rect(x, y, small * scale, "#bbbbbb", f"the smallest partitions: {text(small)}")
        x += small * scale
    yield f'<text x="{x + 6:.1f}" y="{y + 13}">{text(total)}</text>'


def _rect(x: float, y: float, width: float, colour: str, tip: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" fill="{colour}" '
        f'stroke="#ffffff" stroke-width="0.5"><title>{escape(tip)}</title></rect>'
    )
