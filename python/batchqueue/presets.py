"""Ready-made settings for common queues, as functions that return a `BatchQueueConfig`.

An argument of a preset sets the field of `BatchQueueConfig` with the same name, which documents it;
the defaults suit the purpose of the preset. The docstring of a preset describes only what the
config does not: its additional arguments, and why a default differs. All presets take
`max_batch_items`, `max_delay_ms`, `retry`, `error_handler` and `dead_letter` as well;
`dataclasses.replace` changes any other setting.

Example:
    >>> from batchqueue import BufferStrategy
    >>> from batchqueue.presets import l1_aggregation
    >>> config = l1_aggregation(strategy=BufferStrategy.BLOCKING)
    >>> config.buffer_size, config.max_idle_ms
    (20000, 50)
"""

from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, Unpack

from batchqueue.exceptions import ConfigError
from batchqueue.queues.callbacks import DeadLetter
from batchqueue.queues.config import (
    BatchQueueConfig,
    BufferStrategy,
    DrainBalancer,
    PartitionPolicy,
    RetryPolicy,
    ThreadPolicy,
)
from batchqueue.queues.handlers import SupportsConsume

__all__ = [
    "IO_POOL",
    "METRICS_L1_AGGREGATION",
    "METRICS_L2_PERSISTENCE",
    "TOPN_WORKER",
    "exporter",
    "l1_aggregation",
    "l2_persistence",
    "remote_client",
    "sql_batch",
    "top_n",
]


T = TypeVar("T")


# Settings of batches and failures that every preset passes on unchanged.


class BatchSettings(TypedDict, total=False):
    """Fields of `BatchQueueConfig`, with its defaults."""

    max_batch_items: int
    max_delay_ms: float | None
    retry: RetryPolicy | None
    error_handler: Callable[[list[Any], BaseException], Any] | None
    dead_letter: SupportsConsume[DeadLetter[Any]] | Callable[[list[DeadLetter[Any]]], Any] | None


# Settings of the queues of a metrics aggregation: L1, L2 and TopN.
#
# Partitions are adaptive: each metric type has its own while there are few types.


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

    It has one drain thread, plus one per four cores. It never drops a partial: while a partition is
    full, L1 waits.
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


# Settings of queues that write into a database.


def sql_batch(  # noqa: D417 - the other arguments are those of BatchQueueConfig
    consumer_factory: Callable[[], SupportsConsume[T]],
    *,
    writers: int = 4,
    buffer_size: int = 10_000,
    strategy: BufferStrategy = BufferStrategy.BLOCKING,
    min_idle_ms: float = 1,
    max_idle_ms: float = 20,
    **batches: Unpack[BatchSettings],
) -> BatchQueueConfig[T]:
    """Return the settings of a queue that writes into a database, with one writer per drain thread.

    Args:
        consumer_factory: Makes a writer, for instance
            `lambda: batchqueue.exporters.PostgresRows(dsn, "orders")`; called once per drain
            thread.
        writers: Number of drain threads and of partitions; 4 by default. Give 1 if the database
            takes one writer at a time, as SQLite does.
    """
    return BatchQueueConfig(
        threads=ThreadPolicy.fixed(writers),
        partitions=PartitionPolicy.fixed(writers),
        consumer_factory=consumer_factory,
        buffer_size=buffer_size,
        strategy=strategy,
        min_idle_ms=min_idle_ms,
        max_idle_ms=max_idle_ms,
        **batches,
    )


# Settings of queues whose consumer sends each batch to another process or system.
#
# Such a consumer mostly waits. A few such queues can have a thread each; many should share the
# threads of one pool with `shared=True`.


IO_POOL = "IO_POOL"
"""The pool of queues with `shared=True`."""

_HALF_OF_CORES = ThreadPolicy.cpu_cores(0.5)
_ONE_PARTITION = PartitionPolicy.fixed(1)


def remote_client(  # noqa: D417 - the other arguments are those of BatchQueueConfig
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
    **batches: Unpack[BatchSettings],
) -> BatchQueueConfig[T]:
    """Return the settings of a queue that forwards items to another process. Use a queue per peer.

    It never drops an item: while the peer is slow and the queue full, producers wait.

    Args:
        consumer: Sends a batch. Two threads never enter it concurrently.
        shared: Drain on the pool `IO_POOL` instead of threads of this queue.
        threads: Drain threads, unless shared; 1 by default. More threads would only take turns at
            the consumer.
        pool_threads: Threads of the pool, if shared; half of the cores by default. The first queue
            that names the pool decides its size.

    Raises:
        ConfigError: `pool_threads` is given without `shared`, or `threads` with it; or a setting is
            invalid.
    """
    return BatchQueueConfig(
        **_scheduler(shared, threads, pool_threads),
        partitions=partitions,
        consumer=consumer,
        buffer_size=buffer_size,
        strategy=strategy,
        min_idle_ms=min_idle_ms,
        max_idle_ms=max_idle_ms,
        **batches,
    )


def exporter(  # noqa: D417 - the other arguments are those of BatchQueueConfig
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
    **batches: Unpack[BatchSettings],
) -> BatchQueueConfig[T]:
    """Return the settings of a queue that exports items to another system.

    With `BufferStrategy.BLOCKING`, for exports that must be complete, such as over gRPC, producers
    wait for a slow system. Give `IF_POSSIBLE` if they must not wait, as for traces or logs to
    Kafka: an item that finds the queue full is refused and counted.

    Args:
        consumer: Exports a batch, for instance `batchqueue.exporters.HttpBatches(url)`; give it a
            `retry` as well. Two threads never enter it concurrently.
        shared: Drain on the pool `IO_POOL` instead of threads of this queue.
        threads: Drain threads, unless shared; 1 by default. More threads would only take turns at
            the consumer.
        pool_threads: Threads of the pool, if shared; half of the cores by default. The first queue
            that names the pool decides its size.

    Raises:
        ConfigError: `pool_threads` is given without `shared`, or `threads` with it; or a setting is
            invalid.
    """
    return BatchQueueConfig(
        **_scheduler(shared, threads, pool_threads),
        partitions=partitions,
        consumer=consumer,
        buffer_size=buffer_size,
        strategy=strategy,
        min_idle_ms=min_idle_ms,
        max_idle_ms=max_idle_ms,
        **batches,
    )


class _Scheduler(TypedDict):
    threads: ThreadPolicy | None
    shared_scheduler: tuple[str, ThreadPolicy] | None


def _scheduler(shared: bool, threads: ThreadPolicy, pool_threads: ThreadPolicy) -> _Scheduler:
    if shared:
        if threads is not _ONE_THREAD:
            raise ConfigError(
                f"threads is {threads} with shared=True, and the threads of the pool drain the "
                f"queue; give pool_threads={threads}, or leave shared out"
            )
        return {"threads": None, "shared_scheduler": (IO_POOL, pool_threads)}
    if pool_threads is not _HALF_OF_CORES:
        raise ConfigError(
            f"pool_threads is {pool_threads} without shared=True, and the queue does not use the "
            f"pool; give shared=True, or threads={pool_threads} for the threads of the queue"
        )
    return {"threads": threads, "shared_scheduler": None}
