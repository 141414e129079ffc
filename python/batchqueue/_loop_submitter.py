"""What an `AsyncBatchQueue` has beside `produce`: results, rows, and a door for threads."""

import asyncio
import contextlib
import threading
import weakref
from typing import Any, Generic, Never

from batchqueue import _core
from batchqueue._arguments import Timeout, misplaced, seconds_of
from batchqueue._loop_futures import LoopFuture, Mailbox
from batchqueue._loop_handlers import current_call
from batchqueue._sync_producer import SyncProducer
from batchqueue._wait_room import WaitRoom
from batchqueue._waiting_thread import in_waiting_thread
from batchqueue.exceptions import BatchQueueError
from batchqueue.queue import T


class LoopSubmitter(Generic[T]):
    """The base of `AsyncBatchQueue`, which has the queue and the rooms where tasks wait."""

    _queue: _core.Queue
    _lock: threading.Lock

    def __init__(self) -> None:
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = (
            weakref.WeakKeyDictionary()
        )
        self._sync: SyncProducer[T] = SyncProducer(self._queue)

    def _notifier(self) -> _core.RoomNotifier | None:
        raise NotImplementedError

    def _wait_room(self) -> WaitRoom:
        raise NotImplementedError

    def submit(self, item: T, *extra: Never, timeout: Timeout = None) -> "asyncio.Future[Any]":
        """Enqueue one item whose result is wanted. Await what this returns.

        The item is enqueued before the call returns. Only if the partition is full and the strategy
        is `BLOCKING`, a task of the loop waits for room, as that of `produce` does.

        A task that is cancelled while it awaits the result cancels the item, unless a handler has
        got it: then the handler continues, and its result is dropped.

        Args:
            item: Any object. It goes to the handler of exactly its class.
            extra: Nothing: a timeout is given by name.
            timeout: Seconds to wait for space with `BufferStrategy.BLOCKING`, not for the result.
                Default: no limit.

        Returns:
            A future of the running loop: the result of the item, or what its handler raised in the
            last attempt. The errors of an item that was refused are those of `BatchQueue.submit`.

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

    async def _enqueue_submitted(
        self, pending: _core.PendingItem, deadline: float | None, call: _core.HandlerCall | None
    ) -> None:
        # The future of the item has the error.
        with contextlib.suppress(BatchQueueError):
            await self._wait_room().enqueue(pending, deadline, call)

    async def produce_arrow(
        self, batch: Any, *extra: Never, type_column: str, timeout: Timeout = None
    ) -> int:
        """Enqueue the rows of Arrow data, split by the values of one column, the tags.

        Otherwise as `BatchQueue.produce_arrow`. The rows are split and enqueued in a separate
        thread, so calls that are not awaited one after the other have no order.

        A task that is cancelled has enqueued some of the rows; the others are dropped.

        Args:
            batch: As in `BatchQueue.produce_arrow`.
            extra: Nothing: a timeout is given by name.
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

    @property
    def sync(self) -> "SyncProducer[T]":
        """What other threads call: `produce`, `produce_many` and `submit` of the same queue.

        They wait as those of a `BatchQueue` do, and cost the same. On the thread of a loop they
        would block it.
        """
        return self._sync

    def _mailbox(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            with self._lock:
                mailbox = self._mailboxes.setdefault(loop, Mailbox(loop))
        return mailbox


def check_not_forked(queue: _core.Queue) -> None:
    """Raise QueueForkedError on the caller's thread instead of a waiting thread."""
    _ = queue.running


def deadline_in(timeout: Timeout) -> float | None:
    """Return the time `timeout` seconds from now by the clock of the running loop.

    Raises:
        ConfigError: It is below 0, or neither a number nor a `timedelta`.
    """
    seconds = seconds_of(timeout)
    return None if seconds is None else asyncio.get_running_loop().time() + seconds
