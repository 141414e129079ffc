"""`show_progress`: waits for the end of a streaming query, and shows what its sink commits meanwhile."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from batchqueue._requirements import require
from batchqueue.outputs import StoreError, StoreUnavailableError
from batchqueue.spark.monitoring.ledger import LedgerStore
from batchqueue.spark.monitoring.ledger_watch import EpochWatch

if TYPE_CHECKING:
    from rich.console import Console

    from batchqueue.spark.monitoring.progress_display import ProgressDisplay

_POLL_S = 0.25


def show_progress(
    query: Any,
    store: LedgerStore,
    sink_ids: str | Sequence[str],
    *,
    total_rows: int | None = None,
    total_epochs: int | None = None,
    line_interval_s: float = 10,
    console: "Console | None" = None,
) -> None:
    """Wait for the end of a query, as `query.awaitTermination()` does, and show how far it is.

    Per epoch it shows the rows of the sink so far, rows per second in the last minute, how much L1
    merged, the peak use of each queue, and items that failed or were refused. In a terminal the
    newest of that stands above a bar, and so it does in a notebook that has ipywidgets. Elsewhere,
    in a log file for one, there are plain lines.

    It reads the ledger when Spark says that an epoch is done, and waits for no writer. The query
    does not depend on
    it: Ctrl-C, or the stop button of the notebook, ends the waiting and leaves the query running; a
    ledger that cannot be read is told and read again after the next epoch.

    Args:
        query: What `start()` returned, on a classic session or on Spark Connect.
        store: The store of the job, readable from here.
        sink_ids: The `sinkId`, which is the job's name unless you set it; with shards
            `MetricsWriter.sink_ids`.
        total_rows: Rows that the sink will have in the end, earlier runs included, for the bar.
            Default: not known.
        total_epochs: Epochs that the query will have in the end, for a bar where the rows are not
            known.
        line_interval_s: Seconds between two lines, at least. The first and the last epoch have one
            each; 0: all have.
        console: Where to show it. Default: the standard output.

    Raises:
        ConfigError: There is no sink id, or one twice.
        MissingPackageError: rich is not installed.
        pyspark.errors.StreamingQueryException: The query failed.

    Example:
        query = df.writeStream.format(register(spark, job)).option("checkpointLocation",
        path).start() show_progress(query, store, "orders")
    """
    require("rich.console", "show_progress", "progress")
    from batchqueue.spark.monitoring.progress_display import ProgressDisplay

    follower = _Follower(store, sink_ids, str(query.id))
    with ProgressDisplay(
        console, total_rows=total_rows, total_epochs=total_epochs, line_interval_s=line_interval_s
    ) as display:
        done: Any = None
        active = True
        while active:
            active = query.isActive  # asked first, so that the last look comes after the end
            progress = query.lastProgress
            last = None if progress is None else progress["batchId"]
            if last != done or not active:
                done = last
                follower.show_new(display)
            if active:
                # It sleeps here and not in the JVM, where Ctrl-C would not reach it cleanly.
                time.sleep(_POLL_S)
    query.awaitTermination()  # raises if it failed


class _Follower:
    """Looks at the ledger, and bears that it is not there."""

    def __init__(self, store: LedgerStore, sink_ids: str | Sequence[str], query_id: str) -> None:
        self._watch = EpochWatch(store, sink_ids, query_id)
        self._reason: str | None = None
        self._has_begun = False
        self._begin()

    def _begin(self) -> None:
        """Leave out what the ledger has already. A store that does not exist yet has nothing."""
        try:
            self._watch.poll()
        except StoreUnavailableError as error:
            self._reason = str(error)
        except StoreError:
            self._has_begun = True
        else:
            self._has_begun = True

    def show_new(self, display: "ProgressDisplay") -> None:
        if not self._has_begun:
            self._begin()
            return
        try:
            new = self._watch.poll()
        except StoreError as error:
            if str(error) != self._reason:
                display.print_line(f"the ledger cannot be read: {error}")
            self._reason = str(error)
            return
        self._reason = None
        for epoch in new:
            display.show(epoch)
