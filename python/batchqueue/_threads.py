"""Drain threads and workers of shared pools, as Python knows its threads."""

import sys
import threading
from collections.abc import Callable


def run(name: str, body: Callable[[], None]) -> None:
    """Run a native thread from its start to its end.

    A thread of `threading` starts in the same way: it is listed under its name, and the hooks that
    `threading.settrace` and `threading.setprofile` were given apply to it. The frame of this call
    lies below those of all handlers, where debuggers expect one.

    Args:
        name: What `threading.current_thread().name` returns, and `threadName` in the log.
        body: The work of the thread; it releases the interpreter while it calls no handler.
    """
    thread = threading.current_thread()
    thread.name = name
    try:
        trace, profile = threading.gettrace(), threading.getprofile()
        if trace is not None:
            sys.settrace(trace)
        if profile is not None:
            sys.setprofile(profile)
        body()
    finally:
        sys.setprofile(None)
        sys.settrace(None)
        _forget(thread)


def _forget(thread: threading.Thread) -> None:
    """Take a thread that ends off the list: another may get its identifier.

    Python before 3.13 keeps a thread that it did not start in its list for ever.
    """
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        active = threading._active  # type: ignore[attr-defined]
        if thread.ident is not None and active.get(thread.ident) is thread:
            del active[thread.ident]
