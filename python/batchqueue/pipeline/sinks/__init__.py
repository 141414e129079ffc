"""Sinks of pipelines."""

from batchqueue.pipeline.sinks.files import FileSink
from batchqueue.pipeline.sinks.function import FunctionSink
from batchqueue.pipeline.sinks.metrics import MetricsSink

__all__ = ["FileSink", "FunctionSink", "MetricsSink"]
