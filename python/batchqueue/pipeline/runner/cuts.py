"""`Cutter`: a consistent set of positions, state and effects, taken step by step.

The steps of a cut with number n, in this order:

1. `hold`: the sources finish their current split and begin no other.
2. `positions`: where each source will continue.
3. `flush STAGE`, in the order of the stages: everything before it has been processed, and what the
   operators held back is on its way to the next stage.
4. `snapshots`: the state of the operators.
5. `store`: the checkpoint has cut n, and keeps cut n - 1.
6. `commit SINK`: the sink has cut n.
7. `release`: the sources continue, and acknowledge cut n.

If the process ends before the first sink has cut n, the next run begins at n - 1; afterwards it
begins at n. If only some of several sinks have it, see `checkpoint.recover`.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from batchqueue.base.background_log import BackgroundLog
from batchqueue.pipeline.contract import Position, TransactionalSink
from batchqueue.pipeline.runner.checkpoint import Checkpoint
from batchqueue.pipeline.runner.source import SourceThread
from batchqueue.pipeline.runner.stage import RunnerStage, SinkWorker, StageWorker

_log = BackgroundLog("batchqueue.pipeline")

LATE_S = 30.0
"""Seconds after which an unfinished cut is logged; it is never forced."""


class Cutter:
    """Takes the cuts of a run, one at a time.

    Attributes:
        number: The number of the last cut that is done.
        positions: The positions of that cut.
        count: The cuts of this run.
        seconds: How long the last one took; None before the first.
        sources: All sources.
    """

    def __init__(self, stages: Sequence[RunnerStage], checkpoint: Checkpoint | None) -> None:
        """Prepare for cuts.

        Args:
            stages: All stages, each after the one that feeds it.
            checkpoint: Where positions and state are kept; None for nowhere.
        """
        self.number = 0
        self.positions: dict[str, Position] = {}
        self.count = 0
        self.seconds: float | None = None
        self._waits_for: SourceThread | RunnerStage | None = None
        self.sources: Sequence[SourceThread] = ()
        self._stages = stages
        self._checkpoint = checkpoint
        self._holds = False

    def begin(self, number: int, positions: Mapping[str, Position], *, has_state: bool) -> None:
        """Note the cut that the run begins with, and whether an operator has state."""
        self.number = number
        self.positions = dict(positions)
        self._holds = has_state or any(_transactional(stage) for stage in self._stages)

    @property
    def is_due(self) -> bool:
        """Whether anything has happened since the last cut."""
        return any(self.positions.get(each.name) != each.control.position for each in self.sources)

    @property
    def holder(self) -> str | None:
        """The source or stage at the root of what a cut waits for; None if it waits for nothing."""
        waits_for = self._waits_for
        return None if waits_for is None else root(waits_for.outlets) or waits_for.name

    def cut(self, skipping: frozenset[str] = frozenset()) -> None:
        """Take a cut.

        Args:
            skipping: Sinks that already have it.

        Raises:
            RunEnded: The run ends early. The cut may be stored in some of the sinks.
            CheckpointError: The checkpoint cannot be written.
        """
        began, number = time.monotonic(), self.number + 1
        try:
            # Where nothing is stored exactly once, the flush orders are barrier enough: chunks
            # after them are processed again after a crash.
            if self._holds:
                self.hold()
            self._on_step("hold")
            positions = {each.name: each.control.position for each in self.sources}
            self._on_step("positions")
            for stage in self._stages:
                self._all(stage, lambda worker: worker.flush(number))
                self._on_step(f"flush {stage.name}")
            state = self._state() if self._holds else {}
            self._on_step("snapshots")
            if self._checkpoint is not None:
                self._checkpoint.store(number, positions, state)
            self._on_step("store")
            for stage in self._stages:
                if _transactional(stage) and stage.name not in skipping:
                    self._all(stage, lambda worker: _commit(worker, number, positions))
                    self._on_step(f"commit {stage.name}")
        finally:
            self._waits_for = None
        self.number, self.positions = number, positions
        self.count += 1
        self.seconds = time.monotonic() - began
        for source in self.sources:
            source.commit(positions[source.name])
            source.control.release()
        self._on_step("release")

    def hold(self) -> None:
        """Make the sources finish their current split and begin no other.

        Raises:
            RunEnded: The run ends early.
        """
        for source in self.sources:
            source.control.hold()
        for source in self.sources:
            self._waits_for = source
            if not source.control.wait_until_held(LATE_S):
                self._report()
                source.control.wait_until_held()

    def _on_step(self, step: str) -> None:
        """Do nothing. Tests observe the steps here."""

    def _state(self) -> dict[tuple[str, int], bytes]:
        state = {}
        for stage in self._stages:
            if stage.plan.steps:
                snapshots = self._all(stage, lambda worker: worker.snapshot())
                for worker, snapshot in enumerate(snapshots):
                    if snapshot is not None:
                        state[stage.name, worker] = snapshot
        return state

    def _all(
        self, stage: RunnerStage, what: Callable[[StageWorker], bytes | None]
    ) -> list[bytes | None]:
        self._waits_for = stage
        return stage.results(stage.order(what), self._report, LATE_S)

    def _report(self) -> None:
        _log.warning(
            "cut %d has waited %.0f s for %r and continues to wait; after a crash, what came after "
            "cut %d is read again",
            self.number + 1,
            LATE_S,
            self.holder,
            self.number,
        )


def _transactional(stage: RunnerStage) -> bool:
    return stage.plan.sink is not None and isinstance(stage.plan.sink.sink, TransactionalSink)


def _commit(worker: StageWorker, number: int, positions: Mapping[str, Position]) -> None:
    assert isinstance(worker, SinkWorker)
    worker.commit(number, positions)


# Which stage holds up the others.


_HELD_UP = 0.05
"""The share of the last seconds that must be spent waiting for a stage's room to name it."""


def root(outlets: Sequence[RunnerStage]) -> str | None:
    """Return the last stage in a chain of stages that wait for one another, starting at these.

    Args:
        outlets: The stages that a source or stage feeds.

    Returns:
        The name of the stage; None if hardly anything waited for these.
    """
    share, slowest = max(
        ((outlet.waited_for.share, outlet) for outlet in outlets),
        key=lambda pair: pair[0],
        default=(0.0, None),
    )
    if slowest is None or share < _HELD_UP:
        return None
    return root(slowest.outlets) or slowest.name


def holder(stages: Sequence[RunnerStage]) -> str | None:
    """Return the stage that a cut would wait for, if it began now; None if all are empty."""
    for stage in reversed(stages):
        if stage.gate.held().rows:
            return root(stage.outlets) or stage.name
    return None
