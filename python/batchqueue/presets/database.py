"""Settings of queues that write into a database."""

from collections.abc import Callable
from typing import TypeVar, Unpack

from batchqueue.config import BatchQueueConfig, BufferStrategy, PartitionPolicy, ThreadPolicy
from batchqueue.handlers import SupportsConsume
from batchqueue.presets.batch_settings import BatchSettings

T = TypeVar("T")


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
        consumer_factory: Makes a writer; called once per drain thread.
        writers: Drain threads, and as many partitions; 4 by default. Give 1 where the database
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
