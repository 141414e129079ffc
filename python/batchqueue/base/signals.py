"""SIGTERM and Ctrl-C: the first signal stops, the next gives up the work in progress."""

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
    """Wait for an event; Ctrl-C ends the wait, whenever it arrives.

    `event.wait()` does not end if the signal arrives just before the main thread blocks, or in
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
    """A flag that a signal handler sets and other code polls.

    Not a `threading.Event`, whose `set` takes the lock that its `wait` holds now and then: a
    handler that interrupts `wait` there would deadlock with its own thread.

    Attributes:
        is_set: Whether the flag is set.
    """

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        """Set the flag; a signal handler calls this."""
        self.is_set = True


class AwaitedFlag(Flag):
    """A flag that the main thread waits for, without polling.

    Make it before the signal handlers that set it are installed, and close it after they are
    removed: in between, the interpreter writes to its pipe on every signal that has a handler. A
    handler could not write itself: it waits for the main thread, whose read is not interrupted by a
    signal that arrives just before it, or in another thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def wait(self) -> None:
        """Wait until the flag is set."""
        while not self.is_set:
            os.read(self._read, 1)  # not select, which rejects descriptors above 1,023

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
        what: What the first signal does, for the log.
        numbers: The signals.

    Yields:
        The handled signals: all except those that the process ignores.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number).name
        # The flag is set first: another signal may interrupt the log, and must count as the second.
        if stop.is_set:
            give_up.set()
            _log.warning("%s again: giving up what is in hand", name)
        else:
            stop.set()
            _log.info("%s: %s", name, what)

    before = {number: signal.getsignal(number) for number in numbers}
    # None: a handler that was not set from Python, and that could not be restored.
    mine = [number for number in before if before[number] not in (signal.SIG_IGN, None)]
    for number in mine:
        signal.signal(number, note)
    try:
        yield mine
    finally:
        for number in mine:
            signal.signal(number, before[number])
