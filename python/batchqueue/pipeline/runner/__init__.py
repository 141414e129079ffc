"""Runs a pipeline in one process."""

from batchqueue.pipeline.runner.run import PipelineRun, RunSummary
from batchqueue.pipeline.runner.stats import PipelineStats, SourceStats, StageStats

__all__ = ["PipelineRun", "PipelineStats", "RunSummary", "SourceStats", "StageStats"]
