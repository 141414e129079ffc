"""The errors of `batchqueue`. Each message holds the value, the limit and the remedy."""


class BatchQueueError(Exception):
    """Base class of all errors that this package defines."""


class ConfigError(BatchQueueError, ValueError):
    """A setting, a name or an argument cannot be used as given."""


class MissingPackageError(BatchQueueError, ImportError):
    """A package that only an optional part of batchqueue needs is missing or too old."""


class QueueClosedError(BatchQueueError, RuntimeError):
    """The queue is shut down, and the call needs a running one."""


class QueueForkedError(BatchQueueError, RuntimeError):
    """The queue was made before a fork and has no drain threads in this process."""


class ReentrantProduceError(BatchQueueError, RuntimeError):
    """The wait of a handler would never end: what it waits for waits for the handler."""


class ProduceTimeoutError(BatchQueueError, TimeoutError):
    """A partition stayed full for the whole timeout.

    Attributes:
        accepted: Items that `produce_many` had enqueued before time ran out; 0 for `produce`.
    """

    def __init__(self, message: str, accepted: int = 0) -> None:
        super().__init__(message)
        self.accepted = accepted

    def __reduce__(self) -> tuple[type["ProduceTimeoutError"], tuple[str, int]]:
        return type(self), (str(self), self.accepted)
