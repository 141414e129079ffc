"""The metrics of a run: the single list of their names, types, units, and when they change."""

import math
from collections.abc import Iterator
from enum import Enum

from batchqueue.metrics.names import MetricSpec
from batchqueue.metrics.prometheus import MetricCollector, Sample
from batchqueue.pipeline.runner.controller import PAUSE_REASON
from batchqueue.pipeline.runner.run import PipelineRun
from batchqueue.pipeline.runner.stage_flow import StageMetrics

_COMES_IN = "each chunk that comes in"
_ENDS = "each chunk that it completes"
_IN_OR_COMPLETED = "each chunk in or completed"
_CHECK = "each check of backpressure"
_CUT = "each cut"


def _spec(
    name: str, unit: str, what: str, changes: str, labels: tuple[str, ...] = ()
) -> MetricSpec:
    kind = "counter" if name.endswith("_total") else "gauge"
    return MetricSpec(f"batchqueue_pipeline_{name}", kind, labels, unit, what, changes)


_P = ("partition",)


class PipelineMetric(Enum):
    """The metrics of a stage or source. Unknown values are omitted, never 0."""

    ROWS_IN = _spec("rows_in_total", "rows", "rows that it accepted", _COMES_IN)
    ROWS_OUT = _spec("rows_out_total", "rows", "rows that it emitted or stored", _ENDS)
    BYTES_IN = _spec("bytes_in_total", "bytes", "bytes that it accepted", _COMES_IN)
    BYTES_OUT = _spec("bytes_out_total", "bytes", "bytes that it emitted or stored", _ENDS)
    QUEUE_ROWS = _spec("queue_rows", "rows", "rows accepted and not completed", _IN_OR_COMPLETED)
    QUEUE_BYTES = _spec(
        "queue_bytes", "bytes", "bytes accepted and not completed", _IN_OR_COMPLETED
    )
    LAG_RECORDS = _spec("lag_records", "rows", "rows that are not done", _CHECK, _P)
    LAG_SECONDS = _spec(
        "lag_seconds", "seconds", "time that the lag takes at the present rate", _CHECK, _P
    )
    BUSY_RATIO = _spec("busy_ratio", "0 to 1", "share of time its workers are busy", _CHECK)
    SLOW_DOWN_FACTOR = _spec(
        "slow_down_factor", "0 to 1", "least factor of it and all stages after it", _CHECK
    )
    BACKPRESSURE_ACTIVE = _spec(
        "backpressure_active", "1 or 0", "whether backpressure is active at it", _CHECK
    )
    EARLY_WARNING = _spec("early_warning", "1 or 0", "whether it is near its thresholds", _CHECK)
    STATE = _spec(
        "state",
        "1 or 0",
        "whether a state machine (partition, backpressure or skew) is in this state",
        "each change of state",
        ("machine", "state"),
    )
    PAUSED_SECONDS = _spec(
        "paused_seconds_total",
        "seconds",
        "time that a source was paused, by the stage that was the cause, or the reason given",
        "each check while it is paused",
        ("cause",),
    )
    SKEW_RATIO = _spec("skew_ratio", "ratio", "largest lag divided by the mean lag", _CHECK)
    HOT_PARTITIONS = _spec(
        "hot_partitions", "partitions", "partitions that lag behind", "each reading of skew"
    )
    CUTS = _spec("cuts_total", "cuts", "cuts that were committed", _CUT)
    CUT_SECONDS = _spec("cut_seconds", "seconds", "time that the last cut took", _CUT)
    CHUNKS_FAILED = _spec(
        "chunks_failed_total", "chunks", "chunks whose operator or sink raised", "each failure"
    )


OfStage = tuple[str, Sample]
"""The name of a stage, and a sample of it, without the labels `pipeline` and `stage`."""

_WHOLE_RUN = ""
"""The stage name of a metric of the whole run."""


