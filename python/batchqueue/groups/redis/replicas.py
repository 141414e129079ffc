"""`Replicas`: how many replicas are to confirm what was written, and how often they did not."""

import time
from typing import Any

from batchqueue._background_log import BackgroundLog
from batchqueue.groups.redis.node import Words

_log = BackgroundLog("batchqueue")

LONGEST_WAIT_MS = 500
"""How long a server waits for replicas. Writes of the same thread wait behind it."""

_REPEATED_LOG_S = 60.0


class Replicas:
    """What follows each write on a connection.

    What was written holds whether replicas confirm it or not: it cannot be taken back. So a
    shortfall is counted, and logged once a minute.
    """

    def __init__(self, stream: str, count: int, timeout_ms: int) -> None:
        """Ask nothing yet.

        Args:
            stream: The stream, for the log.
            count: How many replicas are to confirm.
            timeout_ms: How long the server waits for them.
        """
        self._stream = stream
        self._count = count
        self._timeout_ms = timeout_ms
        self._log_at = 0.0
        self.missed = 0
        """Writes, those that were sent together counted once, that too few replicas confirmed."""

    @property
    def words(self) -> Words:
        """The command that waits. It follows what was written, on the same connection."""
        return ("WAIT", self._count, self._timeout_ms)

    def note(self, reply: Any) -> None:
        """Take the reply: how many replicas confirmed.

        Raises:
            redis.ResponseError: The server refused to wait.
        """
        if isinstance(reply, Exception):
            reply.add_note("RedisStreams: wait_replicas needs the command WAIT; allow it.")
            raise reply
        if reply >= self._count:
            return
        self.missed += 1
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + _REPEATED_LOG_S
            _log.warning(
                "stream %s: %d of %d replicas confirmed a write within %d ms: it is stored, and a "
                "failover now may lose it (%d so far)",
                *(self._stream, reply, self._count, self._timeout_ms, self.missed),
            )


def replicas_of(stream: str, count: int, lease_ms: float) -> Replicas | None:
    """Return what waits for so many replicas, up to a tenth of a lease; None for no replica."""
    if count == 0:
        return None
    return Replicas(stream, count, max(1, min(LONGEST_WAIT_MS, int(lease_ms / 10))))
