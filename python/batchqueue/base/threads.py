"""Drain threads and workers of shared pools, registered as threads of Python."""

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def run(name: str, body: Callable[[], None]) -> None:
    """Run the body of a native thread, set up like a thread of `threading`.

    It is listed under its name, and the hooks of `threading.settrace` and `threading.setprofile`
    apply to it. The frame of this call lies below those of all handlers, where debuggers expect
    one.

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
    """Remove a thread that ends from the list: another may get its identifier.

    Before 3.13, Python keeps threads that it did not start in its list forever.
    """
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        active = threading._active  # type: ignore[attr-defined]
        if thread.ident is not None and active.get(thread.ident) is thread:
            del active[thread.ident]


# The names and stacks of threads, for the log: what a slow or hung handler is doing.


_MOST_FRAMES = 40
"""The most frames of a stack that are shown: the innermost."""

_FOLDER = os.path.dirname(os.path.dirname(__file__))
_SURROUNDINGS = {os.path.join(_FOLDER, name) for name in ("base/threads.py", "aio/handlers.py")}
"""The files whose frames lie below those of a handler."""

_coroutines: dict[int, Any] = {}
"""The coroutine that each drain thread waits for, by the identifier of the thread."""


@contextlib.contextmanager
def waiting_for(coroutine: Any) -> Iterator[None]:
    """Record, while entered, that the calling drain thread waits for a coroutine."""
    thread = threading.get_ident()
    _coroutines[thread] = coroutine
    try:
        yield
    finally:
        del _coroutines[thread]


def name_of(ident: int) -> str | None:
    """Return the name of a thread, by its identifier."""
    for thread in threading.enumerate():
        if thread.ident == ident:
            return thread.name
    return None


def stack_of(ident: int) -> str | None:
    """Return the stack of the handler that a drain thread is in, as lines for the log.

    Return None if there is no stack: the thread has ended, or runs no Python code.
    """
    waits = _coroutines.get(ident)
    if waits is not None:
        lines = _format(_frames_of(waits))
        where = "the task of the handler on its event loop"
    else:
        lines = _format(_frames_below(sys._current_frames().get(ident)))
        where = "the thread"
    return f"Stack of {where}, most recent call last:\n{lines}" if lines else None


def _frames_below(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of a thread, outermost first."""
    frames = [] if frame is None else [each for each, _ in traceback.walk_stack(frame)]
    return frames[::-1]


def _frames_of(coroutine: Any) -> list[FrameType]:
    """Return the frames of a coroutine, and of those that it awaits, outermost first."""
    frames: list[FrameType] = []
    while (frame := _attribute(coroutine, "frame")) is not None:
        if _attribute(coroutine, "running"):
            # The loop is blocked in the coroutine, whose innermost frames are those of the loop's
            # thread.
            frames += _frames_from(frame)
            break
        frames.append(frame)
        coroutine = _attribute(coroutine, "await")
    return frames


def _frames_from(frame: FrameType) -> list[FrameType]:
    """Return a running frame and those that it called."""
    for current in sys._current_frames().values():
        frames = _frames_below(current)
        if frame in frames:
            return frames[frames.index(frame) :]
    return [frame]


def _attribute(coroutine: Any, name: str) -> Any:
    """Return an attribute of a coroutine, or of a generator that is used like one."""
    for prefix in ("cr", "gi", "ag"):
        value = getattr(coroutine, f"{prefix}_{name}", None)
        if value is not None:
            return value
    return getattr(coroutine, "gi_yieldfrom", None) if name == "await" else None


def _format(frames: list[FrameType]) -> str:
    """Return the lines of a stack, without the frames that surround a handler."""
    while frames and frames[0].f_code.co_filename in _SURROUNDINGS:
        frames = frames[1:]
    frames = frames[-_MOST_FRAMES:]
    stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    return "".join(stack.format()).rstrip()
