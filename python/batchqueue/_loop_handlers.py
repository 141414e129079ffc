"""Handlers whose coroutines run on an event loop while a drain thread waits for them."""

import asyncio
import concurrent.futures
import inspect
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from batchqueue import _core, _stacks
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.handlers import HandlerMethods, handler_methods, is_coroutine_function

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
"""By the id of the handler, which no other object can have while its `HandlerLoop` lives."""


class LoopMethod:
    """A handler's method as a drain thread calls it: runs what it awaits on the loop, and waits."""

    def __init__(self, method: Callable[..., Any], handler_loop: HandlerLoop) -> None:
        self._method = method
        self._handler_loop = handler_loop

    def __call__(self, *args: Any) -> Any:
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
    """Find what to call on a handler whose coroutines are to run on the running loop.

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

    return methods._replace(
        consume=on_loop(methods.consume),
        on_idle=on_loop(methods.on_idle),
        on_error=on_loop(methods.on_error),
        on_close=on_loop(methods.on_close),
        on_open=on_loop(methods.on_open),
        works_elsewhere=bool(names),
    )


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def error_handler_on_loop(error_handler: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Wrap the error handler of a config in the same way.

    Raises:
        ConfigError: It is a coroutine function and no loop is running.
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
