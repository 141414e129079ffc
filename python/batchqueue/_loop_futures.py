"""The futures of an event loop for submitted items."""

import asyncio
import contextlib
import threading
import weakref
from concurrent.futures import Future
from typing import Any

Delivery = list[tuple["LoopFuture", "Future[Any]"]]


class LoopFuture(asyncio.Future[Any]):
    """The future of a submitted item, for the tasks of one loop.

    A task that is cancelled while it awaits the future cancels it, and with it the item, unless a
    handler has got it.
    """

    item: "Future[Any] | None" = None
    waiting: "asyncio.Task[None] | None" = None
    """The task that waits for room for the item, while there is none."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future. A handler that has got the item is not interrupted."""
        if self.item is not None:
            self.item.cancel()
        if self.waiting is not None:
            self.waiting.cancel()
        return super().cancel(msg)

    def take(self, done: "Future[Any]") -> None:
        """Take over the end of the item's future. A future that was cancelled stays so."""
        if self.done():
            return
        if done.cancelled():
            super().cancel()
            return
        error = done.exception()
        if error is None:
            self.set_result(done.result())
        elif isinstance(error, StopIteration):
            # asyncio cannot raise it out of a coroutine.
            stopped = RuntimeError("the handler raised StopIteration")
            stopped.__cause__ = error
            self.set_exception(stopped)
        else:
            self.set_exception(error)


class Mailbox:
    """Brings results from drain threads to one loop, which is woken once for all that are ready."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._delivered: Delivery = []

    def deliver(self, pairs: Delivery) -> None:
        """Take over what is done. Any thread may call this."""
        with self._lock:
            is_first = not self._delivered
            self._delivered += pairs
        loop = self._loop()
        if is_first and loop is not None:
            # A loop that was closed meanwhile has no task that awaits the results.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._take_all)

    def _take_all(self) -> None:
        with self._lock:
            delivered, self._delivered = self._delivered, []
        for future, done in delivered:
            future.take(done)
