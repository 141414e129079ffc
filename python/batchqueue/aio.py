"""`AsyncBatchQueue`: the same queue, used from an event loop."""

import asyncio
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, Self, TypeVar, cast

import batchqueue._callbacks  # noqa: F401 - the core looks it up from drain threads, so it must be loaded
from batchqueue import _core
from batchqueue._coroutines import (
    Homes,
    error_handler_on_loop,
    in_thread,
    inside_handler,
    methods_on_loop,
)
from batchqueue._lines import Desk
from batchqueue.config import BatchQueueConfig
from batchqueue.exceptions import BatchQueueError, ConfigError, QueueForkedError
from batchqueue.handlers import HandlerMethods, SupportsConsume, is_coroutine_function
from batchqueue.queue import check, check_factory, check_weight, start
from batchqueue.stats import BatchQueueStats

T = TypeVar("T")
H = TypeVar("H")

_PIECE = 1_024
"""Items of an iterator that go in before the loop gets its next turn."""


class AsyncBatchQueue(Generic[T]):
    """A partitioned queue that drains itself, used from an event loop. Nothing in it blocks the loop.

    Items go in on the loop's thread. Where a partition is full and the strategy BLOCKING, the task
    waits, and the loop runs others. Handlers may be coroutines: they run on the loop that they were
    registered from, one call at a time, while the drain thread waits. Plain handlers run on the
    drain thread, as in a `BatchQueue`.

    Args:
        name: For logs, statistics and thread names.
        config: The settings. Where `consumer`, what `consumer_factory` makes, or `error_handler` is
            a coroutine function, make the queue in a coroutine.

    Raises:
        ConfigError: A setting cannot be used.

    Example:
        >>> import asyncio
        >>> from batchqueue import AsyncBatchQueue, BatchQueueConfig, ThreadPolicy
        >>> seen = []
        >>> async def consume(batch):
        ...     await asyncio.sleep(0)
        ...     seen.extend(batch)
        >>> async def main():
        ...     async with AsyncBatchQueue("words", BatchQueueConfig(threads=ThreadPolicy.fixed(1)))
        as queue: ...         queue.add_handler(str, consume) ...         return await
        queue.produce_many(["to", "be", "or", "not"])
        >>> asyncio.run(main())
        4
        >>> seen
        ['to', 'be', 'or', 'not']
    """

    config: BatchQueueConfig[T]

    def __init__(self, name: str, config: BatchQueueConfig[T]) -> None:
        check(name, config)
        self.config = config
        self._homes: Homes = weakref.WeakValueDictionary()
        settings = dataclasses.replace(
            config, error_handler=error_handler_on_loop(config.error_handler)
        )
        self._queue = start(_core.Queue, name, settings, self._methods)
        self._by_caller = config.effective_selector.function is not None
        self._desks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Desk] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    @property
    def running(self) -> bool:
        """Whether the queue takes items."""
        return self._queue.running

    def add_handler(
        self,
        item_type: type[H] | str,
        handler: SupportsConsume[H] | Callable[[list[H]], Awaitable[Any] | Any],
        *,
        weight: float = 1.0,
    ) -> None:
        """Send the items of one type to a handler, in place of the one it had, as `BatchQueue.add_handler` does.

        It never waits: a handler that is replaced may still be busy with its last batch when this
        returns.

        Args:
            item_type: The class; items match by `type(item)`, subclasses do not.
            handler: An object with `consume`, or a function that takes a list. What is `async def`,
                or returns an awaitable, runs on the loop that runs now; a handler that is
                registered again moves there.
            weight: Share of a partition under `PartitionPolicy.adaptive`.

        Raises:
            ConfigError: As `BatchQueue.add_handler`; also a coroutine function where no loop runs.
            QueueClosedError: The queue is shut down.
        """
        check_weight(weight)
        self._queue._add_handlers(item_type, [self._methods(handler)], weight, wait=False)

    def add_handler_factory(
        self, item_type: type[H] | str, factory: Callable[[], Any], *, partitions: int
    ) -> None:
        """Send the items of a hot type to several handlers, as `BatchQueue.add_handler_factory` does.

        Args:
            item_type: The class, as in `add_handler`.
            factory: Makes one handler; called once per partition, now.
            partitions: Partitions, and handlers; from 1 up.

        Raises:
            ConfigError: As `BatchQueue.add_handler_factory`; also a coroutine function where no
                loop runs.
            QueueClosedError: The queue is shut down.
        """
        check_factory(factory, partitions)
        handlers = [self._methods(factory()) for _ in range(partitions)]
        self._queue._add_handlers(item_type, handlers, 1.0, wait=False)

    def remove_handler(self, item_type: type[Any] | str) -> bool:
        """Take a type's handler away: items of the type are unhandled from now on.

        It never waits: the handler gets the batch that a drain thread may have in hand, and then
        `on_close`, later.

        Args:
            item_type: The class.

        Returns:
            False: the type had no handler, or the queue is shut down.
        """
        return _core.remove_handler_soon(self._queue, item_type)

    async def produce(self, item: T, *, timeout: float | None = None) -> bool:
        """Put one item in. The task waits only where the partition is full and the strategy BLOCKING.

        Tasks that wait for one partition get room in order of arrival. One that is cancelled has
        put nothing in.

        Args:
            item: Any object. It goes to the handler of exactly its class.
            timeout: Seconds to wait for space with BLOCKING; None waits as long as it takes.

        Returns:
            True: accepted. False: refused, because the partition is full and the strategy
            IF_POSSIBLE, or because the queue is shut down, also while the task waits.

        Raises:
            ProduceTimeoutError: The partition stayed full for the whole time-out.
            ReentrantProduceError: A handler of this queue would wait for itself.
            QueueForkedError: The queue was made before a fork.
        """
        deadline = _deadline(timeout)
        inside = inside_handler()
        tried = _core.try_produce(self._queue, item, self._bell(), None, inside)
        if isinstance(tried, bool):
            return tried
        return await self._desk().put(tried, deadline, inside)

    async def produce_many(self, items: Iterable[T], *, timeout: float | None = None) -> int:
        """Put many items in, in order, up to the first that is refused.

        A task that is cancelled has put in the first so many, and no others. The `CancelledError`
        that goes through this call says how many in its attribute `accepted`; whoever awaits the
        task gets another one.

        Args:
            items: Any iterable. A list or a tuple is taken in large pieces, which is several times
                faster. The loop gets a turn after some thousand items.
            timeout: Seconds in all to wait for space with BLOCKING; None waits as long as it takes.

        Returns:
            The number of items accepted: the first so many.

        Raises:
            ProduceTimeoutError: A partition stayed full; `accepted` of the error says how many are
                in.
            ReentrantProduceError: A handler of this queue would wait for itself; it has `accepted`
                as well.
            QueueForkedError: The queue was made before a fork.
        """
        deadline = _deadline(timeout)
        many = _Many(self, items)
        try:
            while True:
                tried = many.put()
                if tried is None:
                    await asyncio.sleep(0)
                elif isinstance(tried, bool) or not await self._desk().put(
                    tried, deadline, many.inside, many.go_on
                ):
                    return many.accepted
        except (asyncio.CancelledError, BatchQueueError) as error:
            # The core has counted what went in before its own error.
            error.accepted = max(many.accepted, getattr(error, "accepted", 0))  # type: ignore[union-attr]
            raise

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until all items accepted before the call have been handled.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Returns:
            True: they have. False: time ran out, or a shutdown abandoned some.

        Raises:
            BatchQueueError: Called from a handler, which would wait for itself.
            QueueForkedError: The queue was made before a fork.
        """
        queue, inside = self._queue, inside_handler()
        if inside is not None:
            raise BatchQueueError(
                "flush was called from a handler, which would wait for itself; call it from another task"
            )
        _check_alive(queue)
        return await in_thread(
            "batchqueue-flush", lambda stop: _core.flush_until(queue, timeout, stop)
        )

    async def shutdown(self, timeout: float | None = None) -> int:
        """Refuse every new item, deliver what was accepted, and end the drain threads.

        Tasks that wait in `produce` get False. The loop stays free for handlers. Called from a
        handler of this queue, it closes and returns; the drain threads end by themselves. Where the
        task is cancelled, the queue stays closed and goes on delivering.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Returns:
            Abandoned items: 0 unless time ran out.

        Raises:
            QueueForkedError: The queue was made before a fork.
        """
        queue, inside = self._queue, inside_handler()
        _check_alive(queue)
        self._sweep()
        return await in_thread(
            "batchqueue-shutdown", lambda stop: _core.shutdown_until(queue, timeout, stop, inside)
        )

    def stats(self) -> BatchQueueStats:
        """Return a snapshot of counts and use; also after shutdown."""
        self._sweep()
        return BatchQueueStats.from_snapshot(self._queue._stats())

    async def __aenter__(self) -> Self:
        """Return the queue."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Deliver what was accepted, within `config.shutdown_timeout` seconds."""
        with contextlib.suppress(QueueForkedError):
            await self.shutdown(self.config.shutdown_timeout)

    def __repr__(self) -> str:
        try:
            return f"<AsyncBatchQueue {self.name!r} {'running' if self.running else 'shut down'}>"
        except QueueForkedError:
            return f"<AsyncBatchQueue {self.name!r} made before a fork>"

    def __reduce__(self) -> Any:
        return self._queue.__reduce__()

    def _methods(self, handler: Any) -> HandlerMethods:
        methods = methods_on_loop(handler, self._homes)
        elsewhere = methods.works_elsewhere or is_coroutine_function(self.config.error_handler)
        return methods._replace(works_elsewhere=elsewhere)

    def _bell(self) -> _core.Bell | None:
        desk = self._desks.get(asyncio.get_running_loop())
        return None if desk is None else desk.bell

    def _desk(self) -> Desk:
        """Return the desk where tasks of the running loop wait."""
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        if desk is None:
            self._sweep()
            with self._lock:
                desk = self._desks[loop] = Desk(self._queue)
        return desk

    def _sweep(self) -> None:
        """Refuse what tasks of closed loops wait to put in: nobody runs them any more."""
        with self._lock:
            closed = [loop for loop in self._desks if loop.is_closed()]
            desks = [self._desks.pop(loop) for loop in closed]
        for desk in desks:
            desk.abandon()


