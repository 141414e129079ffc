"""`SparkRun`: the running queries of a pipeline, as one."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batchqueue.policies import check_finite

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("batchqueue.pipeline")

_POLL_S = 0.1

_GRACE_S = 30.0
"""As for a run in one process."""

_WRITING = "Processing new data"
"""What a query says of itself while an epoch is at work."""


class SparkRun:
    """The queries of a pipeline on Spark: one for each sink, with the methods of a single one.

    When a query fails, `awaitTermination` stops the others. Without it they continue.

    Attributes:
        queries: Spark's own objects, in the order of the sinks.
    """

    def __init__(
        self,
        queries: "Sequence[StreamingQuery]",
        on_end: Callable[[], None],
        pause: Callable[[str], None] | None = None,
    ) -> None:
        """Take over queries that have been started.

        Args:
            queries: At least one.
            on_end: Called once when all have ended and this object knows of it.
            pause: Has their readers begin no more epochs; gets the reason. Default: None, they are
                Spark's own.
        """
        self.queries = tuple(queries)
        self._on_end: Callable[[], None] | None = on_end
        self._pause = pause

    @property
    def isActive(self) -> bool:
        """Whether a query is running."""
        return any(query.isActive for query in self.queries)

    def exception(self) -> "StreamingQueryException | None":
        """Return why a query failed; None if none did."""
        return next((error for query in self.queries if (error := query.exception())), None)

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until all queries have ended.

        Ctrl-C ends the wait, and leaves the queries running.

        Args:
            timeout: The longest wait, in seconds. Default: None, without end.

        Returns:
            Whether they have ended.

        Raises:
            pyspark.errors.StreamingQueryException: A query failed; the others have been stopped.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # Read first, so that a query that fails in between is seen with the next round.
            is_active = self.isActive
            for query in self.queries:
                if not query.isActive and query.exception() is not None:
                    self.stop(timeout=0)
                    query.awaitTermination()  # raises
            if not is_active:
                self._end()
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            # A wait in the JVM would not react to Ctrl-C cleanly.
            time.sleep(_POLL_S)

    def stop(self, timeout: float | None = _GRACE_S) -> None:
        """Begin no more epochs, finish those at work, and end.

        Readers of Spark's own cannot pause: their queries end soon after the epoch at work, and
        an epoch that has begun meanwhile is replayed.

        Args:
            timeout: Seconds for that; then the epochs at work are stopped, and the next start
                replays them. 0 stops them immediately, None means no limit. Default: 30.

        Raises:
            ConfigError: `timeout` is invalid.
        """
        if timeout is not None:
            check_finite("timeout", timeout, 0, ", or None to wait")
        try:
            if timeout != 0:
                self._finish_epochs(None if timeout is None else time.monotonic() + timeout)
        finally:
            for query in self.queries:
                query.stop()
            self._end()

    def _finish_epochs(self, deadline: float | None) -> None:
        if self._on_end is None:
            return  # all have ended
        if self._pause is not None:
            self._pause("stop")
        # Twice: behind the epoch at work may be one that was planned before the pause.
        for _ in range(2):
            time.sleep(_POLL_S)
            for query, last in [(query, _last_epoch(query)) for query in self.queries]:
                while _is_writing(query) and _last_epoch(query) == last:
                    if deadline is not None and time.monotonic() >= deadline:
                        return
                    time.sleep(_POLL_S)

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


def _is_writing(query: "StreamingQuery") -> bool:
    return query.isActive and query.status["message"] == _WRITING


def _last_epoch(query: "StreamingQuery") -> object:
    """Return the number of the last epoch that has ended; None before the first."""
    last = query.lastProgress
    return None if last is None else last["batchId"]
