"""The operators of a worker: what the steps of a graph do to chunks."""

from batchqueue.pipeline.operators.aggregates import (
    MergeAggregateStep,
    PartialAggregateStep,
)
from batchqueue.pipeline.operators.chain import Chain, ChainStep

__all__ = ["Chain", "ChainStep", "MergeAggregateStep", "PartialAggregateStep"]
