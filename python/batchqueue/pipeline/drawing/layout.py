"""Where the boxes of a picture are: sources left, sinks right, branches below each other."""

from collections.abc import Mapping
from dataclasses import dataclass

from batchqueue.pipeline.compiling import CompiledGraph, StagePlan


@dataclass(frozen=True)
class Box:
    """The place of a source or stage.

    Attributes:
        name: Its name.
        column: How many arrows lead to it from its source.
        row: Its row, from 0; a half one between two branches.
        stage: The stage, or None for a source.
        upstream: The name of the box that an arrow comes from, or None.
    """

    name: str
    column: int
    row: float
    stage: StagePlan | None = None
    upstream: str | None = None


def boxes_of(graph: CompiledGraph) -> Mapping[str, Box]:
    """Return the boxes by name. A box stands in the middle of what follows from it."""
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
