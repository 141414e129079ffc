"""`DecodingLane`: makes records of what the reader fetched."""

from collections import deque
from typing import TYPE_CHECKING, Any

from batchqueue.groups.entries import Entries, undecoded
from batchqueue.groups.errors import UnhandledRecordError
from batchqueue.groups.record import Record
from batchqueue.groups.tracker import Chunk
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.routes import Route
from batchqueue.groups.worker.runs import BadValue, Part
from batchqueue.groups.worker.turns import Lane

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership

_DECODED_TOGETHER = 1_024
"""Records that are decoded before they are handed out. Those after a bad one are decoded again."""


class DecodingLane(Lane):
    """Decodes chunks, and hands their records to the lanes of their handlers.

    After a record that cannot be decoded, or that no handler takes, it hands out nothing before
    that record has ended: a sink that checks offsets would be past it (R18).
    """

    def __init__(self, membership: "Membership", partition: int) -> None:
        super().__init__(membership, f"the codec of {membership.stream}/{partition}")
        self._partition = partition
        self._chunks: deque[tuple[HeldPartition, Chunk, Entries]] = deque()
        self._waits_for: HeldPartition | None = None
        self._entered_ms: float | None = None

    def stuck_ms(self, now_ms: float) -> float:
        """Return for how long it has been decoding a chunk; 0 while it is not. Under the lock."""
        return 0.0 if self._entered_ms is None else now_ms - self._entered_ms

    def drop(self, held: HeldPartition) -> None:
        """Forget the chunks of a partition that is gone. Under the lock."""
        self._chunks = deque(each for each in self._chunks if each[0] is not held)

    def put(self, held: HeldPartition, chunk: Chunk, entries: Entries) -> None:
        """Take a chunk and its entries. Under the lock."""
        self._chunks.append((held, chunk, entries))
        self._wake()

    def proceed(self) -> None:
        """Continue after a record that could not be handled. Under the lock."""
        self._waits_for = None
        self._wake()

    def has_work(self) -> bool:
        """Whether there are chunks that need not wait."""
        if self._waits_for is not None and self._waits_for.is_over:
            self._waits_for = None
        return bool(self._chunks) and self._waits_for is None

    def work(self) -> None:
        """Decode a chunk, up to a record that cannot be handled."""
        member = self.membership
        with member.lock:
            if not self.has_work():
                return
            held, chunk, entries = self._chunks.popleft()
            if not chunk.waiting:
                return  # dropped meanwhile
            self._entered_ms = member.now_ms()
        parts, rest = self._parts(held, chunk, entries)
        with member.lock:
            self._entered_ms = None
            if chunk.waiting and not held.is_over:
                self._hand_out(held, chunk, parts, rest)

    def _hand_out(
        self,
        held: HeldPartition,
        chunk: Chunk,
        parts: dict[Route | None, Part],
        rest: Entries | None,
    ) -> None:
        """Give parts to their lanes; what cannot be handled, and what follows, gets own chunks."""
        tracker, bad = held.tracker, parts.get(None)
        assert tracker is not None
        if bad is not None:
            self._waits_for = held
            good = sum(len(part.records) for part in parts.values()) - len(bad.records)
            if good:
                last = max(part.records[-1].offset for part in parts.values() if part is not bad)
                first = bad.records[0].offset
                bad.chunk = _checked(tracker.split(bad.chunk, good, last, first))
            if rest is not None:
                last = bad.records[-1].offset
                later = _checked(tracker.split(bad.chunk, len(bad.records), last, rest.first))
                self._chunks.appendleft((held, later, rest))
        for route, part in parts.items():
            self.membership.lanes[self._partition].lane(route).put(part)

    def _wake(self) -> None:
        if self.has_work():
            self.schedule()

    def _parts(
        self, held: HeldPartition, chunk: Chunk, entries: Entries
    ) -> tuple[dict[Route | None, Part], Entries | None]:
        """The records of each route, None for those that cannot be handled; and what is left.

        It ends after the first records that cannot be handled.
        """
        codec, routes = self.membership.codec, self.membership.routes
        parts: dict[Route | None, Part] = {}
        place, count = 0, len(entries)
        while place < count:
            # After a record that cannot be handled, the first good one ends it.
            several = 1 if None in parts else _DECODED_TOGETHER
            records, error = entries[place : place + several].records(codec.decoded, codec.plain)
            if routes.only is not None and None not in parts:
                _part(parts, routes.only, held, chunk, entries).records.extend(records)
                place += len(records)
            else:
                for record in records:
                    route, routed = self._routed(record)
                    if route is not None and None in parts:
                        return parts, entries[place:]
                    _part(parts, route, held, chunk, entries).records.append(routed)
                    place += 1
            if error is not None:
                [record], _ = entries[place : place + 1].records(undecoded)
                bad = _bad_record(record, error)
                _part(parts, None, held, chunk, entries).records.append(bad)
                place += 1
        return parts, None

    def _routed(self, record: Record[Any]) -> tuple[Route | None, Record[Any]]:
        member = self.membership
        try:
            return member.routes.find(member.stream, self._partition, record), record
        except UnhandledRecordError as error:
            return None, _bad_record(record, error)


def _part(
    parts: dict[Route | None, Part],
    route: Route | None,
    held: HeldPartition,
    chunk: Chunk,
    entries: Entries,
) -> Part:
    part = parts.get(route)
    if part is None:
        part = parts[route] = Part(held, chunk, entries, [])
    return part


def _checked(chunk: Chunk | None) -> Chunk:
    assert chunk is not None  # its partition is not over, and none of its records was started
    return chunk


def _bad_record(record: Record[Any], error: BaseException) -> Record[Any]:
    return record._replace(value=BadValue(error))
