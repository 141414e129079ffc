"""Workers, and what their handlers got."""

import threading
from collections import defaultdict
from contextlib import contextmanager

from batchqueue.groups import Worker
from core_support.waits import WAIT_S, eventually

LEASE_MS = 1_000


class Collected:
    """A handler that keeps what it gets, by partition, and notices when it is entered twice."""

    def __init__(self):
        self.records = defaultdict(list)
        self.entered_twice = False
        self._inside = threading.Lock()

    def __call__(self, batch):
        if not self._inside.acquire(blocking=False):
            self.entered_twice = True
            return
        try:
            self.records[batch.partition] += batch.records
        finally:
            self._inside.release()

    @property
    def values(self):
        return [record.value for records in list(self.records.values()) for record in records]

    @property
    def count(self):
        return sum(map(len, list(self.records.values())))

    def is_in_order(self):
        offsets = ([record.offset for record in each] for each in self.records.values())
        return all(each == sorted(set(each)) for each in offsets)


class Blocker:
    """A call that stays inside until it is let go."""

    def __init__(self):
        self.entered = threading.Event()
        self.inside = []
        self._go = threading.Event()

    def __call__(self, *arguments):
        self.inside.append(arguments)
        self.entered.set()
        assert self._go.wait(WAIT_S)

    def of(self):
        """Returns another function that waits as this one does."""
        return lambda *arguments: self(*arguments)

    def release(self):
        self._go.set()


def worker_of(streams, handler, **settings):
    """Returns a worker of the group g with one handler."""
    worker = Worker("g", streams, **{"codec": "utf8", "lease_ms": LEASE_MS, **settings})
    worker.handler(handler)
    return worker


@contextmanager
def running(*workers):
    """Starts workers, and ends those that are left at the end, without waiting for handlers."""
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        for worker in workers:
            worker.leave(0)


def send(streams, count, *, partition=None, prefix="", **headers):
    """Sends values that are numbered from 0 up to a partition, or to all of them in turns."""
    with streams.producer(codec="utf8") as producer:
        for number in range(count):
            at = number % producer.partitions if partition is None else partition
            producer.send(f"{prefix}{number}", partition=at, headers=headers)


def owns(worker, count):
    """Waits until a worker handles so many partitions."""
    eventually(lambda: len(worker.assigned()) == count, f"{worker} owns {count} partitions")