class _Many:
    """One call of `produce_many`: what is left of its items."""

    def __init__(self, queue: AsyncBatchQueue[Any], items: Iterable[Any]) -> None:
        self.accepted = 0
        self.inside = inside_handler()
        self._of = queue
        in_pieces = type(items) in (list, tuple) and not queue._by_caller
        self._pieces = cast(list[Any] | tuple[Any, ...], items) if in_pieces else None
        self._rest: Iterator[Any] = iter(()) if self._pieces is not None else iter(items)
        self._after_turn: bool | _core.Waiting | None = None

    def go_on(self, partition: int) -> None:
        """One that waited is in; while it is this task's turn there, others may follow it."""
        self.accepted += 1
        self._after_turn = self._put(partition)

    def put(self) -> bool | _core.Waiting | None:
        """Put in what finds room: True, that is all; False, the next is refused; or it waits; None, there is more."""
        tried, self._after_turn = self._after_turn, None
        return self._put(None) if tried is None else tried

    def _put(self, ahead: int | None) -> bool | _core.Waiting | None:
        queue, bell = self._of._queue, self._of._bell()
        if self._pieces is not None:
            self.accepted, tried = _core.try_produce_many(
                queue, self._pieces, self.accepted, bell, ahead, self.inside
            )
            return tried
        before = self.accepted
        for item in islice(self._rest, _PIECE):
            tried = _core.try_produce(queue, item, bell, ahead, self.inside)
            if tried is not True:
                return tried
            self.accepted += 1
        return True if self.accepted - before < _PIECE else None


def _check_alive(queue: _core.Queue) -> None:
    """Raise QueueForkedError here and now, and not from a thread."""
    _ = queue.running


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if not timeout >= 0:
        raise ConfigError(f"timeout is {timeout}; give seconds from 0 up, or None to wait")
    return asyncio.get_running_loop().time() + timeout
