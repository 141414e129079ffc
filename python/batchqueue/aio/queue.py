"""`AsyncBatchQueue`: the queue for event loops."""

import asyncio
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Never, Self

import batchqueue.base.threads  # noqa: F401 - drain threads look it up, so it must be loaded
from batchqueue import _core
from batchqueue.aio.handlers import (
    HandlerLoops,
    LoopFuture,
    Mailbox,
    current_call,
    error_handler_on_loop,
    in_waiting_thread,
    methods_on_loop,
)
from batchqueue.aio.wait_room import ItemSequence, WaitRoom
from batchqueue.exceptions import BatchQueueError, QueueForkedError
from batchqueue.queues.config import DEFAULT_CONFIG, BatchQueueConfig
from batchqueue.queues.handlers import (
    HandlerMethods,
    is_coroutine_function,
)
from batchqueue.queues.queue import (
    HandlerOptions,
    QueueBase,
    T,
    Timeout,
    check_loop_config,
    check_name_and_config,
    misplaced,
    seconds_of,
    start_core_queue,
)
from batchqueue.queues.stats import BatchQueueStats


class AsyncBatchQueue(QueueBase, Generic[T]):
    """A partitioned queue that drains itself, for event loops. It never blocks the loop.

    Items are enqueued on the loop's thread. If a partition is full and the strategy is BLOCKING,
    the task waits while the loop runs other tasks. Handlers may be coroutine functions: they run on
    the loop that they were registered from, one call at a time, while the drain thread waits. Plain
    handlers run on the drain thread, as in a `BatchQueue`.

    Args:
        name: The name in logs, statistics and thread names; printable characters, at least one.
        config: The settings. If the consumer or the error handler is a coroutine function, make the
            queue in a coroutine. Default: one drain thread per core that this process may use,
            `PartitionPolicy.adaptive()`, and the defaults of `BatchQueueConfig`.

    Raises:
        ConfigError: The name or a setting is invalid.

    Example:
        >>> import asyncio
        >>> from batchqueue import AsyncBatchQueue
        >>> seen = []
        >>> async def consume(batch):
        ...     await asyncio.sleep(0)
        ...     seen.extend(batch)
        >>> async def main():
        ...     async with AsyncBatchQueue("words") as queue:
        ...         queue.add_handler(str, consume)
        ...         return await queue.produce_many(["to", "be", "or", "not"])
        >>> asyncio.run(main())
        4
        >>> seen
        ['to', 'be', 'or', 'not']
    """

    def __init__(self, name: str, config: BatchQueueConfig[T] = DEFAULT_CONFIG) -> None:
        check_name_and_config(name, config)
        check_loop_config(config)
        self.config = config
        self._handler_loops: HandlerLoops = weakref.WeakValueDictionary()
        self._wait_rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, WaitRoom] = (
            weakref.WeakKeyDictionary()
        )
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self._by_caller = config.effective_selector.function is not None
        settings = dataclasses.replace(
            config, error_handler=error_handler_on_loop(config.error_handler)
        )
        self._queue = start_core_queue(_core.Queue, name, settings, self._handler_methods)
        self._sync: SyncProducer[T] = SyncProducer(self._queue)

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._queue.name

    @property
    def running(self) -> bool:
        """Whether the queue accepts items: False once it is shut down."""
        return self._queue.running

    @property
    def sync(self) -> "SyncProducer[T]":
        """The blocking `produce`, `produce_many` and `submit` of this queue, for other threads.

        They wait as those of a `BatchQueue` do, and cost the same. Called on the thread of a loop,
        they would block it.
        """
        return self._sync

    def remove_handler(self, item_type: type[Any] | str) -> bool:
        """Remove the handler of a type. Items of the type are unhandled from now on.

        That includes items that wait in a partition: await `flush` first for the handler to get
        them.

        This never waits: after it returns, the handler may still get the batch that a drain thread
        holds, and then `on_close`.

        Args:
            item_type: A class or a tag, as in `add_handler`.

        Returns:
            True if the type had a handler. False if it had none, or the queue is shut down.

        Raises:
            ConfigError: `item_type` is neither a class nor a str.
            QueueForkedError: The queue was made before a fork.
        """
        return _core.remove_handler_soon(self._queue, item_type)

    async def produce(self, item: T, *extra: Never, timeout: Timeout = None) -> bool:
        """Enqueue one item.

        The task waits only if the partition is full and the strategy is `BLOCKING`. Tasks with
        items of the same type get room in order of arrival. A cancelled task has enqueued nothing.

        Args:
            item: Any object. It goes to the handler of its class.
            extra: Must be empty: a timeout is given by name.
            timeout: Seconds to wait for space with `BufferStrategy.BLOCKING`. Default: no limit.

        Returns:
            True if the item was accepted. False if it was refused: the partition is full and the
            strategy is `IF_POSSIBLE`, or the queue is shut down, perhaps while the task waited.

        Raises:
            ProduceTimeoutError: The partition stayed full for the whole timeout.
            ReentrantProduceError: A handler would wait forever.
            QueueForkedError: The queue was made before a fork.
        """
        if extra:
            raise misplaced("produce", extra)
        deadline = deadline_in(timeout)
        call = current_call()
        result = _core.try_produce(self._queue, item, self._notifier(), None, call)
        if isinstance(result, bool):
            return result
        return await self._wait_room().enqueue(result, deadline, call)

    async def produce_many(self, items: Iterable[T], *extra: Never, timeout: Timeout = None) -> int:
        """Enqueue many items in order, up to the first that is refused.

        A cancelled task has enqueued a prefix of the items. The `CancelledError` that is raised
        inside this call has its length in the attribute `accepted`; code that awaits the task gets
        another `CancelledError`, without it. An error of an iterator or of the selector has
        `accepted` too, and a note with the number.

        Args:
            items: Any iterable. A list or a tuple is several times faster, because it is enqueued
                in large pieces. The loop gets a turn every few thousand items.
            extra: Must be empty: a timeout is given by name.
            timeout: Seconds in all to wait for space with `BufferStrategy.BLOCKING`. Default: no
                limit.

        Returns:
            The number of accepted items, counted from the first.

        Raises:
            ProduceTimeoutError: A partition stayed full; `accepted` of the error is the number of
                accepted items.
            ReentrantProduceError: A handler would wait forever; the error has `accepted` too.
            QueueForkedError: The queue was made before a fork.
            TypeError: `items` is not iterable.
        """
        if extra:
            raise misplaced("produce_many", extra)
        deadline = deadline_in(timeout)
        sequence = ItemSequence(self._queue, self._notifier, items, by_caller=self._by_caller)
        try:
            while True:
                result = sequence.enqueue()
                if result is None:
                    await asyncio.sleep(0)
                elif isinstance(result, bool) or not await self._wait_room().enqueue(
                    result, deadline, sequence.call, sequence.on_accepted
                ):
                    return sequence.accepted
        except (asyncio.CancelledError, BatchQueueError) as error:
            # An error of the core has the number of items accepted before it.
            accepted = max(sequence.accepted, getattr(error, "accepted", 0))
            error.accepted = accepted  # type: ignore[union-attr]
            raise

    def submit(self, item: T, *extra: Never, timeout: Timeout = None) -> "asyncio.Future[Any]":
        """Enqueue one item and return a future of its result, to be awaited.

        The item is enqueued before the call returns, unless the partition is full and the strategy
        is `BLOCKING`: then a task of the loop waits for room, as in `produce`.

        A task that is cancelled while it awaits the result cancels the item, unless a handler has
        it already: then the handler continues, and its result is dropped.

        Args:
            item: Any object. It goes to the handler of its class.
            extra: Must be empty: a timeout is given by name.
            timeout: Seconds to wait for space with `BufferStrategy.BLOCKING`, not for the result.
                Default: no limit.

        Returns:
            A future of the running loop, with the result of the item, or the error that its handler
            raised in the last attempt. The errors of a refused item are those of
            `BatchQueue.submit`.

        Raises:
            ConfigError: The timeout is below 0.
            QueueForkedError: The queue was made before a fork.
        """
        if extra:
            raise misplaced("submit", extra)
        deadline = deadline_in(timeout)
        call = current_call()
        loop = asyncio.get_running_loop()
        future = LoopFuture(loop=loop)
        future.item, result = _core.try_submit(
            self._queue, item, self._notifier(), call, self._mailbox(loop), future
        )
        if not isinstance(result, bool):
            waiting = loop.create_task(self._enqueue_submitted(result, deadline, call))
            future.waiting = waiting
        return future

    async def produce_arrow(
        self, batch: Any, *extra: Never, type_column: str, timeout: Timeout = None
    ) -> int:
        """Enqueue the rows of Arrow data, split by the values of one column, the tags.

        Otherwise as `BatchQueue.produce_arrow`. The rows are split and enqueued in a separate
        thread, so concurrent calls have no order.

        A cancelled task has enqueued some of the rows; the others are dropped.

        Args:
            batch: As in `BatchQueue.produce_arrow`.
            extra: Must be empty: a timeout is given by name.
            type_column: As in `BatchQueue.produce_arrow`.
            timeout: As in `BatchQueue.produce_arrow`.

        Returns:
            The number of accepted rows.

        Raises:
            ConfigError: As `BatchQueue.produce_arrow`.
            BatchQueueError: As `BatchQueue.produce_arrow`.
            ProduceTimeoutError: As `BatchQueue.produce_arrow`.
            ReentrantProduceError: As `BatchQueue.produce_arrow`.
            QueueForkedError: The queue was made before a fork.
        """
        if extra:
            raise misplaced("produce_arrow", extra)
        queue, call = self._queue, current_call()
        check_not_forked(queue)
        return await in_waiting_thread(
            "batchqueue-arrow",
            lambda stop: _core.produce_arrow_until(queue, batch, type_column, timeout, stop, call),
        )

    def rebalance(self) -> int:
        """Run the balancer now, on the load since its last run, as `BatchQueue.rebalance` does.

        Returns:
            The number of partitions whose wanted drain thread changed; 0 without a balancer.

        Raises:
            QueueForkedError: The queue was made before a fork.
        """
        return self._queue.rebalance()

    async def flush(self, timeout: Timeout = None) -> bool:
        """Wait until all items accepted before the call have been handled.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Returns:
            True if they have been handled. False if time ran out, or a shutdown abandoned some.

        Raises:
            BatchQueueError: Called from a handler, which would wait for itself.
            QueueForkedError: The queue was made before a fork.
        """
        queue = self._queue
        if current_call() is not None:
            raise BatchQueueError(
                "flush was called from a handler, which would wait for itself; "
                "call it from another task"
            )
        check_not_forked(queue)
        return await in_waiting_thread(
            "batchqueue-flush", lambda stop: _core.flush_until(queue, timeout, stop)
        )

    async def shutdown(self, timeout: Timeout = None) -> int:
        """Refuse every new item, deliver what was accepted, and end the drain threads.

        Tasks that wait in `produce` get False. The loop stays free for handlers. Called from a
        handler of this queue, it closes the queue and returns; the drain threads end later. If the
        task is cancelled, the queue stays closed and continues to deliver.

        Args:
            timeout: Seconds to wait. Default: no limit.

        Returns:
            The number of abandoned items: 0 unless time ran out.

        Raises:
            QueueForkedError: The queue was made before a fork.
        """
        queue, call = self._queue, current_call()
        check_not_forked(queue)
        self._abandon_closed_loops()
        return await in_waiting_thread(
            "batchqueue-shutdown", lambda stop: _core.shutdown_until(queue, timeout, stop, call)
        )

    def stats(self) -> BatchQueueStats:
        """Return a snapshot of the counts and the usage. Works after shutdown too."""
        self._abandon_closed_loops()
        return BatchQueueStats.from_snapshot(_core.stats_of(self._queue))

    async def __aenter__(self) -> Self:
        """Return the queue."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Shut the queue down: deliver accepted items within `config.shutdown_timeout` seconds."""
        with contextlib.suppress(QueueForkedError):
            await self.shutdown(self.config.shutdown_timeout)

    def __repr__(self) -> str:
        try:
            return f"<AsyncBatchQueue {self.name!r} {'running' if self.running else 'shut down'}>"
        except QueueForkedError:
            return f"<AsyncBatchQueue {self.name!r} made before a fork>"

    def __reduce__(self) -> Any:
        return self._queue.__reduce__()

    def _handler_methods(self, handler: Any) -> HandlerMethods:
        methods = methods_on_loop(handler, self._handler_loops)
        elsewhere = methods.works_elsewhere or is_coroutine_function(self.config.error_handler)
        return methods._replace(works_elsewhere=elsewhere)

    def _register_handlers(
        self, item_type: Any, handlers: list[HandlerMethods], options: HandlerOptions
    ) -> None:
        _core.add_handlers(self._queue, item_type, handlers, options, wait=False)

    async def _enqueue_submitted(
        self, pending: _core.PendingItem, deadline: float | None, call: _core.HandlerCall | None
    ) -> None:
        # The future of the item gets the error.
        with contextlib.suppress(BatchQueueError):
            await self._wait_room().enqueue(pending, deadline, call)

    def _mailbox(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            with self._lock:
                mailbox = self._mailboxes.setdefault(loop, Mailbox(loop))
        return mailbox

    def _notifier(self) -> _core.RoomNotifier | None:
        wait_room = self._wait_rooms.get(asyncio.get_running_loop())
        return None if wait_room is None else wait_room.notifier

    def _wait_room(self) -> WaitRoom:
        """Return the room in which tasks of the running loop wait."""
        loop = asyncio.get_running_loop()
        wait_room = self._wait_rooms.get(loop)
        if wait_room is None:
            self._abandon_closed_loops()
            with self._lock:
                wait_room = self._wait_rooms[loop] = WaitRoom(self._queue)
        return wait_room

    def _abandon_closed_loops(self) -> None:
        """Refuse the pending items of closed loops, whose tasks never run again."""
        with self._lock:
            closed = [loop for loop in self._wait_rooms if loop.is_closed()]
            wait_rooms = [self._wait_rooms.pop(loop) for loop in closed]
        for wait_room in wait_rooms:
            wait_room.abandon()


class SyncProducer(Generic[T]):
    """`AsyncBatchQueue.sync`: `produce`, `produce_many` and `submit`, for other threads.

    They are the methods of `BatchQueue`, and wait as those do. Called on the thread of an event
    loop, they would block the loop and the handlers that run on it.
    """

    if TYPE_CHECKING:  # the core's methods, typed with T

        def produce(self, item: T, *, timeout: Timeout = None) -> bool:
            """Enqueue one item."""
            ...

        def produce_many(self, items: Iterable[T], *, timeout: Timeout = None) -> int:
            """Enqueue many items."""
            ...

        def submit(self, item: T, *, timeout: Timeout = None) -> Future[Any]:
            """Enqueue one item and return a future of its result."""
            ...

    def __init__(self, queue: _core.Queue) -> None:
        # The methods themselves, without a wrapper: a call costs the same as that of a BatchQueue.
        self.produce = queue.produce  # type: ignore[method-assign]
        self.produce_many = queue.produce_many  # type: ignore[method-assign]
        self.submit = queue.submit  # type: ignore[method-assign]


def check_not_forked(queue: _core.Queue) -> None:
    """Raise QueueForkedError on the caller's thread instead of a waiting thread."""
    _ = queue.running


def deadline_in(timeout: Timeout) -> float | None:
    """Return the time `timeout` seconds from now by the clock of the running loop.

    Raises:
        ConfigError: The timeout is below 0, or neither a number nor a `timedelta`.
    """
    seconds = seconds_of(timeout)
    return None if seconds is None else asyncio.get_running_loop().time() + seconds
