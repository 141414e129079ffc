"""Aggregation on queues: L1 merges near the producers, L2 across them, TopN ranks single rows.

`Metrics` and their workers are Python objects; an `Aggregator` does the same in Rust for Arrow
rows.
"""

from batchqueue.aggregation.aggregator import Aggregation, Aggregator
from batchqueue.aggregation.buffer import MergeBuffer
from batchqueue.aggregation.distinct_metrics import DistinctMetrics
from batchqueue.aggregation.kinds import (
    CountMetrics,
    MaxMetrics,
    MeanMetrics,
    MinMetrics,
    SumMetrics,
)
from batchqueue.aggregation.l1 import L1AggregateWorker
from batchqueue.aggregation.l2 import L2PersistenceWorker
from batchqueue.aggregation.measures import (
    Count,
    Distinct,
    DistinctSketch,
    First,
    Last,
    Max,
    Mean,
    Measure,
    Min,
    QuantileBuckets,
    Quantiles,
    Sum,
    TopN,
)
from batchqueue.aggregation.metrics import Metrics
from batchqueue.aggregation.naming import metric_type
from batchqueue.aggregation.quantile_metrics import QuantileMetrics
from batchqueue.aggregation.ranking import RankedEntry, Ranking
from batchqueue.aggregation.roll_up import roll_up
from batchqueue.aggregation.top_n import TopNWorker
from batchqueue.aggregation.windows import Window, bucket_start

__all__ = [
    "Aggregation",
    "Aggregator",
    "Count",
    "CountMetrics",
    "Distinct",
    "DistinctMetrics",
    "DistinctSketch",
    "First",
    "L1AggregateWorker",
    "L2PersistenceWorker",
    "Last",
    "Max",
    "MaxMetrics",
    "Mean",
    "MeanMetrics",
    "Measure",
    "MergeBuffer",
    "Metrics",
    "Min",
    "MinMetrics",
    "QuantileBuckets",
    "QuantileMetrics",
    "Quantiles",
    "RankedEntry",
    "Ranking",
    "Sum",
    "SumMetrics",
    "TopN",
    "TopNWorker",
    "Window",
    "bucket_start",
    "metric_type",
    "roll_up",
]
