"""Settings of the queues of a metrics aggregation: L1, L2 and TopN.

Partitions are adaptive: each metric type has its own while there are few types.
"""

from typing import Any, Unpack

from batchqueue.config import (
    BatchQueueConfig,
    BufferStrategy,
    DrainBalancer,
    PartitionPolicy,
    ThreadPolicy,
)
from batchqueue.presets.batch_settings import BatchSettings

METRICS_L1_AGGREGATION = "METRICS_L1_AGGREGATION"
METRICS_L2_PERSISTENCE = "METRICS_L2_PERSISTENCE"
TOPN_WORKER = "TOPN_WORKER"

_ONE_THREAD = ThreadPolicy.fixed(1)
_ALL_CORES = ThreadPolicy.cpu_cores(1.0)
_QUARTER_OF_CORES = ThreadPolicy.cpu_cores_with_base(1, 0.25)
_ADAPTIVE = PartitionPolicy.adaptive()
_BY_LOAD = DrainBalancer.load_weighted()


def l1_aggregation(
    *,
    threads: ThreadPolicy = _ALL_CORES,
    partitions: PartitionPolicy = _ADAPTIVE,
    buffer_size: int = 20_000,
    strategy: BufferStrategy = BufferStrategy.IF_POSSIBLE,
    min_idle_ms: float = 1,
    max_idle_ms: float = 50,
    balancer: DrainBalancer | bool | None = _BY_LOAD,
    rebalance_interval_ms: float = 1_000,
    **batches: Unpack[BatchSettings],
) -> BatchQueueConfig[Any]:
    """Return the settings of a queue of `L1AggregateWorker`s, with one drain thread per core.

    Producers never wait: an item that finds its partition full is refused and counted. With
    `BufferStrategy.BLOCKING` they wait instead, and no item is lost.
    """
    return BatchQueueConfig(
        threads=threads,
        partitions=partitions,
        buffer_size=buffer_size,
        strategy=strategy,
        min_idle_ms=min_idle_ms,
        max_idle_ms=max_idle_ms,
        balancer=balancer,
        rebalance_interval_ms=rebalance_interval_ms,
        **batches,
    )


def l2_persistence(
    *,
    threads: ThreadPolicy = _QUARTER_OF_CORES,
    partitions: PartitionPolicy = _ADAPTIVE,
    buffer_size: int = 2_000,
    strategy: BufferStrategy = BufferStrategy.BLOCKING,
    min_idle_ms: float = 1,
    max_idle_ms: float = 50,
    balancer: DrainBalancer | bool | None = _BY_LOAD,
    rebalance_interval_ms: float = 1_000,
    **batches: Unpack[BatchSettings],
) -> BatchQueueConfig[Any]:
    """Return the settings of a queue of `L2PersistenceWorker`s.

    It has a drain thread, and another per four cores. It never drops a partial: while a partition
    is full, L1 waits.
    """
    return BatchQueueConfig(
        threads=threads,
        partitions=partitions,
        buffer_size=buffer_size,
        strategy=strategy,
        min_idle_ms=min_idle_ms,
        max_idle_ms=max_idle_ms,
        balancer=balancer,
        rebalance_interval_ms=rebalance_interval_ms,
        **batches,
    )


def top_n(
    *,
    threads: ThreadPolicy = _ONE_THREAD,
    partitions: PartitionPolicy = _ADAPTIVE,
    buffer_size: int = 1_000,
    strategy: BufferStrategy = BufferStrategy.BLOCKING,
    min_idle_ms: float = 10,
    max_idle_ms: float = 100,
    **batches: Unpack[BatchSettings],
) -> BatchQueueConfig[Any]:
    """Return the settings of a queue of `TopNWorker`s, with one drain thread.

    It never drops an item: while a partition is full, producers wait.
    """
    return BatchQueueConfig(
        threads=threads,
        partitions=partitions,
        buffer_size=buffer_size,
        strategy=strategy,
        min_idle_ms=min_idle_ms,
        max_idle_ms=max_idle_ms,
        **batches,
    )
