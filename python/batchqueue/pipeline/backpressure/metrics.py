"""`StageMetrics`: a stage at one moment, for programs, dashboards and autoscalers."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.pipeline.backpressure.metric_names import PipelineMetric
from batchqueue.pipeline.backpressure.readings import Partition, PartitionProgress
from batchqueue.pipeline.backpressure.signals import EffectivePressure
from batchqueue.pipeline.backpressure.stage_flow import StageFlow
from batchqueue.pipeline.backpressure.stage_skew import report_of
from batchqueue.pipeline.backpressure.states import (
    BackpressureState,
    PartitionState,
    Settled,
    SkewState,
)


@dataclass(frozen=True, kw_only=True)
class PartitionMetrics:
    """A partition of a stage at one moment. What is not known is None.

    Attributes:
        partition: Its number or name.
        latest_offset: The rows that were ever added, or the next offset to be written.
        committed_offset: The rows that are done, or the next offset to be read; None if nothing
            was committed.
        lag: Rows that are not done.
        lag_seconds: Seconds that it is behind, by its source or at the present rate; infinite at
            rate 0.
        rate_per_s: Rows that are done per second.
        owner: The worker that reads it.
        is_hot: Whether it lags behind the others, see `batchqueue.groups.SkewDetector`.
    """

    partition: Partition
    latest_offset: int | None
    committed_offset: int | None
    lag: int | None
    lag_seconds: float | None
    rate_per_s: float | None
    owner: str | None
    is_hot: bool


@dataclass(frozen=True, kw_only=True)
class StageMetrics:
    """A stage at one moment. What is not known is None.

    The figures of skew are over the partitions whose lag is known. `skew_detected` is a rule of
    thumb that one row among four partitions fulfils; `hot_partitions` is the decision that the
    stage acts on.

    Attributes:
        stage: Its name.
        lag: Rows that it has still to read.
        queue_rows: Rows that it has accepted and not completed.
        rate_per_s: Rows that it completes per second.
        busy_ratio: The share of the time in which its workers are busy, from 0 to 1.
        pressure: The larger of lag and queue, each divided by its threshold.
        backpressure_active: Whether backpressure is active at this stage.
        early_warning: Whether this stage warns.
        slow_down_factor: The effective factor: the least of this stage and all stages after it.
        reason: Why it is below 1, or why backpressure is active; empty if neither.
        cause: The stage where that began; None if there is none.
        partitions: The metrics of its partitions.
        partition_lags: Rows that are not done, by partition.
        avg_lag: The mean lag of a partition.
        max_lag: The largest.
        min_lag: The smallest.
        lag_deviation: The standard deviation of the lags, of the whole population.
        skew_ratio: `max_lag / avg_lag`; 0.0 if the mean is 0 or not known.
        skew_detected: Whether the ratio is above `skew_threshold`.
        skewed_partitions: Partitions whose lag is above the threshold times the mean.
        hot_partitions: Partitions that lag behind the others, in rows and, where that is known, in
            time.
        partition_state: The state of its partitions.
        backpressure_state: The state of its backpressure.
        skew_state: The state of its skew.
        paused_seconds: For how long it was not to plan, by the stage that was the cause; of a
            source only.
        is_missing: Whether its last reading is too old or there is none.
    """

    stage: str
    lag: int | None
    queue_rows: int | None
    rate_per_s: float | None
    busy_ratio: float | None
    pressure: float | None
    backpressure_active: bool
    early_warning: bool
    slow_down_factor: float
    reason: str
    cause: str | None
    partitions: Mapping[Partition, PartitionMetrics]
    partition_lags: Mapping[Partition, int | None]
    avg_lag: float | None
    max_lag: int | None
    min_lag: int | None
    lag_deviation: float | None
    skew_ratio: float
    skew_detected: bool
    skewed_partitions: tuple[Partition, ...]
    hot_partitions: frozenset[Partition]
    partition_state: Settled[PartitionState]
    backpressure_state: Settled[BackpressureState]
    skew_state: Settled[SkewState]
    paused_seconds: Mapping[str, float]
    is_missing: bool


def partition_metrics_of(
    partitions: Mapping[Partition, PartitionProgress], hot: Iterable[Partition]
) -> dict[Partition, PartitionMetrics]:
    """Return the metrics of the partitions of a stage."""
    found = frozenset(hot)
    return {
        partition: PartitionMetrics(
            partition=partition,
            latest_offset=progress.latest,
            committed_offset=progress.committed,
            lag=progress.lag,
            lag_seconds=progress.lag_seconds,
            rate_per_s=progress.rate_per_s,
            owner=progress.owner,
            is_hot=partition in found,
        )
        for partition, progress in partitions.items()
    }


def stage_metrics_of(
    flow: StageFlow,
    effective: EffectivePressure,
    skew_config: SkewDetectionConfig,
    *,
    partition_state: Settled[PartitionState],
    paused_seconds: Mapping[str, float],
    is_missing: bool,
) -> StageMetrics:
    """Return the metrics of a stage.

    Args:
        flow: What its controller knows of it.
        effective: The pressure of it and all stages after it.
        skew_config: Its `skew_threshold` counts.
        partition_state: The state of its partitions.
        paused_seconds: As in `StageMetrics`.
        is_missing: As in `StageMetrics`.
    """
    reading, pressure, _ = flow.last
    hot = flow.skew.hot
    report = report_of(reading.partitions, skew_config)
    return StageMetrics(
        stage=flow.stage.name,
        lag=reading.lag,
        queue_rows=reading.queue_rows,
        rate_per_s=reading.rate_per_s,
        busy_ratio=reading.busy_ratio,
        pressure=pressure.ratio,
        backpressure_active=pressure.is_active,
        early_warning=pressure.early_warning,
        slow_down_factor=effective.slow_down_factor,
        reason=effective.reason,
        cause=effective.cause,
        partitions=partition_metrics_of(reading.partitions, hot),
        partition_lags={name: each.lag for name, each in reading.partitions.items()},
        avg_lag=report.avg_lag,
        max_lag=report.max_lag,
        min_lag=report.min_lag,
        lag_deviation=report.std,
        skew_ratio=report.skew_ratio,
        skew_detected=report.seed_skewed,
        skewed_partitions=report.skewed_partitions,
        hot_partitions=hot,
        partition_state=partition_state,
        backpressure_state=flow.machine.settled,
        skew_state=flow.skew.machine.settled,
        paused_seconds=paused_seconds,
        is_missing=is_missing,
    )


Sample = tuple[PipelineMetric, tuple[str, ...], float]
"""A metric, the values of its labels but `pipeline` and `stage`, and its value."""


def samples_of(metrics: StageMetrics) -> Iterator[Sample]:
    """Return the samples of a stage. What is not known has none.

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
