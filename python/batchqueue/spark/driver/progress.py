"""Readers of the ledger. They run wherever the store can be read: mostly in the driver."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.checks import require
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.store import Epoch, StoreError, StoreUnavailableError
from batchqueue.spark.commit.summary import STAGES, SinkTotals, l1_ratio, log_line
from batchqueue.spark.stage import StageSummary

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from rich.console import Console

    from batchqueue.spark.driver.progress_display import ProgressDisplay


# What every reader of a ledger needs: a store to read, and the ids of its sinks.


class LedgerStore(Protocol):
    """A store whose ledger can be read while it is written, as with all stores of this package."""

    def summaries(self, sink_id: str, newest: int | None) -> list[Epoch]:
        """Return the newest summaries of a sink."""
        ...


def checked_sink_ids(sink_ids: str | Sequence[str]) -> tuple[str, ...]:
    """Return the sink ids as a tuple.

    Raises:
        ConfigError: There is no sink id, or a sink id occurs twice.
    """
    given = (sink_ids,) if isinstance(sink_ids, str) else tuple(sink_ids)
    if not given or len(set(given)) < len(given):
        raise ConfigError(
            f"sink_ids={sink_ids!r}: give at least one sink id, each once; with shards "
            "MetricsWriter.sink_ids"
        )
    return given


# Follows the ledger of a sink, or of all its shards: which epochs of a query are new.


_NEWEST = 100
"""Entries that each poll reads; more than an application adds between two polls."""


class NewEpoch(NamedTuple):
    """An epoch that was committed; with shards, by all of them.

    Attributes:
        batch_id: Its number.
        summary: See `epoch_summary`; with shards their sum, as far as `log_line` needs it.
        totals: The totals of the sink, or of all shards, as of this epoch.
    """

    batch_id: int
    summary: Mapping[str, Any]
    totals: SinkTotals


class EpochWatch:
    """Finds the epochs of one query that were added to the ledger since the last poll.

    It never waits for a writer.
    """

    def __init__(
        self, store: LedgerStore, sink_ids: str | Sequence[str], query_id: str, *, after: int = -1
    ) -> None:
        """Describe what to watch.

        Args:
            store: Where the ledger is.
            sink_ids: One sink, or all of its shards.
            query_id: The query whose epochs to watch.
            after: Number of the last epoch that is not new. Default: all epochs are new.
        """
        self._store = store
        self._sink_ids = checked_sink_ids(sink_ids)
        self._query_id = query_id
        self._last = after
        self._found: dict[int, dict[str, dict[str, Any]]] = {}

    def poll(self) -> list[NewEpoch]:
        """Return the new epochs, in order.

        Raises:
            StoreError: The store cannot be read, or does not exist yet.
        """
        for sink_id in self._sink_ids:
            for query_id, batch_id, summary in self._store.summaries(sink_id, _NEWEST):
                if query_id == self._query_id and batch_id > self._last:
                    self._found.setdefault(batch_id, {})[sink_id] = summary
        # A shard may be an epoch ahead of another; such an epoch waits for the next poll.
        complete = sorted(
            batch_id for batch_id, found in self._found.items() if len(found) == len(self._sink_ids)
        )
        new = [_joined(batch_id, list(self._found[batch_id].values())) for batch_id in complete]
        if complete:
            self._last = complete[-1]
            self._found = {
                batch_id: found for batch_id, found in self._found.items() if batch_id > self._last
            }
        return new


def _joined(batch_id: int, summaries: Sequence[Mapping[str, Any]]) -> NewEpoch:
    totals = SinkTotals.sum(
        SinkTotals.carried_by(summary) or SinkTotals.from_summary(summary) for summary in summaries
    )
    if len(summaries) == 1:
        return NewEpoch(batch_id, summaries[0], totals)
    sums = {
        name: sum(summary[name] for summary in summaries)
        for name in ("rows", "items", "partials", "commit_bytes")
    }
    stages = {
        stage: vars(
            StageSummary.total([StageSummary(**summary["stages"][stage]) for summary in summaries])
        )
        for stage in STAGES
    }
    joined = {
        **summaries[0],
        **sums,
        "l1_ratio": l1_ratio(**{name: sums[name] for name in ("rows", "items", "partials")}),
        "stages": stages,
        # The shards commit concurrently.
        "commit_wall_s": max(summary["commit_wall_s"] for summary in summaries),
    }
    return NewEpoch(batch_id, joined, totals)


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
    from batchqueue.spark.driver.progress_display import ProgressDisplay

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
