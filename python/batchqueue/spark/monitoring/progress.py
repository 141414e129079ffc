"""`show_progress`: waits for a streaming query to end, and shows what its sink commits."""

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
    """Wait for a query to end, as `query.awaitTermination()` does, and show its progress.

    For each epoch it shows the rows of the sink so far, rows per second in the last minute, how
    much L1 merged, the peak fill of each queue, and items that failed or were refused. In a
    terminal, and in a notebook with ipywidgets, the newest line stands above a progress bar.
    Elsewhere, such as in a log file, there are plain lines.

    It reads the ledger when Spark reports the end of an epoch, and never waits for a writer. The
    query does not depend on it: Ctrl-C, or the stop button of the notebook, ends the wait and
    leaves the query running. A ledger that cannot be read is reported, and read again after the
    next epoch.

    Args:
        query: What `start()` returned, on a classic session or on Spark Connect.
        store: The store of the job, readable from here.
        sink_ids: The `sinkId`, which is the job's name unless you set it; with shards
            `MetricsWriter.sink_ids`.
        total_rows: Rows that the sink will have at the end, including earlier runs, for the bar.
            Default: unknown.
        total_epochs: Epochs that the query will have at the end, for the bar if `total_rows` is
            unknown. Default: unknown.
        line_interval_s: Shortest time between two lines, in seconds; 0: a line for each epoch. The
            first and the last epoch always have a line.
        console: Where to show the progress. Default: the standard output.

    Raises:
        ConfigError: There is no sink id, or a sink id occurs twice.
        MissingPackageError: rich is not installed.
        pyspark.errors.StreamingQueryException: The query failed.

    Example:
        writer = df.writeStream.format(register(spark, job))
        query = writer.option("checkpointLocation", path).start()
        show_progress(query, store, "orders")
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
            active = query.isActive  # read first, so that the last poll comes after the end
            progress = query.lastProgress
            last = None if progress is None else progress["batchId"]
            if last != done or not active:
                done = last
                follower.show_new(display)
            if active:
                # A wait in the JVM would not react to Ctrl-C cleanly.
                time.sleep(_POLL_S)
    query.awaitTermination()  # raises if it failed


class _Follower:
    """Polls the ledger, and tolerates that it is missing or cannot be read."""

    def __init__(self, store: LedgerStore, sink_ids: str | Sequence[str], query_id: str) -> None:
        self._watch = EpochWatch(store, sink_ids, query_id)
        self._reason: str | None = None
        self._has_begun = False
        self._begin()

    def _begin(self) -> None:
        """Skip the epochs that the ledger already has. A store that does not exist yet has none."""
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
