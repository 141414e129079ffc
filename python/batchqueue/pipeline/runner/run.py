"""`PipelineRun`: a pipeline that runs in the background of this process."""

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from batchqueue import _core
from batchqueue.base.background_log import BackgroundLog, flush_log
from batchqueue.base.checks import LocalPath, check_finite, local_path
from batchqueue.base.signals import Flag, signals, wait_for
from batchqueue.base.words import counted
from batchqueue.exceptions import ConfigError, QueueForkedError
from batchqueue.pipeline.contract import PipelineError, StageFailedError
from batchqueue.pipeline.drawing import svg
from batchqueue.pipeline.graph import Graph
from batchqueue.pipeline.runner.assembly import (
    LEAVE_S,
    Assembly,
    assemble,
)
from batchqueue.pipeline.runner.controller import FlowWatch
from batchqueue.pipeline.runner.cuts import holder
from batchqueue.pipeline.runner.pressure import BackpressureSignal
from batchqueue.pipeline.runner.source import SourceThread
from batchqueue.pipeline.runner.stage import RunEnded, RunnerStage
from batchqueue.pipeline.runner.stage_flow import PartitionMetrics, StageMetrics
from batchqueue.pipeline.runner.stats import PipelineStats, activity_of, pipeline_stats
from batchqueue.pipeline.settings import RunSettings
from batchqueue.pipeline.sources.push import PushSource

