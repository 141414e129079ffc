"""`PipelineRun`: a pipeline that runs in the background of this process."""

import atexit
import os
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from batchqueue._background_log import BackgroundLog, flush_log
from batchqueue._paths import LocalPath, local_path
from batchqueue._signals import wait_for
from batchqueue._words import counted
from batchqueue.exceptions import ConfigError, QueueForkedError
from batchqueue.pipeline.backpressure.metrics import PartitionMetrics, StageMetrics
from batchqueue.pipeline.backpressure.signals import BackpressureSignal
from batchqueue.pipeline.errors import StageFailedError
from batchqueue.pipeline.runner.assembly import Assembly, OnStep, assemble, ignore
from batchqueue.pipeline.runner.bottleneck import holder
from batchqueue.pipeline.runner.coordinator import Coordinator
from batchqueue.pipeline.runner.flow_watch import FlowWatch
from batchqueue.pipeline.runner.process import sole_run, stop_at_exit
from batchqueue.pipeline.runner.source_thread import SourceThread
from batchqueue.pipeline.runner.stage import Stage
from batchqueue.pipeline.runner.stats import PipelineStats, pipeline_stats
from batchqueue.pipeline.runner.summary import RunSummary
from batchqueue.pipeline.sources.push import PushSource
from batchqueue.policies import check_finite

if TYPE_CHECKING:
    import pyarrow as pa

    from batchqueue.pipeline.pipeline import Pipeline

_log = BackgroundLog("batchqueue.pipeline")

GRACE_S = 30.0
"""Seconds that a run has to end by default."""

_CLOSE_S = 15.0
"""Seconds until a run that is given up has closed what is not hung."""


