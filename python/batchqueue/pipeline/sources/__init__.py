"""Sources of pipelines."""

from batchqueue.pipeline.sources.files import FileSource
from batchqueue.pipeline.sources.iceberg import IcebergSource
from batchqueue.pipeline.sources.iterable import IterableSource
from batchqueue.pipeline.sources.kafka import KafkaSource
from batchqueue.pipeline.sources.lance import LanceSource
from batchqueue.pipeline.sources.push import PushSource
from batchqueue.pipeline.sources.spark_frame import SparkFrameSource

__all__ = [
    "FileSource",
    "IcebergSource",
    "IterableSource",
    "KafkaSource",
    "LanceSource",
    "PushSource",
    "SparkFrameSource",
]
