"""A partitioned batch queue with native drain threads.

Producers enqueue items from any thread. Drain threads, written in Rust, take them out of bounded
partitions, group them by class, and pass each batch to the handler of its class.
"""

from typing import TYPE_CHECKING, Any

import batchqueue.subinterpreter  # noqa: F401 - must run before the core is imported
from batchqueue._core import __version__
from batchqueue.exceptions import (
    BatchFailed,
    BatchQueueError,
    ConfigError,
    ProduceTimeoutError,
    QueueClosedError,
    QueueForkedError,
    ReentrantProduceError,
)
from batchqueue.queues.callbacks import DeadLetter
from batchqueue.queues.config import (
    BatchQueueConfig,
    BufferStrategy,
    DrainBalancer,
    PartitionPolicy,
    PartitionSelector,
    RetryPolicy,
    ThreadPolicy,
)
from batchqueue.queues.handlers import HandlerConsumer, SupportsConsume
from batchqueue.queues.manager import BatchQueueManager
from batchqueue.queues.queue import BatchQueue
from batchqueue.queues.stats import (
    BatchQueueRates,
    BatchQueueStats,
    DrainThreadStats,
    HandlerStats,
    PartitionStats,
)
from batchqueue.service import run_until_signal

__all__ = [
    "AsyncBatchQueue",
    "BatchFailed",
    "BatchQueue",
    "BatchQueueConfig",
    "BatchQueueError",
    "BatchQueueManager",
    "BatchQueueRates",
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
    "run_until_signal",
    "serve_metrics",
]

if TYPE_CHECKING:
    from batchqueue.aio.queue import AsyncBatchQueue
    from batchqueue.metrics import serve_metrics


def __getattr__(name: str) -> Any:
    """Import on first use what imports modules that take longer than all the rest."""
    if name == "AsyncBatchQueue":
        from batchqueue.aio.queue import AsyncBatchQueue

        return AsyncBatchQueue
    if name == "serve_metrics":
        from batchqueue.metrics import serve_metrics

        return serve_metrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
