"""SIGTERM and Ctrl-C: the first stops, the next gives up what is in hand."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
def signals(stop: Flag, give_up: Flag, what: str) -> Iterator[None]:
    """Set `stop` on the first SIGTERM or SIGINT, `give_up` on the next; in the main thread only.

    Args:
        stop: Set by the first signal.
        give_up: Set by the next one.
        what: What the first one does, for the log.
    """
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
            _log.info("%s: %s", name, what)

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
