"""Runs a blocking call of an event loop in a separate thread."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


async def in_waiting_thread(name: str, function: Callable[[threading.Event], R]) -> R:
    """Run a function that waits in a new thread, so that the loop stays free.

    An executor of the loop would not do: the function may wait for work that needs the same
    executor, which may be full.

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
