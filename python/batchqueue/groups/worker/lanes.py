"""Lanes, the path of records from the reader to their handlers on the drain threads.

Each partition has a lane that decodes, and one for each handler. A lane is a type of the local
queue, so the queue gives it to one drain thread at a time and moves it between threads by its load.
The item in the queue is a *turn*: the order to do one piece of the lane's work, a chunk to decode
or one call of a handler. A lane has at most one turn, queued or running; its work waits here,
bounded by the credits of the partition. So no drain thread ever waits: a lane that has to wait,
because its last attempt failed or its partition is paused, simply has no turn.

Lanes belong to the number of a partition, not to an assignment. If a partition is lost and comes
back while a handler still runs, its new records wait behind that call.
"""

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from batchqueue.base.background_log import BackgroundLog
from batchqueue.groups.errors import HandlerFailedError, StaleTokenError, UnhandledRecordError
from batchqueue.groups.messages import Entry
from batchqueue.groups.record import Chosen, Decoded, Entries, Record
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.routes import (
    Batch,
    CallFailure,
    RecordRuns,
    Route,
    Routes,
    check_handled,
    dead_letter,
)
from batchqueue.groups.worker.settings import Attempts, RunPiece, Verdict
from batchqueue.groups.worker.tracker import Chunk
from batchqueue.queues.config import RetryPolicy, wait_ms

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership


_log = BackgroundLog("batchqueue")


class Turn:
    """An item of the local queue. Each lane has its own class of turns."""

    __slots__ = ("lane",)

    def __init__(self, lane: "Lane") -> None:
        self.lane = lane


class Desk:
    """The handler of turns. Lanes that share a desk are entered by one thread at a time."""

    def consume(self, turns: list[Turn]) -> None:
        """Run the lanes."""
        for turn in turns:
            turn.lane.run()


class ClosingDesk(Desk):
    """A desk that calls `on_close` of its handler when the local queue has ended."""

    def __init__(self, on_close: Callable[[], Any]) -> None:
        self.on_close = on_close


class Lane(ABC):
    """Work of one partition number that has to be done in order.

    Attributes:
        turn: Its turn.
        is_scheduled: Whether the turn is in the local queue or running.
        entered_ms: When it entered the user's code; None outside of it.
    """

    def __init__(self, membership: "Membership", partition: int, name: str) -> None:
        """Create a lane without a turn.

        Args:
            membership: The membership that it belongs to.
            partition: The number of the partition.
            name: The name of the code that works there. It is in the class name of the turns, by
                which the local queue knows the lane and names it in the log.
        """
        self.membership = membership
        self.partition = partition
        called = f"{name} of {membership.stream}/{partition}"
        self.turn = type(called, (Turn,), {"__slots__": ()})(self)
        self.is_scheduled = False
        self.entered_ms: float | None = None

    @property
    def is_inside(self) -> bool:
        """Whether it is inside the user's code. Under the lock."""
        return self.entered_ms is not None

    def stuck_ms(self, now_ms: float) -> float:
        """Return how long it has been inside the user's code; 0 outside. Under the lock."""
        return 0.0 if self.entered_ms is None else now_ms - self.entered_ms

    def schedule(self) -> None:
        """Queue a turn, unless there is one or the worker is ending. Under the lock."""
        if not (self.is_scheduled or self.membership.is_stopping):
            self.is_scheduled = True
            self.membership.queue.produce(self.turn)

    def run(self) -> None:
        """Do one piece of work, and queue another turn if there is more."""
        member = self.membership
        try:
            self.work()
        except BaseException as error:  # from a codec or from this code, not from a handler
            _log.exception("worker %s cannot continue", member.control.name)
            with member.lock:
                self.entered_ms = None
                member.fail(error)
                self.broke()
            return
        with member.lock:
            self.is_scheduled = False
            self.wake()

    def wake(self) -> None:
        """Queue a turn if there is work. Under the lock."""
        if self.has_work():
            self.schedule()

    @abstractmethod
    def work(self) -> None:
        """Do one piece of work."""

    @abstractmethod
    def broke(self) -> None:
        """Handle an error of `work`, because of which the worker leaves. Under the lock."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is work that need not wait. Under the lock."""


