"""What threads do with their time: a total, and the share of the last seconds."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BLOCK_S = 0.25
_BLOCKS = 12


class TimeMeter:
    """Sums up the time that one or more threads spend in something.

    A span that has not ended counts as well, so that a call that hangs is seen.
    """

    def __init__(self, threads: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing.

        Args:
            threads: How many threads are measured; the share is of the time of all of them.
            clock: Returns seconds that never decrease.
        """
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        self._total = 0.0
        self._open = 0
        self._at = self._began = clock()
        self._marks: deque[tuple[float, float]] = deque([(self._began, 0.0)], maxlen=_BLOCKS)

    @contextmanager
    def span(self) -> Iterator[None]:
        """Count the time of a block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Begin to count the time of this thread."""
        self._move(1)

    def leave(self) -> None:
        """Count the time of this thread no longer."""
        self._move(-1)

    @property
    def seconds(self) -> float:
        """The time in all, of all threads together."""
        return self._move(0)[0]

    @property
    def share(self) -> float:
        """The share of about the last three seconds, 0 to 1; of all the time before that."""
        return self._move(0)[1]

    @property
    def is_open(self) -> bool:
        """Whether a thread is inside."""
        with self._lock:
            return self._open > 0

    def _move(self, step: int) -> tuple[float, float]:
        with self._lock:
            now = self._clock()
            self._total += self._open * (now - self._at)
            self._at = now
            self._open += step
            if now - self._marks[-1][0] >= _BLOCK_S:
                self._marks.append((now, self._total))
            then, before = self._marks[0]
            passed = (now - then) * self._threads
            return self._total, min(1.0, (self._total - before) / passed) if passed > 0 else 0.0


class Counter:
    """A count that one or more threads raise, and how fast it rises."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with 0.

        Args:
            clock: Returns seconds that never decrease.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._value = 0
        self._began = clock()
        # Times, and the count from then on.
        self._marks: deque[tuple[float, int]] = deque([(self._began, 0)])

    def add(self, amount: int) -> None:
        """Raise it."""
        with self._lock:
            self._value += amount
            self._mark(self._clock())

    @property
    def value(self) -> int:
        """The count now."""
        with self._lock:
            return self._value

    @property
    def per_s(self) -> float:
        """How much it rises in a second; the mean of the last three seconds."""
        with self._lock:
            now = self._clock()
            self._mark(now)
            then = max(now - _BLOCK_S * _BLOCKS, self._began)
            passed = now - then
            return (self._value - self._marks[0][1]) / passed if passed > 0 else 0.0

    def _mark(self, now: float) -> None:
        if now - self._marks[-1][0] >= _BLOCK_S:
            self._marks.append((now, self._value))
        while len(self._marks) > 1 and self._marks[1][0] <= now - _BLOCK_S * _BLOCKS:
            self._marks.popleft()
