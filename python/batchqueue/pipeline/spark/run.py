"""`SparkRun`: the running queries of a pipeline, as one."""

import logging
import threading
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

_STOP_POLL_S = 0.02
"""Short, because a reader of Spark's own begins the next epoch immediately."""

_IDLE_POLLS = 5
"""A query that has no epoch at work for so long begins none: its reader has seen the pause."""

_AT_WORK = frozenset(
    {"Writing offsets to log", "Processing new data", "No new data but cleaning up state"}
)
"""What a query says of itself while an epoch is at work (Spark's MicroBatchExecution)."""


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
        pause: Callable[[], None] | None = None,
    ) -> None:
        """Take over queries that have been started.

        Args:
            queries: At least one.
            on_end: Called once when all have ended and this object knows of it.
            pause: Has their readers begin no more epochs. Default: None, they are Spark's own.
        """
        self.queries = tuple(queries)
        self._lock = threading.Lock()
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

        Readers of Spark's own cannot pause: an epoch that begins behind the one at work is stopped,
        and replayed.

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
                self._finish_epochs(timeout)
        finally:
            for query in self.queries:
                query.stop()
            self._end()

    def _finish_epochs(self, timeout: float | None) -> None:
        """Stop each query when its epoch is done; return when the time is over."""
        if self._on_end is None:
            return  # all have ended
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._pause is not None:
            try:
                self._pause()
            except OSError as error:
                _log.warning("stop: the readers could not be paused (%s)", error)
        last = {query: _last_epoch(query) for query in self.queries}
        idle_polls = dict.fromkeys(self.queries, 0)
        while last:
            time.sleep(_STOP_POLL_S)
            for query, epoch in list(last.items()):
                idle_polls[query] = 0 if _is_at_work(query) else idle_polls[query] + 1
                if idle_polls[query] >= _IDLE_POLLS or _last_epoch(query) != epoch:
                    query.stop()
                    del last[query]
            if deadline is not None and time.monotonic() >= deadline:
                break
        for query in last:
            if not idle_polls[query]:
                _log.warning(
                    "query %r: an epoch is at work after %g s, and is stopped; the next start "
                    "replays it; give stop(timeout=...) more seconds, or None",
                    query.name,
                    timeout,
                )

    def _end(self) -> None:
        with self._lock:
            on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


def _is_at_work(query: "StreamingQuery") -> bool:
    return query.isActive and query.status["message"] in _AT_WORK


def _last_epoch(query: "StreamingQuery") -> object:
    """Return when the last epoch that has ended began; None before the first."""
    last = query.lastProgress
    return None if last is None else last["timestamp"]
