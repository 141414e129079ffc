"""`LedgerListener`: a line in the driver's log for each epoch of a stream, and for its end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from batchqueue._background_log import BackgroundLog
from batchqueue.spark.commit.epoch_summary import log_line
from batchqueue.spark.monitoring.ledger import LedgerStore, checked_sink_ids
from batchqueue.spark.monitoring.ledger_watch import EpochWatch

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = BackgroundLog("batchqueue.spark")


class LedgerListener(StreamingQueryListener):
    """Logs the ledger's entry of each epoch, in the driver or a Connect client.

    It logs where `addListener` was called. The commit of a format logs the same line, but in one of
    Spark's Python workers, whose log is the standard error of that process. `MetricsWriter` commits
    in the driver and logs there already.

    Queries that write to other sinks are ignored. A query is recognized by the epochs that it
    writes, so a query that fails before its first epoch is not logged. The logger is
    `batchqueue.spark`: epochs are INFO; a query that failed is an ERROR, with its reason. Spark
    calls listeners asynchronously, in one of its threads, and for each query in order.

    Example:
        spark.streams.addListener(LedgerListener(store, "orders"))
    """

    def __init__(self, store: LedgerStore, sink_ids: str | Sequence[str]) -> None:
        """Describe what to read; nothing is read yet.

        Args:
            store: The store of the job, readable from here.
            sink_ids: One sink, or all of its shards.

        Raises:
            ConfigError: There is no sink id, or a sink id occurs twice.
        """
        self._store = store
        self._sink_ids = checked_sink_ids(sink_ids)
        first = self._sink_ids[0]
        self._name = first if len(self._sink_ids) == 1 else first.rpartition("/")[0] or first
        self._watches: dict[str, EpochWatch] = {}
        self._is_ours: set[str] = set()

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """Do nothing: a query is recognized by its first epoch."""

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        """Do nothing."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """Log the new epochs."""
        query_id = str(event.progress.id)
        if query_id not in self._watches:
            # Earlier epochs were committed before this listener was added.
            watch = EpochWatch(
                self._store, self._sink_ids, query_id, after=event.progress.batchId - 1
            )
            self._watches[query_id] = watch
        try:
            new = self._watches[query_id].poll()
        except Exception as error:  # Spark would log it as its own error
            _log.warning("sink %s: its ledger cannot be read: %s", self._name, error)
            return
        for epoch in new:
            self._is_ours.add(query_id)
            _log.info("sink %s: %s", self._name, log_line(query_id, epoch.summary))

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        """Log the end of a query that has written to this sink."""
        query_id = str(event.id)
        self._watches.pop(query_id, None)
        if query_id not in self._is_ours:
            return
        self._is_ours.discard(query_id)
        if event.exception is None:
            _log.info("sink %s: query %s has ended", self._name, query_id)
        else:
            _log.error("sink %s: query %s has failed: %s", self._name, query_id, event.exception)
