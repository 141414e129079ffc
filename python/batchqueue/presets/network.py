"""Settings of queues whose consumer sends each batch away: to another process, or to another system.

Such a consumer mostly waits. A few of these queues have a thread each; where there are many,
`shared=True` lets all of them drain on the threads of one pool.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from batchqueue.config import BatchQueueConfig, BufferStrategy, PartitionPolicy, ThreadPolicy
from batchqueue.handlers import SupportsConsume

T = TypeVar("T")

IO_POOL = "IO_POOL"
"""The pool of queues that ask for `shared=True`."""

_ONE_THREAD = ThreadPolicy.fixed(1)
_HALF_OF_CORES = ThreadPolicy.cpu_cores(0.5)
_ONE_PARTITION = PartitionPolicy.fixed(1)


def remote_client(
    consumer: SupportsConsume[T] | Callable[[list[T]], Any],
    *,
    shared: bool = False,
    threads: ThreadPolicy = _ONE_THREAD,
    pool_threads: ThreadPolicy = _HALF_OF_CORES,
    partitions: PartitionPolicy = _ONE_PARTITION,
    buffer_size: int = 10_000,
    strategy: BufferStrategy = BufferStrategy.BLOCKING,
    min_idle_ms: float = 1,
    max_idle_ms: float = 50,
) -> BatchQueueConfig[T]:
    """Return the settings of a queue that forwards items to one other process. Make one queue per peer.

    It never drops: while the peer is slow and the queue full, producers wait.

    Args:
        consumer: Sends a batch. It is never entered by two threads at once.
        shared: Drain on the pool `IO_POOL`, instead of a thread of the queue's own.
        threads: Drain threads, unless shared. More than one only take turns at one consumer.
        pool_threads: Threads of the pool, if shared; the first queue that names the pool decides.
        partitions: Partitions.
        buffer_size: Items per partition.
        strategy: What a full partition does to its producer.
        min_idle_ms: Rest after an empty cycle, in milliseconds.
        max_idle_ms: Longest sleep of an idle drain thread, in milliseconds.
    """
    return BatchQueueConfig(
        threads=None if shared else threads,
        shared_scheduler=(IO_POOL, pool_threads) if shared else None,
        partitions=partitions,
        consumer=consumer,
        buffer_size=buffer_size,
        strategy=strategy,
        min_idle_ms=min_idle_ms,
        max_idle_ms=max_idle_ms,
    )


def exporter(
    consumer: SupportsConsume[T] | Callable[[list[T]], Any],
    *,
    shared: bool = False,
    threads: ThreadPolicy = _ONE_THREAD,
    pool_threads: ThreadPolicy = _HALF_OF_CORES,
    partitions: PartitionPolicy = _ONE_PARTITION,
    buffer_size: int = 20_000,
    strategy: BufferStrategy = BufferStrategy.BLOCKING,
    min_idle_ms: float = 1,
    max_idle_ms: float = 200,
) -> BatchQueueConfig[T]:
    """Return the settings of a queue that hands items to another system.

    With BLOCKING, for exports that must be complete, as over gRPC, producers wait for a slow
    system. Give IF_POSSIBLE where they must not, as with traces or logs for Kafka: what finds no
    room is refused and counted.

    Args:
        consumer: Exports a batch. It is never entered by two threads at once.
        shared: Drain on the pool `IO_POOL`, instead of a thread of the queue's own.
        threads: Drain threads, unless shared. More than one only take turns at one consumer.
        pool_threads: Threads of the pool, if shared; the first queue that names the pool decides.
        partitions: Partitions.
        buffer_size: Items per partition.
        strategy: What a full partition does to its producer.
        min_idle_ms: Rest after an empty cycle, in milliseconds.
        max_idle_ms: Longest sleep of an idle drain thread, in milliseconds.
    """
    return BatchQueueConfig(
        threads=None if shared else threads,
        shared_scheduler=(IO_POOL, pool_threads) if shared else None,
        partitions=partitions,
        consumer=consumer,
        buffer_size=buffer_size,
        strategy=strategy,
        min_idle_ms=min_idle_ms,
        max_idle_ms=max_idle_ms,
    )