@dataclass(slots=True, eq=False)
class Part:
    """The records of a chunk that one handler gets.

    Attributes:
        held: The partition.
        chunk: The chunk.
        entries: What the backend has read: these records, and possibly others.
        records: The records.
    """

    held: HeldPartition
    chunk: Chunk
    entries: Entries
    records: Decoded | Chosen


@dataclass(slots=True, eq=False)
class Run:
    """Records of one assignment that a handler gets together, and what is left to do with them."""

    held: HeldPartition
    parts: list[Part]
    attempts: Attempts
    is_waiting: bool = False
    """Whether a record is being stored as a dead letter: nothing is called until then (R18)."""

    def batch(self, piece: RunPiece, member: "Membership", kind: str) -> Batch:
        """Return the batch for a piece."""
        assignment = self.held.assignment
        assert assignment is not None
        records = RecordRuns(
            [
                part.records if end - begin == len(part.records) else part.records[begin:end]
                for part, begin, end in self._pieces(piece)
            ]
        )
        group, stream = member.settings.group, member.stream
        return Batch(
            group,
            stream,
            assignment,
            records,
            attempt=piece.tries,
            kind=kind,
            runs_commands=member.connection.runs_commands,
            stores_records=member.connection.stores_records,
        )

    def entry(self, piece: RunPiece) -> Entry:
        """Return the first record of a piece as the stream has it."""
        part, begin, _ = next(self._pieces(piece))
        return Entry(*part.entries.entry(part.records[begin : begin + 1].first))

    def counts(self, piece: RunPiece) -> list[tuple[Chunk, int]]:
        """Return the number of records that a piece has of each chunk."""
        return [(part.chunk, end - begin) for part, begin, end in self._pieces(piece)]

    def _pieces(self, piece: RunPiece) -> Iterator[tuple[Part, int, int]]:
        """Yield the parts that contribute to a piece, and the range of records within each part."""
        before = 0
        for part in self.parts:
            begin, end = max(piece.begin - before, 0), piece.end - before
            before += len(part.records)
            end = min(end, len(part.records))
            if begin < end:
                yield part, begin, end


