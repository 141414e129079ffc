"""`Faults`: workers of a stream in memory that a test makes crash or stall."""

import threading

from batchqueue.groups.errors import StreamUnavailableError


class Faults:
    """Which workers of a stream are cut off, by name."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._crashed: set[str] = set()
        self._stalled: set[str] = set()
        self._changed = threading.Condition()

    def crash(self, name: str) -> None:
        """Let every call of a worker fail from now on."""
        with self._changed:
            self._crashed.add(name)
            self._stalled.discard(name)
            self._changed.notify_all()

    def stall(self, name: str) -> None:
        """Let every call of a worker wait until `wake`, and time out before."""
        with self._changed:
            self._stalled.add(name)

    def wake(self, name: str) -> None:
        """End the stall of a worker."""
        with self._changed:
            self._stalled.discard(name)
            self._changed.notify_all()

    def check(self, name: str, timeout_s: float) -> None:
        """Wait while a worker is stalled.

        Args:
            name: The name of the worker.
            timeout_s: The longest wait.

        Raises:
            StreamUnavailableError: The worker has crashed, or is stalled for longer.
        """
        if not (self._crashed or self._stalled):
            return
        with self._changed:
            if not self._changed.wait_for(lambda: name not in self._stalled, timeout_s):
                reason = f"worker {name} is stalled, so no call returned in {timeout_s:g} s"
                raise StreamUnavailableError(self._stream, reason)
            if name in self._crashed:
                raise StreamUnavailableError(self._stream, f"worker {name} has crashed")
