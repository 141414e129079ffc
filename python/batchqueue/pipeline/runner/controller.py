"""`FlowController`: turns readings of the stages into what each source may do.

`FlowWatch` is the thread that takes the readings of a run.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from batchqueue.base.background_log import BackgroundLog, ChangeLog
from batchqueue.exceptions import ConfigError
from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.pipeline.contract import GraphError, Lag, Position
from batchqueue.pipeline.runner.assembly import LEAVE_S, Assembly
from batchqueue.pipeline.runner.pressure import (
    OPEN,
    BackpressureSignal,
    EffectivePressure,
    GateDecision,
    Partition,
    PartitionProgress,
    Propagated,
    StageReading,
    decide,
    downstream_first,
    lag_of,
    propagate,
    readings_of,
)
from batchqueue.pipeline.runner.source import LagReader, SourceThread
from batchqueue.pipeline.runner.stage import RunnerStage
from batchqueue.pipeline.runner.stage_flow import (
    FlowStage,
    PartitionMetrics,
    StageFlow,
    StageMetrics,
    StagePartitions,
    partition_machine,
    partition_metrics_of,
    sources_before,
    stage_metrics_of,
)
from batchqueue.pipeline.runner.states import PartitionState, StateMachine
from batchqueue.pipeline.settings import STALE_INTERVALS, BackpressureConfig

_log = BackgroundLog("batchqueue.pipeline")


@dataclass(frozen=True)
class _View:
    """The result of a check. It is immutable, so other threads read it without a lock."""

    checked_at: float
    timestamp: float
    propagated: Mapping[str, Propagated]
    decisions: Mapping[str, GateDecision]
    missing: tuple[str, ...]


class FlowController:
    """Decides at each check how much every source may plan, and says why.

    One thread calls `check`, about every `check_interval_s`. All other methods may be called from
    any thread, and report the last check. After three intervals without a check, nothing is held
    back any more: memory is bounded by other means, and a check that hangs should not stop the
    pipeline.

    Attributes:
        partition_states: The state of the partitions of each stage, by name. The runner advances
            it, see `StagePartitions`.

    Example:
        >>> orders = FlowStage(name="orders", downstream=("totals",), is_source=True)
        >>> stages = [orders, FlowStage(name="totals")]
        >>> controller = FlowController(stages, BackpressureConfig(gate="both"))
        >>> controller.check({"totals": StageReading(lag=6_000, queue_rows=10)})
        >>> controller.decision("orders").may_plan, controller.signal("orders").cause
        (False, 'totals')
    """

    def __init__(
        self,
        stages: Iterable[FlowStage],
        config: BackpressureConfig | None = None,
        skew_config: SkewDetectionConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin without readings.

        Args:
            stages: All stages and sources. They may feed stages that are not listed, whose pressure
                is never known.
            config: The thresholds. Default: None, those of `BackpressureConfig()`.
            skew_config: When partitions are hot. Default: None, `SkewDetectionConfig()`.
            clock: Returns the time in seconds, for intervals. Default: `time.monotonic`.
            wall_clock: Returns the seconds since 1970, for signals. Default: `time.time`.

        Raises:
            GraphError: Two stages have one name, or a stage follows itself.
        """
        self._config = config or BackpressureConfig()
        self._skew_config = skew_config or SkewDetectionConfig()
        self._clock, self._wall_clock = clock, wall_clock
        self._flows: dict[str, StageFlow] = {}
        for stage in stages:
            if stage.name in self._flows:
                raise GraphError(f"two stages are named {stage.name!r}; give each a different name")
            self._flows[stage.name] = StageFlow(stage, self._config, self._skew_config, clock)
        given = [flow.stage for flow in self._flows.values()]
        self._downstream = {stage.name: stage.downstream for stage in given}
        self._order = downstream_first(self._downstream)
        self._sources_before = sources_before(given, self._order)
        self._followers = frozenset(name for stage in given for name in stage.downstream)
        self.partition_states: dict[str, StateMachine[PartitionState]] = {
            name: partition_machine(name, clock) for name in self._flows
        }
        self._paused: dict[str, dict[str, float]] = {each.name: {} for each in given}
        self._log = FlowLog(self._config, clock)
        self._nothing_known = self._view_without_readings()
        self._view = self._nothing_known

    def check(self, readings: Mapping[str, StageReading]) -> None:
        """Take readings, and decide what each source may do until the next check.

        Args:
            readings: The readings, by name. A stage without one keeps its pressure for three
                intervals, and then counts as missing.

        Raises:
            ConfigError: A reading is of a stage that does not exist. Nothing was changed.
        """
        taken = [(self._flow(name), reading) for name, reading in readings.items()]
        now = self._clock()
        self._count_pauses(now)
        for flow, reading in taken:
            flow.take(reading, now)
        own = {
            name: flow.own()
            for name, flow in self._flows.items()
            if now - flow.last.read_at <= self._patience_s
        }
        propagated = propagate(self._downstream, own, self._order)
        decisions = {
            name: decide(propagated[name].heard, self._config.gate)
            for name, flow in self._flows.items()
            if flow.stage.is_source
        }
        for flow, _ in taken:
            before = self._sources_before[flow.stage.name]
            flow.advance(
                has_upstream=flow.stage.name in self._followers,
                pauses_source=any(not decisions[each.name].may_plan for each in before),
            )
            self._log.stage(flow, is_gating=self._is_gating and bool(before))
        for name, decision in decisions.items():
            self._log.source(name, decision)
        missing = tuple(sorted(set(self._order).difference(own)))
        self._view = _View(now, self._wall_clock(), propagated, decisions, missing)

    def decision(self, source: str) -> GateDecision:
        """Return what a source may do until the next check.

        Raises:
            ConfigError: There is no such source.
        """
        decision = self._fresh_view().decisions.get(source)
        if decision is None:
            sources = [name for name, flow in self._flows.items() if flow.stage.is_source]
            raise ConfigError(f"there is no source {source!r}; the sources are {sources}")
        return decision

    def effective(self, stage: str) -> EffectivePressure:
        """Return the pressure of a stage and all stages after it.

        Raises:
            ConfigError: There is no such stage.
        """
        self._flow(stage)
        return self._fresh_view().propagated[stage].effective

    def signal(self, stage: str) -> BackpressureSignal | None:
        """Return the signal of a stage to the stages and sources before it.

        Returns None if backpressure is active neither at the stage nor at one after it.

        Raises:
            ConfigError: There is no such stage.
        """
        self._flow(stage)
        view = self._fresh_view()
        effective = view.propagated[stage].effective
        if not effective.is_active or effective.cause is None:
            return None
        factor, reason, cause = effective.slow_down_factor, effective.reason, effective.cause
        return BackpressureSignal(stage, factor, reason, view.timestamp, cause)

    def check_backpressure_before_produce(self, source: str) -> bool:
        """Return whether a source should pause: a stage after it is under pressure or warns.

        It considers all stages after the source, regardless of `gate`, so that a producer outside
        the pipeline can ask before it produces. `decision` applies to the pipeline's own sources.

        Raises:
            ConfigError: There is no such source or stage.
        """
        self._flow(source)
        return self._fresh_view().propagated[source].heard.asks_to_pause

    @property
    def missing(self) -> tuple[str, ...]:
        """The stages whose pressure is unknown, because their reading is missing or too old."""
        return self._fresh_view().missing

    def hot_partitions(self, stage: str) -> frozenset[Partition]:
        """Return the partitions of a stage that lag behind the others.

        Raises:
            ConfigError: There is no such stage.
        """
        return self._flow(stage).skew.hot

    def get_partition_metrics(self, stage: str) -> dict[Partition, PartitionMetrics]:
        """Return the metrics of all partitions of a stage, by number or name.

        Raises:
            ConfigError: There is no such stage.
        """
        flow = self._flow(stage)
        return partition_metrics_of(flow.last.reading.partitions, flow.skew.hot)

    def metrics(self, stage: str) -> StageMetrics:
        """Return what is known of a stage.

        Raises:
            ConfigError: There is no such stage.
        """
        return stage_metrics_of(
            self._flow(stage),
            self.effective(stage),
            self._skew_config,
            partition_state=self.partition_states[stage].settled,
            paused_seconds=self._paused[stage],
            is_missing=stage in self.missing,
        )

    @property
    def _patience_s(self) -> float:
        return STALE_INTERVALS * self._config.check_interval_s

    @property
    def _is_gating(self) -> bool:
        """Whether signals can slow sources down at all."""
        return self._config.enabled and self._config.gate != "credit"

    def _count_pauses(self, now: float) -> None:
        view = self._view
        for name, decision in view.decisions.items():
            if not decision.may_plan and decision.cause is not None:
                # Late checks do not count as a pause: the source continued meanwhile.
                seconds = min(now - view.checked_at, self._patience_s)
                paused = self._paused[name]
                total = paused.get(decision.cause, 0.0) + seconds
                self._paused[name] = {**paused, decision.cause: total}

    def _fresh_view(self) -> _View:
        view = self._view
        is_stale = self._clock() - view.checked_at > self._patience_s
        return self._nothing_known if is_stale else view

    def _view_without_readings(self) -> _View:
        sources = [name for name, flow in self._flows.items() if flow.stage.is_source]
        propagated = propagate(self._downstream, {}, self._order)
        missing = tuple(sorted(self._order))
        return _View(float("-inf"), 0.0, propagated, dict.fromkeys(sources, OPEN), missing)

    def _flow(self, stage: str) -> StageFlow:
        if stage not in self._flows:
            raise ConfigError(f"there is no stage {stage!r}; the stages are {list(self._flows)}")
        return self._flows[stage]


