"""`FlowWatch`: the thread that watches the stages of a run, and steers its sources."""

import threading
import time
from collections.abc import Mapping

from batchqueue._background_log import BackgroundLog
from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.pipeline.backpressure.config import BackpressureConfig
from batchqueue.pipeline.backpressure.controller import FlowController
from batchqueue.pipeline.backpressure.partitions import StagePartitions
from batchqueue.pipeline.backpressure.readings import (
    Partition,
    PartitionProgress,
    StageReading,
    lag_of,
)
from batchqueue.pipeline.backpressure.stage_flow import FlowStage
from batchqueue.pipeline.backpressure.states import PartitionState, StateMachine
from batchqueue.pipeline.contract import Lag, Position
from batchqueue.pipeline.runner.assembly import LEAVE_S, Assembly
from batchqueue.pipeline.runner.lag_reader import LagReader
from batchqueue.pipeline.runner.source_thread import SourceThread
from batchqueue.pipeline.runner.stage import Stage

_log = BackgroundLog("batchqueue.pipeline")

PAUSE_REASON = "backpressure"
"""The reason of a pause by a signal, beside those by hand."""


class FlowWatch:
    """Checks the pressure of all stages at an interval.

    All sources have credits here, `PushSource` too: the bounded queue and the byte gate of their
    first stages hold them back. So signals only inform, unless `gate` of the config says otherwise.

    Attributes:
        controller: What decides.
        lags: What reads the lag of each source, by its name.
    """

    def __init__(
        self, parts: Assembly, config: BackpressureConfig, skew_config: SkewDetectionConfig
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            parts: The parts of the run.
            config: The thresholds.
            skew_config: When partitions are hot.
        """
        self._parts = parts
        self._interval_s = config.check_interval_s
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._is_stopping = False
        flows = [
            FlowStage(name=source.name, downstream=_names(source.outlets), is_source=True)
            for source in parts.sources
        ]
        flows += [
            FlowStage(name=stage.name, downstream=_names(stage.outlets)) for stage in parts.stages
        ]
        self.controller = FlowController(flows, config, skew_config)
        self.lags = {
            source.name: LagReader(source.name, source.source, config.check_interval_s)
            for source in parts.sources
        }
        states = self.controller.partition_states
        self._partitions = [_started(parts, stage, states[stage.name]) for stage in parts.stages]

    def start(self) -> None:
        """Begin to check."""
        for reader in self.lags.values():
            reader.start()
        name = f"flow of {self._parts.pipeline}"[:60]
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def stop(self) -> None:
        """Take note that the run is to end."""
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                for partitions in self._partitions:
                    partitions.stop()

    def end(self) -> None:
        """Check no more: the run has ended."""
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
        """Return where a source would continue now: behind the last cut."""
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
    parts: Assembly, stage: Stage, machine: StateMachine[PartitionState]
) -> StagePartitions:
    """Return the partitions of a stage whose workers run, each with an equal number of them."""
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


def _names(stages: tuple[Stage, ...]) -> tuple[str, ...]:
    return tuple(stage.name for stage in stages)
