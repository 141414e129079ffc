"""The metrics of a sink: the single list of their names, types, units, and when they change."""

from collections.abc import Iterator, Sequence
from enum import Enum

from batchqueue.base.background_log import BackgroundLog
from batchqueue.metrics.names import MetricSpec
from batchqueue.metrics.prometheus import MetricCollector, Sample
from batchqueue.outputs.store import FINAL_BEFORE, Epoch, StoreUnavailableError
from batchqueue.spark.commit.summary import SinkTotals, latest_totals
from batchqueue.spark.driver.progress import LedgerStore, checked_sink_ids


def _counter(name: str, unit: str, description: str, *labels: str) -> MetricSpec:
    return MetricSpec(
        f"batchqueue_sink_{name}_total", "counter", labels, unit, description, "each epoch"
    )


def _gauge(
    name: str, unit: str, description: str, *labels: str, changes: str = "each epoch"
) -> MetricSpec:
    return MetricSpec(f"batchqueue_sink_{name}", "gauge", labels, unit, description, changes)


class SinkMetric(Enum):
    """The metrics of a sink. Before the first epoch a counter is 0, and a gauge is missing.

    Their names begin with `batchqueue_sink_`, and those of counters end with `_total`.
    """

    UP = _gauge("up", "1 or 0", "whether the ledger could be read", changes="each scrape")
    EPOCHS = _counter("epochs", "epochs", "applied epochs and batch writes")
    ROWS = _counter("rows", "rows", "rows from Spark")
    SKIPPED = _counter("skipped_rows", "rows", "rows that a step left out because of a null key")
    BAD_ROWS = _counter("bad_rows", "rows", "rows that could not be read, and were left out")
    LATE = _counter("late_partials", "partials", "partials for a time bucket that was final")
    ITEMS = _counter("items", "items", "items made of rows")
    PARTIALS = _counter("partials", "partials", "what L1 left of the items")
    STAGE_ITEMS = _counter(
        "stage_items", "items", "where the items of a stage ended", "stage", "outcome"
    )
    COMMIT_BYTES = _counter("commit_bytes", "bytes", "partials on the way to the commit")
    COMMIT_SECONDS = _counter("commit_seconds", "seconds", "time that commits took")
    CPU_SECONDS = _counter(
        "cpu_seconds",
        "seconds",
        "CPU time of Python: drain threads and the rest, in tasks and commits",
        "place",
        "threads",
    )
    LAST_BATCH_ID = _gauge("last_batch_id", "number", "Spark's number of the last epoch")
    LAST_COMMIT_TIME = _gauge(
        "last_commit_timestamp_seconds", "seconds since 1970", "when the last epoch was committed"
    )
    LAST_COMMIT_SECONDS = _gauge("last_commit_seconds", "seconds", "time that the last commit took")
    LAST_L1_RATIO = _gauge(
        "last_l1_ratio", "items per partial", "how much L1 merged in the last epoch"
    )
    FINAL_BEFORE = _gauge(
        "final_before_timestamp_seconds",
        "seconds since 1970",
        "the time bucket before which all are final",
    )
    LAST_QUEUE_USE = _gauge(
        "last_queue_use_ratio",
        "0 to 1",
        "peak use of the fullest partition in the last epoch",
        "stage",
    )


_log = BackgroundLog("batchqueue.spark")


