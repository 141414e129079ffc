"""`PipelineStats`: the statistics of a run at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from batchqueue.base.background_log import log_lines_dropped, log_stuck_s
from batchqueue.pipeline.contract import Lag, Position
from batchqueue.pipeline.drawing import Activity
from batchqueue.pipeline.runner.assembly import Assembly
from batchqueue.pipeline.runner.controller import FlowController, FlowWatch
from batchqueue.pipeline.runner.cuts import root
from batchqueue.pipeline.runner.source import LagReader, SourceThread
from batchqueue.pipeline.runner.stage import RunnerStage


@dataclass(frozen=True)
class PipelineStats:
    """A run at one moment.

    Attributes:
        name: The name of the pipeline.
        state: "running", "stopping", "stopped" or "failed".
        sources: The sources, by name.
        stages: The stages, by name, each after the one that feeds it.
        cuts_total: Cuts of this run.
        cut: The number of the last cut.
        cut_seconds: How long the last cut took; None before the first.
        missing: The stages whose pressure is unknown.
        cut_waits_for: What the cut in progress waits for; None if there is none.
        log_stuck_s: Seconds that the log has spent on its current line; 0.0 if there is none. Lines
            of runs and workers wait meanwhile, and nothing else does.
        log_lines_dropped_total: Lines that were dropped, in this process, because 1,000 were
            waiting.
    """

    name: str
    state: str
    sources: "Mapping[str, SourceStats]"
    stages: "Mapping[str, StageStats]"
    cuts_total: int
    cut: int
    cut_seconds: float | None
    missing: tuple[str, ...]
    cut_waits_for: str | None
    log_stuck_s: float
    log_lines_dropped_total: int


def pipeline_stats(state: str, parts: Assembly, watch: FlowWatch) -> PipelineStats:
    """Return the statistics of a run."""
    cutter = parts.cutter
    return PipelineStats(
        name=parts.pipeline,
        state=state,
        sources={each.name: _source_stats(each, watch.lags[each.name]) for each in parts.sources},
        stages={each.name: _stage_stats(each, watch.controller) for each in parts.stages},
        cuts_total=cutter.count,
        cut=cutter.number,
        cut_seconds=cutter.seconds,
        missing=watch.controller.missing,
        cut_waits_for=cutter.holder,
        log_stuck_s=log_stuck_s(),
        log_lines_dropped_total=log_lines_dropped(),
    )


@dataclass(frozen=True)
class SourceStats:
    """A source at one moment.

    Attributes:
        name: Its name.
        state: "reading", "paused" or "finished".
        rows_out_total: Rows that the first stages accepted; likewise `bytes_out_total`.
        rows_per_s: These rows per second, averaged over the last three seconds.
        paused_reasons: Why it is paused; empty if it is not.
        paused_seconds_total: Seconds that it was paused, by reason.
        held_up_by: The stage at the root of what it waits for; None if it hardly waits for room.
        lag: How much follows the last cut, by partition, as of the last backpressure check. A
            separate thread reads it, even while all stages are full. None if unknown, for example
            when the source has not answered for three checks.
        lag_stuck_s: Seconds that the source has spent in its current call of `lag`; 0.0 between two
            calls.
        position: Where it reads next.
    """

    name: str
    state: str
    rows_out_total: int
    bytes_out_total: int
    rows_per_s: float
    paused_reasons: tuple[str, ...]
    paused_seconds_total: Mapping[str, float]
    held_up_by: str | None
    lag: Mapping[str, Lag]
    lag_stuck_s: float
    position: Position


@dataclass(frozen=True)
class StageStats:
    """A stage at one moment.

    Attributes:
        name: Its name.
        workers: Its threads.
        rows_in_total: Rows that it accepted; likewise `bytes_in_total`.
        rows_out_total: Rows that it emitted, or that its sink took; likewise `bytes_out_total`.
        rows_per_s: These rows per second, averaged over the last three seconds.
        queue_rows: Rows that it accepted but has not completed; likewise `queue_bytes`.
        queue_limit_rows: The limit of these rows, unless a single chunk has more.
        busy_ratio: The share of about the last three seconds that its workers spent in operators or
            in the sink, 0 to 1.
        waited_for_ratio: The share of these seconds that the stage or source before it waited for
            room here.
        held_up_by: The stage at the root of what it waits for; None if it hardly waits for room.
        slow_down_factor: From 1.0 (full speed) to 0.0 (stop): what this stage and those after it
            ask for. Sources obey it if `BackpressureConfig.gate` says so.
        chunks_failed_total: Chunks whose operator or sink raised.
    """

    name: str
    workers: int
    rows_in_total: int
    bytes_in_total: int
    rows_out_total: int
    bytes_out_total: int
    rows_per_s: float
    queue_rows: int
    queue_limit_rows: int
    queue_bytes: int
    busy_ratio: float
    waited_for_ratio: float
    held_up_by: str | None
    slow_down_factor: float
    chunks_failed_total: int


def _source_stats(source: SourceThread, reader: LagReader) -> SourceStats:
    reasons = source.control.reasons
    finished = source.control.has_finished
    return SourceStats(
        name=source.name,
        state="finished" if finished else "paused" if reasons else "reading",
        rows_out_total=source.rows_out.value,
        bytes_out_total=source.bytes_out.value,
        rows_per_s=source.rows_out.per_s,
        paused_reasons=reasons,
        paused_seconds_total=source.control.paused_seconds,
        held_up_by=root(source.outlets),
        lag=dict(reader.lags),
        lag_stuck_s=reader.stuck_s,
        position=dict(source.control.position),
    )


def _stage_stats(stage: RunnerStage, controller: FlowController) -> StageStats:
    held = stage.gate.held()
    return StageStats(
        name=stage.name,
        workers=stage.plan.workers,
        rows_in_total=stage.rows_in.value,
        bytes_in_total=stage.bytes_in.value,
        rows_out_total=stage.rows_out.value,
        bytes_out_total=stage.bytes_out.value,
        rows_per_s=stage.rows_out.per_s,
        queue_rows=held.rows,
        queue_limit_rows=stage.gate.worker_rows * stage.plan.workers,
        queue_bytes=held.bytes,
        busy_ratio=stage.busy.share,
        waited_for_ratio=stage.waited_for.share,
        held_up_by=root(stage.outlets),
        slow_down_factor=controller.effective(stage.name).slow_down_factor,
        chunks_failed_total=stage.chunks_failed.value,
    )


# The activity of a run at one moment, for its picture.


def activity_of(stats: PipelineStats) -> Mapping[str, Activity]:
    """Return the activity of the sources and stages of a run, by name."""
    roots = {source.held_up_by for source in stats.sources.values()}
    activity = {
        source.name: Activity(source.rows_per_s, note=_note(source))
        for source in stats.sources.values()
    }
    for stage in stats.stages.values():
        activity[stage.name] = Activity(
            rows_per_s=stage.rows_per_s,
            queue_rows=stage.queue_rows,
            queue_limit_rows=stage.queue_limit_rows,
            busy_ratio=stage.busy_ratio,
            waited_for_ratio=stage.waited_for_ratio,
            is_root=stage.name in roots,
        )
    return activity


def _note(source: SourceStats) -> str:
    if source.state == "paused":
        return f"paused: {', '.join(source.paused_reasons)}"
    return "waits for " + source.held_up_by if source.held_up_by else source.state
