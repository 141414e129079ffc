"""Handlers that keep their items, and that can be held inside `consume`."""

import threading

from core_support.waits import WAIT_S


class Recorder:
    """A handler that keeps all its batches."""

    def __init__(self):
        self.batches = []
        self.closed = 0

    @property
    def items(self):
        return [item for batch in self.batches for item in batch]

    def consume(self, batch):
        self.batches.append(list(batch))

    def on_close(self):
        self.closed += 1


class Held(Recorder):
    """A recorder that stays inside `consume` until it is released."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def consume(self, batch):
        self.entered.set()
        assert self.released.wait(WAIT_S), "the test did not release the handler"
        super().consume(batch)

    def hold(self, queue, item):
        """Enqueues `item` and waits until the handler is inside with it."""
        assert queue.produce(item) is True
        assert self.entered.wait(WAIT_S), "the handler was not entered"
