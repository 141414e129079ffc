"""What a queue is asked for: its settings, as one frozen, picklable value."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from batchqueue._core import PartitionPolicy, ThreadPolicy
from batchqueue.exceptions import ConfigError
from batchqueue.handlers import SupportsConsume, handler_methods

__all__ = ["BatchQueueConfig", "BufferStrategy", "PartitionPolicy", "PartitionSelector", "ThreadPolicy"]

T = TypeVar("T")

_MAX_ITEMS = 100_000_000


class BufferStrategy(enum.Enum):
    """What a full partition does to its producer."""

    BLOCKING = "blocking"
    """While no item is lost, producers wait."""

    IF_POSSIBLE = "if_possible"
    """While producers never wait, items are refused: `produce` returns False, and the item is counted."""


@dataclass(frozen=True)
class PartitionSelector:
    """Which partition an item goes to. Make one with the static methods."""

    kind: str
    function: Callable[..., Any] | None = None

    @staticmethod
    def by_type() -> "PartitionSelector":
        """The partition of the item's class: order per class and producer thread. The default with handlers."""
        return PartitionSelector("by_type")

    @staticmethod
    def round_robin() -> "PartitionSelector":
        """The next partition each time: an even spread. The default with `consumer` and `consumer_factory`."""
        return PartitionSelector("round_robin")

    @staticmethod
    def by_key(key: Callable[[Any], Any]) -> "PartitionSelector":
        """The partition of a key: order per key and producer thread, the same partition in every process.

        Args:
            key: Takes an item, returns a str, bytes or int.
        """
        return PartitionSelector("by_key", _callable("by_key", key))

    @staticmethod
    def custom(select: Callable[[Any, int], int]) -> "PartitionSelector":
        """A partition of your choice.

        Args:
            select: Takes an item and the number of partitions, returns an index below that number. Another value
                makes `produce` raise ConfigError.
        """
        return PartitionSelector("custom", _callable("custom", select))


def _callable(name: str, function: Any) -> Callable[..., Any]:
    if not callable(function):
        raise ConfigError(f"PartitionSelector.{name}: {function!r} is not callable; give a function")
    return function  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class BatchQueueConfig(Generic[T]):
    """Settings of one queue. Times are milliseconds where the name says so, else seconds.

    Attributes:
        threads: Drain threads. Exactly one of `threads` and `shared_scheduler` is given.
        shared_scheduler: Name and size of a pool that several queues share. This version has no shared pools: give
            `threads`.
        partitions: Partitions; fewer than threads reduce the threads, with a warning.
        selector: Which partition an item goes to; None: by type with handlers, round robin with a consumer.
        buffer_size: Items per partition, exactly.
        strategy: What a full partition does to its producer.
        consumer: One handler for the items of all types. Wins over handlers.
        consumer_factory: Makes one consumer per drain thread, so that they work in parallel.
        error_handler: Called with the batch and the exception when a handler without `on_error` raises.
        min_idle_ms: How long a drain thread rests after its first empty cycle, so that a batch can form.
        max_idle_ms: The longest sleep of an idle drain thread between two calls of `on_idle`.
        max_batch_items: Items that one drain thread takes in one cycle, rounded up to a segment.
        shutdown_timeout: Seconds that leaving a `with` block and the exit of the interpreter wait for accepted items
            to be handled; None waits as long as it takes.

    Raises:
        ConfigError: A setting cannot be used; the message says which, its limit and the remedy.
    """

    threads: ThreadPolicy | None = None
    shared_scheduler: tuple[str, ThreadPolicy] | None = None
    partitions: PartitionPolicy = field(default_factory=lambda: PartitionPolicy.fixed(1))
    selector: PartitionSelector | None = None
    buffer_size: int = 10_000
    strategy: BufferStrategy = BufferStrategy.BLOCKING
    consumer: SupportsConsume[T] | Callable[[list[T]], Any] | None = None
    consumer_factory: Callable[[], SupportsConsume[T]] | None = None
    error_handler: Callable[[list[T], BaseException], Any] | None = None
    min_idle_ms: float = 5
    max_idle_ms: float = 200
    max_batch_items: int = 10_000
    shutdown_timeout: float | None = 30

    def __post_init__(self) -> None:
        self._check_scheduler()
        self._check_types()
        self._check_numbers()
        if self.consumer is not None and self.consumer_factory is not None:
            raise ConfigError("consumer and consumer_factory are both given; give one of them")
        if self.consumer is not None:
            handler_methods(self.consumer)
        for name in ("consumer_factory", "error_handler"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigError(f"{name} is {function!r}; it must be callable")

    @property
    def effective_selector(self) -> PartitionSelector:
        """The selector that is used when none is given."""
        if self.selector is not None:
            return self.selector
        one_for_all = self.consumer is not None or self.consumer_factory is not None
        return PartitionSelector.round_robin() if one_for_all else PartitionSelector.by_type()

    def _check_scheduler(self) -> None:
        if (self.threads is None) == (self.shared_scheduler is None):
            given = "both" if self.threads is not None else "neither"
            raise ConfigError(
                f"{given} of threads and shared_scheduler is given; give exactly one, "
                "for instance threads=ThreadPolicy.cpu_cores(1.0)"
            )
        if self.shared_scheduler is not None:
            raise ConfigError(
                f"shared_scheduler={self.shared_scheduler!r}: this version has no shared pools; "
                "give threads=ThreadPolicy.fixed(1) instead"
            )

    def _check_types(self) -> None:
        expected: dict[str, type | tuple[type, ...]] = {
            "threads": ThreadPolicy,
            "partitions": PartitionPolicy,
            "selector": (PartitionSelector, type(None)),
            "strategy": BufferStrategy,
            "buffer_size": int,
            "max_batch_items": int,
            "min_idle_ms": (int, float),
            "max_idle_ms": (int, float),
            "shutdown_timeout": (int, float, type(None)),
        }
        for name, kind in expected.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                kinds = kind if isinstance(kind, tuple) else (kind,)
                wanted = " or ".join("None" if one is type(None) else one.__name__ for one in kinds)
                raise ConfigError(f"{name} is {value!r}, a {type(value).__name__}; give {wanted}")

    def _check_numbers(self) -> None:
        for name in ("buffer_size", "max_batch_items"):
            if not 1 <= getattr(self, name) <= _MAX_ITEMS:
                raise ConfigError(f"{name} is {getattr(self, name)}; give 1 to {_MAX_ITEMS:_} items")
        for name in ("min_idle_ms", "max_idle_ms", "shutdown_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name} is {value}; give a finite number from 0 up")
        if self.max_idle_ms < self.min_idle_ms:
            raise ConfigError(
                f"max_idle_ms ({self.max_idle_ms}) is below min_idle_ms ({self.min_idle_ms}); "
                "raise max_idle_ms or lower min_idle_ms"
            )
