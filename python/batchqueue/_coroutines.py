"""Where threads and event loops meet: handlers that are coroutines, and calls that would block a loop."""

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from batchqueue import _core
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.handlers import HandlerMethods, handler_methods, is_coroutine_function

R = TypeVar("R")

_LOOK_S = 0.1
"""How often a drain thread that waits for a coroutine looks whether its loop is gone."""

_inside: ContextVar[_core.Inside | None] = ContextVar("batchqueue_inside", default=None)


def inside_handler() -> _core.Inside | None:
    """Return the handler call that the running task belongs to, also as a task of a task, while it lasts."""
    inside = _inside.get()
    return inside if inside is not None and inside.active else None


class Home:
    """The loop that a handler was registered from last. It lives as long as the queue may call the handler."""

    __slots__ = ("__weakref__", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None


Homes = weakref.WeakValueDictionary[int, Home]
"""By the identity of the handler, which no other object can have while its home lives."""


class OnLoop:
    """A handler's method as a drain thread calls it: what it awaits runs on the loop, and the thread waits for that."""

    def __init__(self, method: Callable[..., Any], home: Home) -> None:
        self._method = method
        self._home = home

    def __call__(self, *args: Any) -> Any:
        result = self._method(*args)
        return self._wait(result) if inspect.isawaitable(result) else result

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        inside = _core.Inside()
        coroutine = _within(inside, awaitable)
        try:
            return self._result(coroutine)
        finally:
            inside.end()
            for one in (coroutine, awaitable):
                if (
                    inspect.iscoroutine(one)
                    and inspect.getcoroutinestate(one) == inspect.CORO_CREATED
                ):
                    one.close()  # it never began, and nobody will await it

    def _result(self, coroutine: Any) -> Any:
        loop = self._home.loop
        if loop is None:
            raise BatchQueueError(
                f"{self._name()} returned an awaitable, but was registered where no event loop runs: "
                "register it in a coroutine"
            )
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:
            raise self._gone() from None
        while True:
            try:
                error = future.exception(_LOOK_S)
            except concurrent.futures.CancelledError:
                raise BatchQueueError(f"{self._name()} was cancelled on its event loop") from None
            except TimeoutError:
                if not future.done() and _is_gone(loop):
                    raise self._gone() from None
                continue
            if error is not None:
                raise error
            return future.result()

    def _gone(self) -> BatchQueueError:
        return BatchQueueError(
            f"{self._name()} cannot go on, its event loop is closed or has stopped: "
            "await shutdown() before the loop ends, or register it again from another"
        )

    def _name(self) -> str:
        return getattr(self._method, "__qualname__", type(self._method).__qualname__)


async def _within(inside: _core.Inside, awaitable: Awaitable[Any]) -> Any:
    _inside.set(inside)
    try:
        return await awaitable
    finally:
        inside.end()


def _is_gone(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop will never run again, as far as one can know."""
    return loop.is_closed() or (_core.is_exiting() and not loop.is_running())


def methods_on_loop(handler: Any, homes: Homes) -> HandlerMethods:
    """Find what to call on a handler, whose coroutines are to run on the running loop, its new home.

    Raises:
        ConfigError: It is no handler, or it has coroutine functions and no loop is running.
    """
    methods = handler_methods(handler)
    names = methods.coroutine_functions()
    loop = running_loop()
    if names and loop is None:
        raise ConfigError(
            f"{' and '.join(names)} of {handler!r} must run on an event loop, and none is running here: "
            "make the queue and add its handlers in a coroutine"
        )

    home = homes.setdefault(id(handler), Home())
    home.loop = loop or home.loop

    def on_loop(method: Callable[..., Any] | None) -> Any:
        return None if method is None else OnLoop(method, home)

    return methods._replace(
        consume=on_loop(methods.consume),
        on_idle=on_loop(methods.on_idle),
        on_error=on_loop(methods.on_error),
        on_close=on_loop(methods.on_close),
        works_elsewhere=bool(names),
    )


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def error_handler_on_loop(error_handler: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Wrap a config's error handler in the same way."""
    if error_handler is None:
        return None
    loop = running_loop()
    if loop is None and is_coroutine_function(error_handler):
        raise ConfigError(
            f"error_handler {error_handler!r} must run on an event loop, and none is running here: "
            "make the queue in a coroutine"
        )
    home = Home()
    home.loop = loop
    return OnLoop(error_handler, home)


async def in_thread(name: str, function: Callable[[threading.Event], R]) -> R:
    """Run a function that waits in a thread of its own, so that the loop stays free.

    Not in an executor of the loop: what the function waits for may need one that is full.

    Args:
        name: The thread's name.
        function: Gets an event that is set when nobody awaits the result any more.
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
        # A loop that is closed meanwhile has nobody to tell.
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
