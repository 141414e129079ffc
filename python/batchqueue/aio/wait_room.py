"""Tasks of an event loop that wait for room in full partitions, in order of arrival per type.

Each task enqueues its own item when its turn comes; the code that calls it does not. A task that is
cancelled before then has enqueued nothing, and passes its turn on. A task is called when a check of
the partition finds room for it. One rule prevents an endless wait: while a queue has waiters and
none of them is called, the last check found the partition full, and the loop is notified of any
room that appears after that check.

In a partition that types share, the items of a handler that hangs may take up all the room. After a
while the core gives the room back to the other types, but only when asked for room; likewise, it
detects handlers that wait for each other forever only when asked. Full partitions are therefore
checked periodically.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, cast

from batchqueue import _core
from batchqueue.aio.handlers import current_call
from batchqueue.base.words import a_type
from batchqueue.exceptions import BatchQueueError

#: Seconds between two checks of full partitions.
_CHECK_S = 0.1

#: A partition and a type, as the core numbers them; with a consumer, all types have one line.
Line = tuple[int, int]


class WaitRoom:
    """The tasks of one loop that wait for one queue, and how the loop is notified of room."""

    def __init__(self, queue: _core.Queue) -> None:
        self.queue = queue
        self.notifier = _core.RoomNotifier()
        self.wait_queues: dict[Line, WaitQueue] = {}
        self._next_check: asyncio.TimerHandle | None = None

    async def enqueue(
        self,
        pending: _core.PendingItem,
        deadline: float | None,
        call: _core.HandlerCall | None,
        on_accepted: Callable[[Line], None] | None = None,
    ) -> bool:
        """Enqueue an item at its turn.

        Args:
            pending: The item that found no room.
            deadline: When to give up, by the loop's clock; None waits indefinitely.
            call: The handler call that the task belongs to.
            on_accepted: Called with the line once the item is accepted, while it is still the
                task's turn there.

        Returns:
            True if the item was accepted, False if the queue is shut down.

        Raises:
            ProduceTimeoutError: The deadline passed first.
            ReentrantProduceError: A handler would wait forever.
        """
        waiter = timer = None
        try:
            loop = asyncio.get_running_loop()
            if deadline is not None and loop.time() >= deadline:
                raise _timeout_error(pending)
            if deadline is None:
                pending.begin_wait(call)
            waiter = self._enter(pending, loop)
            if deadline is not None:
                timer = loop.call_at(deadline, waiter.time_out)
            while await waiter.turn():
                accepted = pending.try_again(call)
                if accepted is not None:
                    if accepted and on_accepted is not None:
                        on_accepted(waiter.wait_queue.line)
                    return accepted
                if waiter.timed_out:
                    break
                waiter.wait_again()
            raise _timeout_error(pending)
        finally:
            # In a forked child this raises as well; the error that ended the wait takes precedence.
            with contextlib.suppress(BatchQueueError):
                pending.refuse()
            if timer is not None:
                timer.cancel()
            if waiter is not None:
                waiter.leave()

    def _enter(self, pending: _core.PendingItem, loop: asyncio.AbstractEventLoop) -> "Waiter":
        line = pending.line
        assert line is not None, "a settled item waits in no line"
        if not self.wait_queues:
            self._add_reader(loop)
            self._check_later(loop)
        is_new = line not in self.wait_queues
        if is_new:
            self.wait_queues[line] = WaitQueue(self, line)
        wait_queue = self.wait_queues[line]
        waiter = Waiter(wait_queue, pending, loop)
        wait_queue.waiters[waiter] = None
        if is_new:
            self.notifier.watch(pending)
            # Room that appeared before the line was watched causes no notification.
            wait_queue.call_waiters()
        return waiter

    def _add_reader(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.add_reader(self.notifier.fileno(), self._on_room)
        except NotImplementedError:
            raise BatchQueueError(
                f"{a_type(loop)} cannot watch file descriptors, which notify tasks of "
                "room in a full partition: run a selector event loop"
            ) from None

    def _on_room(self) -> None:
        for line in self.notifier.take_notified():
            wait_queue = self.wait_queues.get(line)
            if wait_queue is not None:
                wait_queue.call_waiters()

    def _check_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next_check = loop.call_later(_CHECK_S, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._check_later(loop)
        for wait_queue in self.wait_queues.values():
            for waiter in wait_queue.waiters:
                if waiter.pending.is_given_up:
                    waiter.give_up()
            # A task that has been called checks again.
            if not wait_queue.called:
                wait_queue.call_waiters()

    def close(self, wait_queue: "WaitQueue", loop: asyncio.AbstractEventLoop) -> None:
        """Remove a queue that has no waiters left."""
        if self.wait_queues.get(wait_queue.line) is wait_queue:
            del self.wait_queues[wait_queue.line]
            self.notifier.unwatch(wait_queue.line)
            if not self.wait_queues:
                self._check_no_more()
                # A closed loop no longer watches file descriptors.
                with contextlib.suppress(RuntimeError):
                    loop.remove_reader(self.notifier.fileno())

    def abandon(self) -> None:
        """Refuse all pending items: the loop is closed and will not run its tasks again."""
        for wait_queue in list(self.wait_queues.values()):
            for waiter in list(wait_queue.waiters):
                waiter.pending.refuse()
            wait_queue.waiters.clear()
            self.notifier.unwatch(wait_queue.line)
        self.wait_queues.clear()
        self._check_no_more()

    def _check_no_more(self) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None


class Waiter:
    """A task that waits for room."""

    __slots__ = ("called", "future", "given_up", "pending", "timed_out", "wait_queue")

    def __init__(
        self, wait_queue: "WaitQueue", pending: _core.PendingItem, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.wait_queue = wait_queue
        self.pending = pending
        self.called = False
        self.timed_out = False
        self.given_up = False
        self.future = loop.create_future()

    async def turn(self) -> bool:
        """Wait for this task's turn; return False if time ran out while others were ahead.

        A task whose wait is given up gets its turn immediately, so that its item is refused.
        """
        while True:
            await self.future
            if self.given_up or self.wait_queue.first() is self:
                self.given_up = False
                return True
            if self.timed_out:
                return False
            self.wait_again()

    def wait_again(self) -> None:
        """Wait again: there was no room after all, or a task ahead of this one found none."""
        self.future = self.future.get_loop().create_future()
        self._end_turn()

    def call(self) -> None:
        """Call the task: a check found room for it."""
        if not self.called:
            self.called = True
            self.wait_queue.called += 1
            self._wake()

    def time_out(self) -> None:
        """Stop waiting."""
        self.timed_out = True
        self._wake()

    def give_up(self) -> None:
        """Refuse the item: the wait would never end."""
        self.given_up = True
        self._wake()

    def leave(self) -> None:
        """Leave the queue, whether the item was enqueued or not."""
        if self.wait_queue.waiters.pop(self, self) is None:
            self._end_turn()
            if not self.wait_queue.waiters:
                self.wait_queue.wait_room.close(self.wait_queue, self.future.get_loop())

    def _end_turn(self) -> None:
        if self.called:
            self.called = False
            self.wait_queue.called -= 1
            if self.wait_queue.called == 0:
                self.wait_queue.call_waiters()

    def _wake(self) -> None:
        # A closed loop no longer runs tasks.
        with contextlib.suppress(RuntimeError):
            if not self.future.done():
                self.future.set_result(None)


class WaitQueue:
    """The tasks that wait in one line, in order of arrival."""

    __slots__ = ("called", "line", "wait_room", "waiters")

    def __init__(self, wait_room: "WaitRoom", line: Line) -> None:
        self.wait_room = wait_room
        self.line = line
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.called = 0

    def first(self) -> Waiter:
        """Return the waiter whose turn is next."""
        return next(iter(self.waiters))

    def call_waiters(self) -> None:
        """Call as many waiters as there is room for."""
        if self.waiters:
            for waiter in islice(self.waiters, _core.room(self.wait_room.queue, self.line)):
                waiter.call()


def _timeout_error(pending: _core.PendingItem) -> BaseException:
    error = pending.time_out(0)
    assert error is not None, "a settled item cannot time out"
    return error


# The items of one call of `AsyncBatchQueue.produce_many`, which wait for room without a thread.


_PIECE_ITEMS = 1_024
"""Items of an iterator that are enqueued before the loop gets its next turn."""


class ItemSequence:
    """The items of one call of `produce_many`.

    Args:
        queue: The core's queue.
        notifier: Returns the notifier that tasks of the running loop listen to, or None.
        items: The items.
        by_caller: Whether the selector is a function of the caller, which needs each item.
    """

    def __init__(
        self,
        queue: _core.Queue,
        notifier: Callable[[], _core.RoomNotifier | None],
        items: Iterable[Any],
        *,
        by_caller: bool,
    ) -> None:
        self.accepted = 0
        self.call = current_call()
        self._queue, self._notifier = queue, notifier
        in_pieces = type(items) in (list, tuple) and not by_caller
        self._pieces = cast(list[Any] | tuple[Any, ...], items) if in_pieces else None
        self._remaining = iter(()) if self._pieces is not None else _iterator_of(items)
        self._after_turn: bool | _core.PendingItem | None = None

    def on_accepted(self, line: Line) -> None:
        """Count a pending item as accepted, and enqueue more while it is this task's turn there."""
        self.accepted += 1
        self._after_turn = self._enqueue(line)

    def enqueue(self) -> bool | _core.PendingItem | None:
        """Enqueue the items that find room.

        Returns:
            True if all items are accepted, False if the next item was refused, None if there are
            more items, or the next item if it found no room.
        """
        result, self._after_turn = self._after_turn, None
        return self._enqueue(None) if result is None else result

    def _enqueue(self, turn_at: Line | None) -> bool | _core.PendingItem | None:
        queue, notifier = self._queue, self._notifier()
        if self._pieces is not None:
            self.accepted, result = _core.try_produce_many(
                queue, self._pieces, self.accepted, notifier, turn_at, self.call
            )
            return result
        before = self.accepted
        try:
            for item in islice(self._remaining, _PIECE_ITEMS):
                result = _core.try_produce(queue, item, notifier, turn_at, self.call)
                if result is not True:
                    return result
                self.accepted += 1
        except BaseException as error:
            self._count_in(error)
            raise
        return True if self.accepted - before < _PIECE_ITEMS else None

    def _count_in(self, error: BaseException) -> None:
        """Add the number of accepted items to an error of the iterator, selector or core."""
        # The exception is raised even if it refuses attributes or notes.
        with contextlib.suppress(Exception):
            error.accepted = self.accepted  # type: ignore[attr-defined]
            error.add_note(
                f"produce_many had enqueued the first {self.accepted} items when this was raised"
            )


def _iterator_of(items: Iterable[Any]) -> Iterator[Any]:
    try:
        return iter(items)
    except TypeError:
        if hasattr(items, "__iter__"):
            raise  # from `__iter__`, which says why
    remedy = "give a list or another iterable of items, or give one item to produce"
    if hasattr(items, "__aiter__"):
        remedy = "give its items to produce: `async for item in items: await queue.produce(item)`"
    raise TypeError(f"produce_many got {a_type(items)}, which is not iterable; {remedy}")