class HandlerLane(Lane):
    """Calls one handler with the records of one partition."""

    def __init__(self, membership: "Membership", partition: int, route: Route | None) -> None:
        """Create a lane without work.

        Args:
            membership: The membership that it belongs to.
            partition: The number of the partition.
            route: The handler; None for records that cannot be handled.
        """
        self._route = route
        super().__init__(membership, partition, self.name)
        self._kind = "" if route is None else route.kind
        self._parts: deque[Part] = deque()
        self._run: Run | None = None
        self._due_ms = 0.0
        self._waits_for_lease = False
        self._has_effects = False

    def put(self, part: Part) -> None:
        """Add records. Under the lock."""
        self._parts.append(part)
        self.wake()

    def has_work(self) -> bool:
        """Whether a call need not wait."""
        run = self._run
        if self._waits_for_lease:
            return False
        if run is not None and not run.held.is_over:
            if run.is_waiting:
                return False
            return (
                not self.membership.is_held_up(run.held)
                and self.membership.now_ms() >= self._due_ms
            )
        return bool(self._parts) and not self.membership.is_held_up(self._parts[0].held)

    @property
    def name(self) -> str:
        """The name of its handler."""
        if self._route is None:
            return "a record that cannot be handled"
        handler = self._route.handler
        if handler is None:
            return "the handler of the partition"
        name: str = getattr(handler, "__qualname__", type(handler).__qualname__)
        return name

    def is_of(self, held: HeldPartition) -> bool:
        """Whether a call for a partition is under way or pending. Under the lock."""
        return self._run is not None and self._run.held is held

    def is_blocked(self, held: HeldPartition) -> bool:
        """Whether it retries records of a partition whose attempts are used up. Under the lock."""
        run = self._run
        return run is not None and run.held is held and run.attempts.is_blocked

    def interrupt(self, held: HeldPartition) -> None:
        """Leave records that wait for another attempt to the next owner. Under the lock."""
        run = self._run
        if run is None or run.held is not held or self.is_inside or run.is_waiting:
            return
        if self.membership.now_ms() < self._due_ms:
            self._give_back(run)

    def work(self) -> None:
        """Call the handler once."""
        member = self.membership
        with member.lock:
            run = self._next_run()
            if run is None:
                return
            piece = run.attempts.begin()
            self.entered_ms = member.now_ms()
            member.load.begin(self, self.partition, self.entered_ms)
        batch = run.batch(piece, member, self._kind)
        first, last = batch.first, batch.last  # the handler may change its list
        failure: CallFailure | None = None
        try:
            with member.user_code():
                self._call(run.held, batch)
        except BaseException as error:
            failure = CallFailure.of(error)
        with member.lock:
            self.entered_ms = None
            member.load.end(self, len(piece), member.now_ms())
            if run.held.is_over:  # lost meanwhile: its result is ignored
                self._run = None
                member.left(run.held)
            elif failure is None:
                if batch.commands:
                    run.held.run_with_commit(first, last, batch.commands)
                if batch.sent:
                    run.held.send_with_commit(first, last, batch.sent)
                self._has_effects |= bool(batch.commands or batch.sent)
                self._succeeded(run, piece)
            else:
                self._failed(run, piece, batch, failure)

    def broke(self) -> None:
        """Give up the partition: its current records never end."""
        self.is_scheduled = False
        held = self.membership.held.get(self.partition)
        if held is not None:
            if held.unfinished:
                self.membership.notes.unfinished[self.partition] = held.unfinished
            self.membership.fenced(held, 0)

    def _call(self, held: HeldPartition, batch: Batch) -> None:
        if self._route is None:
            raise batch.values[0]  # why it cannot be handled
        consume = self._route.consume
        if consume is None:
            assert held.handler is not None
            consume = held.handler.consume
        check_handled(consume(batch))

    def _next_run(self) -> Run | None:
        """Return the records to call the handler with; None if they have to wait."""
        member, run = self.membership, self._run
        if run is not None and run.held.is_over:
            run = self._run = None
        if run is None:
            run = self._run = self._claim()
        if run is None or run.is_waiting:
            return None
        if self.membership.is_held_up(run.held) or member.now_ms() < self._due_ms:
            return None
        return run if self._may_work(run.held) else None

    def _claim(self) -> Run | None:
        """Claim waiting parts of one assignment, up to the most records of a batch.

        Once the handler has had effects, a batch is of one chunk, where commits end: if batches of
        several handlers overlapped, a commit might find no place to end.
        """
        member = self.membership
        parts: list[Part] = []
        count = 0
        while self._parts:
            part = self._parts[0]
            held, size = part.held, len(part.records)
            if parts and (
                self._has_effects
                or held is not parts[0].held
                or count + size > member.settings.max_batch_items
            ):
                break
            if not held.is_over and (self.membership.is_held_up(held) or not self._may_work(held)):
                break
            self._parts.popleft()
            tracker = held.tracker
            if held.is_over or tracker is None or not tracker.start(part.chunk, size):
                continue  # dropped
            parts.append(part)
            count += size
        if not parts:
            return None
        self._due_ms = 0.0
        settings = member.settings
        attempts = Attempts(count, settings.attempts, settings.on_failure)
        return Run(parts[0].held, parts, attempts)

    def _succeeded(self, run: Run, piece: RunPiece) -> None:
        self._settle(run, piece, "handled")
        run.attempts.succeeded()
        self._continue(run)

    def _failed(self, run: Run, piece: RunPiece, batch: Batch, failure: CallFailure) -> None:
        member, held, error = self.membership, run.held, failure.error
        if isinstance(error, StaleTokenError):  # R9
            run.is_waiting = True  # until the partition comes back with a larger token
            refused_by_sink(member, held, error)
            return
        verdict, pause_ms = run.attempts.failed(error)
        batch = run.batch(piece, member, self._kind)  # as the handler got it
        note_failure(member, batch, verdict, failure.text)
        if verdict in (Verdict.AGAIN, Verdict.BLOCKED):
            if held.is_draining:
                self._give_back(run)
            else:
                self._due_ms = member.now_ms() + pause_ms
                member.call_at(self._due_ms, self.resume)
            return
        if verdict is Verdict.STOP:
            self._give_back(run)
            stop_with(member, batch, failure)
            return
        if verdict is Verdict.DEAD:
            run.is_waiting = True
            letter = dead_letter(run.entry(piece), batch, failure.text)
            then, give_up = self._was_set_aside, self._cannot_set_aside
            member.set_aside(held, letter, partial(then, run, piece), partial(give_up, run, piece))
            return
        if verdict is Verdict.SKIPPED:
            self._settle(run, piece, "skipped")
        self._continue(run)

    def _was_set_aside(self, run: Run, piece: RunPiece) -> None:
        run.is_waiting = False
        self._settle(run, piece, "dead")
        self._continue(run)
        self.resume()

    def _cannot_set_aside(self, run: Run, piece: RunPiece) -> None:
        """Leave a record that the server refuses to store to the next owner."""
        run.is_waiting = False
        run.attempts.pieces.appendleft(piece)
        self._give_back(run)

    def _continue(self, run: Run) -> None:
        self._due_ms = 0.0
        if not run.attempts.pieces:
            self._run = None
            if self._route is None and not self._parts:
                self.membership.lanes[self.partition].decoding.proceed()
        self.membership.check_drained(run.held)

    def _settle(self, run: Run, piece: RunPiece, outcome: str) -> None:
        tracker = run.held.tracker
        assert tracker is not None
        advanced = False
        for chunk, count in run.counts(piece):
            advanced = tracker.settle(chunk, **{outcome: count}) or advanced
        self.membership.settled(run.held, advanced)

    def _give_back(self, run: Run) -> None:
        tracker = run.held.tracker
        assert tracker is not None
        for piece in run.attempts.pieces:
            for chunk, count in run.counts(piece):
                tracker.give_back(chunk, count)
        self._run = None
        self._due_ms = 0.0
        self.membership.check_drained(run.held)

    def _may_work(self, held: HeldPartition) -> bool:
        # While the lease is in doubt, turns would only repeat without progress.
        self._waits_for_lease = not self.membership.may_work(held)
        return not self._waits_for_lease

    def resume(self) -> None:
        """Queue a turn if there is work, even though the lease was in doubt. Under the lock."""
        self._waits_for_lease = False
        self.wake()

    def drop(self, held: HeldPartition) -> None:
        """Forget the records of a partition that is gone. Under the lock."""
        self._parts = deque(part for part in self._parts if part.held is not held)
        if self._run is not None and self._run.held is held and not self.is_inside:
            self._run = None
        self.resume()


