"""SIGTERM and Ctrl-C: the first stops, the next gives up what is in hand."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from batchqueue.base.background_log import BackgroundLog

_log = BackgroundLog("batchqueue")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_SLICE_S = 0.5
"""The longest wait that no signal can interrupt."""


def wait_for(event: threading.Event, timeout: float | None = None) -> bool:
    """Wait for an event; Ctrl-C ends the wait whenever it comes.

    `event.wait()` does not end if the signal comes just before the main thread blocks, or to
    another thread: the interpreter calls the handler in the main thread, which sleeps.

    Args:
        event: What to wait for.
        timeout: Seconds; None for no limit.

    Returns:
        Whether the event is set.
    """
    end = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        if event.wait(min(left, _SLICE_S)):
            return True
        if left <= _SLICE_S:
            return False


class Flag:
    """What a signal handler sets, and another place polls.

    Not a `threading.Event`: its `set` takes the lock that its `wait` holds now and then, and a
    handler that interrupts `wait` there would wait for its own thread for ever.

    Attributes:
        is_set: Whether it is set.
    """

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        """Set the flag; a signal handler calls this."""
        self.is_set = True


class AwaitedFlag(Flag):
    """A flag that the main thread waits for, without polling.

    Make it before the signal handlers that set it, and close it after they are gone: until then the
    interpreter writes to its pipe on every signal that has a handler. A handler could not do that:
    it waits for the main thread, whose read is not interrupted by a signal that comes just before,
    or to another thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def wait(self) -> None:
        """Wait until the flag is set."""
        while not self.is_set:
            os.read(self._read, 1)  # not select, which takes no file beyond the 1,024th

    def close(self) -> None:
        """Close the pipe."""
        signal.set_wakeup_fd(self._before)
        os.close(self._read)
        os.close(self._write)


@contextmanager
def signals(
    stop: Flag, give_up: Flag, what: str, numbers: tuple[int, ...] = STOP_SIGNALS
) -> Iterator[list[int]]:
    """Set `stop` on the first signal, `give_up` on the next; in the main thread only.

    Args:
        stop: Set by the first signal.
        give_up: Set by the next one.
        what: What the first one does, for the log.
        numbers: The signals.

    Yields:
        The signals that are handled: not those that the process ignores.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number).name
        # Another signal may interrupt the log: it must find that it is the second one.
        if stop.is_set:
            give_up.set()
            _log.warning("%s again: giving up what is in hand", name)
        else:
            stop.set()
            _log.info("%s: %s", name, what)

    before = {number: signal.getsignal(number) for number in numbers}
    # None: set by another language, and it could not be put back.
    mine = [number for number in before if before[number] not in (signal.SIG_IGN, None)]
    for number in mine:
        signal.signal(number, note)
    try:
        yield mine
    finally:
        for number in mine:
            signal.signal(number, before[number])
