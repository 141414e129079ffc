"""Metrics aggregation on queues: L1 merges near the producers, L2 across them, TopN ranks single rows."""

from batchqueue.aggregation.buffer import MergeBuffer
from batchqueue.aggregation.kinds import CountMetrics, MaxMetrics, MeanMetrics, MinMetrics, SumMetrics
from batchqueue.aggregation.l1 import L1AggregateWorker
from batchqueue.aggregation.l2 import L2PersistenceWorker
from batchqueue.aggregation.metrics import Metrics
from batchqueue.aggregation.naming import metric_type
from batchqueue.aggregation.ranking import RankedEntry, Ranking
from batchqueue.aggregation.top_n import TopNWorker

__all__ = [
    "CountMetrics",
    "L1AggregateWorker",
    "L2PersistenceWorker",
    "MaxMetrics",
    "MeanMetrics",
    "MergeBuffer",
    "Metrics",
    "MinMetrics",
    "RankedEntry",
    "Ranking",
    "SumMetrics",
    "TopNWorker",
    "metric_type",
]
