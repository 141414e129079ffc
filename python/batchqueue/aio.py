"""`AsyncBatchQueue`: the queue for event loops."""

import asyncio
import contextlib
import dataclasses
import inspect
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Any, Never, Self

import batchqueue._callbacks
import batchqueue._threads  # noqa: F401 - drain threads look them up, so they must be loaded
from batchqueue import _core
from batchqueue._arguments import Timeout, check_loop_config, check_name_and_config, misplaced
from batchqueue._item_sequence import ItemSequence
from batchqueue._loop_handlers import current_call, error_handler_on_loop
from batchqueue._loop_registry import LoopRegistry
from batchqueue._loop_submitter import LoopSubmitter, check_not_forked, deadline_in
from batchqueue._wait_room import WaitRoom
from batchqueue._waiting_thread import in_waiting_thread
from batchqueue.config import DEFAULT_CONFIG, BatchQueueConfig
from batchqueue.exceptions import BatchQueueError, QueueForkedError
from batchqueue.queue import T, start_core_queue
from batchqueue.stats import BatchQueueStats


class AsyncBatchQueue(LoopRegistry[T], LoopSubmitter[T]):
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
        LoopRegistry.__init__(self, config)
        settings = dataclasses.replace(
            config, error_handler=error_handler_on_loop(config.error_handler)
        )
        self._queue = start_core_queue(_core.Queue, name, settings, self._methods)
        self._by_caller = config.effective_selector.function is not None
        self._wait_rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, WaitRoom] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        LoopSubmitter.__init__(self)

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._queue.name

    @property
    def running(self) -> bool:
        """Whether the queue accepts items: False once it is shut down."""
        return self._queue.running

    async def produce(self, item: T, *extra: Never, timeout: Timeout = None) -> bool:
        """Enqueue one item.

        The task waits only if the partition is full and the strategy is `BLOCKING`. Tasks with
        items of the same type get room in order of arrival. A cancelled task has enqueued nothing.

        Args:
            item: Any object. It goes to the handler of exactly its class.
            extra: Nothing: a timeout is given by name.
            timeout: Seconds to wait for space with `BufferStrategy.BLOCKING`. Default: no limit.

        Returns:
            True if the item was accepted. False if it was refused: the partition is full and the
            strategy is `IF_POSSIBLE`, or the queue is shut down, perhaps while the task waited.

        Raises:
            ProduceTimeoutError: The partition stayed full for the whole timeout.
            ReentrantProduceError: The wait of a handler would never end.
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

        A cancelled task has enqueued the first items up to some item, and none after it. The
        `CancelledError` that is raised inside this call has their number in its attribute
        `accepted`; code that awaits the task gets another `CancelledError`, without it. An error
        of an iterator or of the selector has `accepted` too, and a note with it.

        Args:
            items: Any iterable. A list or a tuple is several times faster, because it is enqueued
                in large pieces. The loop gets a turn every few thousand items.
            extra: Nothing: a timeout is given by name.
            timeout: Seconds in all to wait for space with `BufferStrategy.BLOCKING`. Default: no
                limit.

        Returns:
            The number of accepted items, counted from the first.

        Raises:
            ProduceTimeoutError: A partition stayed full; `accepted` of the error is the number of
                accepted items.
            ReentrantProduceError: The wait of a handler would never end; the error has
                `accepted` too.
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
            # An error of the core counts the items that it accepted before.
            accepted = max(sequence.accepted, getattr(error, "accepted", 0))
            error.accepted = accepted  # type: ignore[union-attr]
            raise

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

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw the load of each drain thread and partition, as `BatchQueue.picture` does.

        Args:
            path: The file, which is replaced. It is an SVG, so its name should end in `.svg`.

        Raises:
            ConfigError: `path` is not a path, or names another format, such as `.png`.
            OSError: The file cannot be written.
            QueueForkedError: The queue was made before a fork.
        """
        from batchqueue.display.picture import draw

        draw(self.stats(), path)

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

    def _repr_html_(self) -> str:
        from batchqueue.display.html import queue_html

        return queue_html(self)

    def __reduce__(self) -> Any:
        return self._queue.__reduce__()

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


def _adopt_methods() -> None:
    """Name the inherited methods after the class that users know, as errors of Python name them."""
    for base in (LoopRegistry, LoopSubmitter):
        for name, method in vars(base).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                for function in (method, inspect.unwrap(method)):
                    function.__qualname__ = f"{AsyncBatchQueue.__qualname__}.{name}"


_adopt_methods()
