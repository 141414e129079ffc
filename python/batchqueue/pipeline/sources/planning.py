"""Plans, made of the splits that follow a position: up to a limit, and up to another position."""

from collections.abc import Iterable, Iterator

from batchqueue.pipeline.contract import Limit, Plan, Position, Split
from batchqueue.pipeline.errors import SourceChangedError

Step = Split | Position
"""The next split, or a position behind input that is passed over."""


def within(steps: Iterator[Step], start: Position, limit: Limit) -> Plan:
    """Take splits up to the first that would exceed the limit; at least one if there is any.

    A split of unknown size is alone in its plan. What comes before an error is read before it is
    raised. An empty plan ends behind what was passed over.
    """
    taken: list[Split] = []
    end = start
    rows = size = 0
    while rows < limit.rows and size < limit.bytes:
        try:
            step = next(steps, None)
        except Exception:
            if taken:
                break
            raise
        if step is None:
            break
        if not isinstance(step, Split):
            end = end if taken else step
            continue
        if step.rows is None or step.bytes is None:
            taken += [] if taken else [step]
            break
        rows += step.rows
        size += step.bytes
        if taken and (rows > limit.rows or size > limit.bytes):
            break
        taken.append(step)
    return Plan(tuple(taken), taken[-1].end if taken else end)


def until(steps: Iterable[Step], start: Position, end: Position, source: str) -> list[Split]:
    """Take the splits up to a position.

    Raises:
        SourceChangedError: None of the steps leads there.
    """
    taken: list[Split] = []
    if start == end:
        return taken
    for step in steps:
        if isinstance(step, Split):
            taken.append(step)
        if end == (step.end if isinstance(step, Split) else step):
            return taken
    raise SourceChangedError(
        f"source {source!r}: no split between {start!r} and the end of the input ends at {end!r}; "
        "read with the settings and the input that the positions come from, or use a new checkpoint"
    )
