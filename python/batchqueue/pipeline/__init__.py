"""Pipelines: one graph of sources, operators and sinks, in this process or on Spark.

A slow sink slows its sources down, memory stays bounded in rows and bytes, and pausing skips
nothing.
"""

from batchqueue.pipeline.contract import (
    Lag,
    Limit,
    Operator,
    Plan,
    Position,
    Sink,
    Source,
    Split,
    TransactionalSink,
)
from batchqueue.pipeline.errors import (
    CutError,
    GraphError,
    NotOnSparkError,
    PipelineError,
    PositionError,
    SourceChangedError,
    SourcePickleError,
    StageFailedError,
)
from batchqueue.pipeline.graph import Flow
from batchqueue.pipeline.pipeline import Pipeline
from batchqueue.pipeline.stage_config import StageConfig

__all__ = [
    "CutError",
    "Flow",
    "GraphError",
    "Lag",
    "Limit",
    "NotOnSparkError",
    "Operator",
    "Pipeline",
    "PipelineError",
    "Plan",
    "Position",
    "PositionError",
    "Sink",
    "Source",
    "SourceChangedError",
    "SourcePickleError",
    "Split",
    "StageConfig",
    "StageFailedError",
    "TransactionalSink",
]
