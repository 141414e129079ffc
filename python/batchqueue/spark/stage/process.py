"""The process that a stage runs in: its CPU time and its garbage collector."""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_THRESHOLD = 50_000
"""New objects between two collections; Python's own setting is 700.

Items come by the hundred thousand and are hardly ever part of a cycle. Each collection would scan
all items that wait in the queue and the buffers, and free nothing.
"""


@dataclass(frozen=True)
class CpuSummary:
    """CPU seconds of a process while it wrote or committed.

    Attributes:
        drain_s: CPU seconds of the drain threads, handlers included.
        rest_s: CPU seconds of everything else: rows from Spark, items from rows, Arrow, the store.
        wall_s: Elapsed seconds.
    """

    drain_s: float
    rest_s: float
    wall_s: float


class CpuMeter:
    """Measures CPU and wall time since it was created.

    The CPU time is that of the process. Commits that a driver runs concurrently, for two queries,
    each include the other's.
    """

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._wall_s = time.monotonic()

    def read(self, drain_cpu_s: float) -> CpuSummary:
        """Return the time since the start, split into drain threads and the rest.

        Args:
            drain_cpu_s: CPU seconds of the drain threads, as the queues counted them.
        """
        cpu_s = time.process_time() - self._cpu_s
        return CpuSummary(drain_cpu_s, cpu_s - drain_cpu_s, time.monotonic() - self._wall_s)


class _GcThreshold:
    """The threshold of the collector, which all threads of the process share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = gc.get_threshold()

    def raise_threshold(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = gc.get_threshold()
                gc.set_threshold(_THRESHOLD, *self._before[1:])
            self._users += 1

    def restore(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                gc.set_threshold(*self._before)


_threshold = _GcThreshold()


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Collect garbage less often while at least one such context is open in this process."""
    _threshold.raise_threshold()
    try:
        yield
    finally:
        _threshold.restore()
