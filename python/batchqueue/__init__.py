"""A partitioned batch queue with native drain threads.

Producers enqueue items from any thread. Drain threads, written in Rust, take them out of bounded
partitions, group them by class, and pass each batch to the handler of its class.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import batchqueue.base.process  # noqa: F401 - must run before the core is imported elsewhere
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
    from batchqueue.queues.stats import (
        BatchQueueRates,
        BatchQueueStats,
        DrainThreadStats,
        HandlerStats,
        PartitionStats,
    )
    from batchqueue.service import run_until_signal

_ON_FIRST_USE = {
    "AsyncBatchQueue": "batchqueue.aio.queue",
    "BatchQueueRates": "batchqueue.queues.stats",
    "BatchQueueStats": "batchqueue.queues.stats",
    "DrainThreadStats": "batchqueue.queues.stats",
    "HandlerStats": "batchqueue.queues.stats",
    "PartitionStats": "batchqueue.queues.stats",
    "run_until_signal": "batchqueue.service",
    "serve_metrics": "batchqueue.metrics",
}
"""The modules that are slow to import and that many programs do not need, by public name."""


if not TYPE_CHECKING:  # so that type checkers refuse names that do not exist

    def __getattr__(name: str) -> Any:
        """Import a module on the first use of its name."""
        if name not in _ON_FIRST_USE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_ON_FIRST_USE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
