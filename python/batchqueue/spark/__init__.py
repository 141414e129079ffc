"""Spark: an exactly-once sink that aggregates on queues, and a local session to try it with."""

from batchqueue.spark._requirements import MissingPackageError
from batchqueue.spark.errors import SinkError
from batchqueue.spark.java import find_java_home
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.session import local_session
from batchqueue.spark.sink import register
from batchqueue.spark.steps import ArrowAggregation, ArrowHandler
from batchqueue.spark.writer import MetricsWriter

__all__ = [
    "AggregationJob",
    "ArrowAggregation",
    "ArrowHandler",
    "MetricsWriter",
    "MissingPackageError",
    "SinkError",
    "find_java_home",
    "local_session",
    "register",
]
