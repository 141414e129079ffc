"""A graph as text and as a picture."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from batchqueue.base.words import counted
from batchqueue.pipeline.compiling import CompiledGraph, StagePlan, StageRoute
from batchqueue.pipeline.contract import Source, TransactionalSink

__all__ = ["Activity", "explained", "svg"]


_GAP = "   "


def explained(graph: CompiledGraph) -> str:
    """Return the sources, stages and sinks of a graph as a tree, one line each.

    Args:
        graph: The graph, compiled.
    """
    lines = [line for name, source in graph.sources.items() for line in _tree(graph, name, source)]
    width = max(len(left) for left, _ in lines)
    return "\n".join(f"{left:{width}}{_GAP}{right}" for left, right in lines)


def order_of(graph: CompiledGraph, stage: StagePlan) -> str:
    """Describe to a user the order in which a stage processes rows."""
    above = next((each for each in graph.stages if each.name == stage.upstream), None)
    before = "in order" if above is None else order_of(graph, above)
    if stage.workers == 1 or before == "in any order":
        return before
    match stage.route:
        case StageRoute.KEY:
            return "in order per key" if before == "in order" else before
        case StageRoute.SOURCE_PARTITION:
            return "in order per source partition" if before != "in order per key" else before
        case StageRoute.ANY:
            return "in any order"


def delivery_of(stage: StagePlan) -> str:
    """Return what a sink does with rows that are delivered again."""
    assert stage.sink is not None
    return "exactly once" if isinstance(stage.sink.sink, TransactionalSink) else "at least once"


def _tree(graph: CompiledGraph, name: str, source: Source) -> Iterator[tuple[str, str]]:
    end = "ends" if source.bounded else "does not end"
    yield name, f"source, {end}: {source!r}"
    yield from _below(graph, name, "")


def _below(graph: CompiledGraph, name: str, indent: str) -> Iterator[tuple[str, str]]:
    stages = graph.after(name)
    for stage in stages:
        is_last = stage is stages[-1]
        yield f"{indent}{'└─ ' if is_last else '├─ '}{stage.name}", _described(graph, stage)
        yield from _below(graph, stage.name, indent + ("   " if is_last else "│  "))


def _described(graph: CompiledGraph, stage: StagePlan) -> str:
    order = order_of(graph, stage)
    if stage.sink is not None:
        return f"sink, {delivery_of(stage)}, {order}: {stage.sink.sink!r}"
    return f"{counted(stage.workers, 'worker')}, {order}: {_steps_of(stage)}"


def _steps_of(stage: StagePlan) -> str:
    key = [] if stage.key is None else [str(stage.key)]
    return ", ".join([*key, *map(str, stage.steps)])


# The layout of a picture: sources on the left, sinks on the right, branches stacked.


@dataclass(frozen=True)
class Box:
    """The place of a source or stage.

    Attributes:
        name: Its name.
        column: The number of arrows from its source to it.
        row: Its row, from 0; fractional if centred between two branches.
        stage: The stage, or None for a source.
        upstream: The name of the box that an arrow comes from, or None.
    """

    name: str
    column: int
    row: float
    stage: StagePlan | None = None
    upstream: str | None = None


def boxes_of(graph: CompiledGraph) -> Mapping[str, Box]:
    """Return the boxes by name, each centred on the boxes that follow it."""
    boxes: dict[str, Box] = {}
    next_row = 0

    def place(name: str, column: int, stage: StagePlan | None) -> float:
        nonlocal next_row
        rows = [place(each.name, column + 1, each) for each in graph.after(name)]
        if rows:
            row = (rows[0] + rows[-1]) / 2
        else:
            row = float(next_row)
            next_row += 1
        boxes[name] = Box(name, column, row, stage, None if stage is None else stage.upstream)
        return row

    for source in graph.sources:
        place(source, 0, None)
    return boxes


_WIDTH, _HEIGHT = 210, 92
_ACROSS, _DOWN = 300, 122
_MARGIN, _TITLE = 20, 44
_LONGEST_TEXT = 30
_TIP = 10
_VISIBLE_RATIO = 0.05

_INK, _GREY, _PAPER = "#1a1a1a", "#767676", "#ffffff"
_FILL = {"source": "#dcebf7", "stage": "#f2f2f2", "sink": "#dff2e9"}
_WAITING = "#D55E00"
"""From the colours of Okabe and Ito, which colour-blind people can distinguish."""


class Activity(NamedTuple):
    """The current activity of a source or stage."""

    rows_per_s: float
    """The rows that it emits, or writes, per second."""
    queue_rows: int | None = None
    """The rows that it has queued or is processing; None for a source."""
    queue_limit_rows: int | None = None
    """The most rows that it holds; None for a source."""
    busy_ratio: float | None = None
    """The share of time that it spends working, 0 to 1; None for a source."""
    waited_for_ratio: float = 0.0
    """The share of time that the box before it spends waiting for it, 0 to 1."""
    is_root: bool = False
    """Whether it is the root of what the boxes before it wait for."""
    note: str = ""
    """A remark, for example why it pauses."""


def svg(title: str, graph: CompiledGraph, activity: Mapping[str, Activity] | None = None) -> str:
    """Return a picture as the text of an SVG file.

    Args:
        title: Its title.
        graph: The graph, compiled.
        activity: The activity of the sources and stages, by name. Default: None, the graph alone.
    """
    boxes = boxes_of(graph)
    activity = activity or {}
    width = 2 * _MARGIN + _ACROSS * max(box.column for box in boxes.values()) + _WIDTH
    height = _MARGIN + _TITLE + _DOWN * (1 + max(box.row for box in boxes.values()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" '
        f'viewBox="0 0 {width} {height:g}" font-family="sans-serif" role="img" '
        f"aria-label={quoteattr(title)}>",
        f'<rect width="100%" height="100%" fill="{_PAPER}"/>',
        _text(_MARGIN, _MARGIN + 12, title, size=16, weight="bold"),
    ]
    for box in boxes.values():
        if box.upstream is not None:
            parts += _arrow(boxes[box.upstream], box, activity.get(box.name))
    for box in boxes.values():
        parts += ["<g>", *_box(graph, box, activity.get(box.name)), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _corner(box: Box) -> tuple[float, float]:
    return _MARGIN + _ACROSS * box.column, _MARGIN + _TITLE + _DOWN * box.row


def _arrow(start: Box, end: Box, activity: Activity | None) -> Iterator[str]:
    (x0, y0), (x1, y1) = _corner(start), _corner(end)
    x0, y0, y1 = x0 + _WIDTH, y0 + _HEIGHT / 2, y1 + _HEIGHT / 2
    waits = 0.0 if activity is None else activity.waited_for_ratio
    colour = _WAITING if waits >= _VISIBLE_RATIO else _GREY
    tip, middle = x1 - _TIP, (x0 + x1 - _TIP) / 2
    yield (
        f'<path d="M{x0:g} {y0:g}C{middle:g} {y0:g} {middle:g} {y1:g} {tip:g} {y1:g}" '
        f'fill="none" stroke="{colour}" stroke-width="{1.5 + 2 * waits:.1f}"/>'
    )
    yield f'<path d="M{x1:g} {y1:g}l-{_TIP} -5v10z" fill="{colour}"/>'
    if waits >= _VISIBLE_RATIO:
        beside = y1 + (17 if y1 > y0 else -9)
        yield _text(tip, beside, f"waits {waits:.0%}", colour=colour, size=11, anchor="end")


def _box(graph: CompiledGraph, box: Box, activity: Activity | None) -> Iterator[str]:
    x, y = _corner(box)
    kind, what = _kind_of(graph, box)
    is_root = activity is not None and activity.is_root
    yield f"<title>{escape(f'{box.name}: {what}')}</title>"
    yield (
        f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" '
        f'fill="{_FILL[kind]}" stroke="{_WAITING if is_root else _GREY}" '
        f'stroke-width="{2.5 if is_root else 1}"/>'
    )
    yield _text(x + 10, y + 20, box.name, size=13, weight="bold")
    yield _text(x + 10, y + 37, what, colour=_GREY, size=11)
    if activity is None:
        return
    busy = "" if activity.busy_ratio is None else f", busy {activity.busy_ratio:.0%}"
    yield _text(x + 10, y + 55, f"{activity.rows_per_s:,.0f} rows/s{busy}", size=11)
    if activity.note:
        yield _text(x + 10, y + 72, activity.note, colour=_WAITING, size=11)
    elif activity.queue_rows is not None:
        yield from _depth(x + 10, y + 64, activity.queue_rows, activity.queue_limit_rows)


def _depth(x: float, y: float, rows: int, limit: int | None) -> Iterator[str]:
    text = counted(rows, "row") if limit is None else f"{rows:,} of {limit:,} rows"
    yield _text(x, y + 8, text, size=11)
    if limit:
        width = _WIDTH - 20
        full = width * min(1.0, rows / limit)
        yield f'<rect x="{x:g}" y="{y + 14:g}" width="{width}" height="5" fill="#d9d9d9"/>'
        yield f'<rect x="{x:g}" y="{y + 14:g}" width="{full:.1f}" height="5" fill="#0072B2"/>'


def _kind_of(graph: CompiledGraph, box: Box) -> tuple[str, str]:
    if box.stage is None:
        return "source", type(graph.sources[box.name]).__name__
    if box.stage.sink is not None:
        return "sink", f"{type(box.stage.sink.sink).__name__}, {delivery_of(box.stage)}"
    return "stage", f"{counted(box.stage.workers, 'worker')}: {_steps_of(box.stage)}"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    colour: str = _INK,
    size: int,
    weight: str = "normal",
    anchor: str = "start",
) -> str:
    short = text if len(text) <= _LONGEST_TEXT or size > 13 else text[: _LONGEST_TEXT - 1] + "…"
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(short)}</text>'
    )
