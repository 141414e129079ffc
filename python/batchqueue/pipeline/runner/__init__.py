"""Runs a pipeline in one process."""

from batchqueue.pipeline.runner.run import PipelineRun
from batchqueue.pipeline.runner.stats import PipelineStats, SourceStats, StageStats
from batchqueue.pipeline.runner.summary import RunSummary

__all__ = ["PipelineRun", "PipelineStats", "RunSummary", "SourceStats", "StageStats"]
