"""`Membership`: the state that a worker's threads share, and how it obeys the control side.

Everything here is used under `lock`, unless a method says otherwise. No thread holds the lock while
it calls user code, a server, or anything else that may wait.
"""

import heapq
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

from batchqueue.base.background_log import BackgroundLog
from batchqueue.groups.backend import (
    Behind,
    Connection,
    Fetch,
    Fetched,
    Opening,
    PartitionInfo,
    Unreadable,
)
from batchqueue.groups.control import Control, Loss, Order, OrderKind
from batchqueue.groups.errors import (
    HandlerFailedError,
    StreamUnavailableError,
    TruncatedError,
)
from batchqueue.groups.messages import Entry, Failed, Fenced, Opened
from batchqueue.groups.record import Assignment, codec_of
from batchqueue.groups.skew import (
    PartitionReading,
    SkewDetectionConfig,
    SkewDetector,
    skew_report,
    skew_warning,
)
from batchqueue.groups.worker.handover import Handover, Task
from batchqueue.groups.worker.held import (
    Committing,
    HeldPartition,
    Life,
    Notes,
    ReadState,
    Revocation,
)
from batchqueue.groups.worker.lanes import HandlerLane, PartitionLanes, desks_of
from batchqueue.groups.worker.load import LoadMeter
from batchqueue.groups.worker.routes import Described, Routes, described
from batchqueue.groups.worker.settings import (
    Attempts,
    OnFailure,
    OnGap,
    Verdict,
    WorkerSettings,
)
from batchqueue.groups.worker.tracker import PartitionTracker, RecordCounts
from batchqueue.queues.config import RetryPolicy, wait_ms
from batchqueue.queues.queue import BatchQueue

_log = BackgroundLog("batchqueue")

_POSTPONED = RetryPolicy(attempts=None, backoff_ms=1_000, max_backoff_ms=30_000)
"""The delays before a partition whose `on_assign` or factory raised is tried again."""

_FIRST_READ = 10
"""Records in the first read of a partition, whose record size is not known yet."""


Aside = tuple[HeldPartition, Entry, Callable[[], None], Callable[[], None]]
"""A dead letter to store, and what to call when it is stored or if it is given up."""