class PartitionLanes:
    """The lanes of one partition number, created when the worker first gets the partition.

    Attributes:
        decoding: The lane that decodes.
        by_route: The lanes of the handlers; that of None has records that cannot be handled.
    """

    def __init__(self, membership: "Membership", partition: int) -> None:
        self.decoding = DecodingLane(membership, partition)
        self.by_route: dict[Route | None, HandlerLane] = {
            route: HandlerLane(membership, partition, route)
            for route in (*membership.routes.all, None)
        }

    @property
    def all(self) -> list[HandlerLane]:
        """The lanes of the handlers."""
        return list(self.by_route.values())

    def register(self, add: Callable[[type, Desk], None], desks: dict[Route, Desk]) -> None:
        """Register the lanes with the local queue.

        Args:
            add: Registers a class of turns and its desk.
            desks: The desks of the handlers that all partitions share.
        """
        add(type(self.decoding.turn), Desk())
        for route, lane in self.by_route.items():
            shared = desks.get(route) if route is not None else None
            add(type(lane.turn), shared or Desk())


def desks_of(routes: Routes) -> dict[Route, Desk]:
    """Return a desk for each handler that all partitions share.

    Two methods of one object share a desk: at most one thread may be inside the object.
    """
    shared = [route for route in routes.all if route.consume is not None]
    # A method of an object has no `on_close`; the object itself may be another handler.
    closing = {id(each.protected): each.on_close for each in shared if each.on_close is not None}
    desks: dict[int, Desk] = {}
    for route in shared:
        on_close = closing.get(id(route.protected))
        desk = Desk() if on_close is None else ClosingDesk(on_close)
        desks.setdefault(id(route.protected), desk)
    return {each: desks[id(each.protected)] for each in shared}


