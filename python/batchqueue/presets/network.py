"""Settings of queues whose consumer sends each batch to another process or system.

Such a consumer mostly waits. A few of these queues have a thread each; many of them share the
threads of one pool with `shared=True`.
"""

from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, Unpack

from batchqueue.config import BatchQueueConfig, BufferStrategy, PartitionPolicy, ThreadPolicy
from batchqueue.exceptions import ConfigError
from batchqueue.handlers import SupportsConsume
from batchqueue.presets.batch_settings import BatchSettings

T = TypeVar("T")

IO_POOL = "IO_POOL"
"""The pool of queues with `shared=True`."""

_ONE_THREAD = ThreadPolicy.fixed(1)
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
        threads: Drain threads, unless shared; 1 by default. More threads only take turns at the
            consumer.
        pool_threads: Threads of the pool, if shared; half of the cores by default. The first queue
            that names the pool decides.

    Raises:
        ConfigError: `pool_threads` is given and `shared` is not, or `threads` beside `shared`; or a
            setting is invalid.
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

    With `BufferStrategy.BLOCKING`, for exports that must be complete, as over gRPC, producers wait
    for a slow system. Give `IF_POSSIBLE` where they must not, as with traces or logs for Kafka: an
    item that finds the queue full is refused and counted.

    Args:
        consumer: Exports a batch. Two threads never enter it concurrently.
        shared: Drain on the pool `IO_POOL` instead of threads of this queue.
        threads: Drain threads, unless shared; 1 by default. More threads only take turns at the
            consumer.
        pool_threads: Threads of the pool, if shared; half of the cores by default. The first queue
            that names the pool decides.

    Raises:
        ConfigError: `pool_threads` is given and `shared` is not, or `threads` beside `shared`; or a
            setting is invalid.
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
