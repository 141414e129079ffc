"""Handlers whose coroutines run on an event loop while a drain thread waits for them."""

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, TypeVar

from batchqueue import _core
from batchqueue.base import threads as _stacks
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.queues.handlers import (
    METHOD_NAMES,
    HandlerMethods,
    handler_methods,
    is_coroutine_function,
)

_LOOP_CHECK_S = 0.1
"""How often a drain thread that waits for a coroutine checks whether the loop still exists."""

_current_call: ContextVar[_core.HandlerCall | None] = ContextVar("batchqueue_call", default=None)


def current_call() -> _core.HandlerCall | None:
    """Return the handler call that the running task belongs to, directly or through another task.

    Returns None outside a handler, and once the call has ended.
    """
    call = _current_call.get()
    return call if call is not None and call.active else None


class HandlerLoop:
    """The loop that a handler was last registered from.

    It lives as long as the queue may call the handler.
    """

    __slots__ = ("__weakref__", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None


HandlerLoops = weakref.WeakValueDictionary[int, HandlerLoop]
"""Keyed by the id of the handler, which no other object can have while its `HandlerLoop` lives."""


class LoopMethod:
    """A handler's method for drain threads, which wait while its awaitable runs on the loop."""

    def __init__(self, method: Callable[..., Any], handler_loop: HandlerLoop) -> None:
        self._method = method
        self._handler_loop = handler_loop

    def __call__(self, *args: Any) -> Any:
        """Call the method, and wait for its result."""
        result = self._method(*args)
        return self._wait(result) if inspect.isawaitable(result) else result

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        call = _core.HandlerCall()
        coroutine = _within(call, awaitable)
        try:
            with _stacks.waiting_for(coroutine):
                return self._result(coroutine)
        finally:
            call.end()
            for unawaited in (coroutine, awaitable):
                if (
                    inspect.iscoroutine(unawaited)
                    and inspect.getcoroutinestate(unawaited) == inspect.CORO_CREATED
                ):
                    unawaited.close()  # it never started, and nothing will await it

    def _result(self, coroutine: Any) -> Any:
        loop = self._handler_loop.loop
        if loop is None:
            raise BatchQueueError(
                f"{self._name()} returned an awaitable, but was registered where no event loop "
                "runs: register it in a coroutine"
            )
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:
            raise self._loop_is_gone() from None
        while True:
            try:
                error = future.exception(_LOOP_CHECK_S)
            except concurrent.futures.CancelledError:
                raise BatchQueueError(f"{self._name()} was cancelled on its event loop") from None
            except TimeoutError:
                if not future.done() and _is_gone(loop):
                    raise self._loop_is_gone() from None
                continue
            if error is not None:
                raise error
            return future.result()

    def _loop_is_gone(self) -> BatchQueueError:
        return BatchQueueError(
            f"{self._name()} cannot continue, its event loop is closed or has stopped: "
            "await shutdown() before the loop ends, or register it again from another"
        )

    def _name(self) -> str:
        return getattr(self._method, "__qualname__", type(self._method).__qualname__)


async def _within(call: _core.HandlerCall, awaitable: Awaitable[Any]) -> Any:
    _current_call.set(call)
    try:
        return await awaitable
    finally:
        call.end()


def _is_gone(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop will never run again, as far as can be known."""
    return loop.is_closed() or (_core.is_exiting() and not loop.is_running())


def methods_on_loop(handler: Any, handler_loops: HandlerLoops) -> HandlerMethods:
    """Find the methods of a handler whose coroutines are to run on the running loop.

    Args:
        handler: An object with `consume`, or a function.
        handler_loops: The loops of the queue's handlers; the handler moves to the running loop.

    Raises:
        ConfigError: `handler` is not a handler, or it has coroutine functions and no loop is
            running.
    """
    methods = handler_methods(handler)
    names = methods.coroutine_functions()
    loop = running_loop()
    if names and loop is None:
        raise ConfigError(
            f"{' and '.join(names)} of {handler!r} must run on an event loop, and none is running "
            "here: make the queue and add its handlers in a coroutine"
        )

    handler_loop = handler_loops.setdefault(id(handler), HandlerLoop())
    handler_loop.loop = loop or handler_loop.loop

    def on_loop(method: Callable[..., Any] | None) -> Any:
        return None if method is None else LoopMethod(method, handler_loop)

    wrapped = {name: on_loop(getattr(methods, name)) for name in METHOD_NAMES}
    return methods._replace(works_elsewhere=bool(names), **wrapped)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def error_handler_on_loop(error_handler: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Wrap the error handler of a config as `methods_on_loop` wraps methods.

    Raises:
        ConfigError: The error handler is a coroutine function and no loop is running.
    """
    if error_handler is None:
        return None
    loop = running_loop()
    if loop is None and is_coroutine_function(error_handler):
        raise ConfigError(
            f"error_handler {error_handler!r} must run on an event loop, and none is running here: "
            "make the queue in a coroutine"
        )
    handler_loop = HandlerLoop()
    handler_loop.loop = loop
    return LoopMethod(error_handler, handler_loop)


# Futures of an event loop for submitted items.


Delivery = list[tuple["LoopFuture", "Future[Any]"]]


class LoopFuture(asyncio.Future[Any]):
    """The future of a submitted item, for the tasks of one loop.

    A task that is cancelled while it awaits the future cancels it, and with it the item, unless a
    handler has the item already.
    """

    item: "Future[Any] | None" = None
    waiting: "asyncio.Task[None] | None" = None
    """The task that waits for room for the item, if its partition was full."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future. A handler that has the item already is not interrupted."""
        if self.item is not None:
            self.item.cancel()
        if self.waiting is not None:
            self.waiting.cancel()
        return super().cancel(msg)

    def take(self, done: "Future[Any]") -> None:
        """Take over the outcome of the item's future. A cancelled future stays cancelled."""
        if self.done():
            return
        if done.cancelled():
            super().cancel()
            return
        error = done.exception()
        if error is None:
            self.set_result(done.result())
        elif isinstance(error, StopIteration):
            # asyncio cannot raise StopIteration out of a coroutine.
            stopped = RuntimeError("the handler raised StopIteration")
            stopped.__cause__ = error
            self.set_exception(stopped)
        else:
            self.set_exception(error)


class Mailbox:
    """Results that drain threads hand to one loop, which wakes once for all that are ready."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._delivered: Delivery = []

    def deliver(self, pairs: Delivery) -> None:
        """Hand over futures that are done. Any thread may call this."""
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


# Blocking calls of an event loop, in a separate thread.


R = TypeVar("R")


async def in_waiting_thread(name: str, function: Callable[[threading.Event], R]) -> R:
    """Run a blocking function in a new thread, so that the loop stays free.

    The executor of the loop would not do: it may be full, and the function may wait for work that
    needs it.

    Args:
        name: The name of the thread.
        function: Gets an event that is set once the result is no longer awaited.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()
    stop = threading.Event()

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = function(stop)
        except BaseException as raised:
            error = raised
        # A loop that was closed meanwhile has no task that awaits the result.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, done, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return await done
    finally:
        stop.set()


def _settle(done: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