_DECODED_TOGETHER = 1_024
"""Records decoded before they are handed out. Those after a bad one are decoded again."""


class DecodingLane(Lane):
    """Decodes chunks, and hands their records to the lanes of their handlers.

    After a record that cannot be decoded, or that no handler takes, it hands out nothing until
    that record has ended: otherwise a sink that checks offsets would be past it (R18).
    """

    def __init__(self, membership: "Membership", partition: int) -> None:
        super().__init__(membership, partition, "the codec")
        self._chunks: deque[tuple[HeldPartition, Chunk, Entries]] = deque()
        self._waits_for: HeldPartition | None = None

    def drop(self, held: HeldPartition) -> None:
        """Forget the chunks of a partition that is gone. Under the lock."""
        self._chunks = deque(each for each in self._chunks if each[0] is not held)

    def put(self, held: HeldPartition, chunk: Chunk, entries: Entries) -> None:
        """Add a chunk and its entries. Under the lock."""
        self._chunks.append((held, chunk, entries))
        self.wake()

    def proceed(self) -> None:
        """Continue after a record that could not be handled. Under the lock."""
        self._waits_for = None
        self.wake()

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
            self.entered_ms = member.now_ms()
        parts, rest = self._parts(held, chunk, entries)
        with member.lock:
            self.entered_ms = None
            if chunk.waiting and not held.is_over:
                self._hand_out(held, chunk, parts, rest)

    def broke(self) -> None:
        """Decode nothing more, or a later chunk would come before this one.

        No handler has begun with this chunk, so the partition drains without it.
        """

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
                last = max(part.records.last for part in parts.values() if part is not bad)
                bad.chunk = _checked(tracker.split(bad.chunk, good, last, bad.records.first))
            if rest is not None:
                last = bad.records.last
                later = _checked(tracker.split(bad.chunk, len(bad.records), last, rest.first))
                self._chunks.appendleft((held, later, rest))
        for route, part in parts.items():
            self.membership.lanes[self.partition].by_route[route].put(part)

    def _parts(
        self, held: HeldPartition, chunk: Chunk, entries: Entries
    ) -> tuple[dict[Route | None, Part], Entries | None]:
        """Return the records by route, None for unhandled ones, and what is left.

        Decoding stops after the first records that cannot be handled.
        """
        codec, only = self.membership.codec, self.membership.routes.only
        values: list[Any] = []
        chosen: defaultdict[Route, list[Record[Any]]] = defaultdict(list)
        error: BaseException | None = None
        good, count = 0, len(entries)
        while good < count and error is None:
            several = entries[good : good + _DECODED_TOGETHER]
            decoded, error = several.values(codec.decoded, codec.plain)
            if only is not None:
                values += decoded
                good += len(decoded)
                continue
            for record in several.records(decoded):
                route = self._route_of(record)
                if isinstance(route, UnhandledRecordError):
                    error = route
                    break
                chosen[route].append(record)
                good += 1
        errors: list[BaseException] = []
        place = good
        while error is not None:
            errors.append(error)
            place += 1
            error = self._error_of(entries[place : place + 1])
        found: dict[Route | None, Decoded | Chosen] = {
            route: Chosen(records) for route, records in chosen.items()
        }
        if values:
            found[only] = Decoded(entries[:good], values)
        if errors:
            found[None] = Decoded(entries[good:place], errors)
        parts = {route: Part(held, chunk, entries, records) for route, records in found.items()}
        return parts, entries[place:] if place < count else None

    def _error_of(self, entry: Entries) -> BaseException | None:
        """Return why a record cannot be handled; None if it can, or there is none."""
        member = self.membership
        values, error = entry.values(member.codec.decoded, member.codec.plain)
        if values and member.routes.only is None:
            [record] = entry.records(values)
            route = self._route_of(record)
            return route if isinstance(route, UnhandledRecordError) else None
        return error

    def _route_of(self, record: Record[Any]) -> Route | UnhandledRecordError:
        member = self.membership
        try:
            return member.routes.find(member.stream, self.partition, record)
        except UnhandledRecordError as error:
            return error


