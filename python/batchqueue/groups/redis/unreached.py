"""What becomes of partitions whose node of a cluster cannot be reached, while others continue."""

import time
from collections.abc import Sequence
from typing import Any

from batchqueue._background_log import BackgroundLog
from batchqueue.groups.backend import Fetch
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.messages import Fenced

_log = BackgroundLog("batchqueue")

_REPEATED_LOG_S = 60.0

_PAUSE_S = 0.05
"""The time between two attempts to open a partition."""


def check_reached(stream: str, fetches: Sequence[Fetch], replies: Sequence[Any]) -> None:
    """Raise an error that names the partitions whose node could not be reached.

    Raises:
        StreamUnavailableError: There are such partitions.
    """
    failed = {
        fetch.partition: reply
        for fetch, reply in zip(fetches, replies, strict=True)
        if isinstance(reply, StreamUnavailableError)
    }
    if failed:
        reason = next(iter(failed.values())).reason
        raise StreamUnavailableError(stream, reason, tuple(failed))


class Unreached:
    """Makes replies of those of a cluster. One thread at a time."""

    def __init__(self) -> None:
        """Log the first one."""
        self._log_at = 0.0

    def pause(self, replies: list[Any]) -> None:
        """Wait before what could not be opened is granted and opened again."""
        if Fenced(0) in replies:
            time.sleep(_PAUSE_S)

    def fenced(self, error: StreamUnavailableError) -> Fenced:
        """Return the reply for a partition that could not be reached: it begins anew (R14)."""
        now = time.monotonic()
        if now >= self._log_at:
            self._log_at = now + _REPEATED_LOG_S
            _log.warning("%s: its partitions begin anew, the others continue", error)
        return Fenced(0)
