"""`BatchQueue`: the core's queue with its registration and its context manager."""

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsFloat, SupportsIndex, TypeVar

import batchqueue._callbacks  # noqa: F401 - the core looks it up from drain threads, so it must be loaded
from batchqueue import _core
from batchqueue.config import BatchQueueConfig
from batchqueue.exceptions import ConfigError, QueueForkedError
from batchqueue.handlers import (
    HandlerMethods,
    SupportsConsume,
    blocking_methods,
    is_coroutine_function,
    refuse_coroutine_functions,
)
from batchqueue.stats import BatchQueueStats

T = TypeVar("T")
H = TypeVar("H")


class BatchQueue(_core.Queue, Generic[T]):
    """A partitioned queue that drains itself. It starts at once and belongs to no registry.

    Producers call `produce` from any thread. Native drain threads take the items out, group them by
    class, and hand each class's batch to its handler as a list. One handler instance is never
    entered by two threads at once.

    Args:
        name: For logs, statistics and thread names.
        config: The settings.

    Raises:
        ConfigError: A setting cannot be used.

    Example:
        >>> from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy
        >>> seen = []
        >>> with BatchQueue("words", BatchQueueConfig(threads=ThreadPolicy.fixed(1))) as queue:
        ...     queue.add_handler(str, seen.extend)
        ...     queue.produce_many(["to", "be", "or", "not"])
        4
        >>> seen
        ['to', 'be', 'or', 'not']
    """

    config: BatchQueueConfig[T]

    def __new__(cls, name: str, config: BatchQueueConfig[T]) -> Self:
        """Start the drain threads."""
        check(name, config)
        if is_coroutine_function(config.error_handler):
            refuse_coroutine_functions(config.error_handler, ["error_handler"])
        queue = start(cls, name, config, blocking_methods)
        queue.config = config
        return queue

    def __init__(self, name: str, config: BatchQueueConfig[T]) -> None:
        """Do nothing: the queue runs already. A subclass may call it as any other `__init__`."""

    if TYPE_CHECKING:  # the core's methods, which know nothing of T

        def produce(self, item: T, *, timeout: SupportsFloat | SupportsIndex | None = None) -> bool:
            """Put one item in."""
            ...

        def produce_many(
            self, items: Iterable[T], *, timeout: SupportsFloat | SupportsIndex | None = None
        ) -> int:
            """Put many items in, in order, up to the first that is refused."""
            ...

    def add_handler(
        self,
        item_type: type[H] | str,
        handler: SupportsConsume[H] | Callable[[list[H]], Any],
        *,
        weight: float = 1.0,
    ) -> None:
        """Send the items of one type to a handler, in place of the one it had.

        A type is a class, or a tag: the rows that `produce_arrow` finds with that value in its type
        column. It keeps its partition for the queue's life. Items that were produced before their
        type had a handler may end as unhandled, so register first.

        A handler that is replaced gets the batch that a drain thread may have in hand, and then
        `on_close`, unless it serves another type of this queue. When the call returns, no thread is
        inside it; called from a drain thread it does not wait for that.

        Args:
            item_type: The class; items match by `type(item)`, subclasses do not. Or a str, the tag
                of rows.
            handler: An object with `consume`, or a function that takes a list: of items, or of
                record batches.
            weight: Share of a partition under `PartitionPolicy.adaptive`: 0.1 lets ten such types
                share one. Counts when the type is registered for the first time.

        Raises:
            ConfigError: Neither class nor tag, no handler, or a weight that is not above 0.
            QueueClosedError: The queue is shut down.
        """
        check_weight(weight)
        self._add_handlers(item_type, [blocking_methods(handler)], weight)

    def add_handler_factory(
        self,
        item_type: type[H] | str,
        factory: Callable[[], SupportsConsume[H]],
        *,
        partitions: int,
    ) -> None:
        """Send the items of a hot type to several handlers, one for each of as many partitions.

        One type in one partition keeps one drain thread busy at most. Here its items are spread
        evenly, and as many drain threads as there are partitions can work on them. The order holds
        per partition only.

        Args:
            item_type: The class, or the tag, as in `add_handler`.
            factory: Makes one handler; called once per partition, now.
            partitions: Partitions, and handlers; from 1 up. With a fixed number of partitions, at
                most that many.

        Raises:
            ConfigError: Neither class nor tag, no handlers, a number that is out of range, the
                selector is not by type, or the type was registered before with another number of
                partitions.
            QueueClosedError: The queue is shut down.
        """
        check_factory(factory, partitions)
        handlers = [blocking_methods(factory()) for _ in range(partitions)]
        self._add_handlers(item_type, handlers, 1.0)

    def handler(self, item_type: type[Any] | str, *, weight: float = 1.0) -> Callable[[Any], Any]:
        """Register the decorated function, or an instance of the decorated class, as the handler of a type.

        Args:
            item_type: The class of the items, or the tag of the rows.
            weight: As in `add_handler`.

        Returns:
            A decorator that returns what it decorates.
        """

        def register(handler: Any) -> Any:
            self.add_handler(
                item_type, handler() if isinstance(handler, type) else handler, weight=weight
            )
            return handler

        return register

    def stats(self) -> BatchQueueStats:
        """Return a snapshot of counts and use; also after shutdown."""
        return BatchQueueStats.from_snapshot(self._stats())

    def __enter__(self) -> Self:
        """Return the queue."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Deliver what was accepted, within `config.shutdown_timeout` seconds.

        In a forked child there is nothing to deliver, and an exit from the block is not made an
        error.
        """
        with contextlib.suppress(QueueForkedError):
            self.shutdown(self.config.shutdown_timeout)

    def __repr__(self) -> str:
        try:
            return f"<BatchQueue {self.name!r} {'running' if self.running else 'shut down'}>"
        except QueueForkedError:
            return f"<BatchQueue {self.name!r} made before a fork>"


