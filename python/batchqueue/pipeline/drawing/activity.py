"""What a run does at a moment, for its picture."""

from collections.abc import Mapping

from batchqueue.pipeline.drawing.svg import Activity
from batchqueue.pipeline.runner.stats import PipelineStats, SourceStats


def activity_of(stats: PipelineStats) -> Mapping[str, Activity]:
    """Return what the sources and stages of a run do, by name."""
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
