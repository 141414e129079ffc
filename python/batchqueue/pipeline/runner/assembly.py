"""`assemble`: makes the parts of a run, and decides where it begins."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from batchqueue.base.words import counted
from batchqueue.exceptions import BatchQueueError
from batchqueue.pipeline.compiling import CompiledGraph, StagePlan, compile_graph
from batchqueue.pipeline.contract import (
    CutError,
    GraphError,
    OperatorError,
    Position,
    StageFailedError,
    TransactionalSink,
    checked_position,
)
from batchqueue.pipeline.runner.checkpoint import (
    Checkpoint,
    Positions,
    Recovery,
    State,
    StoredCut,
    recover,
)
from batchqueue.pipeline.runner.cuts import Cutter
from batchqueue.pipeline.runner.source import SourceThread
from batchqueue.pipeline.runner.stage import (
    Ending,
    OperatorWorker,
    RunEnded,
    RunnerStage,
    SinkWorker,
    StageWorker,
)
from batchqueue.pipeline.settings import RunSettings

LEAVE_S = 0.5
"""Seconds that the parts of a run get to shut down if the run cannot begin or has timed out."""


@dataclass(eq=False)
class Assembly:
    """The parts of a run.

    Attributes:
        pipeline: The name of the pipeline.
        graph: Its sources and stages.
        ending: The early end of the run.
        sources: The sources.
        stages: The stages, each after the one that feeds it.
        checkpoint: The checkpoint, or None.
        cutter: Takes the cuts.
        positions: Where each source begins.
        replay_to: Where the replay of each source ends, for the sinks that lack a cut; None if all
            have the same.
        ahead: The sinks that already have that cut.
        pausing: Held while a pause begins or ends.
    """

    pipeline: str
    graph: CompiledGraph
    ending: Ending
    sources: list[SourceThread]
    stages: list[RunnerStage]
    checkpoint: Checkpoint | None
    cutter: Cutter
    positions: dict[str, Position] = field(default_factory=dict)
    replay_to: Positions | None = None
    ahead: frozenset[str] = frozenset()
    pausing: threading.RLock = field(default_factory=threading.RLock)

    def pause(self, source: SourceThread, reason: str) -> None:
        """Pause a source, and notify the operators downstream."""
        with self.pausing:
            reasons = source.control.reasons
            if reason not in reasons:
                source.control.pause(reason)
                if not reasons:
                    self._notify_of_pause(source.name, reason)

    def resume(self, source: SourceThread, reason: str | None = None) -> None:
        """End the pause of a source for a reason, or for all, and notify the operators."""
        with self.pausing:
            reasons = source.control.reasons
            if not reasons:
                return
            if not [each for each in reasons if reason not in {None, each}]:
                # Before the source continues, so that operators are notified before the next chunk.
                self._notify_of_pause(source.name, None)
            source.control.resume(reason)

    def _notify_of_pause(self, source: str, reason: str | None) -> None:
        for stage in self.stages:
            if stage.plan.source == source and stage.plan.sink is None:
                stage.notify_of_pause(reason)

    def skip(self, sinks: frozenset[str]) -> None:
        """Make these sinks, and no others, drop chunks from now on."""
        for stage in self.stages:
            if stage.plan.sink is not None:
                is_ahead = stage.name in sinks
                stage.results(stage.order(partial(_skip, is_ahead)))

    def shut_down(self, timeout: float) -> list[str]:
        """End the threads of the stages within a timeout; return the stages that are still busy."""
        until = time.monotonic() + timeout
        # Stages that may hang come last, so that the others get their time.
        stages = sorted(self.stages, key=lambda stage: stage.busy.is_open)
        return [
            stage.name
            for stage in stages
            if not stage.shut_down(max(0.0, until - time.monotonic()))
        ]


def assemble(settings: RunSettings) -> Assembly:
    """Start the stages of a pipeline, and determine where its sources begin.

    Raises:
        GraphError: The graph cannot run, or is not that of the checkpoint.
        CheckpointError: The checkpoint is in use, or cannot be used.
        CutError: The checkpoint and the sinks do not belong together.
        StageFailedError: A sink or an operator could not be made ready.
    """
    graph = compile_graph(settings.graph, settings.stage)
    checkpoint = None
    if settings.checkpoint is not None:
        checkpoint = Checkpoint(settings.checkpoint, settings.name)
    stages: list[RunnerStage] = []
    ending = Ending()
    cutter = Cutter(stages, checkpoint)
    parts = Assembly(settings.name, graph, ending, [], stages, checkpoint, cutter)
    try:
        _start_stages(parts, settings.max_bytes // len(graph.stages))
        for name, source in graph.sources.items():
            outlets = [stage for stage in stages if stage.plan.upstream == name]
            parts.sources.append(
                SourceThread(
                    name,
                    source,
                    outlets,
                    chunk_rows=graph.chunk_rows_after(name),
                    ending=ending,
                    cut=lambda: cutter.number + 1,
                )
            )
        cutter.sources = parts.sources
        _recover(parts)
    except BaseException as error:
        ending.give_up()
        parts.shut_down(LEAVE_S)
        if checkpoint is not None:
            checkpoint.close()
        if isinstance(error, RunEnded) and ending.failure is not None:
            _raise(ending.failure)
        raise
    return parts


def _start_stages(parts: Assembly, max_bytes: int) -> None:
    """Start the stages, sinks first: each needs the stages that it feeds."""
    graph = parts.graph
    by_name: dict[str, RunnerStage] = {}
    for plan in reversed(graph.stages):
        outlets = [by_name[after.name] for after in graph.after(plan.name)]
        stage = RunnerStage(plan, outlets, max_bytes, parts.ending)
        rows = graph.chunk_rows_after(plan.name) if outlets else plan.config.chunk_rows
        stage.start(parts.pipeline, _workers(stage, parts.pipeline, rows))
        by_name[plan.name] = stage
        parts.stages.insert(0, stage)


def _workers(stage: RunnerStage, pipeline: str, chunk_rows: int) -> list[StageWorker]:
    plan: StagePlan = stage.plan
    if plan.sink is not None:
        return [SinkWorker(stage, plan.sink.sink, pipeline)]
    return [OperatorWorker(stage, number, chunk_rows) for number in range(plan.workers)]


def _recover(parts: Assembly) -> None:
    """Open operators and sinks, and restore them and the sources to the cut that counts."""
    sinks: dict[str, StoredCut | None] = {}
    stateful: dict[str, int] = {}
    for stage in parts.stages:
        opened = stage.results(stage.order(lambda worker: worker.open()))
        if stage.plan.sink is None:
            if opened[0]:
                stateful[stage.name] = len(opened)
        elif isinstance(stage.plan.sink.sink, TransactionalSink):
            sinks[stage.name] = opened[0]
    kept = [] if parts.checkpoint is None else parts.checkpoint.cuts()
    recovery = recover(kept, sinks, repr(parts.checkpoint))
    if stateful and parts.checkpoint is None and sinks:
        raise GraphError(
            f"stage {next(iter(stateful))!r} has state, and sink {next(iter(sinks))!r} stores with "
            "each cut where to continue: without a checkpoint the next run would continue there "
            "without the state; give Pipeline(checkpoint=...)"
        )
    if stateful and not kept:
        _refuse_lost_state(next(iter(stateful)), sinks)
    _place(parts, recovery)
    state: dict[tuple[str, int], bytes] = {}
    if parts.checkpoint is not None:
        state = parts.checkpoint.state(recovery.cut)
        _check_workers(state, stateful)
        if recovery.cut not in {cut.number for cut in kept}:
            parts.checkpoint.store(recovery.cut, parts.positions, state)
    for stage in parts.stages:
        if stage.name in stateful:
            stage.results(stage.order(partial(_restore, state, stage.name)))
    if recovery.ahead:
        parts.skip(recovery.ahead)
    parts.cutter.begin(recovery.cut, parts.positions, has_state=bool(stateful))


def _place(parts: Assembly, recovery: Recovery) -> None:
    """Determine where each source begins."""
    missing = recovery.positions.keys() - {source.name for source in parts.sources}
    if missing:
        raise GraphError(
            f"cut {recovery.cut} has a position of source {min(missing)!r}, which is not in the "
            "pipeline; give the source that name again, or begin with another checkpoint"
        )
    for source in parts.sources:
        position = recovery.positions.get(source.name)
        if position is None:
            position = source.source.initial()
            checked_position(position, source.name)
        parts.positions[source.name] = dict(position)
    parts.ahead = recovery.ahead
    if recovery.replay_to is not None:
        parts.replay_to = {
            name: recovery.replay_to.get(name, position)
            for name, position in parts.positions.items()
        }


def _refuse_lost_state(stage: str, sinks: dict[str, StoredCut | None]) -> None:
    for name, cut in sinks.items():
        if cut is not None:
            raise CutError(
                f"sink {name!r} has cut {cut.number}, and in this checkpoint stage {stage!r} has "
                f"cut 0: its state is lost; give the pipeline the checkpoint of that cut, or begin "
                "anew with an empty sink"
            )


def _check_workers(state: dict[tuple[str, int], bytes], stateful: dict[str, int]) -> None:
    for stage, count in Counter(stage for stage, _ in state).items():
        if stateful.get(stage) != count:
            now = stateful.get(stage, 0)
            raise GraphError(
                f"the checkpoint has the state of {counted(count, 'worker')} of stage {stage!r}, "
                f"and now it has {now} with state; give it {count} again, or begin with another "
                "checkpoint"
            )


def _restore(state: State, stage: str, worker: StageWorker) -> None:
    worker.restore(state.get((stage, worker.number)))


def _skip(skips: bool, worker: StageWorker) -> None:
    assert isinstance(worker, SinkWorker)
    worker.skips = skips


def _raise(failure: StageFailedError) -> NoReturn:
    """Raise a failure from before the run; batchqueue's own errors need no wrapper."""
    cause = failure.__cause__
    if isinstance(cause, BatchQueueError) and not isinstance(cause, OperatorError):
        raise cause
    raise failure