class LedgerCollector(MetricCollector):
    """A collector for `prometheus_client`, which reads the ledger of its sinks at each scrape.

    It has no state, so it works in every process that can read the store: in the driver, or in an
    exporter that outlives the driver. The counters continue after a restart of either. Each scrape
    reads one entry per sink, and never waits for a writer. See `SinkMetric` for the names.

    A sink that cannot be read has `batchqueue_sink_up` 0, and no other metric in that scrape; the
    log says why, once.

    Example:
        REGISTRY.register(LedgerCollector(store, "orders"))
        start_http_server(9108, addr="127.0.0.1")
    """

    metrics = SinkMetric
    labels = ("sink",)

    def __init__(self, store: LedgerStore, sink_ids: str | Sequence[str]) -> None:
        """Describe what to read; nothing is read yet.

        Args:
            store: The store of the job.
            sink_ids: One sink or several; with shards `MetricsWriter.sink_ids`.

        Raises:
            ConfigError: There is no sink id, or a sink id occurs twice.
            MissingPackageError: prometheus_client is not installed.
        """
        super().__init__()
        self._store = store
        self._sink_ids = checked_sink_ids(sink_ids)
        self._unreadable: dict[str, str] = {}

    def _samples(self) -> Iterator[Sample]:
        """Read the ledger. It never raises, because other collectors share the scrape."""
        unavailable: Exception | None = None
        for sink_id in self._sink_ids:
            try:
                # A scrape has a timeout, so only the first sink may wait for a missing store.
                if unavailable is not None:
                    raise unavailable
                samples = list(read_samples(self._store, sink_id))
            except Exception as error:
                unavailable = error if isinstance(error, StoreUnavailableError) else None
                self._log_change(sink_id, str(error))
                samples = [(SinkMetric.UP, (), 0)]
            else:
                self._log_change(sink_id, None)
            for metric, labels, value in samples:
                yield metric, (sink_id, *labels), value

    def _log_change(self, sink_id: str, reason: str | None) -> None:
        """Log the moments when a sink becomes unreadable or readable, not every scrape."""
        before = self._unreadable.pop(sink_id, None)
        if reason is not None:
            self._unreadable[sink_id] = reason
            if before is None:
                _log.warning("sink %s: its metrics cannot be read: %s", sink_id, reason)
        elif before is not None:
            _log.info("sink %s: its metrics can be read again", sink_id)


def read_samples(store: LedgerStore, sink_id: str) -> Iterator[Sample]:
    """Read the ledger of one sink.

    Raises:
        StoreError: The store cannot be read.
    """
    newest = store.summaries(sink_id, 1)
    # Counters and gauges share one entry. Only if its writer was too old to add totals are all
    # entries read.
    totals = latest_totals(
        lambda number: newest if number == 1 else store.summaries(sink_id, number)
    )
    yield SinkMetric.UP, (), 1
    yield from _counters(totals)
    for epoch in newest:
        yield from _gauges(epoch)


def _counters(totals: SinkTotals) -> Iterator[Sample]:
    yield SinkMetric.EPOCHS, (), totals.epochs
    yield SinkMetric.ROWS, (), totals.rows
    yield SinkMetric.SKIPPED, (), totals.skipped
    yield SinkMetric.BAD_ROWS, (), totals.bad_rows
    yield SinkMetric.LATE, (), totals.late
    yield SinkMetric.ITEMS, (), totals.items
    yield SinkMetric.PARTIALS, (), totals.partials
    yield SinkMetric.COMMIT_BYTES, (), totals.commit_bytes
    yield SinkMetric.COMMIT_SECONDS, (), totals.commit_wall_s
    for place, by_threads in totals.cpu_s.items():
        for threads, seconds in by_threads.items():
            yield SinkMetric.CPU_SECONDS, (place, threads), seconds
    for stage, by_outcome in totals.stages.items():
        for outcome, items in by_outcome.items():
            yield SinkMetric.STAGE_ITEMS, (stage, outcome), items


def _gauges(epoch: Epoch) -> Iterator[Sample]:
    summary = epoch.summary
    yield SinkMetric.LAST_BATCH_ID, (), epoch.batch_id
    known = {
        SinkMetric.LAST_COMMIT_TIME: "committed_at",
        SinkMetric.LAST_COMMIT_SECONDS: "commit_wall_s",
        SinkMetric.LAST_L1_RATIO: "l1_ratio",
        SinkMetric.FINAL_BEFORE: FINAL_BEFORE,
    }
    for metric, name in known.items():
        if summary.get(name) is not None:  # entries of older versions lack some fields
            yield metric, (), summary[name]
    for stage, counts in summary.get("stages", {}).items():
        yield SinkMetric.LAST_QUEUE_USE, (stage,), counts["peak_used_percent"] / 100
