"""`LedgerListener`: a line in the driver's log for each epoch of a stream, and for its end."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

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

_log = logging.getLogger("batchqueue.spark")


class LedgerListener(StreamingQueryListener):
    """Logs what the ledger says about each epoch where `addListener` was called: in the driver, or a Connect client.

    The commit of a format logs the same line, but in a Python worker of Spark's, whose log is the
    standard error of that process. `MetricsWriter` commits in the driver and logs there already.

    Queries that write to other sinks are left alone: a query is known by the epochs that it writes,
    so one that fails before its first is not. The logger is `batchqueue.spark`: epochs are INFO, a
    query that failed is an ERROR, with its reason. Spark calls listeners a little later than things
    happen, in a thread of its own, and in an order that holds per query.

    Example:
        spark.streams.addListener(LedgerListener(store, "orders"))
    """

    def __init__(self, store: LedgerStore, sink_ids: str | Sequence[str]) -> None:
        """Describe what to read; nothing is read yet.

        Args:
            store: The store of the job, readable from here.
            sink_ids: One sink, or the shards of one.

        Raises:
            ConfigError: There is no sink id, or one twice.
        """
        self._store = store
        self._sink_ids = checked_sink_ids(sink_ids)
        first = self._sink_ids[0]
        self._name = first if len(self._sink_ids) == 1 else first.rpartition("/")[0] or first
        self._watches: dict[str, EpochWatch] = {}
        self._is_ours: set[str] = set()

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """Do nothing: which sink a query writes to is seen from its first epoch."""

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        """Do nothing."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """Log the epochs that are new."""
        query_id = str(event.progress.id)
        if query_id not in self._watches:
            # Those before were there when this listener came.
            watch = EpochWatch(
                self._store, self._sink_ids, query_id, after=event.progress.batchId - 1
            )
            self._watches[query_id] = watch
        try:
            new = self._watches[query_id].poll()
        except Exception as error:  # it would end up in Spark's log, as an error of Spark's
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
