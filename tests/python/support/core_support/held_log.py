"""A log that is held up, or that calls the code whose lines it gets."""

import logging
import threading
from contextlib import contextmanager

from batchqueue.base.background_log import flush_log
from core_support.waits import WAIT_S


class CallingHandler(logging.Handler):
    """Calls a function with the text of each line that contains a text.

    Attributes:
        entered: Set when it has got such a line.
        returned: Set when the function has returned.
    """

    def __init__(self, function, text):
        super().__init__()
        self.function = function
        self.text = text
        self.entered = threading.Event()
        self.returned = threading.Event()

    def emit(self, record):
        line = record.getMessage()
        if self.text in line:
            self.entered.set()
            self.function(line)
            self.returned.set()


@contextmanager
def calling_log(function, text="", name="batchqueue"):
    """Has a function called with the lines of a logger that contain a text."""
    logger, handler = logging.getLogger(name), CallingHandler(function, text)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextmanager
def held_log(text="", name="batchqueue"):
    """Holds up the first line that contains a text, to the end of the block."""
    go = threading.Event()
    try:
        with calling_log(lambda line: go.wait(10 * WAIT_S), text, name) as handler:
            yield handler
    finally:
        go.set()
        flush_log(WAIT_S)
