"""A partitioned batch queue with native drain threads.

Producers enqueue items from any thread. Drain threads, written in Rust, take them out of bounded
partitions, group them by class, and pass each batch to the handler of its class.
"""

from typing import TYPE_CHECKING, Any

import batchqueue._subinterpreter_guard  # noqa: F401 - must run before the core is imported
from batchqueue._core import __version__
from batchqueue.config import (
    BatchQueueConfig,
    BufferStrategy,
    DrainBalancer,
    PartitionPolicy,
    PartitionSelector,
    RetryPolicy,
    ThreadPolicy,
)
from batchqueue.dead_letters import DeadLetter
from batchqueue.exceptions import (
    BatchFailed,
    BatchQueueError,
    ConfigError,
    ProduceTimeoutError,
    QueueClosedError,
    QueueForkedError,
    ReentrantProduceError,
)
from batchqueue.handlers import HandlerConsumer, SupportsConsume
from batchqueue.manager import BatchQueueManager
from batchqueue.queue import BatchQueue
from batchqueue.stats import BatchQueueStats, DrainThreadStats, HandlerStats, PartitionStats

__all__ = [
    "AsyncBatchQueue",
    "BatchFailed",
    "BatchQueue",
    "BatchQueueConfig",
    "BatchQueueError",
    "BatchQueueManager",
    "BatchQueueStats",
    "BufferStrategy",
    "ConfigError",
    "DeadLetter",
    "DrainBalancer",
    "DrainThreadStats",
    "HandlerConsumer",
    "HandlerStats",
    "PartitionPolicy",
    "PartitionSelector",
    "PartitionStats",
    "ProduceTimeoutError",
    "QueueClosedError",
    "QueueForkedError",
    "ReentrantProduceError",
    "RetryPolicy",
    "SupportsConsume",
    "ThreadPolicy",
    "__version__",
]

if TYPE_CHECKING:
    from batchqueue.aio import AsyncBatchQueue


def __getattr__(name: str) -> Any:
    """Import `AsyncBatchQueue` on first use: asyncio takes longer to import than all the rest."""
    if name == "AsyncBatchQueue":
        from batchqueue.aio import AsyncBatchQueue

        return AsyncBatchQueue
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
