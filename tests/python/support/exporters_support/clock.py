"""A clock that passes when an exporter waits for the other side."""

import pytest

import batchqueue.exporters.contract as module
from batchqueue.exporters import Exporter


class Clock:
    """Stands still, except in the pauses of an exporter, which it notes."""

    def __init__(self):
        self.now = 1_000.0
        self.pauses = []

    def monotonic(self):
        return self.now

    def pause(self, seconds):
        self.pauses.append(round(seconds, 3))
        self.now += seconds
        return True


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(Exporter, "pause", lambda _, seconds: clock.pause(seconds))
    return clock