_MAX_PARTITIONS = 65_536

Methods = Callable[[Any], HandlerMethods]
Q = TypeVar("Q", bound=_core.Queue)


def check(name: object, config: object) -> None:
    """Raise ConfigError for what is no name or no config."""
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise ConfigError(
            f"the queue's name is {name!r}; give a str of printable characters, at least one"
        )
    if not isinstance(config, BatchQueueConfig):
        raise ConfigError(f"config is a {type(config).__name__}; give a BatchQueueConfig")


def check_weight(weight: float) -> None:
    """Raise ConfigError for a weight that is not above 0."""
    if not 0 < weight < float("inf"):
        raise ConfigError(
            f"weight is {weight}; give a number above 0, 1.0 for a partition of its own"
        )


def check_factory(factory: object, partitions: object) -> None:
    """Raise ConfigError for what is no factory, or no number of partitions."""
    if (
        not isinstance(partitions, int)
        or isinstance(partitions, bool)
        or not 1 <= partitions <= _MAX_PARTITIONS
    ):
        raise ConfigError(f"partitions is {partitions!r}; give 1 to {_MAX_PARTITIONS:_} partitions")
    if not callable(factory):
        raise ConfigError(
            f"factory is {factory!r}; give a function without arguments that returns a handler"
        )


def start(cls: type[Q], name: str, config: BatchQueueConfig[Any], methods: Methods) -> Q:
    """Make a queue of the core, and with it start its drain threads.

    Args:
        cls: The core's class, or one below it.
        name: The queue's name.
        config: The settings.
        methods: Finds what to call on a consumer.
    """
    selector = config.effective_selector
    return _core.Queue.__new__(
        cls,
        name,
        config,
        selector.kind,
        selector.function,
        _consumers(config, methods),
        config.consumer_factory is not None,
    )  # type: ignore[return-value] # the stub of `Queue` names the class itself


def _consumers(config: BatchQueueConfig[Any], methods: Methods) -> list[HandlerMethods]:
    if config.consumer is not None:
        return [methods(config.consumer)]
    if config.consumer_factory is not None:
        # A queue on a shared scheduler has one drain task.
        count = (
            1 if config.threads is None else _core.thread_count(config.threads, config.partitions)
        )
        return [methods(config.consumer_factory()) for _ in range(count)]
    return []


# A forked child has none of the drain threads: its copies of the queues say so instead of hanging.
os.register_at_fork(after_in_child=_core.after_fork_in_child)
