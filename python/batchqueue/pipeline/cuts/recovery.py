"""Which cut a run continues from: decided by the checkpoint and the sinks. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from batchqueue.pipeline.contract import Position
from batchqueue.pipeline.errors import CutError

Positions = Mapping[str, Position]


class StoredCut(NamedTuple):
    """A cut as a checkpoint or a sink has it."""

    number: int
    positions: Positions


class Recovery(NamedTuple):
    """Where a run begins."""

    cut: int
    """The last cut that counts; 0 if there is none."""
    positions: Positions
    """Where the sources begin, as far as that cut names them."""
    replay_to: Positions | None = None
    """Up to where to read before cut `cut + 1`, which some sinks have already; None for anywhere"""
    ahead: frozenset[str] = frozenset()
    """The sinks that have cut `cut + 1`, which get nothing of the replay."""


def recover(
    kept: list[StoredCut], sinks: Mapping[str, StoredCut | None], where: str = "the checkpoint"
) -> Recovery:
    """Decide where a run begins.

    Args:
        kept: The cuts of the checkpoint, of which only the last may lack an effect in a sink; empty
            without a checkpoint.
        sinks: The last cut of each transactional sink; None if it has none.
        where: What to call the checkpoint in errors.

    Raises:
        CutError: They disagree about more than the last cut.
    """
    numbers = {name: 0 if cut is None else cut.number for name, cut in sinks.items()}
    if not kept:
        return _by_sinks(sinks, numbers)
    known = {cut.number: cut for cut in kept}
    newest = max(known)
    for name, number in numbers.items():
        if number not in known:
            raise CutError(
                f"sink {name!r} has cut {number} and {where} has "
                f"{' and '.join(f'cut {each}' for each in sorted(known))}; give the pipeline the "
                "checkpoint and the sink that belong together, or begin anew with both empty"
            )
    # Without a transactional sink nothing is stored twice, so the newest one counts.
    last = min(numbers.values(), default=newest)
    ahead = frozenset(name for name, number in numbers.items() if number > last)
    return Recovery(last, known[last].positions, known[newest].positions if ahead else None, ahead)


def _by_sinks(sinks: Mapping[str, StoredCut | None], numbers: Mapping[str, int]) -> Recovery:
    last, newest = min(numbers.values(), default=0), max(numbers.values(), default=0)
    if newest > last + 1:
        older, newer = (
            next(name for name, number in numbers.items() if number == wanted)
            for wanted in (last, newest)
        )
        raise CutError(
            f"sink {older!r} has cut {last} and sink {newer!r} has cut {newest}, which are more "
            "than one apart; give the pipeline the sinks that belong together, or begin anew with "
            "both empty"
        )
    positions: dict[int, Positions] = {number: {} for number in (last, newest)} | {
        cut.number: cut.positions for cut in sinks.values() if cut is not None
    }
    ahead = frozenset(name for name, number in numbers.items() if number > last)
    return Recovery(last, positions[last], positions[newest] if ahead else None, ahead)