def _checked(chunk: Chunk | None) -> Chunk:
    assert chunk is not None  # its partition is not over, and none of its records was started
    return chunk


# The log lines when a handler raised, and the error that `run` raises. Under the lock.


_REFUSED = RetryPolicy(attempts=None, backoff_ms=100, max_backoff_ms=5_000)
"""The delays before a partition whose sink refuses it again gets another token."""

_BECOMES = {
    Verdict.AGAIN: "it is tried again",
    Verdict.BLOCKED: "the partition waits, and it is tried again",
    Verdict.DEAD: "it goes to the dead letters",
    Verdict.SKIPPED: "it is skipped",
    Verdict.STOP: "the worker stops",
}


def note_failure(member: "Membership", batch: Batch, verdict: Verdict, text: str) -> None:
    """Count and log that a handler raised."""
    member.notes.failed += 1
    if verdict is Verdict.HALVED:
        return
    skipped = member.notes.may_log(f"{batch.partition}:{verdict.name}")
    if skipped is None:
        return
    tries = "once" if batch.attempt == 1 else f"{batch.attempt} times"
    _log.warning(
        "%s/%d: offsets %d..%d failed %s (%s)%s, last: %s",
        batch.stream,
        batch.partition,
        batch.first,
        batch.last,
        tries,
        _BECOMES[verdict],
        f"; {skipped} more like it since the last line" if skipped else "",
        text,
    )


def stop_with(member: "Membership", batch: Batch, failure: CallFailure) -> None:
    """Leave the group because a handler has failed for good."""
    if not isinstance(failure.error, Exception):
        member.fail(failure.error)
        return
    error = HandlerFailedError(
        batch.stream,
        batch.partition,
        first=batch.first,
        last=batch.last,
        tries=batch.attempt,
        cause=failure.error,
        reason=failure.reason,
    )
    member.fail(error)


def refused_by_sink(member: "Membership", held: HeldPartition, error: StaleTokenError) -> None:
    """Get a larger token after a sink saw a newer one; later if that has not helped before."""
    refusals = member.refusals.get(held.partition, 0)
    member.refusals[held.partition] = refusals + 1
    if refusals == 0:
        member.fenced(held, error.seen)
        return
    if member.notes.may_log(f"{held.partition}:stale") is not None:
        _log.warning("%s; refused %d times in a row", error, refusals + 1)
    due_ms = member.now_ms() + wait_ms(_REFUSED, refusals)
    member.call_at(due_ms, lambda: member.fenced(held, error.seen))
