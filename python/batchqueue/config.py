"""What a queue is asked for: its settings, as one frozen, picklable value."""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from batchqueue._core import PartitionPolicy, ThreadPolicy
from batchqueue.exceptions import ConfigError
from batchqueue.handlers import SupportsConsume, handler_methods
from batchqueue.policies import DrainBalancer, PartitionSelector, RetryPolicy

__all__ = [
    "BatchQueueConfig",
    "BufferStrategy",
    "DrainBalancer",
    "PartitionPolicy",
    "PartitionSelector",
    "RetryPolicy",
    "ThreadPolicy",
]

T = TypeVar("T")

_MAX_ITEMS = 100_000_000


class BufferStrategy(enum.Enum):
    """What a full partition does to its producer."""

    BLOCKING = "blocking"
    """While no item is lost, producers wait."""

    IF_POSSIBLE = "if_possible"
    """While producers never wait, items are refused: `produce` returns False, and the item is counted."""


@dataclass(frozen=True, kw_only=True)
class BatchQueueConfig(Generic[T]):
    """Settings of one queue. Times are milliseconds where the name says so, else seconds.

    Attributes:
        threads: Drain threads. Exactly one of `threads` and `shared_scheduler` is given.
        shared_scheduler: Name and size of a pool of threads that several queues share. The first
            queue that names it decides its size, the last one ends it. Right for many queues with
            little traffic; such a queue has one drain task, and no balancer.
        partitions: Partitions; fewer than threads reduce the threads, with a warning.
        selector: Which partition an item goes to; None: by type with handlers, round robin with a
            consumer.
        buffer_size: Items per partition, exactly.
        strategy: What a full partition does to its producer.
        consumer: One handler for the items of all types. Wins over handlers.
        consumer_factory: Makes one consumer per drain thread, so that they work in parallel.
        error_handler: Called with the batch and the exception when a handler without `on_error`
            raises.
        retry: How often a batch whose handler raised is tried again before it counts as failed;
            None: never.
        min_idle_ms: How long a drain thread rests after its first empty cycle, so that a batch can
            form; also between cycles of quick, tiny batches. 0: it never rests.
        max_idle_ms: The longest sleep of an idle drain thread between two calls of `on_idle`. Rests
            between cycles of tiny batches grow up to it while those would take more than a third of
            the cores.
        max_batch_items: Items that one drain thread takes in one cycle, rounded up to a segment.
        balancer: What spreads the partitions over the drain threads by measured load; None: they
            stay where they are. Without effect on one drain thread and on a shared scheduler.
        rebalance_interval_ms: Time between two runs of the balancer; 0: it runs only on
            `BatchQueue.rebalance`.
        shutdown_timeout: Seconds that leaving a `with` block and the exit of the interpreter wait
            for accepted items to be handled; None waits as long as it takes.

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
    retry: RetryPolicy | None = None
    min_idle_ms: float = 5
    max_idle_ms: float = 200
    max_batch_items: int = 10_000
    balancer: DrainBalancer | None = None
    rebalance_interval_ms: float = 1_000
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
        shared = self.shared_scheduler
        if shared is not None and not (
            isinstance(shared, tuple)
            and len(shared) == 2
            and isinstance(shared[0], str)
            and shared[0].isprintable()
            and shared[0]
            and isinstance(shared[1], ThreadPolicy)
        ):
            raise ConfigError(
                f"shared_scheduler is {shared!r}; give a name and a ThreadPolicy, "
                'for instance ("IO_POOL", ThreadPolicy.cpu_cores(0.5))'
            )

    def _check_types(self) -> None:
        expected: dict[str, type | tuple[type, ...]] = {
            "threads": (ThreadPolicy, type(None)),
            "partitions": PartitionPolicy,
            "selector": (PartitionSelector, type(None)),
            "strategy": BufferStrategy,
            "buffer_size": int,
            "max_batch_items": int,
            "retry": (RetryPolicy, type(None)),
            "balancer": (DrainBalancer, type(None)),
            "rebalance_interval_ms": (int, float),
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
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; give 1 to {_MAX_ITEMS:_} items"
                )
        for name in ("min_idle_ms", "max_idle_ms", "rebalance_interval_ms", "shutdown_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name} is {value}; give a finite number from 0 up")
        if self.max_idle_ms < self.min_idle_ms:
            raise ConfigError(
                f"max_idle_ms ({self.max_idle_ms}) is below min_idle_ms ({self.min_idle_ms}); "
                "raise max_idle_ms or lower min_idle_ms"
            )