_THRESHOLDS = ("lag_threshold", "queue_size_threshold")


class FlowLog:
    """Logs a line when something has changed, at most one per minute for each kind and stage."""

    def __init__(self, config: BackpressureConfig, clock: Callable[[], float]) -> None:
        """Start with nothing logged."""
        self._config = config
        self._changes = ChangeLog(_log, clock)
        self._advised: dict[str, int] = {}

    def stage(self, flow: StageFlow, *, is_gating: bool) -> None:
        """Log what has changed in a stage after a reading.

        Args:
            flow: The stage.
            is_gating: Whether its signal can slow a source down.
        """
        name, is_active, hot = flow.stage.name, flow.last.pressure.is_active, flow.skew.hot
        # Where signals slow no source down, a full queue is simply what a slow sink looks like.
        level = logging.WARNING if is_active and is_gating else logging.INFO
        self._changes.note((name, "active"), is_active, False, level, lambda: _activity(flow))
        level = logging.WARNING if hot else logging.INFO
        self._changes.note((name, "skew"), hot, frozenset(), level, flow.skew.line)
        if is_gating and flow.last.reading.rate_per_s:
            self._advise(name, flow.last.reading.rate_per_s)

    def source(self, name: str, decision: GateDecision) -> None:
        """Log what has changed in what a source may do."""
        self._changes.note(
            (name, "pause"), decision.may_plan, True, logging.INFO, lambda: _pause(name, decision)
        )

    def _advise(self, name: str, rate_per_s: float) -> None:
        """Log the thresholds that are below what a stage completes in two check intervals."""
        needed = 2 * rate_per_s * self._config.check_interval_s
        low = [each for each in _THRESHOLDS if getattr(self._config, each) < needed]
        if low:
            # Rounded up, so that a rate that varies a little gives the same advice.
            wanted = max(rounded_up(needed), self._advised.get(name, 0))
            self._advised[name] = wanted
        self._changes.note(
            (name, "thresholds"),
            self._advised.get(name, 0),
            0,
            logging.WARNING,
            lambda: self._advice(name, rate_per_s, low),
        )

    def _advice(self, name: str, rate_per_s: float, low: list[str]) -> str:
        config, wanted = self._config, self._advised[name]
        given = ", ".join(f"{each} {getattr(config, each)}" for each in low)
        setting = ", ".join(f"{each}={wanted}" for each in low)
        return (
            f"Backpressure of {name}: {given} is less than {name} completes in two checks "
            f"({rate_per_s:.0f} rows/s, every {config.check_interval_s} s), so it would run dry "
            f"while its sources pause; set {setting}"
        )


