"""What a worker has to do with its process: signals, and the end of the interpreter."""

import atexit
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchqueue.groups.worker.worker import Worker

_log = logging.getLogger("batchqueue")


class Flag:
    """What a signal handler sets, and another place polls.

    Not a `threading.Event`: its `set` takes the lock that its `wait` holds now and then, and a
    handler that interrupts `wait` there would wait for its own thread for ever.

    Attributes:
        is_set: Whether it is set.
    """

    def __init__(self) -> None:
        self.is_set = False


@contextmanager
def signals(stop: Flag, give_up: Flag) -> Iterator[None]:
    """Set `stop` on the first SIGTERM or SIGINT, `give_up` on the next; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        name = signal.Signals(number).name
        # Another signal may interrupt the log: it must find that it is the second one.
        if stop.is_set:
            give_up.is_set = True
            _log.warning("%s again: giving up what is in hand", name)
        else:
            stop.is_set = True
            _log.info("%s: leaving the group", name)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    # None: set by another language, and it could not be put back.
    mine = [number for number in numbers if before[number] not in (signal.SIG_IGN, None)]
    for number in mine:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


def leave_at_exit(worker: "Worker") -> Callable[[], None]:
    """Leave when the interpreter ends, unless the worker is garbage then; return what does it."""
    known = weakref.ref(worker)

    def leave() -> None:
        found = known()
        if found is not None and os.getpid() == found._pid:
            found.leave()

    return atexit.register(leave)
