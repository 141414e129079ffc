"""Aggregation on queues: L1 merges near the producers, L2 across them, TopN ranks single rows.

`Metrics` and their workers are Python objects; an `Aggregator` does the same in Rust for Arrow
rows.
"""

from batchqueue.aggregation.aggregator import (
    Aggregation,
    Aggregator,
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
from batchqueue.aggregation.kinds import (
    CountMetrics,
    DistinctMetrics,
    MaxMetrics,
    MeanMetrics,
    MinMetrics,
    QuantileMetrics,
    RankedEntry,
    Ranking,
    SumMetrics,
)
from batchqueue.aggregation.metrics import MergeBuffer, Metrics
from batchqueue.aggregation.naming import metric_type
from batchqueue.aggregation.windows import Window, bucket_start, roll_up
from batchqueue.aggregation.workers import L1AggregateWorker, L2PersistenceWorker, TopNWorker

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