class PipelineRun:
    """A pipeline that runs, as `Pipeline.start` returns it.

    Leaving its `with` block stops it, and so does the exit of the interpreter; Ctrl-C meanwhile
    abandons it. Its methods may be called from any thread, except from operators, sinks and sources
    of the pipeline those that wait.

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

    def __init__(self, pipeline: "Pipeline", on_step: OnStep = ignore) -> None:
        """Start; `Pipeline.start` calls this.

        Args:
            pipeline: What to run.
            on_step: Called with the name of each step of each cut, after it, for tests.
        """
        self._pid = os.getpid()
        self._pipeline = pipeline
        self._began = time.monotonic()
        with sole_run(pipeline) as admit:
            self._parts: Assembly = assemble(pipeline, on_step)
            self._watch = FlowWatch(self._parts, pipeline.backpressure, pipeline.skew)
            self._coordinator = Coordinator(self._parts, pipeline.cut_interval_s, self._watch)
            admit(self._coordinator.done)
        self._waited_for: str | None = None
        self._at_exit = stop_at_exit(self)
        self._coordinator.start()

    @property
    def failed(self) -> StageFailedError | None:
        """Why the run ended early; None if it did not, or was given up."""
        return self._parts.ending.failure

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        self._check_process()
        return not self._coordinator.done.is_set()

    @property
    def sources(self) -> dict[str, SourceThread]:
        """The threads of the sources, by name."""
        return {each.name: each for each in self._parts.sources}

    @property
    def stages(self) -> dict[str, Stage]:
        """The stages, by name."""
        return {each.name: each for each in self._parts.stages}

    def pause(self, source: str, reason: str = "paused by hand") -> None:
        """Let a source plan and read nothing more. Nothing is skipped.

        A split that it is reading may still come, as a whole: a cut needs all of it.

        Args:
            source: Its name.
            reason: Why, for operators and statistics. A source continues when no reason for a pause
                is left. Default: "paused by hand".

        Raises:
            ConfigError: There is no such source.
        """
        self._parts.pause(self._source(source), reason)

    def resume(self, source: str, reason: str | None = None) -> None:
        """End a pause.

        Args:
            source: The name of the source.
            reason: The reason that has passed. Default: None, all of them.

        Raises:
            ConfigError: There is no such source.
        """
        self._parts.resume(self._source(source), reason)

    def signal(self, stage: str) -> BackpressureSignal | None:
        """Return the signal of a stage or source to what comes before it.

        Returns None unless back-pressure is active at the stage, or at one after it. Whether
        sources obey it depends on `BackpressureConfig.gate`.

        Args:
            stage: Its name.

        Raises:
            ConfigError: There is no such stage.
        """
        return self._watch.controller.signal(stage)

    def check_backpressure_before_produce(self, source: str) -> bool:
        """Return whether a producer should pause, because a stage after a source is under pressure.

        It is for producers that the pipeline does not run, for instance those of a topic that the
        source reads. The sources themselves are held back by bounded queues.

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
        batch: "pa.RecordBatch | pa.Table",
        *,
        source: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Hand rows to a `PushSource`, and return when a cut has them.

        Calls of several threads share cuts, so push from several threads, or push large batches.

        Args:
            batch: The rows.
            source: The name of the source. Default: None, the only `PushSource`.
            timeout: Seconds to wait. Default: None, no limit.

        Raises:
            ConfigError: There is no such source, the rows do not fit it, or `timeout` is invalid.
            PipelineError: The run has ended, or ends before a cut has the rows; push them again to
                the next run.
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
                f"no cut of pipeline {self._pipeline.name!r} had {counted(batch.num_rows, 'row')} "
                f"pushed to {found.source.name!r} after {timeout} s; they may still become part of "
                "one: give more time, or push them again if they may come twice"
            ) from None

    def stats(self) -> PipelineStats:
        """Return the figures of the run; works after its end, too."""
        self._check_process()
        parts = self._parts
        return pipeline_stats(
            self._pipeline.name,
            self._state(),
            sources=parts.sources,
            stages=parts.stages,
            cutter=parts.cutter,
            watch=self._watch,
        )

    def picture(self, path: LocalPath) -> None:
        """Draw the graph with rates, depths, and who waits for whom.

        Args:
            path: The SVG file to write.

        Raises:
            OSError: The file cannot be written.
        """
        from batchqueue.pipeline.drawing import activity_of, svg

        text = svg(self._pipeline.name, self._pipeline.compiled(), activity_of(self.stats()))
        local_path("path", path).write_text(text, encoding="utf-8")

    def wait(self, timeout: float | None = None) -> RunSummary | None:
        """Wait until the sources have ended, or something else ends the run.

        Args:
            timeout: Seconds to wait. Default: None, no limit.

        Returns:
            What the run has done; None if it still runs.

        Raises:
            StageFailedError: An operator, a sink or a source raised.
        """
        self._check_process()
        if not wait_for(self._coordinator.done, timeout):
            return None
        return self._result()

    def stop(self, timeout: float | None = GRACE_S) -> RunSummary:
        """Read nothing more, handle what was read, take a last cut, and end.

        Args:
            timeout: Seconds for that. Then the last cut stands, what came after it is read again by
                the next run, and the summary is not `complete`. None means no limit. Default: 30.

        Returns:
            What the run has done.

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
        """Begin to stop, and return; `wait` waits for the end."""
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
        if error is None:
            try:
                self.stop()
            except StageFailedError:
                raise
            except BaseException:  # an interrupt, as below
                self.abandon()
                raise
        elif not isinstance(error, Exception):  # an interrupt: the caller does not want to wait
            self.abandon()
        else:
            try:
                self.stop()
            except StageFailedError as failure:
                if failure is not error:
                    _log.warning("%s", failure)
                    flush_log()

    def __repr__(self) -> str:
        return f"<PipelineRun of {self._pipeline.name!r}>"

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
                self._pipeline.name,
                self._waited_for or "the last cut",
                cutter.number,
            )
        coordinator.done.wait(_CLOSE_S)

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
                f"pipeline {self._pipeline.name!r} was started before a fork, and runs in the "
                "parent only; start it in this process"
            )
