"""`Gate`: how much a stage holds, in rows and bytes; who wants to put more, waits here."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from batchqueue.pipeline.contract import Limit


class RunEnded(Exception):
    """The run ends early: what has not been handled is dropped, and comes again with the next."""


class _Waiter(NamedTuple):
    """A chunk that waits for room."""

    worker: int | None
    rows: int
    size: int


class Gate:
    """Admits chunks into a stage, until they are completed.

    A chunk enters if the stage then holds at most `max_bytes` and its worker at most `worker_rows`.
    A stage that is empty admits any chunk, and a worker that is empty any number of rows. A chunk
    overtakes only those that wait for rows of their worker, so a large one has its turn.

    All fields are read and written under `_lock`.

    Attributes:
        worker_rows: The most rows of a worker.
    """

    def __init__(self, workers: int, max_bytes: int, worker_rows: int) -> None:
        """Begin empty.

        Args:
            workers: The workers of the stage.
            max_bytes: The most bytes that the stage holds, unless a single chunk has more.
            worker_rows: The most rows that each worker holds, unless a single chunk has more.
        """
        self.worker_rows = worker_rows
        self._max_bytes = max_bytes
        self._worker_rows = [0] * workers
        self._chunks = 0
        self._rows = 0
        self._bytes = 0
        self._most_bytes = 0
        self._next = 0
        self._waiting: list[_Waiter] = []
        self._has_ended = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def enter(
        self,
        rows: int,
        size: int,
        worker: int | None,
        while_waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> int:
        """Wait for room, and take it.

        Args:
            rows: The rows of the chunk, at least 1.
            size: Its bytes.
            worker: The worker that must have it; None for any.
            while_waiting: Makes what is entered while it waits; nothing is, if there is room.

        Returns:
            The worker that gets it.

        Raises:
            RunEnded: The run ends early.
        """
        with self._lock:
            found = self._turn(worker, rows, size, self._waiting)
            if found is None:
                with while_waiting():
                    found = self._wait(_Waiter(worker, rows, size))
            self._next = (found + 1) % len(self._worker_rows)
            self._worker_rows[found] += rows
            self._chunks += 1
            self._rows += rows
            self._bytes += size
            self._most_bytes = max(self._most_bytes, self._bytes)
            return found

    def leave(self, rows: int, size: int, worker: int, chunks: int = 1) -> None:
        """Give back the room of chunks that are completed: their rows and bytes in all."""
        with self._lock:
            self._worker_rows[worker] -= rows
            self._chunks -= chunks
            self._rows -= rows
            self._bytes -= size
            self._changed.notify_all()

    def free(self) -> Limit:
        """Wait until there is room for a row, and return the room.

        Raises:
            RunEnded: The run ends early.
        """
        most_rows = self.worker_rows * len(self._worker_rows)
        with self._lock:
            while not self._has_ended and (
                self._rows >= most_rows or (self._chunks and self._bytes >= self._max_bytes)
            ):
                self._changed.wait()
            if self._has_ended:
                raise RunEnded
            return Limit(most_rows - self._rows, max(1, self._max_bytes - self._bytes))

    def held(self) -> Limit:
        """Return the rows and bytes that are accepted and not completed."""
        with self._lock:
            return Limit(self._rows, self._bytes)

    @property
    def most_bytes(self) -> int:
        """The most bytes that were held so far."""
        with self._lock:
            return self._most_bytes

    def end(self) -> None:
        """Let all waits end, now and later: the run ends early."""
        with self._lock:
            self._has_ended = True
            self._changed.notify_all()

    def _wait(self, waiter: _Waiter) -> int:
        self._waiting.append(waiter)
        try:
            while True:
                self._changed.wait()
                at = next(place for place, each in enumerate(self._waiting) if each is waiter)
                found = self._turn(*waiter, self._waiting[:at])
                if found is not None:
                    return found
        finally:
            self._waiting[:] = [each for each in self._waiting if each is not waiter]
            # Those behind it may have waited for its turn only.
            self._changed.notify_all()

    def _turn(self, worker: int | None, rows: int, size: int, before: list[_Waiter]) -> int | None:
        """Return the worker that a chunk can go to now; None if it has to wait.

        Raises:
            RunEnded: The run ends early.
        """
        if self._has_ended:
            raise RunEnded
        found = self._worker_with_room(worker, rows)
        if found is None or not self._has_bytes(size):
            return None
        # Whether or not there are bytes for it: it may not have come to look since there are.
        is_behind = any(
            self._worker_with_room(each.worker, each.rows) is not None for each in before
        )
        return None if is_behind else found

    def _has_bytes(self, size: int) -> bool:
        return not self._chunks or self._bytes + size <= self._max_bytes

    def _worker_with_room(self, worker: int | None, rows: int) -> int | None:
        held = self._worker_rows
        if worker is None:
            # In turn; but a worker that hangs gets no more than its room.
            order = ((self._next + step) % len(held) for step in range(len(held)))
            worker = min(order, key=held.__getitem__)
        has_room = not held[worker] or held[worker] + rows <= self.worker_rows
        return worker if has_room else None
