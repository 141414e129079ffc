"""`FlowStage`: a stage as signals see it. `StageFlow`: what its controller knows about it."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from batchqueue.groups.record import group_id, partition_count
from batchqueue.groups.skew import (
    PartitionReading,
    SkewDetectionConfig,
    SkewDetector,
    skew_report,
    skew_warning,
)
from batchqueue.pipeline.graph import StageConfig
from batchqueue.pipeline.runner.pressure import (
    NO_PRESSURE,
    EffectivePressure,
    Partition,
    PartitionProgress,
    Pressure,
    StagePressure,
    StageReading,
    next_pressure,
    reason_of,
)
from batchqueue.pipeline.runner.states import (
    BACKPRESSURE_STEPS,
    PARTITION_STEPS,
    SKEW_STEPS,
    BackpressureState,
    PartitionState,
    Settled,
    SkewState,
    StateMachine,
)
from batchqueue.pipeline.settings import BackpressureConfig


@dataclass(frozen=True, kw_only=True)
class FlowStage:
    """A stage or source, as far as signals are concerned.

    Attributes:
        name: Its name.
        downstream: The names of the stages that it feeds. Default: none.
        is_source: Whether it reads input, and can be paused. Default: False.
    """

    name: str
    downstream: tuple[str, ...] = ()
    is_source: bool = False


class LastReading(NamedTuple):
    """The last reading of a stage, and what followed from it."""

    reading: StageReading
    pressure: Pressure
    read_at: float


class StageFlow:
    """What a controller knows about a stage.

    One thread calls the methods. Others may read `last`, which is replaced, never modified.
    """

    def __init__(
        self,
        stage: FlowStage,
        config: BackpressureConfig,
        skew_config: SkewDetectionConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without a reading."""
        self.stage = stage
        self.last = LastReading(StageReading(lag=None, queue_rows=None), NO_PRESSURE, float("-inf"))
        self.machine = StateMachine(
            f"backpressure of {stage.name}", BackpressureState.NORMAL, BACKPRESSURE_STEPS, clock
        )
        self.skew = StageSkew(stage.name, skew_config, clock)
        self._config = config

    def take(self, reading: StageReading, now: float) -> None:
        """Take a reading."""
        pressure = self.last.pressure
        if self._config.enabled:
            # A source that is behind has to read more, not less: its lag is not a pressure.
            lag = 0 if self.stage.is_source else reading.lag
            pressure = next_pressure(pressure, lag, reading.queue_rows, self._config)
        self.last = LastReading(reading, pressure, now)
        self.skew.check(reading.partitions, now)

    def own(self) -> StagePressure:
        """Return the pressure that the stage reports for itself."""
        reading, pressure, _ = self.last
        reason = reason_of(pressure, self._config, reading.busy_ratio)
        return StagePressure(
            pressure.slow_down_factor, pressure.is_active, pressure.early_warning, reason
        )

    def advance(self, *, has_upstream: bool, pauses_source: bool) -> None:
        """Advance the state of the backpressure according to the last reading.

        Args:
            has_upstream: Whether there is a stage or source that can hear the signal.
            pauses_source: Whether a source before the stage is paused.
        """
        state, pressure = BackpressureState, self.last.pressure
        if self.machine.state is state.BACKPRESSURE_ACTIVE:
            if not pressure.is_active:
                self.machine.advance(state.NORMAL)
            return
        path = [state.MONITORING] if self.machine.state is state.SOURCE_PAUSED else []
        path.append(state.CHECKING)
        if not pressure.is_active:
            path.append(state.NORMAL)
        elif not has_upstream:
            path.append(state.BACKPRESSURE_ACTIVE)
        elif pressure.ratio is not None and pressure.ratio > 1:
            path += [state.BACKPRESSURE_ACTIVE, state.PROPAGATING]
            path.append(state.SOURCE_PAUSED if pauses_source else state.MONITORING)
        else:
            path.append(state.MONITORING)
        self.machine.advance(*path)


