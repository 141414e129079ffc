"""The process around a stage: where its CPU time goes, and how often it collects garbage."""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_THRESHOLD = 50_000
"""New objects between two collections; Python's own setting is 700.

Items come by the hundred thousand and are hardly ever part of a cycle: collections would look at those that wait in
the queue and in the buffers again and again, and find nothing.
"""


@dataclass(frozen=True)
class CpuSummary:
    """CPU seconds of a process while it wrote or committed.

    Attributes:
        drain_s: In drain threads, handlers included.
        rest_s: In everything else: rows from Spark, items from rows, Arrow, the store.
        wall_s: Seconds that passed.
    """

    drain_s: float
    rest_s: float
    wall_s: float


class CpuMeter:
    """Measures from its making on, for a process that runs one attempt or commit at a time.

    The commits of two queries that a driver runs at once have the CPU time of each other in theirs.
    """

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._wall_s = time.monotonic()

    def read(self, drain_cpu_s: float) -> CpuSummary:
        """Return the time since the start, split.

        Args:
            drain_cpu_s: CPU seconds that drain threads took, as the queues counted them.
        """
        cpu_s = time.process_time() - self._cpu_s
        return CpuSummary(drain_cpu_s, cpu_s - drain_cpu_s, time.monotonic() - self._wall_s)


class _Setting:
    """The setting of the process, which several threads may want changed at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = gc.get_threshold()

    def change(self) -> None:
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


_setting = _Setting()


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Collect garbage less often while the context is open, in one thread or in several."""
    _setting.change()
    try:
        yield
    finally:
        _setting.restore()