_log = BackgroundLog("batchqueue.pipeline")


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run.

    Attributes:
        rows_read: The rows that sources handed to the first stages, including those after the last
            cut.
        rows_written: The rows that sinks took, summed over all sinks.
        cuts: The cuts of this run.
        seconds: How long it took.
        complete: Whether everything that was read is part of a cut. If False, time ran out; what
            came after the last cut is read again by the next run.
        waited_for: The stage or source that the run was waiting for when time ran out; None if
            none.
    """

    rows_read: int
    rows_written: int
    cuts: int
    seconds: float
    complete: bool
    waited_for: str | None = None


GRACE_S = 30.0
"""Seconds that a run gets to end by default."""

_GIVE_UP_S = 15.0
"""Seconds that an abandoned run gets to close whatever does not hang."""


class PipelineRun:
    """A running pipeline, as returned by `Pipeline.start`.

    Leaving its `with` block stops it, and so does the exit of the interpreter; Ctrl-C during the
    stop abandons it. Its methods may be called from any thread, but operators, sinks and sources of
    the pipeline must not call those that wait.

    Example:
        >>> import pyarrow as pa
        >>> from batchqueue.pipeline import FunctionSink, IterableSource, Pipeline
        >>> total = []
        >>> orders = IterableSource(lambda: iter([pa.record_batch({"cents": [3, 4]})]))
        >>> flow = Pipeline("orders")
        >>> flow.source(orders).to(FunctionSink(total.extend))
        >>> with flow.start() as run:
        ...     summary = run.wait()
        >>> summary.rows_read, summary.rows_written, summary.complete
        (2, 2, True)
    """

    def __init__(self, settings: RunSettings) -> None:
        """Start the run; `Pipeline.start` calls this.

        Args:
            settings: What to run.
        """
        self._pid = os.getpid()
        self._name = settings.name
        self._began = time.monotonic()
        with sole_run(settings) as admit:
            self._parts: Assembly = assemble(settings)
            self._watch = FlowWatch(self._parts, settings.backpressure, settings.skew)
            self._coordinator = Coordinator(self._parts, settings.cut_interval_s, self._watch)
            admit(self._coordinator.done)
        self._waited_for: str | None = None
        self._at_exit = stop_at_exit(self)
        self._coordinator.start()

    @property
    def failed(self) -> StageFailedError | None:
        """Why the run ended early; None if it did not, or was abandoned."""
        return self._parts.ending.failure

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        self._check_process()
        return not self._coordinator.done.is_set()

    @property
    def sources(self) -> dict[str, SourceThread]:
        """The threads of the sources, by name."""
        return {each.name: each for each in self._parts.sources}

    @property
    def stages(self) -> dict[str, RunnerStage]:
        """The stages, by name."""
        return {each.name: each for each in self._parts.stages}

    def pause(self, source: str, reason: str = "paused by hand") -> None:
        """Stop a source from planning and reading. Nothing is skipped.

        A split that it is already reading may still arrive in full: a cut needs all of it.

        Args:
            source: The name of the source.
            reason: Why, for operators and statistics. A source continues once no reason for a pause
                is left. Default: "paused by hand".

        Raises:
            ConfigError: There is no such source.
        """
        self._parts.pause(self._source(source), reason)

    def resume(self, source: str, reason: str | None = None) -> None:
        """End a pause.

        Args:
            source: The name of the source.
            reason: The reason that no longer applies. Default: None, all of them.

        Raises:
            ConfigError: There is no such source.
        """
        self._parts.resume(self._source(source), reason)

    def signal(self, stage: str) -> BackpressureSignal | None:
        """Return the signal of a stage or source to the stages and sources before it.

        Returns None unless backpressure is active at the stage, or at one after it. Whether sources
        obey it depends on `BackpressureConfig.gate`.

        Args:
            stage: Its name.

        Raises:
            ConfigError: There is no such stage.
        """
        return self._watch.controller.signal(stage)

    def check_backpressure_before_produce(self, source: str) -> bool:
        """Return whether a producer should pause, because a stage after a source is under pressure.

        It is for producers outside the pipeline, for example those of a topic that the source
        reads. The sources themselves are held back by bounded queues.

        Args:
            source: The name of the source.

        Raises:
            ConfigError: There is no such source.
        """
        return self._watch.controller.check_backpressure_before_produce(self._source(source).name)

    def metrics(self, stage: str) -> StageMetrics:
        """Return the pressure, the skew and the states of a stage or source.

        Args:
            stage: Its name.

        Raises:
            ConfigError: There is no such stage.
        """
        return self._watch.controller.metrics(stage)

    def get_partition_metrics(self, stage: str) -> dict[int | str, PartitionMetrics]:
        """Return the metrics of all partitions of a source; empty for stages of this process.

        Args:
            stage: Its name.

        Raises:
            ConfigError: There is no such stage.
        """
        return self._watch.controller.get_partition_metrics(stage)

    def push(
        self,
        batch: pa.RecordBatch | pa.Table,
        *,
        source: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Hand rows to a `PushSource`, and return once a cut includes them.

        Calls from several threads share cuts, so push from several threads, or push large batches.

        Args:
            batch: The rows.
            source: The name of the source. Default: None, the only `PushSource`.
            timeout: Seconds to wait. Default: None, no limit.

        Raises:
            ConfigError: There is no such source, the rows do not fit it, or `timeout` is invalid.
            PipelineError: The run has ended, or ends before a cut includes the rows; push them
                again to the next run.
            TimeoutError: Time ran out; the rows may still become part of a cut.
        """
        if timeout is not None:
            check_finite("timeout", timeout, 0, ", or None to wait")
        self._check_process()
        found = self._push_source(source)
        assert isinstance(found.source, PushSource)
        done = found.source.push(batch)
        found.control.wake()
        try:
            done.result(timeout)
        except TimeoutError:
            raise TimeoutError(
                f"no cut of pipeline {self._name!r} had {counted(batch.num_rows, 'row')} "
                f"pushed to {found.source.name!r} after {timeout} s; they may still become part of "
                "one: give more time, or push them again if they may come twice"
            ) from None

    def stats(self) -> PipelineStats:
        """Return the statistics of the run; also works after its end."""
        self._check_process()
        return pipeline_stats(self._state(), self._parts, self._watch)

    def picture(self, path: LocalPath) -> None:
        """Draw the graph with rates, queue depths, and what waits for what.

        Args:
            path: The SVG file to write.

        Raises:
            OSError: The file cannot be written.
        """
        text = svg(self._name, self._parts.graph, activity_of(self.stats()))
        local_path("path", path).write_text(text, encoding="utf-8")

    def wait(self, timeout: float | None = None) -> RunSummary | None:
        """Wait until the sources have ended, or something else ends the run.

        Args:
            timeout: Seconds to wait. Default: None, no limit.

        Returns:
            A summary of the run; None if it is still running.

        Raises:
            StageFailedError: An operator, a sink or a source raised.
        """
        self._check_process()
        if not wait_for(self._coordinator.done, timeout):
            return None
        return self._result()

    def stop(self, timeout: float | None = GRACE_S) -> RunSummary:
        """Stop reading, process what was read, take a last cut, and end.

        Args:
            timeout: Seconds for all of this. After that the last cut stands, what came after it is
                read again by the next run, and the summary is not `complete`. None means no limit.
                Default: 30.

        Returns:
            A summary of the run.

        Raises:
            StageFailedError: An operator, a sink or a source raised.
        """
        if timeout is not None:
            check_finite("timeout", timeout, 0, ", or None to wait")
        self._check_process()
        self._coordinator.stop()
        if not wait_for(self._coordinator.done, timeout):
            self._give_up()
        return self._result()

    def request_stop(self) -> None:
        """Begin to stop, and return immediately; `wait` waits for the end."""
        self._check_process()
        self._coordinator.stop()

    def abandon(self) -> None:
        """End immediately, without a cut: the last one stands. Nothing is raised."""
        self._check_process()
        self._coordinator.stop()
        self._give_up()
        atexit.unregister(self._at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._pid:
            return
        if not (error is None or isinstance(error, Exception)):
            self.abandon()  # an interrupt: the caller does not want to wait
            return
        try:
            self.stop()
        except StageFailedError as failure:
            if error is None:
                raise
            if failure is not error:
                _log.warning("%s", failure)
                flush_log()
        except BaseException:  # an interrupt, as above
            self.abandon()
            raise

    def __repr__(self) -> str:
        return f"<PipelineRun of {self._name!r}>"

    def _give_up(self) -> None:
        coordinator, cutter = self._coordinator, self._parts.cutter
        self._waited_for = cutter.holder or holder(self._parts.stages)
        if coordinator.done.is_set():
            return
        self._parts.ending.give_up()
        if not coordinator.is_complete:
            _log.warning(
                "pipeline %s: no time is left to wait for %s; cut %d stands, and the next run "
                "reads again what came after it",
                self._name,
                self._waited_for or "the last cut",
                cutter.number,
            )
        coordinator.done.wait(_GIVE_UP_S)

    def _result(self) -> RunSummary:
        atexit.unregister(self._at_exit)
        flush_log()
        if self.failed is not None:
            raise self.failed
        parts, complete = self._parts, self._coordinator.is_complete
        return RunSummary(
            rows_read=sum(each.rows_out.value for each in parts.sources),
            rows_written=sum(
                each.rows_out.value for each in parts.stages if each.plan.sink is not None
            ),
            cuts=parts.cutter.count,
            seconds=(self._coordinator.ended_at or time.monotonic()) - self._began,
            complete=complete,
            waited_for=None if complete else self._waited_for,
        )

    def _state(self) -> str:
        if self.failed is not None:
            return "failed"
        if self._coordinator.done.is_set():
            return "stopped"
        return "stopping" if self._coordinator.is_stopping else "running"

    def _source(self, name: str) -> SourceThread:
        self._check_process()
        found = self.sources.get(name)
        if found is None:
            known = ", ".join(repr(each) for each in self.sources)
            raise ConfigError(f"there is no source {name!r}; the pipeline has {known}")
        return found

    def _push_source(self, name: str | None) -> SourceThread:
        pushed = [each for each in self._parts.sources if isinstance(each.source, PushSource)]
        found = [each for each in pushed if name in {None, each.name}]
        if len(found) != 1:
            known = ", ".join(repr(each.name) for each in pushed) or "none"
            raise ConfigError(
                f"push has source={name!r}, and the pipeline has these PushSources: {known}; give "
                "the name of one of them"
            )
        return found[0]

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise QueueForkedError(
                f"pipeline {self._name!r} was started before a fork, and runs in the "
                "parent only; start it in this process"
            )


# `Pipeline.run`: a run that the calling thread waits for, until a signal.


_POLL_S = 0.05
"""Seconds between two checks of the flags, since a signal handler cannot notify waiting threads."""


def run_in_foreground(settings: RunSettings, timeout: float | None, grace: float) -> RunSummary:
    """Run a pipeline until its end; see `Pipeline.run`."""
    if timeout is not None:
        check_finite("timeout", timeout, 0, ", or leave it out")
    check_finite("grace", grace, 0)
    # Before signals are handled, so that a sink that hangs while it is opened can be interrupted.
    run = PipelineRun(settings)
    try:
        return _followed(run, settings.name, timeout, grace)
    except BaseException:
        # For example, another handler raised an interrupt: nothing may keep running behind the
        # caller's back.
        if run.running:
            run.abandon()
        raise


def _followed(run: PipelineRun, name: str, timeout: float | None, grace: float) -> RunSummary:
    stop, give_up = Flag(), Flag()
    with signals(stop, give_up, f"stopping pipeline {name}"):
        summary = _waited(run, stop, math.inf if timeout is None else timeout)
        if summary is None:
            run.request_stop()
            summary = _waited(run, give_up, grace)
        return run.stop(0) if summary is None else summary


def _waited(run: PipelineRun, ends: Flag, seconds: float) -> RunSummary | None:
    """Wait until a run ends, a flag is set, or time runs out."""
    end = time.monotonic() + seconds
    while not ends.is_set and (left := end - time.monotonic()) > 0:
        summary = run.wait(min(_POLL_S, left))
        if summary is not None:
            return summary
    return None


# How a run interacts with its process: other runs, forks, the exit of the interpreter.


_over: weakref.WeakKeyDictionary[Graph, threading.Event] = weakref.WeakKeyDictionary()
"""By graph, the event that is set when its last run is over. Read and written under `_lock`."""

_lock = threading.RLock()


@contextmanager
def sole_run(settings: RunSettings) -> Iterator[Callable[[threading.Event], None]]:
    """Refuse a second run of a pipeline: its sources and sinks would be called concurrently.

    Args:
        settings: What is to run.

    Yields:
        A function that takes the event that is set when the run is over.

    Raises:
        PipelineError: A run of the pipeline is not over.
    """
    _core.forget_parent()
    starting = threading.Event()
    with _lock:
        before = _over.get(settings.graph)
        if before is not None and not before.is_set():
            raise PipelineError(
                f"pipeline {settings.name!r} runs already; stop that run first, or make another "
                "pipeline with its own sources and sinks"
            )
        _over[settings.graph] = starting

    def admit(over: threading.Event) -> None:
        with _lock:
            _over[settings.graph] = over

    # Without the lock: starting calls sinks and operators, which may wait for another pipeline.
    try:
        yield admit
    finally:
        starting.set()


def stop_at_exit(run: "PipelineRun") -> Callable[[], None]:
    """Stop a run when the interpreter exits, unless it has ended; return the exit hook."""
    known = weakref.ref(run)

    def stop() -> None:
        found = known()
        if found is not None and os.getpid() == found._pid and found.running:
            try:
                found.stop()
            except StageFailedError as error:
                _log.warning("%s", error)
            except BaseException:  # Ctrl-C: the user does not want to wait
                found.abandon()
                raise

    return atexit.register(stop)


def _forget() -> None:
    global _lock  # noqa: PLW0603 - a thread that does not exist here may hold the parent's lock
    _lock = threading.RLock()
    _over.clear()


os.register_at_fork(after_in_child=_forget)


_RELEASE_S = 5.0
"""Seconds that each part of a run gets to release its resources, once it is idle or has failed."""


class Coordinator:
    """Takes a cut every interval, and a last one when the sources have ended or are stopped.

    Attributes:
        done: Set when the run is over and everything is closed.
        is_complete: Whether everything that was read is part of a cut.
        is_stopping: Whether it is stopping.
        ended_at: When the run was over, on the monotonic clock.
    """

    def __init__(self, parts: Assembly, interval_s: float, watch: FlowWatch) -> None:
        self.done = threading.Event()
        self.is_complete = False
        self.is_stopping = False
        self.ended_at: float | None = None
        self._parts = parts
        self._interval_s = interval_s
        self._watch = watch
        self._wake = threading.Event()
        self._is_wanted = False
        parts.ending.notify(self._wake.set)
        for source in parts.sources:
            source.on_finished = self._wake.set
            if isinstance(source.source, PushSource):
                source.on_split = self.cut_soon
                source.source.open()

    def start(self) -> None:
        """Start the sources, and the thread."""
        parts = self._parts
        self._watch.start()
        if parts.replay_to is not None:
            for source in parts.sources:
                source.control.hold()
        for source in parts.sources:
            replay_to = None if parts.replay_to is None else parts.replay_to.get(source.name)
            source.start(parts.positions[source.name], replay_to)
        name = f"pipeline {parts.pipeline}"[:60]
        # A daemon: a sink that hangs must not keep the process alive.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def stop(self) -> None:
        """Stop the sources; the last cut follows."""
        self.is_stopping = True
        self._watch.stop()
        for source in self._parts.sources:
            source.control.stop()
        self._wake.set()

    def cut_soon(self) -> None:
        """Take a cut without waiting for the interval, after any cut in progress."""
        self._is_wanted = True
        self._wake.set()

    def _run(self) -> None:
        parts = self._parts
        try:
            self._work()
            self.is_complete = True
        except RunEnded:
            pass
        except BaseException as error:
            parts.ending.fail("checkpoint", error)
        finally:
            try:
                self._close()
            finally:
                self._watch.end()
                for source in parts.sources:
                    if isinstance(source.source, PushSource):
                        source.source.drop(parts.ending.failure)
                self.ended_at = time.monotonic()
                self.done.set()

    def _work(self) -> None:
        parts = self._parts
        if parts.replay_to is not None:
            for source in parts.sources:
                source.control.wait_until_replayed()
            parts.cutter.cut(skipping=parts.ahead)
            parts.skip(frozenset())
        while True:
            is_last = self._wait()
            if is_last:
                parts.cutter.hold()
            if parts.cutter.is_due:
                parts.cutter.cut()
            if is_last:
                return

    def _wait(self) -> bool:
        """Wait until the next cut is due; return whether it is the last one.

        Raises:
            RunEnded: The run ends early.
        """
        parts = self._parts
        due = time.monotonic() + self._interval_s
        while True:
            # Cleared first: whatever is set from now on is seen by the checks, or ends the wait.
            self._wake.clear()
            if parts.ending.has_begun:
                raise RunEnded
            finished = all(source.control.has_finished for source in parts.sources)
            if finished or self.is_stopping:
                return True
            left = due - time.monotonic()
            if left <= 0 or self._is_wanted:
                # A split completed from here on asks again.
                self._is_wanted = False
                return False
            self._wake.wait(left)

    def _close(self) -> None:
        parts = self._parts
        is_idle = self.is_complete
        for source in parts.sources:
            source.control.close()
        for source in parts.sources:
            source.join(_RELEASE_S if is_idle else 0.0)
            source.control.end()
        # After an error, running calls may finish; after a timeout, they are not waited for.
        waits = is_idle or parts.ending.failure is not None
        for name in parts.shut_down(_RELEASE_S if waits else LEAVE_S):
            _log.warning("stage %s is still busy, and is left alone", name)
        if parts.checkpoint is not None:
            parts.checkpoint.close()
