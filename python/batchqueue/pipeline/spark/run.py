"""`SparkRun`: the running queries of a pipeline, as one."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("batchqueue.pipeline")

_POLL_S = 0.1


class SparkRun:
    """The queries of a pipeline on Spark: one for each sink, with the methods of a single one.

    When a query fails, `awaitTermination` stops the others. Without it they continue.

    Attributes:
        queries: Spark's own objects, in the order of the sinks.
    """

    def __init__(self, queries: "Sequence[StreamingQuery]", on_end: Callable[[], None]) -> None:
        """Take over queries that have been started.

        Args:
            queries: At least one.
            on_end: Called once when all have ended and this object knows of it.
        """
        self.queries = tuple(queries)
        self._on_end: Callable[[], None] | None = on_end

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
                    self.stop()
                    query.awaitTermination()  # raises
            if not is_active:
                self._end()
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            # A wait in the JVM would not react to Ctrl-C cleanly.
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop all queries; the epochs at work are replayed at the next start."""
        for query in self.queries:
            query.stop()
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
