"""`FlowStage`: a stage as signals see it. `StageFlow`: what its controller knows of it."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.pipeline.backpressure.config import BackpressureConfig
from batchqueue.pipeline.backpressure.pressure import (
    NO_PRESSURE,
    Pressure,
    next_pressure,
    reason_of,
)
from batchqueue.pipeline.backpressure.readings import StageReading
from batchqueue.pipeline.backpressure.signals import StagePressure
from batchqueue.pipeline.backpressure.stage_skew import StageSkew
from batchqueue.pipeline.backpressure.states import (
    BackpressureState,
    backpressure_machine,
    skew_machine,
)


@dataclass(frozen=True, kw_only=True)
class FlowStage:
    """A stage or source, as far as signals are concerned.

    Attributes:
        name: Its name.
        downstream: The names of the stages that it feeds. Default: none.
        is_source: Whether it reads input, and can be paused. Default: False.
        has_credits: Whether something else than the signal holds the source back: in one process,
            the bounded queue and the limit on bytes. Default: True.
    """

    name: str
    downstream: tuple[str, ...] = ()
    is_source: bool = False
    has_credits: bool = True


class Last(NamedTuple):
    """The last reading of a stage, and what followed from it."""

    reading: StageReading
    pressure: Pressure
    read_at: float


class StageFlow:
    """What a controller knows of a stage.

    One thread calls the methods. Others may read `last`, which is replaced and never changed.
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
        self.last = Last(StageReading(lag=None, queue_rows=None), NO_PRESSURE, float("-inf"))
        self.machine = backpressure_machine(stage.name, clock)
        self.skew = StageSkew(stage.name, skew_config, skew_machine(stage.name, clock))
        self._config = config

    def take(self, reading: StageReading, now: float) -> None:
        """Take a reading."""
        pressure = self.last.pressure
        if self._config.enabled:
            # A source that is behind has to read more, not less: its lag is not a pressure.
            lag = 0 if self.stage.is_source else reading.lag
            pressure = next_pressure(pressure, lag, reading.queue_rows, self._config)
        self.last = Last(reading, pressure, now)
        self.skew.check(reading.partitions, now)

    def own(self) -> StagePressure:
        """Return what the stage says about itself."""
        reading, pressure, _ = self.last
        reason = reason_of(pressure, self._config, reading.busy_ratio)
        return StagePressure(
            pressure.slow_down_factor, pressure.is_active, pressure.early_warning, reason
        )

    def advance(self, *, has_upstream: bool, pauses_source: bool) -> None:
        """Move the state of the backpressure to where the last reading leads.

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
        order: Their names, each behind those that follow it.
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
