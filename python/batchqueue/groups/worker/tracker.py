"""The state of the records of a partition, and the mark up to which all of them are done.

The reader hands out *chunks*, runs of records in the order of their offsets. A record of a chunk
waits, then it runs, from the start of its handler until its last attempt has ended: handled, dead
(it is in the dead letters) or skipped. A chunk is done when all of its records have ended, and the
*mark* is the last offset of the unbroken run of done chunks. Only the mark is ever committed.

Chunks may be done out of order, and one chunk in parts: with one handler per class, records of one
class may be between two attempts while later records of another class are handled. The credits
therefore count all records above the mark, ended or not. That bounds what comes again after a
crash, and the memory, even if one class is blocked forever.

A tracker has no lock, clock, input or output. Reader, drain threads, committer and control thread
share it: each call must be made under the lock of its partition. It counts records, and holds none.
"""

from collections import deque
from dataclasses import astuple, dataclass, field
from itertools import islice
from typing import NamedTuple

from batchqueue.base.words import counted


class Mark(NamedTuple):
    """The offset up to which every record is done, and the records of this assignment up to it."""

    offset: int
    records: int


class Room(NamedTuple):
    """How much the reader may fetch. Both are 0 if one of them is."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """The number of records that were fetched, and of each outcome. Counts of trackers add up.

    Attributes:
        fetched: Records that the reader added.
        handled: Records whose handler returned.
        dead: Records in the dead letters.
        skipped: Records that failed and were skipped.
        dropped: Records that did not end here because the partition went to another owner.
    """

    fetched: int = 0
    handled: int = 0
    dead: int = 0
    skipped: int = 0
    dropped: int = 0

    @property
    def in_hand(self) -> int:
        """Records that wait or run."""
        return self.fetched - self.handled - self.dead - self.skipped - self.dropped

    def __add__(self, other: "RecordCounts") -> "RecordCounts":
        return RecordCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(slots=True, eq=False)
class Chunk:
    """A run of records of one partition. Only its tracker changes it.

    Attributes:
        tracker: The tracker of the assignment under which it was fetched.
        number: Its index among the chunks of the tracker, from 0.
        count: The number of its records.
        first: The offset of its first record.
        last: The offset of its last record.
        size: The size of its records in bytes.
        waiting: Records that have not been started.
        running: Records that have started and not ended.
        started: Whether any record was started.
        broken: Whether a record was dropped, so that the mark never passes this chunk.
    """

    tracker: "PartitionTracker" = field(repr=False)
    number: int
    count: int
    first: int
    last: int
    size: int
    waiting: int
    running: int = 0
    started: bool = False
    broken: bool = False


class PartitionTracker:
    """The records of one partition under one assignment; the next assignment gets a new tracker.

    `revoke` lets records that have started finish, and `end` is the last call: a later result
    changes nothing. Calls take constant time, amortised over the chunks, except the first
    `give_back`. Counts that cannot be right, such as more ended records than running ones, raise
    ValueError and change nothing.

    Attributes:
        prefetch: The most records above the mark. The worker may change it at any time, for
            instance double it while the partition is hot.
        prefetch_bytes: The most bytes above the mark.
        mark: The position up to which every record is done.
        position: The offset of the last record that was fetched; the reader continues after it.

    Example:
        >>> tracker = PartitionTracker(41)
        >>> first, second = tracker.add(2, 42, 43, 9), tracker.add(1, 44, 44, 5)
        >>> tracker.start(first), tracker.start(second)
        (True, True)
        >>> tracker.settle(second, handled=1), tracker.mark.offset
        (False, 41)
        >>> tracker.settle(first, handled=1, dead=1), tracker.to_commit()
        (True, Mark(offset=44, records=3))
    """

    def __init__(
        self, position: int, *, prefetch: int = 10_000, prefetch_bytes: int = 16 << 20
    ) -> None:
        """Start after the last record that was already done.

        Args:
            position: The offset of that record; -1 if offsets begin at 0 and none is done.
            prefetch: The most records above the mark, at least 1. Default: 10,000.
            prefetch_bytes: The most bytes above the mark, at least 1. Default: 16 MiB.
        """
        self.prefetch = prefetch
        self.prefetch_bytes = prefetch_bytes
        self.mark = Mark(position, 0)
        self.position = position
        self._committed = position
        self._chunks: deque[Chunk] = deque()  # the chunks above the mark
        self._open_records = self._open_bytes = 0  # of `_chunks`
        self._added = 0
        self._first_broken: int | None = None
        self._revoked = self._ended = False
        self._fetched = self._handled = self._dead = self._skipped = self._dropped = 0

    @property
    def counts(self) -> RecordCounts:
        """The counts of the records so far."""
        return RecordCounts(self._fetched, self._handled, self._dead, self._skipped, self._dropped)

    @property
    def room(self) -> Room:
        """Return how much the reader may fetch now; nothing after `revoke`.

        A larger reply is accepted: its size is unknown before it arrives, and a record larger than
        `prefetch_bytes` must pass.
        """
        records = self.prefetch - self._open_records
        size = self.prefetch_bytes - self._open_bytes
        return Room(records, size) if min(records, size) > 0 and not self._revoked else Room(0, 0)

    @property
    def fill(self) -> float:
        """The share of the credits in use, in records or bytes, whichever is larger.

        A reader that pauses the partition at 1 and resumes it at 0.5 does not flap.
        """
        return max(self._open_records / self.prefetch, self._open_bytes / self.prefetch_bytes)

    @property
    def drained(self) -> bool:
        """Whether a revoked partition can be released: nothing in hand, and the mark committed."""
        all_ended = self._revoked and self.counts.in_hand == 0
        return all_ended and not self._ended and self._committed == self.mark.offset

    def add(self, count: int, first: int, last: int, size: int) -> Chunk | None:
        """Add the records that the reader fetched, and return their chunk to hand out.

        Returns None if the partition is revoked: the records count as dropped. After `end` they are
        not counted.

        Args:
            count: The number of records, at least one.
            first: The offset of the first record, above `position`.
            last: The offset of the last record.
            size: The size of the records in bytes.
        """
        if count < 1 or not self.position < first <= last:
            raise ValueError(
                f"{counted(count, 'record')} of offsets {first}..{last}; give at least one, all "
                f"of them after {self.position}"
            )
        if self._ended:
            return None
        self.position = last
        self._fetched += count
        if self._revoked:
            self._dropped += count
            return None
        chunk = Chunk(self, self._added, count, first, last, size, waiting=count)
        self._added += 1
        self._chunks.append(chunk)
        self._open_records += count
        self._open_bytes += size
        return chunk

    def split(self, chunk: Chunk, count: int, last: int, first: int) -> Chunk | None:
        """Split a chunk, so that the mark can pass its first records without the others.

        Returns the chunk with the other records; None if the chunk was dropped.

        Args:
            chunk: A chunk from `add` or `split`. None of its records was started.
            count: The number of records that it keeps, at least one and not all.
            last: The offset of the last record that it keeps.
            first: The offset of the record after that.
        """
        if self._is_stale(chunk) or chunk.waiting == 0:
            return None
        rest = chunk.count - count
        if chunk.waiting < chunk.count or not (count >= 1 <= rest and last < first):
            raise ValueError(
                f"{count} of {chunk.count} records of offsets {chunk.first}..{chunk.last}; "
                "give at least one and not all, of a chunk that was not started"
            )
        size = chunk.size * count // chunk.count
        number = chunk.number + 1
        other = Chunk(self, number, rest, first, chunk.last, chunk.size - size, waiting=rest)
        chunk.count, chunk.last = count, last
        chunk.size, chunk.waiting = size, count
        place = next(at for at, each in enumerate(self._chunks) if each is chunk)
        for later in islice(self._chunks, place + 1, None):
            later.number += 1
        self._chunks.insert(place + 1, other)
        self._added += 1
        return other

    def start(self, chunk: Chunk, count: int | None = None) -> bool:
        """Claim waiting records of a chunk, immediately before their handler is called.

        Returns False if none of them waits any more, because they were dropped or the assignment is
        over. The handler must then not be called.

        Args:
            chunk: A chunk from `add`.
            count: The number of its records to claim. Default: None, all that wait.
        """
        if self._is_stale(chunk) or chunk.waiting == 0:
            return False
        count = chunk.waiting if count is None else count
        if not 1 <= count <= chunk.waiting:
            raise ValueError(
                f"{counted(count, 'record')} to start; give 1 to {chunk.waiting}, which wait"
            )
        chunk.waiting -= count
        chunk.running += count
        chunk.started = True
        return True

    def settle(self, chunk: Chunk, *, handled: int = 0, dead: int = 0, skipped: int = 0) -> bool:
        """Count how running records of a chunk ended, and return whether the mark has advanced.

        Args:
            chunk: The chunk. A chunk of another assignment is ignored.
            handled: Records whose handler returned.
            dead: Records that are stored as dead letters.
            skipped: Records that failed and are skipped.
        """
        if self._is_stale(chunk):
            return False
        _take_running(chunk, handled, dead, skipped)
        self._handled += handled
        self._dead += dead
        self._skipped += skipped
        return self._advance()

    def give_back(self, chunk: Chunk, count: int) -> None:
        """Leave running records whose attempts were interrupted to the next owner.

        This also revokes the partition, and drops all records that wait in this chunk and after it.
        The next owner begins with this chunk, so later records would come twice and out of order.

        Args:
            chunk: The chunk. A chunk of another assignment is ignored.
            count: The number of its running records.
        """
        if self._is_stale(chunk):
            return
        _take_running(chunk, count)
        if count == 0:
            return
        self._dropped += count
        chunk.broken = True
        self.revoke()
        if self._first_broken is not None and self._first_broken <= chunk.number:
            return  # nothing after that chunk waits any more
        self._first_broken = chunk.number
        for later in reversed(self._chunks):
            if later.number < chunk.number:
                break
            self._drop_waiting(later)

    def revoke(self) -> int:
        """Stop handing out; started records may finish. Returns how many records were dropped.

        Chunks are dropped from the last one back to the last one that has started. A chunk before
        that is kept even if it waits: without it, the mark could not pass the started chunk, whose
        records would come twice.
        """
        before = self._dropped
        self._revoked = True
        while self._chunks and not self._chunks[-1].started:
            chunk = self._chunks.pop()
            self._open_records -= chunk.count
            self._open_bytes -= chunk.size
            self._drop_waiting(chunk)
        return self._dropped - before

    def end(self) -> int:
        """End the assignment: released, lost, or given up when time ran out.

        Records in hand are dropped, even if their handler still runs, and nothing is left to
        commit. The counts no longer change. Returns how many records were dropped.
        """
        dropped = self.counts.in_hand
        self._revoked = self._ended = True
        self._dropped += dropped
        for chunk in self._chunks:
            chunk.waiting = chunk.running = 0
        self._chunks.clear()
        self._open_records = self._open_bytes = 0
        return dropped

    def to_commit(self) -> Mark | None:
        """Return the mark; None if its commit was acknowledged, and after `end`."""
        return None if self._ended or self.mark.offset == self._committed else self.mark

    def acknowledge(self, offset: int) -> None:
        """Record that the commit of an offset was acknowledged. A late reply changes nothing."""
        if offset > self.mark.offset:
            raise ValueError(f"offset {offset} was committed, and {self.mark.offset} is the mark")
        self._committed = max(self._committed, offset)

    def _is_stale(self, chunk: Chunk) -> bool:
        return self._ended or chunk.tracker is not self

    def _drop_waiting(self, chunk: Chunk) -> None:
        if chunk.waiting:
            self._dropped += chunk.waiting
            chunk.waiting = 0
            chunk.broken = True

    def _advance(self) -> bool:
        before = self.mark
        offset, records = before
        while self._chunks:
            chunk = self._chunks[0]
            if chunk.waiting or chunk.running or chunk.broken:
                break
            self._chunks.popleft()
            offset = chunk.last
            records += chunk.count
            self._open_records -= chunk.count
            self._open_bytes -= chunk.size
        self.mark = Mark(offset, records)
        return self.mark != before


def _take_running(chunk: Chunk, *counts: int) -> None:
    if min(counts) < 0 or sum(counts) > chunk.running:
        raise ValueError(
            f"{counts} records of offsets {chunk.first}..{chunk.last}; give numbers from 0 up, "
            f"together at most {chunk.running}, which run"
        )
    chunk.running -= sum(counts)
