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

if TYPE_CHECKING:
    from batchqueue.aio.queue import AsyncBatchQueue
    from batchqueue.metrics import serve_metrics
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

_NAMES_BY_MODULE = {
    "aio.queue": "AsyncBatchQueue",
    "metrics": "serve_metrics",
    "queues.callbacks": "DeadLetter",
    "queues.config": "BatchQueueConfig BufferStrategy DrainBalancer PartitionPolicy "
    "PartitionSelector RetryPolicy ThreadPolicy",
    "queues.handlers": "HandlerConsumer SupportsConsume",
    "queues.manager": "BatchQueueManager",
    "queues.queue": "BatchQueue",
    "queues.stats": "BatchQueueRates BatchQueueStats DrainThreadStats HandlerStats PartitionStats",
    "service": "run_until_signal",
}
"""The names that are imported on their first use, so that `import batchqueue` itself is fast."""

_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}


if not TYPE_CHECKING:  # so that type checkers refuse names that do not exist

    def __getattr__(name: str) -> Any:
        """Import a name on its first use."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