class PipelineCollector(MetricCollector):
    """A collector for `prometheus_client`, which reads a run at each scrape.

    See `PipelineMetric` for the names. It also works after the run has ended.

    Example:
        REGISTRY.register(PipelineCollector(run))
        start_http_server(9109, addr="127.0.0.1")
    """

    metrics = PipelineMetric
    labels = ("pipeline", "stage")

    def __init__(self, run: PipelineRun) -> None:
        """Describe what to read; nothing is read yet.

        Args:
            run: The run.

        Raises:
            MissingPackageError: prometheus_client is not installed.
        """
        super().__init__()
        self._run = run

    def _samples(self) -> Iterator[Sample]:
        pipeline = self._run.stats().name
        for stage, (metric, labels, value) in samples_of_run(self._run):
            yield metric, (pipeline, stage, *labels), value


def samples_of_run(run: PipelineRun) -> Iterator[OfStage]:
    """Return the samples of a run, each with its stage. Unknown values have none."""
    stats = run.stats()
    yield _WHOLE_RUN, (PipelineMetric.CUTS, (), stats.cuts_total)
    if stats.cut_seconds is not None:
        yield _WHOLE_RUN, (PipelineMetric.CUT_SECONDS, (), stats.cut_seconds)
    for name in (*stats.sources, *stats.stages):
        yield from ((name, sample) for sample in samples_of(run.metrics(name)))
    for name, source in stats.sources.items():
        yield name, (PipelineMetric.ROWS_OUT, (), source.rows_out_total)
        yield name, (PipelineMetric.BYTES_OUT, (), source.bytes_out_total)
        for reason, seconds in source.paused_seconds_total.items():
            if reason != PAUSE_REASON:  # reported by stage
                yield name, (PipelineMetric.PAUSED_SECONDS, (reason,), seconds)
    for name, stage in stats.stages.items():
        yield name, (PipelineMetric.ROWS_IN, (), stage.rows_in_total)
        yield name, (PipelineMetric.ROWS_OUT, (), stage.rows_out_total)
        yield name, (PipelineMetric.BYTES_IN, (), stage.bytes_in_total)
        yield name, (PipelineMetric.BYTES_OUT, (), stage.bytes_out_total)
        yield name, (PipelineMetric.QUEUE_BYTES, (), stage.queue_bytes)
        yield name, (PipelineMetric.CHUNKS_FAILED, (), stage.chunks_failed_total)


def samples_of(metrics: StageMetrics) -> Iterator[Sample]:
    """Return the samples of a stage. Unknown values have none.

    Example:
        for metric, labels, value in samples_of(controller.metrics("totals")):
            print(metric.value.name, labels, value)
    """
    for metric, value in (
        (PipelineMetric.QUEUE_ROWS, metrics.queue_rows),
        (PipelineMetric.BUSY_RATIO, metrics.busy_ratio),
        (PipelineMetric.SLOW_DOWN_FACTOR, metrics.slow_down_factor),
        (PipelineMetric.BACKPRESSURE_ACTIVE, metrics.backpressure_active),
        (PipelineMetric.EARLY_WARNING, metrics.early_warning),
        (PipelineMetric.SKEW_RATIO, metrics.skew_ratio),
        (PipelineMetric.HOT_PARTITIONS, len(metrics.hot_partitions)),
    ):
        if value is not None:
            yield metric, (), float(value)
    for machine, settled in (
        ("partition", metrics.partition_state),
        ("backpressure", metrics.backpressure_state),
        ("skew", metrics.skew_state),
    ):
        for state in type(settled.state):
            yield PipelineMetric.STATE, (machine, state.value), float(state is settled.state)
    for cause, seconds in metrics.paused_seconds.items():
        yield PipelineMetric.PAUSED_SECONDS, (cause,), seconds
    for partition in metrics.partitions.values():
        labels = (str(partition.partition),)
        if partition.lag is not None:
            yield PipelineMetric.LAG_RECORDS, labels, float(partition.lag)
        if partition.lag_seconds is not None and partition.lag_seconds < math.inf:
            yield PipelineMetric.LAG_SECONDS, labels, partition.lag_seconds