class Membership:
    """A worker in its group, from its start to its end.

    Attributes:
        settings: The settings of the worker.
        stream: The name of the stream.
        routes: The handlers.
        connection: The connection to the group and the partitions.
        control: The control side.
        queue: The local queue.
        load: The cost of the partitions.
        skew: Detects partitions that lag behind the others.
        notes: The counts for metrics and summaries.
        handover: The thread that calls the user's callbacks.
        held: The partitions that it holds.
        lanes: The lanes, by partition; they stay when a partition goes.
        lags: The last known lags, by partition; None if unknown.
        error: The error that stopped the worker, or None.
        is_stopping: Whether its threads have to end.
        paused: The partitions that the user has paused, kept even while one is lost for a moment.
        refusals: How often in a row the sink of a partition has refused its token.
        dirty: The partitions with something to commit.
        to_open: The partitions to open.
        to_set_aside: Dead letters to store, and what to call afterwards.
        lock: Guards everything here.
        control_due: The control thread has something to do.
        reader_due: The reader may have something to read.
        commits_due: The committer has something to open or to commit.
        over: The control side has ended.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        stream: str,
        routes: Routes,
        connection: Connection,
        control: Control,
        queue: "BatchQueue[Any]",
    ) -> None:
        self.settings = settings
        self.stream = stream
        self.routes = routes
        self.connection = connection
        self.control = control
        self.queue = queue
        self.now_ms = connection.now_ms
        self.codec = codec_of(settings.codec)
        self.lock = threading.RLock()
        self.control_due = threading.Condition(self.lock)
        self.reader_due = threading.Condition(self.lock)
        self.commits_due = threading.Condition(self.lock)
        self.over = threading.Condition(self.lock)
        self.held: dict[int, HeldPartition] = {}
        self.lanes: dict[int, PartitionLanes] = {}
        self.dirty: dict[HeldPartition, None] = {}
        self.to_open: list[HeldPartition] = []
        self.to_set_aside: list[Aside] = []
        self.lags: dict[int, int | None] = {}
        self.error: BaseException | None = None
        self.is_stopping = False
        self.load = LoadMeter()
        self.skew = SkewWatch(settings.skew)
        self.paused: set[int] = set()
        self._calls = threading.local()
        self._is_in_doubt = False
        self.refusals: dict[int, int] = {}
        self.notes = Notes(self.now_ms)
        self.handover = Handover(self)
        self._desks = desks_of(routes)
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._timer_number = count()

    @contextmanager
    def user_code(self) -> Iterator[None]:
        """Mark a call of a handler or a callback. Without the lock."""
        self._calls.is_inside = True
        try:
            yield
        finally:
            self._calls.is_inside = False

    @property
    def is_called_by_handler(self) -> bool:
        """Whether this thread is in a handler or a callback of this worker. Without the lock."""
        return getattr(self._calls, "is_inside", False)

    # Called for orders of the control side.

    def obey(self, orders: list[Order]) -> None:
        """Carry out the orders of the control side."""
        for order in orders:
            if order.kind is OrderKind.OPEN:
                held = HeldPartition(order.partition, order.token, order.session)
                self.held[order.partition] = held
                self.open(held)
                continue
            known = self.held.get(order.partition)
            if known is None or known.token != order.token:
                continue
            if order.kind is OrderKind.DRAIN:
                self._drain(known)
            else:
                assert order.loss is not None
                self._drop(known, order.loss)

    def next_timer_ms(self) -> float:
        """When the next timer is due; infinity without any."""
        return self._timers[0][0] if self._timers else float("inf")

    def run_timers(self, now_ms: float) -> None:
        """Call the functions that are due."""
        while self._timers and self._timers[0][0] <= now_ms:
            heapq.heappop(self._timers)[2]()

    def call_at(self, due_ms: float, function: Callable[[], object]) -> None:
        """Call a function, under the lock, at a given time."""
        heapq.heappush(self._timers, (due_ms, next(self._timer_number), function))
        self.control_due.notify()

    def stop_threads(self) -> None:
        """Let all threads end."""
        self.is_stopping = True
        for condition in (self.control_due, self.reader_due, self.commits_due, self.over):
            condition.notify_all()
        self.handover.stop()

    # Called by the committer.

    def committed(self, held: HeldPartition) -> None:
        """Handle the reply to a commit."""
        if not held.is_over:
            held.acknowledge()
            accepted(self, held)
            if held.next_commit() is not None:
                self.dirty[held] = None
            self.check_drained(held)

    def fenced(self, held: HeldPartition, seen: int) -> None:
        """Handle a refused token, or a lost connection to a partition (then `seen` is 0)."""
        self.notes.fenced += seen > 0
        self.control.fenced(held.partition, held.token, seen)
        self.obey(self.control.orders())
        self.control_due.notify()

    def disconnected(self, error: StreamUnavailableError) -> None:
        """Handle a lost connection to partitions, which come back with fresh tokens (R14)."""
        if self.is_stopping:
            return
        if self.notes.may_log("disconnected") is not None:
            which = "of this worker" if error.partitions is None else "of that node"
            _log.warning("%s: the partitions %s begin anew", error, which)
        for held in list(self.held.values()):
            if error.partitions is None or held.partition in error.partitions:
                self.fenced(held, 0)

    # Called by the handover.

    def prepare(self, held: HeldPartition) -> None:
        """Create the lanes of a partition that the worker gets for the first time. Without lock.

        Only the handover thread calls it.
        """
        if held.partition in self.lanes:
            return
        lanes = PartitionLanes(self, held.partition)
        lanes.register(self.queue.add_handler, self._desks)
        with self.lock:
            self.lanes[held.partition] = lanes

    def lanes_of(self, held: HeldPartition) -> list[HandlerLane]:
        """Return the lanes of the handlers of a partition; none before it has lanes."""
        return self.lanes[held.partition].all if held.partition in self.lanes else []

    def still_wanted(self, partitions: Sequence[HeldPartition]) -> list[HeldPartition]:
        """End partitions to be given up before they were taken, and return the others."""
        for held in partitions:
            if held.is_over or not held.is_draining:
                continue
            if held.life is Life.ANNOUNCED:  # the user is notified of its end as well
                held.step(Life.DECLINED)
                self.check_drained(held)
            else:
                self.release(held)
        return [held for held in partitions if not (held.is_over or held.is_draining)]

    def announced(self, partitions: Sequence[HeldPartition]) -> list[HeldPartition]:
        """Return the partitions to call `on_assign` for, and mark them as announced."""
        wanted = self.still_wanted(partitions)
        for held in wanted:
            if held.life is Life.OPEN:  # else it was announced before, and declined
                held.step(Life.ANNOUNCED)
        return wanted

    def postponed(self, partitions: Sequence[HeldPartition]) -> None:
        """Schedule another call of a factory or of `on_assign`, which has raised."""
        for held in self.still_wanted(partitions):
            held.step(Life.DECLINED if held.life is Life.ANNOUNCED else Life.POSTPONED)
            held.postponements += 1
            due_ms = self.now_ms() + wait_ms(_POSTPONED, held.postponements)
            self.call_at(due_ms, partial(self._assign_again, held))

    def taken(self, partitions: Sequence[HeldPartition]) -> None:
        """Run partitions whose `on_assign` has returned."""
        for held in partitions:
            if held.is_over:
                continue
            held.step(Life.TAKEN)
            if held.is_running:
                self.control.opened(held.partition, held.token)
                self.notes.assigned += 1
                self.notes.touch()
                self.reader_due.notify()
            self.check_drained(held)

    def handed_over(self, partitions: Sequence[HeldPartition]) -> None:
        """Release partitions whose `on_revoke` has returned."""
        for held in partitions:
            if not held.is_over:
                held.step(Revocation.HANDED_OVER)
                self.check_drained(held)

    # Called by drain threads.

    def may_work(self, held: HeldPartition) -> bool:
        """Return whether a handler may be called, or records fetched, for a partition."""
        if held.is_over:
            return False
        may = self.control.may_work(held.partition, held.token, self.now_ms())
        self._is_in_doubt = self._is_in_doubt or not may
        return may

    def is_held_up(self, held: HeldPartition) -> bool:
        """Return whether a partition is held up: it is paused, or a call was refused."""
        waits = held.partition in self.paused or held.refused is not None
        return waits and not held.is_draining

    def proceed(self) -> None:
        """Resume what waited because the lease seemed over: a late reply has renewed it."""
        if not self._is_in_doubt:
            return
        self._is_in_doubt = False
        for held in self.held.values():
            self.dirty[held] = None
            for lane in self.lanes_of(held):
                lane.resume()
        self.commits_due.notify()
        self.reader_due.notify()

    def settled(self, held: HeldPartition, advanced: bool) -> None:
        """Handle the end of records."""
        self.notes.touch()
        self.refusals.pop(held.partition, None)
        if advanced:
            self.dirty[held] = None
            self.commits_due.notify()
        if held.reading is ReadState.FULL and held.is_half_free:
            held.reading = ReadState.BEHIND
        if held.is_running and held.reading is not ReadState.FULL:
            self.reader_due.notify()

    def left(self, held: HeldPartition) -> None:
        """Handle the return of the last call for a partition that was lost."""
        if not self.is_inside(held):
            self.handover.put(Task.CLOSE, held)

    def is_inside(self, held: HeldPartition) -> bool:
        """Return whether a handler is being called for a partition."""
        return any(lane.is_inside and lane.is_of(held) for lane in self.lanes_of(held))

    def check_drained(self, held: HeldPartition) -> None:
        """Take the next step towards giving up a partition, if it is due."""
        if held.life not in (Life.DECLINED, Life.TAKEN) or not held.is_idle:
            return
        if held.revocation is Revocation.DRAINING:
            held.step(Revocation.REVOKING)
            self.handover.put(Task.REVOKE, held)
        elif held.revocation is Revocation.HANDED_OVER and held.is_drained:
            if held.unfinished and self.control.is_leaving:
                self.notes.unfinished[held.partition] = held.unfinished
            self.release(held)

    def set_aside(
        self,
        held: HeldPartition,
        letter: Entry,
        then: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        """Store a dead letter, and then call a function, unless the partition is gone.

        If the server refuses the letter and the partition is to be given up, call the other
        function.
        """
        self.to_set_aside.append((held, letter, then, give_up))
        self.commits_due.notify()

    def fail(self, error: BaseException) -> None:
        """Leave the group because of an error, which `run` raises."""
        if self.error is None:
            self.error = error
            _log.error("worker %s leaves its group: %s", self.control.name, Described(error))
        self.control.leave()
        self.control_due.notify()
        self.over.notify_all()

    def abort(self, error: BaseException) -> None:
        """Give up everything because a thread has failed, as the worker cannot run without it.

        Call this without the lock, while the error is being handled.
        """
        with self.lock:
            if self.is_stopping:
                return  # a connection was closed during a call
            _log.exception("worker %s cannot continue", self.control.name)
            self.fail(error)
            self.control.give_up()
            self.obey(self.control.orders())
            self.stop_threads()

    # Called by the user.

    @property
    def counts(self) -> RecordCounts:
        """The counts of all records so far."""
        trackers = [held.tracker for held in self.held.values() if held.tracker is not None]
        return sum((tracker.counts for tracker in trackers), self.notes.ended)

    def pause(self, partition: int, is_paused: bool) -> bool:
        """Pause or resume a partition; return False if it is not held."""
        held = self.held.get(partition)
        if held is None:
            return False
        (self.paused.add if is_paused else self.paused.discard)(partition)
        if not is_paused:
            self.resume(held)
        return True

    def resume(self, held: HeldPartition) -> None:
        """Resume a partition that was held up."""
        for lane in self.lanes_of(held):
            lane.resume()
        self.reader_due.notify()

    def open(self, held: HeldPartition) -> None:
        """Open a partition that was granted."""
        self.to_open.append(held)
        self.commits_due.notify()

    def _drain(self, held: HeldPartition) -> None:
        held.step(Revocation.DRAINING)
        if held.tracker is not None:
            held.tracker.revoke()
            for lane in self.lanes_of(held):
                lane.interrupt(held)
                lane.resume()
        if held.life in (Life.GRANTED, Life.POSTPONED):
            self.release(held)  # nothing runs whose end would lead to the next step
        else:
            call_again(held)
            self.check_drained(held)

    def release(self, held: HeldPartition) -> None:
        """Release a partition with nothing left to do."""
        self.control.drained(held.partition, held.token)
        self.paused.discard(held.partition)
        self.handover.put(Task.CLOSE, held)
        self._end(held)
        self.control_due.notify()

    def _drop(self, held: HeldPartition, loss: Loss) -> None:
        if loss is Loss.GIVEN_UP and held.unfinished:
            self.notes.unfinished[held.partition] = held.unfinished
        if loss is Loss.OTHER_OWNER:
            self.paused.discard(held.partition)
        was_inside, was_known = self.is_inside(held), held.is_known
        self._end(held)
        if loss is not Loss.GIVEN_UP and held.tracker is not None:  # else it was never open
            self.notes.lost += 1
        if was_known:
            self.handover.put(Task.LOST, held)
        if not was_inside:
            self.handover.put(Task.CLOSE, held)

    def _end(self, held: HeldPartition) -> None:
        held.step(Life.OVER)
        self.held.pop(held.partition, None)
        self.dirty.pop(held, None)
        if held.tracker is not None:
            held.tracker.end()
            self.notes.ended += held.tracker.counts
        lanes = self.lanes.get(held.partition)
        if lanes is not None:
            lanes.decoding.drop(held)
            for lane in lanes.all:
                lane.drop(held)
        self.notes.touch()
        self.over.notify_all()

    def _assign_again(self, held: HeldPartition) -> None:
        if not (held.is_over or held.is_draining):
            held.step(Life.ANNOUNCED if held.life is Life.DECLINED else Life.OPEN)
            self.handover.put(Task.ASSIGN, held)


# The reader's choice of partitions and record counts. Under the lock.


def to_fetch(member: Membership) -> list[tuple[HeldPartition, Fetch]]:
    """Return the partitions to read now, and how many records of each."""
    found = []
    for held in member.held.values():
        tracker = held.tracker
        if not held.is_running or held.reading is ReadState.FULL or tracker is None:
            continue
        if member.is_held_up(held):
            continue
        room = tracker.room.records
        if room == 0:
            held.reading = ReadState.FULL  # until half of it is free: no trickle of tiny chunks
            continue
        if member.may_work(held):
            limit = min(room, member.settings.max_batch_items, _fitting(held))
            found.append((held, Fetch(held.partition, tracker.position, limit, held.token)))
    return found


def _fitting(held: HeldPartition) -> int:
    """Return how many records of the recent size fit into the remaining bytes."""
    if held.record_bytes is None or held.tracker is None:
        return _FIRST_READ
    return max(1, int(held.tracker.room.bytes / held.record_bytes))


def take(
    member: Membership,
    partitions: Mapping[int, HeldPartition],
    found: Sequence[Fetched | Behind | Unreadable],
) -> None:
    """Take over the records that were read."""
    for held in partitions.values():
        held.reading = ReadState.CAUGHT_UP
    for each in found:
        held = partitions[each.partition]
        if isinstance(each, Behind):
            held.reading = ReadState.BEHIND
        elif isinstance(each, Unreadable):
            _cannot_read(member, held, each.failure)
        else:
            _take(member, held, each)


def _take(member: Membership, held: HeldPartition, fetched: Fetched) -> None:
    tracker = held.tracker
    if held.is_over or tracker is None:
        return
    held.reading = ReadState.BEHIND
    entries = fetched.entries
    held.record_bytes = max(1.0, fetched.size / len(entries))
    member.notes.touch()
    chunk = tracker.add(len(entries), entries.first, entries.last, fetched.size)
    if chunk is not None:
        member.lanes[held.partition].decoding.put(held, chunk, entries)


# Records that were trimmed from the stream before they were read. Under the lock.


def check_gap(member: Membership, held: HeldPartition, info: PartitionInfo) -> None:
    """Detect records of a partition that were trimmed before they were read."""
    tracker = held.tracker
    if tracker is None or held.is_over or info.added is None:
        return
    seen = held.done_before + tracker.counts.fetched
    is_at_end = info.end == tracker.position
    lost = (info.added if is_at_end else info.added - info.length) - seen
    if lost <= 0:
        return
    if not info.has_deletions:
        skips(member, held, tracker.position, lost)
    elif is_at_end:
        held.done_before += lost  # deleted, not trimmed: from here on the lag is right again


def skips(member: Membership, held: HeldPartition, offset: int, lost: int) -> bool:
    """Record that records are missing; return whether to continue without them."""
    error = TruncatedError(member.stream, held.partition, offset, lost)
    if member.settings.on_gap is OnGap.FAIL:
        member.fail(error)
        return False
    held.done_before += lost
    member.notes.lost_records += lost
    _log.warning("%s", error)
    return True


# Opening of granted partitions under their tokens. Under the lock.


def to_open(member: Membership) -> list[tuple[HeldPartition, Opening]]:
    """Return the partitions to open now."""
    granted = [held for held in member.to_open if not held.is_over]
    member.to_open = []
    for held in granted:
        held.step(Life.OPENING)
    return [(each, Opening(each.partition, each.token, each.session)) for each in granted]


def opened(member: Membership, held: HeldPartition, reply: Opened | Fenced | Failed) -> None:
    """Handle the reply to an opening."""
    if held.is_over:
        return
    if isinstance(reply, Fenced):
        member.fenced(held, reply.token)
    elif held.is_draining:
        member.release(held)
    elif isinstance(reply, Failed):
        held.step(Life.GRANTED)
        wait_after(member, held, reply, partial(member.open, held))
    else:
        accepted(member, held)
        _assign(member, held, reply)


def _assign(member: Membership, held: HeldPartition, reply: Opened) -> None:
    held.done_before = reply.done
    lost = max(0, reply.added - reply.length - reply.done)
    if lost and not skips(member, held, reply.offset, lost):
        held.step(Life.GRANTED)
        return
    held.step(Life.OPEN)
    position, settings = reply.offset, member.settings
    held.tracker = PartitionTracker(
        position, prefetch=settings.prefetch, prefetch_bytes=settings.prefetch_bytes
    )
    since = member.now_ms() - member.notes.started_ms + member.notes.started_at * 1_000
    held.assignment = Assignment(held.partition, held.token, position, since / 1_000)
    member.handover.put(Task.ASSIGN, held)


# What happens to a partition for which the server refuses a call. Under the lock.
#
# The partition waits, like one whose handler has failed: nothing of it is read or handled until
# the call, repeated with the delays of the worker's `RetryPolicy`, has succeeded. Other partitions
# continue. A partition that is to be given up has one more attempt.


def wait_after(
    member: Membership,
    held: HeldPartition,
    failure: Failed,
    again: Callable[[], None],
    on_failure: OnFailure = OnFailure.BLOCK,
) -> Verdict:
    """Make a partition wait, and repeat its call later.

    Args:
        member: The membership.
        held: The partition.
        failure: The reply of the server.
        again: Repeats the call.
        on_failure: What happens after the last attempt: BLOCK or STOP.
    """
    if held.refused is None:
        held.refused = Attempts(1, member.settings.attempts, on_failure)
    held.refused.begin()
    verdict, pause_ms = held.refused.failed(failure.error)
    held.again.append(again)
    _note(member, held, failure.error)
    if verdict is not Verdict.STOP:
        member.call_at(member.now_ms() + pause_ms, partial(call_again, held))
    return verdict


def call_again(held: HeldPartition) -> None:
    """Repeat the calls that were refused."""
    calls, held.again = held.again, []
    if not held.is_over:
        for call in calls:
            call()


def accepted(member: Membership, held: HeldPartition) -> None:
    """Let a partition continue after a successful call, unless another refused call waits."""
    if held.refused is not None and not held.again:
        held.refused = None
        member.resume(held)


def commit_refused(member: Membership, held: HeldPartition, failure: Failed) -> None:
    """Handle the refusal of a commit.

    Commands that ran are not sent again. Under `OnFailure.STOP` the worker stops after the last
    attempt. Otherwise the partition waits, whatever `on_failure` says, because its records cannot
    be set aside or skipped: their handler has returned, and some of their commands have run.
    """
    first, last = held.refuse(failure.ran)
    if held.is_draining:
        _note(member, held, failure.error)
        held.committing = Committing.GIVEN_UP
        member.check_drained(held)
        return
    held.committing = Committing.REFUSED
    is_stop = member.settings.on_failure is OnFailure.STOP
    verdict = wait_after(
        member,
        held,
        failure,
        partial(_commit_again, member, held),
        OnFailure.STOP if is_stop else OnFailure.BLOCK,
    )
    if verdict is Verdict.STOP:
        assert held.refused is not None
        tries = held.refused.pieces[0].tries
        position = (member.stream, held.partition)
        cause = failure.error
        member.fail(HandlerFailedError(*position, first=first, last=last, tries=tries, cause=cause))


def _commit_again(member: Membership, held: HeldPartition) -> None:
    held.committing = Committing.CALM
    member.dirty[held] = None
    member.commits_due.notify()


def _cannot_read(member: Membership, held: HeldPartition, failure: Failed) -> None:
    if not (held.is_over or held.is_draining):
        # It starts over: once it can be opened, it can be read as well.
        wait_after(member, held, failure, partial(_begin_anew, member, held))


def _begin_anew(member: Membership, held: HeldPartition) -> None:
    if not held.is_draining:
        member.fenced(held, 0)


def _note(member: Membership, held: HeldPartition, error: Exception) -> None:
    what = "given up" if held.is_draining else "refused"
    skipped = member.notes.may_log(f"{held.partition}:{what}:{type(error).__name__}")
    if skipped is None:
        return
    _log.warning(
        "%s/%d: the partition %s%s: %s",
        member.stream,
        held.partition,
        "is given up, and what was not committed comes again"
        if held.is_draining
        else "waits, and the call is made again",
        f"; {skipped} more like it since the last line" if skipped else "",
        described(error),
    )


class SkewWatch:
    """Reads the lags periodically, and warns when a partition has become hot.

    All of it is used under the lock of the membership.
    """

    def __init__(self, config: SkewDetectionConfig) -> None:
        """Start without hot partitions."""
        self._config = config
        self._detector = SkewDetector(self._config)
        self._next_ms = float("-inf")

    @property
    def hot(self) -> frozenset[int]:
        """The hot partitions of the last reading."""
        return self._detector.hot

    def watch(self, member: Membership) -> None:
        """Take a reading if one is due."""
        now = member.now_ms()
        if now < self._next_ms:
            return
        self._next_ms = now + self._config.check_interval_s * 1_000
        loads = member.load.measure(list(member.held), now)
        readings = [
            PartitionReading(
                partition=number,
                lag=lag,
                rate_per_s=loads[number].rate if number in loads else None,
                owner=member.control.name,
            )
            for number, lag in member.lags.items()
        ]
        before = self._detector.hot
        hot = self._detector.update(readings)
        for number, held in member.held.items():
            if held.tracker is not None:
                factor = 2 if number in hot else 1
                held.tracker.prefetch = factor * member.settings.prefetch
                held.tracker.prefetch_bytes = factor * member.settings.prefetch_bytes
        if hot - before:
            named = [each for each in readings if each.partition in hot]
            report = skew_report(readings, self._config)
            _log.warning("%s", skew_warning(member.stream, report, named))