def sources_before(
    stages: Iterable[FlowStage], order: Sequence[str]
) -> dict[str, tuple[FlowStage, ...]]:
    """Return the sources before each stage.

    Args:
        stages: The stages and sources.
        order: Their names, each after those downstream of it.
    """
    by_name = {stage.name: stage for stage in stages}
    before: dict[str, dict[str, FlowStage]] = {name: {} for name in order}
    for name in reversed(order):
        stage = by_name.get(name)
        if stage is None:
            continue
        passed_on = {name: stage, **before[name]} if stage.is_source else before[name]
        for following in stage.downstream:
            before[following].update(passed_on)
    return {name: tuple(found.values()) for name, found in before.items()}


class StageSkew:
    """Reads the partitions of a stage at intervals, and advances its state machine."""

    def __init__(self, stage: str, config: SkewDetectionConfig, clock: Callable[[], float]) -> None:
        """Start without hot partitions."""
        self.machine = StateMachine(f"skew of {stage}", SkewState.MONITORING, SKEW_STEPS, clock)
        self._stage = stage
        self._config = config
        self._detector = SkewDetector(config)
        self._readings: list[PartitionReading] = []
        self._next_at = float("-inf")

    @property
    def hot(self) -> frozenset[Partition]:
        """The partitions that are hot after the last reading."""
        return frozenset(self._detector.hot)

    def check(self, partitions: Mapping[Partition, PartitionProgress], now: float) -> None:
        """Take a reading, if one is due.

        Args:
            partitions: All partitions of the stage.
            now: The time, in seconds.
        """
        # Two consecutive readings count only if there was time for a change between them.
        if not (self._config.enabled and partitions) or now < self._next_at:
            return
        self._next_at = now + self._config.check_interval_s
        self._readings = readings_of(partitions)
        self._detector.update(self._readings)
        self._advance(any(each.lag is not None for each in self._readings))

    def line(self) -> str:
        """Return the line for the log that says which partitions are hot."""
        hot = [each for each in self._readings if each.partition in self._detector.hot]
        if not hot:
            return f"Partition skew ended in {self._stage}"
        return skew_warning(self._stage, skew_report(self._readings, self._config), hot)

    def _advance(self, is_known: bool) -> None:
        path = [] if self.machine.state is SkewState.MONITORING else [SkewState.MONITORING]
        path.append(SkewState.COLLECTING_METRICS)
        if not is_known:
            path.append(SkewState.MONITORING)
        elif self._detector.hot:
            path += [SkewState.CALCULATING_LAG, SkewState.SKEW_DETECTED]
            path += [SkewState.LOGGING_ALERT, SkewState.MITIGATING]
        else:
            path += [SkewState.CALCULATING_LAG, SkewState.NO_SKEW]
        self.machine.advance(*path)


def readings_of(partitions: Mapping[Partition, PartitionProgress]) -> list[PartitionReading]:
    """Return partitions in the form that the detector takes."""
    return [
        PartitionReading(
            # The detector only compares partitions with one another, so names work, too.
            partition=cast(int, partition),
            lag=progress.lag,
            rate_per_s=progress.rate_per_s,
            owner=progress.owner,
            seconds=progress.seconds,
        )
        for partition, progress in partitions.items()
    ]


def partition_machine(stage: str, clock: Callable[[], float]) -> StateMachine[PartitionState]:
    """Return the state machine of a stage's partitions, before its start."""
    name = f"partitions of {stage}"
    return StateMachine(name, PartitionState.INITIALIZING, PARTITION_STEPS, clock)


