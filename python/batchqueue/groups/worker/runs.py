"""`Part`, `Run`: the records of chunks on their way to one handler."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
        records: The records.
        items: The same as the backend has read them.
    """

    held: HeldPartition
    chunk: Chunk[Any]
    records: list[Record[Any]]
    items: list[Any]


class BadValue:
    """The value of a record that cannot be handled.

    Attributes:
        error: Why.
    """

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
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
        records = [record for part in self.parts for record in part.records]
        assignment = self.held.assignment
        assert assignment is not None
        chosen = records[piece.begin : piece.end]
        group, stream = member.settings.group, member.stream
        return Batch(group, stream, assignment, chosen, attempt=piece.tries, kind=kind)

    def items(self, piece: Piece) -> list[Any]:
        """Return the records of a piece as the backend has read them."""
        return [item for part in self.parts for item in part.items][piece.begin : piece.end]

    def counts(self, piece: Piece) -> list[tuple[Chunk[Any], int]]:
        """Return how many records of which chunks a piece has."""
        counts, begin = [], 0
        for part in self.parts:
            end = begin + len(part.records)
            count = min(end, piece.end) - max(begin, piece.begin)
            if count > 0:
                counts.append((part.chunk, count))
            begin = end
        return counts
