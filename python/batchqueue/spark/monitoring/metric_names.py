"""The metrics of a sink: the single list of their names, types, units, and when they change."""

from enum import Enum

from batchqueue.metrics.names import MetricSpec

_EPOCH = "each epoch"


class SinkMetric(Enum):
    """The metrics of a sink. Before the first epoch a counter is 0, and a gauge is missing."""

    UP = MetricSpec(
        "batchqueue_sink_up",
        "gauge",
        (),
        "1 or 0",
        "whether the ledger could be read",
        "each scrape",
    )
    EPOCHS = MetricSpec(
        "batchqueue_sink_epochs_total",
        "counter",
        (),
        "epochs",
        "applied epochs and batch writes",
        _EPOCH,
    )
    ROWS = MetricSpec(
        "batchqueue_sink_rows_total", "counter", (), "rows", "rows from Spark", _EPOCH
    )
    SKIPPED = MetricSpec(
        "batchqueue_sink_skipped_rows_total",
        "counter",
        (),
        "rows",
        "rows that a step left out because of a null key",
        _EPOCH,
    )
    BAD_ROWS = MetricSpec(
        "batchqueue_sink_bad_rows_total",
        "counter",
        (),
        "rows",
        "rows that could not be read, and were left out",
        _EPOCH,
    )
    LATE = MetricSpec(
        "batchqueue_sink_late_partials_total",
        "counter",
        (),
        "partials",
        "partials for a time bucket that was final",
        _EPOCH,
    )
    ITEMS = MetricSpec(
        "batchqueue_sink_items_total", "counter", (), "items", "items made of rows", _EPOCH
    )
    PARTIALS = MetricSpec(
        "batchqueue_sink_partials_total",
        "counter",
        (),
        "partials",
        "what L1 left of the items",
        _EPOCH,
    )
    STAGE_ITEMS = MetricSpec(
        "batchqueue_sink_stage_items_total",
        "counter",
        ("stage", "outcome"),
        "items",
        "where the items of a stage ended",
        _EPOCH,
    )
    COMMIT_BYTES = MetricSpec(
        "batchqueue_sink_commit_bytes_total",
        "counter",
        (),
        "bytes",
        "partials on the way to the commit",
        _EPOCH,
    )
    COMMIT_SECONDS = MetricSpec(
        "batchqueue_sink_commit_seconds_total",
        "counter",
        (),
        "seconds",
        "time that commits took",
        _EPOCH,
    )
    CPU_SECONDS = MetricSpec(
        "batchqueue_sink_cpu_seconds_total",
        "counter",
        ("place", "threads"),
        "seconds",
        "CPU time of Python: drain threads and the rest, in tasks and commits",
        _EPOCH,
    )
    LAST_BATCH_ID = MetricSpec(
        "batchqueue_sink_last_batch_id",
        "gauge",
        (),
        "number",
        "Spark's number of the last epoch",
        _EPOCH,
    )
    LAST_COMMIT_TIME = MetricSpec(
        "batchqueue_sink_last_commit_timestamp_seconds",
        "gauge",
        (),
        "seconds since 1970",
        "when the last epoch was committed",
        _EPOCH,
    )
    LAST_COMMIT_SECONDS = MetricSpec(
        "batchqueue_sink_last_commit_seconds",
        "gauge",
        (),
        "seconds",
        "time that the last commit took",
        _EPOCH,
    )
    LAST_L1_RATIO = MetricSpec(
        "batchqueue_sink_last_l1_ratio",
        "gauge",
        (),
        "items per partial",
        "how much L1 merged in the last epoch",
        _EPOCH,
    )
    FINAL_BEFORE = MetricSpec(
        "batchqueue_sink_final_before_timestamp_seconds",
        "gauge",
        (),
        "seconds since 1970",
        "the time bucket before which all are final",
        _EPOCH,
    )
    LAST_QUEUE_USE = MetricSpec(
        "batchqueue_sink_last_queue_use_ratio",
        "gauge",
        ("stage",),
        "0 to 1",
        "peak use of the fullest partition in the last epoch",
        _EPOCH,
    )
