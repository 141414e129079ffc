"""`Journal`: what a worker notes about its partitions and the calls of its handler."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from batchqueue.groups import Assignment, Batch


class Note(Enum):
    """What is noted."""

    ASSIGNED = "assigned"
    """The partition is owned from now on."""

    REVOKED = "revoked"
    """It was given up, after its last call had returned."""

    LOST = "lost"
    """Another worker may own it already."""

    BEGUN = "begun"
    """The handler gets records."""

    STORED = "stored"
    """They are stored, with their position."""


@dataclass(frozen=True)
class Entry:
    """An entry of a journal.

    Attributes:
        at: When, in seconds since the epoch.
        note: What.
        partition: The partition.
        records: The number of records, for calls of the handler.
    """

    at: float
    note: Note
    partition: int
    records: int = 0


class Handler(Protocol):
    """What handles batches."""

    def consume(self, batch: Batch) -> Any:
        """Handle a batch."""
        ...


class Journal:
    """A file to which a worker adds an entry per line.

    Each line reaches the operating system immediately, so that it survives a SIGKILL.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Note that partitions were assigned; for `on_assign`."""
        self._note(Note.ASSIGNED, assignments)

    def revoked(self, assignments: Sequence[Assignment]) -> None:
        """Note that partitions were given up; for `on_revoke`."""
        self._note(Note.REVOKED, assignments)

    def lost(self, assignments: Sequence[Assignment]) -> None:
        """Note that partitions were lost; for `on_lost`."""
        self._note(Note.LOST, assignments)

    def around(self, handler: Handler) -> "Journaled":
        """Return a handler that notes the calls of another one."""
        return Journaled(self, handler)

    def write(self, note: Note, partition: int, records: int = 0) -> None:
        """Add an entry."""
        entry = {**asdict(Entry(time.time(), note, partition, records)), "note": note.value}
        self._file.write(json.dumps(entry) + "\n")

    def _note(self, note: Note, assignments: Sequence[Assignment]) -> None:
        for each in assignments:
            self.write(note, each.partition)


class Journaled:
    """A handler whose calls are noted."""

    def __init__(self, journal: Journal, handler: Handler) -> None:
        self._journal = journal
        self._handler = handler

    def consume(self, batch: Batch) -> None:
        """Pass the batch on; a call that raises has no entry `STORED`."""
        self._journal.write(Note.BEGUN, batch.partition, len(batch))
        self._handler.consume(batch)
        self._journal.write(Note.STORED, batch.partition, len(batch))


def read_journal(path: Path) -> list[Entry]:
    """Return the entries of a journal, oldest first; none if the worker never started."""
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # a worker was killed while it wrote its last line
    return [Entry(**{**each, "note": Note(each["note"])}) for each in found]
