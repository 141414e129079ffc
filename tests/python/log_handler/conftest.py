import contextlib
import itertools
import logging
import threading

import pytest

from batchqueue.logging import QueueHandler
from core_support.waits import WAIT_S

_numbers = itertools.count()


class Target:
    """Keeps what it gets. Held, it waits inside its call until it is let go."""

    def __init__(self):
        self.items, self.batches = [], []
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.errors = []
        """What the next calls raise."""

    def consume(self, batch):
        self.entered.set()
        assert self.go.wait(WAIT_S)
        if self.errors:
            raise self.errors.pop(0)
        self.items += batch
        self.batches.append(len(batch))

    @property
    def messages(self):
        return [record.message for record in self.items]

    @contextlib.contextmanager
    def held(self):
        self.go.clear()
        try:
            yield
        finally:
            self.go.set()


@pytest.fixture
def target():
    return Target()


@pytest.fixture
def add():
    """Adds a `QueueHandler` to a new logger and returns both; removes and closes it afterwards."""
    made = []

    def add(target, logger=None, **options):
        options.setdefault("shutdown_timeout", WAIT_S)
        options.setdefault("retry", None)
        handler = QueueHandler(target, **options)
        if logger is None:
            logger = logging.getLogger(f"shop{next(_numbers)}")
            logger.propagate = False
            logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
        made.append((logger, handler))
        return logger, handler

    yield add
    for logger, handler in made:
        logger.removeHandler(handler)
        handler.close()
