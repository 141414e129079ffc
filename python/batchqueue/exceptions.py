"""The errors of `batchqueue`. Each message contains the value, the limit and the remedy."""

from collections.abc import Iterable
from functools import partial
from operator import index
from typing import Any

from batchqueue.base.words import a_type


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
    """A handler would wait forever: what it waits for waits for the handler."""


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


class BatchFailed(BatchQueueError, RuntimeError):
    """A handler raises or returns this for the failed part of its batch; the rest is consumed.

    The failed part is tried again under the `RetryPolicy`, if there is one; otherwise it counts as
    failed. It is not bisected. An instance without items or rows means that the whole batch
    succeeded.

    Attributes:
        items: The failed objects of the batch, or None.
        indexes: The positions of the failed items or rows, or None.
        cause: The underlying exception, or None.
        results: One result for each item of the list, or None.
    """

    items: list[Any] | None
    indexes: list[int] | None
    cause: BaseException | None
    results: list[Any] | None

    def __init__(
        self,
        items: Iterable[Any] | None = None,
        *,
        indexes: Iterable[int] | None = None,
        cause: BaseException | None = None,
        results: Iterable[Any] | None = None,
    ) -> None:
        """Name what failed, by `items` or by `indexes`.

        Args:
            items: The failed objects, found by identity, in any order; one that is twice in the
                batch may be named twice. For Arrow data, record batches of the list.
            indexes: Positions from 0 up in the list that the handler got. For Arrow data, numbers
                of rows, counted through all record batches of the list.
            cause: The underlying exception. If given, `RetryPolicy.retry_on` applies to it.
            results: For submitted items, one result for each item of the list that the handler got;
                results given for failed items are ignored. Default: None for each item that did not
                fail.

        Raises:
            ConfigError: Both or neither of `items` and `indexes` are given; an index is not an int
                from 0 up; or `cause` is not an exception.
        """
        if (items is None) == (indexes is None):
            given = "both" if items is not None else "neither"
            raise ConfigError(f"{given} of items and indexes is given; give exactly one")
        if items is not None and not isinstance(items, Iterable):
            raise ConfigError(
                f"BatchFailed got items={items!r}, {a_type(items)}; give a list of "
                "objects of the batch, or indexes=[...]"
            )
        if cause is not None and not isinstance(cause, BaseException):
            raise ConfigError(f"cause is {cause!r}, {a_type(cause)}; give an exception")
        self.items = None if items is None else list(items)
        self.indexes = None if indexes is None else [_position(number) for number in indexes]
        self.cause = self.__cause__ = cause
        self.results = None if results is None else list(results)
        count = len(self.items or self.indexes or ())
        because = "" if cause is None else f": {type(cause).__name__}: {cause}"
        super().__init__(f"{count} of the batch failed{because}")

    def error_of(self, item: Any) -> BaseException:
        """Return the error for the dead letter of a failed item: this one, unless overridden."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        named: dict[str, Any] = {
            "indexes": self.indexes,
            "cause": self.cause,
            "results": self.results,
        }
        return partial(type(self), **named), (self.items,)


def _position(number: object) -> int:
    try:
        position = index(number)  # type: ignore[arg-type]
    except TypeError:
        position = -1
    if position < 0 or isinstance(number, bool):
        raise ConfigError(f"indexes has {number!r}; give ints from 0 up")
    return position
