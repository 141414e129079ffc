"""Pipelines: one graph of sources, operators and sinks, in this process or on Spark.

A slow sink slows its sources down, memory stays bounded in rows and bytes, and pausing skips
nothing.
"""

# First: it names a missing package before anything else imports that.
from batchqueue.pipeline.requirements import MissingPackageError  # isort: split

from batchqueue.pipeline.chunks import ChunkOrigin, chunk_origin
from batchqueue.pipeline.contract import (
    CheckpointError,
    CutError,
    GraphError,
    Lag,
    Limit,
    NotOnSparkError,
    Operator,
    PipelineError,
    Plan,
    Position,
    PositionError,
    Sink,
    SinkError,
    Source,
    SourceChangedError,
    SourceDataError,
    SourcePickleError,
    Split,
    StageFailedError,
    StateError,
    TransactionalSink,
)
from batchqueue.pipeline.file_sink import FileSink
from batchqueue.pipeline.graph import Flow, StageConfig
from batchqueue.pipeline.kafka_sink import KafkaSink
from batchqueue.pipeline.pipeline import Pipeline
from batchqueue.pipeline.prometheus import PipelineMetric
from batchqueue.pipeline.runner import (
    PipelineRun,
    PipelineStats,
    RunSummary,
    SourceStats,
    StageStats,
)
from batchqueue.pipeline.runner.pressure import BackpressureSignal
from batchqueue.pipeline.runner.stage_flow import PartitionMetrics, StageMetrics
from batchqueue.pipeline.runner.states import BackpressureState, PartitionState, SkewState
from batchqueue.pipeline.settings import BackpressureConfig
from batchqueue.pipeline.sinks import FunctionSink, MetricsSink
from batchqueue.pipeline.sources import (
    FileSource,
    IcebergSource,
    IterableSource,
    KafkaSource,
    LanceSource,
    PushSource,
    SparkFrameSource,
)
from batchqueue.pipeline.spark.source import SparkSource

__all__ = [
    "BackpressureConfig",
    "BackpressureSignal",
    "BackpressureState",
    "CheckpointError",
    "ChunkOrigin",
    "CutError",
    "FileSink",
    "FileSource",
    "Flow",
    "FunctionSink",
    "GraphError",
    "IcebergSource",
    "IterableSource",
    "KafkaSink",
    "KafkaSource",
    "Lag",
    "LanceSource",
    "Limit",
    "MetricsSink",
    "MissingPackageError",
    "NotOnSparkError",
    "Operator",
    "PartitionMetrics",
    "PartitionState",
    "Pipeline",
    "PipelineError",
    "PipelineMetric",
    "PipelineRun",
    "PipelineStats",
    "Plan",
    "Position",
    "PositionError",
    "PushSource",
    "RunSummary",
    "Sink",
    "SinkError",
    "SkewState",
    "Source",
    "SourceChangedError",
    "SourceDataError",
    "SourcePickleError",
    "SourceStats",
    "SparkFrameSource",
    "SparkSource",
    "Split",
    "StageConfig",
    "StageFailedError",
    "StageMetrics",
    "StageStats",
    "StateError",
    "TransactionalSink",
    "chunk_origin",
]
