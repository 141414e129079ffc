"""`FlowController`: from readings of the stages to what each source may do."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from batchqueue.exceptions import ConfigError
from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.pipeline.backpressure.config import BackpressureConfig
from batchqueue.pipeline.backpressure.flow_log import FlowLog
from batchqueue.pipeline.backpressure.gate import OPEN, GateDecision, decide, is_gated
from batchqueue.pipeline.backpressure.metrics import (
    PartitionMetrics,
    StageMetrics,
    partition_metrics_of,
    stage_metrics_of,
)
from batchqueue.pipeline.backpressure.readings import Partition, StageReading
from batchqueue.pipeline.backpressure.signals import (
    BackpressureSignal,
    EffectivePressure,
    Propagated,
    downstream_first,
    propagate,
)
from batchqueue.pipeline.backpressure.stage_flow import FlowStage, StageFlow, sources_before
from batchqueue.pipeline.backpressure.states import PartitionState, StateMachine, partition_machine
from batchqueue.pipeline.errors import GraphError

_STALE_INTERVALS = 3


@dataclass(frozen=True)
class _View:
    """The result of a check. It never changes, so other threads read it without a lock."""

    checked_at: float
    timestamp: float
    propagated: Mapping[str, Propagated]
    decisions: Mapping[str, GateDecision]
    missing: tuple[str, ...]


class FlowController:
    """Decides at each check how much every source may plan, and says why.

    One thread calls `check`, about each `check_interval_s`. All other methods may be called by any
    thread; they answer for the last check. When the checks cease for three intervals, nothing is
    held back any more: memory is bounded by other means, and a check that hangs should not stop
    the pipeline.

    Attributes:
        partition_states: The state of the partitions of each stage, by name. The runner advances
            it, see `StagePartitions`.

    Example:
        >>> orders = FlowStage(
        ...     name="orders", downstream=("totals",), is_source=True, has_credits=False
        ... )
        >>> controller = FlowController([orders, FlowStage(name="totals")])
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
            stages: All stages and sources. They may feed stages that are not among them, whose
                pressure is never known.
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
            readings: By name. A stage that is left out keeps its pressure for three intervals;
                then it counts as missing.

        Raises:
            ConfigError: A reading is of a stage that does not exist. Nothing has changed.
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
            name: self._decision(flow.stage, propagated[name].heard)
            for name, flow in self._flows.items()
            if flow.stage.is_source
        }
        for flow, _ in taken:
            before = self._sources_before[flow.stage.name]
            flow.advance(
                has_upstream=flow.stage.name in self._followers,
                pauses_source=any(not decisions[each.name].may_plan for each in before),
            )
            self._log.stage(flow, is_gating=any(map(self._is_gated, before)))
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
        """Return the signal of a stage to what comes before it.

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
        """Return whether a source should pause: a stage after it is under pressure, or warns.

        It asks all stages after the source, whatever the `gate` is, so that a producer that the
        pipeline does not run can ask before it produces. `decision` is what the pipeline does with
        its own sources.

        Raises:
            ConfigError: There is no such source or stage.
        """
        self._flow(source)
        return self._fresh_view().propagated[source].heard.asks_to_pause

    @property
    def missing(self) -> tuple[str, ...]:
        """The stages whose pressure is not known, because there is no reading or it is too old."""
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
        return _STALE_INTERVALS * self._config.check_interval_s

    def _decision(self, source: FlowStage, heard: EffectivePressure) -> GateDecision:
        return decide(heard, self._config.gate, has_credits=source.has_credits)

    def _is_gated(self, source: FlowStage) -> bool:
        return self._config.enabled and is_gated(self._config.gate, has_credits=source.has_credits)

    def _count_pauses(self, now: float) -> None:
        view = self._view
        for name, decision in view.decisions.items():
            if not decision.may_plan and decision.cause is not None:
                # Checks that came late do not count as a pause: the source continued meanwhile.
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
        flow = self._flows.get(stage)
        return self._unknown(stage) if flow is None else flow

    def _unknown(self, stage: str) -> NoReturn:
        raise ConfigError(f"there is no stage {stage!r}; the stages are {list(self._flows)}")
