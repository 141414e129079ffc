"""Spark: an exactly-once sink that aggregates on queues, rows for handlers, and a local session to try both."""

from batchqueue.spark._requirements import MissingPackageError
from batchqueue.spark.delivery import TaskInfo
from batchqueue.spark.delivery_summary import DeliverySummary
from batchqueue.spark.errors import DeliveryError, SinkError
from batchqueue.spark.foreach import for_each_partition, foreach_batch
from batchqueue.spark.java import find_java_home
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.listener import LedgerListener
from batchqueue.spark.observe import LedgerCollector
from batchqueue.spark.progress import show_progress
from batchqueue.spark.registration import register
from batchqueue.spark.session import local_session
from batchqueue.spark.steps import ArrowAggregation, ArrowHandler
from batchqueue.spark.writer import MetricsWriter

__all__ = [
    "AggregationJob",
    "ArrowAggregation",
    "ArrowHandler",
    "DeliveryError",
    "DeliverySummary",
    "LedgerCollector",
    "LedgerListener",
    "MetricsWriter",
    "MissingPackageError",
    "SinkError",
    "TaskInfo",
    "find_java_home",
    "for_each_partition",
    "foreach_batch",
    "local_session",
    "register",
    "show_progress",
]
