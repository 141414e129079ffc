"""`Gate`: how much a stage holds, in rows and bytes; who wants to put more, waits here."""

import threading
from typing import TYPE_CHECKING, Self

from batchqueue._core import StageGate
from batchqueue.pipeline.contract import Limit


class Gate(StageGate):
    """Admits chunks into a stage, until they are completed.

    A chunk enters if the stage then holds at most `max_bytes` and its worker at most `worker_rows`.
    A stage that is empty admits any chunk, and a worker that is empty any number of rows. A chunk
    overtakes only those that wait for rows of their worker, so a large one has its turn.

    The thread that completes a chunk gives its room to those that wait, so that each wakes only
    when its chunk is inside.
    """

    if TYPE_CHECKING:  # the core's, which returns the class that is called

        def __new__(cls, workers: int, max_bytes: int, worker_rows: int) -> Self:
            """Begin empty."""
            ...

    def enter(self, rows: int, size: int, worker: int | None = None) -> int:
        """Wait for room, and take it.

        Args:
            rows: The rows of the chunk, at least 1.
            size: Its bytes.
            worker: The worker that must have it. Default: None, any.

        Returns:
            The worker that gets it.

        Raises:
            RunEnded: The run ends early.
        """
        lock = _locked()
        ticket = self.line_up(rows, size, worker, lock)
        lock.acquire()
        found = self.entered(ticket)
        assert found is not None, "the lock is released for those that are inside"
        return found

    def free(self) -> Limit:
        """Wait until there is room for a row, and return the room.

        Raises:
            RunEnded: The run ends early.
        """
        room = self.room()
        while room is None:
            lock = _locked()
            room = self.room(lock)
            if room is None:
                lock.acquire()
        return Limit(*room)

    def held(self) -> Limit:
        """Return the rows and bytes that are accepted and not completed."""
        return Limit(*self.held_amount())


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
