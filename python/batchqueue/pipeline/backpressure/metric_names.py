"""The metrics of a pipeline: the single list of their names, types, units, and when they change."""

from enum import Enum

from batchqueue.metrics.names import MetricSpec

_CHECK = "each check of backpressure"
_CUT = "each cut"


def _counter(
    name: str, unit: str, what: str, changes: str, labels: tuple[str, ...] = ()
) -> MetricSpec:
    return MetricSpec(f"batchqueue_pipeline_{name}_total", "counter", labels, unit, what, changes)


def _gauge(
    name: str, unit: str, what: str, changes: str, labels: tuple[str, ...] = ()
) -> MetricSpec:
    return MetricSpec(f"batchqueue_pipeline_{name}", "gauge", labels, unit, what, changes)


_P = ("partition",)


class PipelineMetric(Enum):
    """The metrics of a stage or source. What is not known is missing, never 0."""

    ROWS_IN = _counter("rows_in", "rows", "rows that it accepted", "each chunk that comes in")
    ROWS_OUT = _counter("rows_out", "rows", "rows that it emitted or stored", "each chunk it ends")
    BYTES_IN = _counter("bytes_in", "bytes", "bytes that it accepted", "each chunk that comes in")
    BYTES_OUT = _counter(
        "bytes_out", "bytes", "bytes that it emitted or stored", "each chunk it ends"
    )
    QUEUE_ROWS = _gauge(
        "queue_rows", "rows", "rows accepted and not completed", "each chunk in or completed"
    )
    QUEUE_BYTES = _gauge(
        "queue_bytes", "bytes", "bytes accepted and not completed", "each chunk in or completed"
    )
    LAG_RECORDS = _gauge("lag_records", "rows", "rows that are not done", _CHECK, _P)
    LAG_SECONDS = _gauge(
        "lag_seconds", "seconds", "time that the lag takes at the present rate", _CHECK, _P
    )
    BUSY_RATIO = _gauge("busy_ratio", "0 to 1", "share of time its workers are busy", _CHECK)
    SLOW_DOWN_FACTOR = _gauge(
        "slow_down_factor", "0 to 1", "least factor of it and all stages after it", _CHECK
    )
    BACKPRESSURE_ACTIVE = _gauge(
        "backpressure_active", "1 or 0", "whether backpressure is active at it", _CHECK
    )
    EARLY_WARNING = _gauge("early_warning", "1 or 0", "whether it is near its thresholds", _CHECK)
    STATE = _gauge(
        "state",
        "1 or 0",
        "whether a state machine (partition, backpressure or skew) is in this state",
        "each change of state",
        ("machine", "state"),
    )
    PAUSED_SECONDS = _counter(
        "paused_seconds",
        "seconds",
        "time that a source was paused, by the stage that was the cause, or the reason given",
        "each check while it is paused",
        ("cause",),
    )
    SKEW_RATIO = _gauge("skew_ratio", "ratio", "largest lag divided by the mean lag", _CHECK)
    HOT_PARTITIONS = _gauge(
        "hot_partitions", "partitions", "partitions that lag behind", "each reading of skew"
    )
    CUTS = _counter("cuts", "cuts", "cuts that were committed", _CUT)
    CUT_SECONDS = _gauge("cut_seconds", "seconds", "time that the last cut took", _CUT)
    CHUNKS_FAILED = _counter(
        "chunks_failed", "chunks", "chunks whose operator or sink raised", "each failure"
    )
