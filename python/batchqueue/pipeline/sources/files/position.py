"""Positions of `FileSource`: which listing, which file of it, and which piece of that."""

from typing import Any, NamedTuple

from batchqueue.pipeline.contract import Position
from batchqueue.pipeline.errors import PositionError
from batchqueue.pipeline.sources.files.scan import FileEntry


class Place(NamedTuple):
    """A position, checked."""

    mark: dict[str, Any]
    """The listing."""
    file: int
    """Number of the file in it."""
    piece: int
    """Number of the piece in the file."""
    at: FileEntry | None
    """The file; None behind the last one."""

    @property
    def order(self) -> tuple[int, int]:
        """What orders the positions of a listing."""
        return self.file, self.piece


def position_of(source: str, place: Place) -> Position:
    """Return a position.

    Args:
        source: The name of the source.
        place: Where it is.
    """
    return {
        "source": source,
        "list": place.mark,
        "file": place.file,
        "piece": place.piece,
        "at": None if place.at is None else list(place.at),
    }


def place_of(source: str, position: Position) -> Place:
    """Return what a position says.

    Raises:
        PositionError: It is not a position of a file source with that name.
    """
    wrong = PositionError(
        f"source {source!r}: {position!r} is not a position of it; begin with a new checkpoint, or "
        "give the source the name and paths that it had"
    )
    if not isinstance(position, dict) or position.get("source") != source:
        raise wrong
    try:
        mark, file, piece, at = (position[key] for key in ("list", "file", "piece", "at"))
    except KeyError as error:
        raise wrong from error
    numbers = all(type(number) is int and number >= 0 for number in (file, piece))
    listed = isinstance(mark, dict) and isinstance(mark.get("id"), str)
    entry = at is None or (isinstance(at, (list, tuple)) and len(at) == len(FileEntry._fields))
    if not (numbers and listed and entry):
        raise wrong
    return Place(mark, file, piece, None if at is None else FileEntry(*at))