class StagePartitions:
    """The partitions of a stage, from the start of the stage to its end.

    The runner of the stage reports events; this class maps them to states.

    Attributes:
        count: The number of partitions.
        machine: The state.

    Example:
        >>> partitions = StagePartitions("revenue", "totals", StageConfig(max_workers=4))
        >>> partitions.count, partitions.group, partitions.machine.state.value
        (4, 'revenue_totals', 'multi_partition')
    """

    def __init__(
        self,
        pipeline: str,
        stage: str,
        config: StageConfig,
        machine: StateMachine[PartitionState] | None = None,
        *,
        count: int | None = None,
    ) -> None:
        """Compute the number of partitions.

        Args:
            pipeline: The name of the pipeline.
            stage: The name of the stage.
            config: Its settings.
            machine: The state, before the start. Default: None, a new one.
            count: The number of partitions, if the graph decides it. Default: None,
                `partition_count` of the config, or one per worker up to `max_workers`. The number
                of running workers does not matter.
        """
        self.machine = machine or partition_machine(stage, time.monotonic)
        self.count = count or partition_count(config.partition_count, config.max_workers)
        self._names = pipeline, stage
        self._min_workers = config.min_workers
        self._members: frozenset[str] = frozenset()
        single, multi = PartitionState.SINGLE_PARTITION, PartitionState.MULTI_PARTITION
        self.machine.advance(
            PartitionState.COMPUTING_PARTITION_COUNT, single if self.count == 1 else multi
        )

    @property
    def group(self) -> str:
        """The name of the group of workers that shares them, if the workers are processes.

        Raises:
            ConfigError: A name cannot be part of the name of a group.
        """
        return group_id(*self._names)

    def queue_created(self) -> None:
        """Record that the queue or topic exists, with `count` partitions."""
        self.machine.advance(PartitionState.QUEUE_CREATED)

    def workers_spawning(self) -> None:
        """Record that workers are being started."""
        self.machine.advance(PartitionState.WORKERS_SPAWNING)

    def observe(self, members: Collection[str], owners: Mapping[int, str | None]) -> None:
        """Record which worker owns which partition.

        The stage runs once `min_workers` share all partitions. When the members change, or a
        partition has no owner among them, it rebalances until they share all partitions again.

        Args:
            members: The names of the workers.
            owners: The owner of each partition; None if it has none.
        """
        present = frozenset(members)
        shared = set(owners.values())
        is_shared = shared <= present and 0 < len(shared) == min(len(present), len(owners))
        if self.machine.state is PartitionState.WORKERS_SPAWNING:
            if not is_shared or len(present) < self._min_workers:
                return
            self.machine.advance(PartitionState.RUNNING)
        elif self.machine.state is PartitionState.RUNNING and (
            present != self._members or not is_shared
        ):
            self.machine.advance(PartitionState.REBALANCING)
        if self.machine.state is PartitionState.REBALANCING and is_shared:
            self.machine.advance(PartitionState.RUNNING)
        self._members = present

    def stop(self) -> None:
        """Record that the stage is about to end."""
        self.machine.advance(PartitionState.STOPPING)

    def stopped(self) -> None:
        """Record that the stage has ended."""
        self.machine.advance(PartitionState.STOPPED)


@dataclass(frozen=True, kw_only=True)
class PartitionMetrics:
    """A partition of a stage at one moment. Unknown values are None.

    Attributes:
        partition: Its number or name.
        latest_offset: The rows ever added, or the next offset to be written.
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
    """A stage at one moment. Unknown values are None.

    The skew statistics cover the partitions whose lag is known. `skew_detected` is a rule of thumb
    that a single row among four partitions meets; `hot_partitions` is the decision that the stage
    acts on.

    Attributes:
        stage: Its name.
        lag: Rows that it still has to read.
        queue_rows: Rows that it has accepted but not completed.
        rate_per_s: Rows that it completes per second.
        busy_ratio: The share of time that its workers are busy, from 0 to 1.
        pressure: The larger of lag and queue, each divided by its threshold.
        backpressure_active: Whether backpressure is active at this stage.
        early_warning: Whether this stage warns.
        slow_down_factor: The effective factor: the least of this stage and all stages after it.
        reason: Why the factor is below 1, or why backpressure is active; empty if neither.
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
        paused_seconds: Seconds that it was not allowed to plan, by the stage that was the cause;
            for a source only.
        is_missing: Whether its last reading is too old or missing.
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
        flow: What its controller knows about it.
        effective: The pressure of it and all stages after it.
        skew_config: The config whose `skew_threshold` applies.
        partition_state: The state of its partitions.
        paused_seconds: As in `StageMetrics`.
        is_missing: As in `StageMetrics`.
    """
    reading, pressure, _ = flow.last
    hot = flow.skew.hot
    report = skew_report(readings_of(reading.partitions), skew_config)
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
