"""Clocks of groups in memory."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A clock in microseconds since 1970."""

    longest_wait_s: float
    """The longest that a thread may wait before it reads the clock again, in seconds."""

    def now_us(self) -> int:
        """Return the time."""
        ...


class SystemClock:
    """The time of the operating system, which is never set back."""

    longest_wait_s = float("inf")

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_us(self) -> int:
        """Return the time."""
        return (self._offset_ns + time.monotonic_ns()) // 1_000


class ManualClock:
    """A clock that a test moves: leases end, and handlers are tried again, when the test says so.

    Example:
        >>> from batchqueue.groups.memory import ManualClock
        >>> clock = ManualClock()
        >>> before = clock.now_us()
        >>> clock.advance(1.5)
        >>> clock.now_us() - before
        1500000
    """

    longest_wait_s = 0.005

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        """Begin at a moment.

        Args:
            now_us: Microseconds since 1970. Default: a moment in 2023.
        """
        self._now_us = now_us
        self._lock = threading.Lock()

    def now_us(self) -> int:
        """Return the time."""
        with self._lock:
            return self._now_us

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Threads that wait for it notice within some milliseconds."""
        with self._lock:
            self._now_us += round(seconds * 1_000_000)