def rounded_up(rows: float) -> int:
    """Return a number of rows, rounded up to two significant digits.

    Example:
        >>> rounded_up(20_000.0), rounded_up(20_001.0), rounded_up(7.2)
        (20000, 21000, 8)
    """
    whole = math.ceil(rows)
    unit: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // unit) * unit


def _activity(flow: StageFlow) -> str:
    name, pressure = flow.stage.name, flow.last.pressure
    if pressure.is_active:
        return f"Backpressure activated: {name} ({flow.own().reason})"
    return f"Backpressure deactivated: {name} ({readings_of(pressure)})"


def _pause(name: str, decision: GateDecision) -> str:
    if decision.may_plan:
        return f"resuming {name}"
    return f"pausing {name}: {decision.cause} ({decision.reason})"


PAUSE_REASON = "backpressure"
"""The reason for a pause by a signal, as opposed to one by hand."""


class FlowWatch:
    """Checks the pressure of all stages at an interval.

    The bounded queue and the byte gate of their first stages hold back all sources, `PushSource`
    included, so signals only inform, unless the `gate` of the config says otherwise.

    Attributes:
        controller: The controller that decides.
        lags: The reader of each source's lag, by source name.
    """

    def __init__(
        self,
        parts: Assembly,
        config: BackpressureConfig | None = None,
        skew_config: SkewDetectionConfig | None = None,
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            parts: The parts of the run.
            config: The thresholds. Default: None, those of `BackpressureConfig()`.
            skew_config: When partitions are hot. Default: None, `SkewDetectionConfig()`.
        """
        config = config or BackpressureConfig()
        self._parts = parts
        self._interval_s = config.check_interval_s
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._is_stopping = False
        all_parts: list[SourceThread | RunnerStage] = [*parts.sources, *parts.stages]
        flows = [
            FlowStage(
                name=each.name,
                downstream=tuple(stage.name for stage in each.outlets),
                is_source=isinstance(each, SourceThread),
            )
            for each in all_parts
        ]
        self.controller = FlowController(flows, config, skew_config)
        self.lags = {
            source.name: LagReader(source.name, source.source, config.check_interval_s)
            for source in parts.sources
        }
        states = self.controller.partition_states
        self._partitions = [_started(parts, stage, states[stage.name]) for stage in parts.stages]

    def start(self) -> None:
        """Start checking."""
        for reader in self.lags.values():
            reader.start()
        name = f"flow of {self._parts.pipeline}"[:60]
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def stop(self) -> None:
        """Note that the run is about to end."""
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                for partitions in self._partitions:
                    partitions.stop()

    def end(self) -> None:
        """Stop checking: the run has ended."""
        self._ended.set()
        self.stop()
        until = time.monotonic() + LEAVE_S
        for name, reader in self.lags.items():
            reader.end(self._committed(name), until)
        for partitions in self._partitions:
            partitions.stopped()

    def check(self) -> None:
        """Read all stages, and pause, slow down or resume the sources."""
        for name, reader in self.lags.items():
            reader.ask(self._committed(name))
        self.controller.check(self._readings())
        for source in self._parts.sources:
            decision = self.controller.decision(source.name)
            source.decision = decision
            if decision.may_plan:
                self._parts.resume(source, PAUSE_REASON)
            else:
                self._parts.pause(source, PAUSE_REASON)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                self.check()
            except Exception:
                # The run does not depend on signals: without new ones, they expire.
                _log.exception(
                    "pipeline %s: the check of its pressure failed", self._parts.pipeline
                )

    def _committed(self, source: str) -> Position:
        """Return where a source would continue now: after the last cut."""
        position = self._parts.cutter.positions.get(source)
        return self._parts.positions[source] if position is None else position

    def _readings(self) -> Mapping[str, StageReading]:
        readings = {
            source.name: _reading_of_source(source, self.lags[source.name].lags)
            for source in self._parts.sources
        }
        for stage in self._parts.stages:
            readings[stage.name] = StageReading(
                lag=0,  # its rows are in its queue
                queue_rows=stage.gate.held().rows,
                rate_per_s=stage.rows_out.per_s,
                busy_ratio=stage.busy.share,
            )
        return readings


def _started(
    parts: Assembly, stage: RunnerStage, machine: StateMachine[PartitionState]
) -> StagePartitions:
    """Return the partitions of a stage whose workers run, divided equally among them."""
    plan = stage.plan
    made = StagePartitions(parts.pipeline, plan.name, plan.config, machine, count=plan.partitions)
    made.queue_created()
    made.workers_spawning()
    workers = [str(worker.number) for worker in stage.workers]
    made.observe(workers, {at: workers[at % len(workers)] for at in range(made.count)})
    return made


def _reading_of_source(source: SourceThread, lags: Mapping[str, Lag]) -> StageReading:
    partitions: dict[Partition, PartitionProgress] = {
        name: PartitionProgress.of_lag(lag) for name, lag in lags.items()
    }
    return StageReading(
        lag=lag_of(partitions.values()) if partitions else None,
        queue_rows=0,
        partitions=partitions,
        rate_per_s=source.rows_out.per_s,
    )
