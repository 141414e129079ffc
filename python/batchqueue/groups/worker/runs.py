"""`Part`, `Run`: the records of chunks on their way to one handler."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchqueue.groups.entries import Entries
from batchqueue.groups.messages import Entry
from batchqueue.groups.record import Record
from batchqueue.groups.tracker import Chunk
from batchqueue.groups.worker.attempts import Attempts, Piece
from batchqueue.groups.worker.batch import Batch
from batchqueue.groups.worker.held import HeldPartition

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership


@dataclass(slots=True, eq=False)
class Part:
    """The records of a chunk that one handler gets.

    Attributes:
        held: The partition.
        chunk: The chunk.
        entries: What the backend has read: these records, and perhaps others.
        records: The records.
    """

    held: HeldPartition
    chunk: Chunk
    entries: Entries
    records: list[Record[Any]]


class BadValue:
    """The value of a record that cannot be handled.

    Attributes:
        error: Why.
    """

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


@dataclass(slots=True, eq=False)
class Run:
    """Records of one assignment that a handler gets together, and what is left to do of them."""

    held: HeldPartition
    parts: list[Part]
    attempts: Attempts
    is_waiting: bool = False
    """Whether a record is on its way to the dead letters: nothing is called before (R18)."""

    def batch(self, piece: Piece, member: "Membership", kind: str) -> Batch:
        """Make the batch of a piece."""
        assignment = self.held.assignment
        assert assignment is not None
        records: list[Record[Any]] = []
        for part, begin, end in self._pieces(piece):
            records += part.records[begin:end]
        group, stream = member.settings.group, member.stream
        return Batch(group, stream, assignment, records, attempt=piece.tries, kind=kind)

    def entry(self, piece: Piece) -> Entry:
        """Return the first record of a piece as it is in the stream."""
        part, begin, _ = next(self._pieces(piece))
        return Entry(*part.entries.entry(part.records[begin].offset))

    def counts(self, piece: Piece) -> list[tuple[Chunk, int]]:
        """Return how many records of which chunks a piece has."""
        return [(part.chunk, end - begin) for part, begin, end in self._pieces(piece)]

    def _pieces(self, piece: Piece) -> Iterator[tuple[Part, int, int]]:
        """Yield the parts that a piece has records of, and the places of these in the part."""
        before = 0
        for part in self.parts:
            begin, end = max(piece.begin - before, 0), piece.end - before
            before += len(part.records)
            end = min(end, len(part.records))
            if begin < end:
                yield part, begin, end
