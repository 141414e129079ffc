"""`BatchQueue`: the core's queue, with handlers, statistics and a context manager."""

import contextlib
import datetime
import functools
import inspect
import os
import types
import typing
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)

import batchqueue.base.threads  # drain threads look these modules up, so they must be loaded
import batchqueue.queues.callbacks
from batchqueue import _core
from batchqueue.base.checks import ABOVE_0, check_finite, check_switch, check_whole
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError, QueueForkedError
from batchqueue.queues.callbacks import DeadLetter
from batchqueue.queues.config import (
    DEFAULT_CONFIG,
    NUMBER_RULES,
    BatchQueueConfig,
    DrainBalancer,
    RetryPolicy,
)
from batchqueue.queues.handlers import (
    HandlerDecorator,
    HandlerMethods,
    SupportsConsume,
    blocking_methods,
    is_coroutine_function,
    refuse_coroutine_functions,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from batchqueue.queues.stats import BatchQueueStats

    T = TypeVarWithDefault("T", default=Any)  # of a queue with the default config
else:
    T = TypeVar("T")

Timeout = float | datetime.timedelta | None
"""Seconds, a `timedelta`, or None for no limit."""

H = TypeVar("H")

DeadLetterHandler = SupportsConsume[DeadLetter[H]] | Callable[[list[DeadLetter[H]]], Any]

F = TypeVar("F", bound=Callable[..., Any])


def named_item_type(method: F) -> F:
    """Make `@queue.handler()` without a class raise ConfigError, which asks for it."""

    @functools.wraps(method)
    def checked(*args: Any, **options: Any) -> Any:
        if len(args) == 1 and "item_type" not in options:
            raise ConfigError(
                "@queue.handler() does not say which items the handler gets; name their class: "
                "@queue.handler(Order)"
            )
        return method(*args, **options)

    return typing.cast(F, checked)


_MAX_PARTITIONS = 1_024
_MAX_WEIGHT = 1_000
_MAX_ITEMS = 100_000_000


class HandlerOptions(NamedTuple):
    """The settings of one type, as the core reads them."""

    weight: float = 1.0
    max_batch_items: int | None = None
    max_delay_ms: float | None = None
    retry: RetryPolicy | None = None
    dead_letter: HandlerMethods | None = None
    replace: bool = False
    subclasses: bool = False

    def check(self) -> None:
        """Raise ConfigError for a setting that is out of range."""
        remedy = f"a number above 0, at most {_MAX_WEIGHT:_}; 1.0 is a whole partition"
        check_finite("weight", self.weight, ABOVE_0, most=_MAX_WEIGHT, give=remedy)
        remedy = f"1 to {_MAX_ITEMS:_} items, or None for the queue's"
        check_whole(
            "max_batch_items", self.max_batch_items, 1, _MAX_ITEMS, remedy, is_optional=True
        )
        NUMBER_RULES["max_delay_ms"].check("max_delay_ms", self.max_delay_ms)
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise ConfigError(
                f"retry is {self.retry!r}, {a_type(self.retry)}; give a RetryPolicy, or None for "
                "the queue's"
            )
        check_switch("replace", self.replace)
        check_switch("subclasses", self.subclasses)


class QueueBase:
    """The common base of `BatchQueue` and `AsyncBatchQueue`: handlers by type, and pictures."""

    config: BatchQueueConfig[Any]

    def _handler_methods(self, handler: Any) -> HandlerMethods:
        """Find the methods of a handler."""
        raise NotImplementedError

    def _register_handlers(
        self, item_type: Any, handlers: list[HandlerMethods], options: HandlerOptions
    ) -> None:
        """Give the core the handlers of a type."""
        raise NotImplementedError

    def stats(self) -> "BatchQueueStats":
        """Return a snapshot of the counts and the usage."""
        raise NotImplementedError

    def add_handler(
        self,
        item_type: type[H] | str,
        handler: SupportsConsume[H] | Callable[[list[H]], Any],
        *,
        weight: float = 1.0,
        replace: bool = False,
        subclasses: bool = False,
        max_batch_items: int | None = None,
        max_delay_ms: float | None = None,
        retry: RetryPolicy | None = None,
        dead_letter: DeadLetterHandler[H] | None = None,
    ) -> None:
        """Send the items of one type to a handler.

        A type is a class, or a tag: a value of the type column of `produce_arrow`, which stands for
        the rows that have it. A type keeps its partition until its handler is removed and the items
        in the partition are settled; then nothing of it is kept. Items that are produced before
        their type has a handler may end as unhandled, so register handlers first.

        With `replace`, the replaced handler still gets the batch that a drain thread may hold, and
        then `on_close`, unless it serves another type of this queue. When the call returns, no
        thread is inside the replaced handler. A call from a drain thread, or of an
        `AsyncBatchQueue`, does not wait for that.

        Args:
            item_type: A class; items match by `type(item)`, and subclasses only with
                `subclasses`. Or a str, the tag of rows.
            handler: An object with `consume`, or a function that takes a list: of items for a
                class, of record batches for a tag. In an `AsyncBatchQueue`, coroutine functions,
                and functions that return an awaitable, run on the current event loop; a handler
                that is registered again, with `replace`, moves to it.
            weight: Share of a partition under `PartitionPolicy.adaptive`, above 0, at most 1 000:
                ten types with 0.1 share one partition. It counts when the type is first registered.
                Default: 1.0.
            replace: Whether the handler replaces the one that the type has. Default: False, a
                second handler is an error.
            subclasses: Whether the handler also takes items of subclasses. When such an item is
                enqueued, it goes to the nearest class in its method resolution order whose handler
                takes it, which costs a few dozen nanoseconds more. Default: False.
            max_batch_items: The most items, or rows, that one call gets, 1 to 100 000 000. Default:
                None, as in the config of the queue.
            max_delay_ms: How long an item may wait for its batch to fill, in milliseconds; 0 means
                not at all. Default: None, as in the config of the queue.
            retry: How a batch whose handler raised is tried again. Default: None, as in the config
                of the queue.
            dead_letter: A handler that gets a list of `DeadLetter`: the items that failed for good.
                Default: None, as in the config of the queue.

        Raises:
            ConfigError: `item_type` is neither a class nor a str, `handler` is not a handler, the
                type has one and `replace` is False, a setting is out of range, or there is a delay
                for batches of one item; also if a method is a coroutine function and the queue is
                not an `AsyncBatchQueue`, or no loop is running.
            QueueClosedError: The queue is shut down.
            QueueForkedError: The queue was made before a fork.
        """
        check_item_type(item_type, self.config, subclasses=subclasses)
        keeper = None if dead_letter is None else self._handler_methods(dead_letter)
        options = HandlerOptions(
            weight, max_batch_items, max_delay_ms, retry, keeper, replace, subclasses
        )
        options.check()
        self._register_handlers(item_type, [self._handler_methods(handler)], options)

    def add_handler_factory(
        self,
        item_type: type[H] | str,
        factory: Callable[[], SupportsConsume[H] | Callable[[list[H]], Any]],
        *,
        partitions: int,
        replace: bool = False,
        subclasses: bool = False,
        max_batch_items: int | None = None,
        max_delay_ms: float | None = None,
        retry: RetryPolicy | None = None,
        dead_letter: DeadLetterHandler[H] | None = None,
    ) -> None:
        """Send the items of a hot type to several handlers, each with its own partition.

        A type in one partition keeps at most one drain thread busy. Here the items are spread
        evenly over `partitions` partitions, and up to that many drain threads handle them. The
        order holds per partition only.

        Args:
            item_type: A class or a tag, as in `add_handler`.
            factory: Makes one handler. It is called once per partition, immediately.
            partitions: Number of partitions and handlers, 1 to 1 024. If the queue has a fixed
                number of partitions, at most that number.
            replace: As in `add_handler`.
            subclasses: As in `add_handler`.
            max_batch_items: As in `add_handler`.
            max_delay_ms: As in `add_handler`.
            retry: As in `add_handler`.
            dead_letter: As in `add_handler`.

        Raises:
            ConfigError: `item_type` is neither a class nor a str, the factory does not return
                handlers, the type has a handler and `replace` is False, a setting is out of range,
                the selector is not by type, or the type was registered before with another number
                of partitions.
            QueueClosedError: The queue is shut down.
            QueueForkedError: The queue was made before a fork.
        """
        check_item_type(item_type, self.config, subclasses=subclasses)
        check_factory(factory, partitions)
        keeper = None if dead_letter is None else self._handler_methods(dead_letter)
        options = HandlerOptions(
            1.0, max_batch_items, max_delay_ms, retry, keeper, replace, subclasses
        )
        options.check()
        handlers = [self._handler_methods(factory()) for _ in range(partitions)]
        self._register_handlers(item_type, handlers, options)

    @named_item_type
    def handler(
        self,
        item_type: type[H] | str,
        *,
        weight: float = 1.0,
        replace: bool = False,
        subclasses: bool = False,
        max_batch_items: int | None = None,
        max_delay_ms: float | None = None,
        retry: RetryPolicy | None = None,
        dead_letter: DeadLetterHandler[H] | None = None,
    ) -> HandlerDecorator[H]:
        """Register the decorated function, or an instance of the decorated class, as a handler.

        Args:
            item_type: A class or a tag, as in `add_handler`.
            weight: As in `add_handler`.
            replace: As in `add_handler`.
            subclasses: As in `add_handler`.
            max_batch_items: As in `add_handler`.
            max_delay_ms: As in `add_handler`.
            retry: As in `add_handler`.
            dead_letter: As in `add_handler`.

        Returns:
            A decorator that returns the decorated object unchanged.

        Raises:
            ConfigError: The type is missing, as in `@queue.handler`; also as `add_handler`, when
                the decorator is applied.
        """
        check_decorated_type(item_type)

        def register(handler: Any) -> Any:
            self.add_handler(
                item_type,
                handler() if isinstance(handler, type) else handler,
                weight=weight,
                replace=replace,
                subclasses=subclasses,
                max_batch_items=max_batch_items,
                max_delay_ms=max_delay_ms,
                retry=retry,
                dead_letter=dead_letter,
            )
            return handler

        return register

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draw the load of each drain thread and partition, before and after balancing.

        The load of a partition is the time spent in handlers for its items or, before any call has
        taken time, the number of items that producers tried to enqueue. The picture shows the loads
        as if no partition had moved, and as they are now. The tooltip of a partition names its
        types.

        Args:
            path: The SVG file, which is overwritten. Its name should end in `.svg`.

        Raises:
            ConfigError: `path` is not a path, or names another format, such as `.png`.
            OSError: The file cannot be written.
            QueueForkedError: The queue was made before a fork.
        """
        from batchqueue.queues.stats import draw

        draw(self.stats(), path)

    def _repr_html_(self) -> str:
        from html import escape

        from batchqueue.queues.stats import stats_html

        try:
            return stats_html(self.stats(), repr(self).strip("<>"))
        except QueueForkedError:
            return escape(repr(self))


class BatchQueue(_core.Queue, QueueBase, Generic[T]):
    """A partitioned queue that drains itself. It starts immediately and is not registered.

    Producers call `produce` from any thread. Native drain threads take the items out, group them by
    class, and pass the batch of each class to its handler as a list. No two threads are ever inside
    one handler instance concurrently.

    Args:
        name: The name in logs, statistics and thread names; printable characters, at least one.
        config: The settings. Default: one drain thread per core that this process may use,
            `PartitionPolicy.adaptive()`, and the defaults of `BatchQueueConfig`.

    Raises:
        ConfigError: The name or a setting is invalid.

    Example:
        >>> from batchqueue import BatchQueue
        >>> seen = []
        >>> with BatchQueue("words") as queue:
        ...     queue.add_handler(str, seen.extend)
        ...     queue.produce_many(["to", "be", "or", "not"])
        4
        >>> seen
        ['to', 'be', 'or', 'not']
    """

    config: BatchQueueConfig[T]

    def __new__(cls, name: str, config: BatchQueueConfig[T] = DEFAULT_CONFIG) -> Self:
        """Start the drain threads."""
        check_name_and_config(name, config)
        if is_coroutine_function(config.error_handler):
            refuse_coroutine_functions(config.error_handler, ["error_handler"])
        queue = start_core_queue(cls, name, config, blocking_methods)
        queue.config = config
        return queue

    def __init__(self, name: str, config: BatchQueueConfig[T] = DEFAULT_CONFIG) -> None:
        """Do nothing: the queue is running already. Subclasses may call this as usual."""

    if TYPE_CHECKING:  # the core's methods, typed with T

        def produce(self, item: T, *, timeout: Timeout = None) -> bool:  # type: ignore[override]
            """Enqueue one item."""
            ...

        def produce_many(  # type: ignore[override]
            self, items: Iterable[T], *, timeout: Timeout = None
        ) -> int:
            """Enqueue many items in order, up to the first that is refused."""
            ...

        def submit(  # type: ignore[override]
            self, item: T, *, timeout: Timeout = None
        ) -> Future[Any]:
            """Enqueue one item and return a future of its result."""
            ...

    def stats(self) -> "BatchQueueStats":
        """Return a snapshot of the counts and the usage. Works after shutdown too."""
        from batchqueue.queues.stats import BatchQueueStats

        return BatchQueueStats.from_snapshot(_core.stats_of(self))

    def __enter__(self) -> Self:
        """Return the queue."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Shut the queue down: deliver accepted items within `config.shutdown_timeout` seconds.

        In a forked child there is nothing to deliver, and leaving the block raises no error.
        """
        with contextlib.suppress(QueueForkedError):
            self.shutdown(self.config.shutdown_timeout)

    def __repr__(self) -> str:
        try:
            return f"<BatchQueue {self.name!r} {'running' if self.running else 'shut down'}>"
        except QueueForkedError:
            return f"<BatchQueue {self.name!r} made before a fork>"

    def _handler_methods(self, handler: Any) -> HandlerMethods:
        return blocking_methods(handler)

    def _register_handlers(
        self, item_type: Any, handlers: list[HandlerMethods], options: HandlerOptions
    ) -> None:
        _core.add_handlers(self, item_type, handlers, options)


FindMethods = Callable[[Any], HandlerMethods]
Q = TypeVar("Q", bound=_core.Queue)


def start_core_queue(
    cls: type[Q], name: str, config: BatchQueueConfig[Any], methods: FindMethods
) -> Q:
    """Make a queue of the core and start its drain threads.

    Args:
        cls: The core's class, or a subclass.
        name: The name of the queue.
        config: The settings.
        methods: Finds the methods of a consumer.
    """
    selector = config.effective_selector
    queue: Q = _core.Queue.__new__(
        cls,
        name,
        config,
        (selector.kind, selector.function),
        _consumers(config, methods),
        config.consumer_factory is not None,
        None if config.dead_letter is None else methods(config.dead_letter),
        None if config.default_handler is None else methods(config.default_handler),
    )  # type: ignore[assignment] # the stub of `Queue` names the class itself
    note_queue(queue)
    batchqueue.queues.callbacks.queue_restarted()
    return queue


def _consumers(config: BatchQueueConfig[Any], methods: FindMethods) -> list[HandlerMethods]:
    if config.consumer is not None:
        return [methods(config.consumer)]
    if config.consumer_factory is not None:
        # A queue on a shared scheduler, or inline, has one drain task.
        threads = None if config.inline else config.threads
        count = 1 if threads is None else _core.thread_count(threads, config.partitions)
        return [methods(config.consumer_factory()) for _ in range(count)]
    return []


# Checks of arguments that both kinds of queue take.


def seconds_of(timeout: Timeout) -> float | None:
    """Return a timeout in seconds, or raise ConfigError."""
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise ConfigError(
            f"timeout is {timeout!r}, {a_type(timeout)}; give seconds from 0 up, a "
            "timedelta, or None to wait"
        )
    if not seconds >= 0:
        raise ConfigError(f"timeout is {seconds}; give seconds from 0 up, or None to wait")
    return seconds


def misplaced(method: str, given: tuple[object, ...]) -> TypeError:
    """Return the error for an extra positional argument: a timeout is given by name only."""
    return TypeError(
        f"{method} takes one positional argument, and {given[0]!r} is a second one; give a timeout "
        f"by name, in seconds: timeout={given[0]!r}"
    )


def check_name_and_config(name: object, config: object) -> None:
    """Raise ConfigError for an invalid name or config."""
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise ConfigError(
            f"the queue's name is {name!r}; give a str of printable characters, at least one"
        )
    if not isinstance(config, BatchQueueConfig):
        raise ConfigError(f"config is {a_type(config)}; give a BatchQueueConfig")


def check_loop_config(config: BatchQueueConfig[Any]) -> None:
    """Raise ConfigError for a setting that a queue on an event loop cannot have."""
    if config.restart_after_fork:
        raise ConfigError(
            "restart_after_fork=True is given for an AsyncBatchQueue, whose event loop does not "
            "exist in a forked child; make the queue in the child, where its loop runs"
        )
    if config.inline:
        raise ConfigError(
            "inline=True is given for an AsyncBatchQueue, where a handler would wait for the event "
            "loop that it holds up; test the handler with a BatchQueue, or await flush()"
        )


def check_factory(factory: object, partitions: object) -> None:
    """Raise ConfigError for an invalid factory or number of partitions."""
    remedy = f"1 to {_MAX_PARTITIONS:_} partitions"
    check_whole("partitions", partitions, 1, _MAX_PARTITIONS, remedy)
    if not callable(factory):
        raise ConfigError(
            f"factory is {factory!r}; give a function without arguments that returns a handler"
        )


_TypeAlias: Any = getattr(typing, "TypeAliasType", ())  # of a `type` statement, from 3.12 on


def check_item_type(
    item_type: object, config: BatchQueueConfig[Any], *, subclasses: bool = False
) -> None:
    """Raise ConfigError for a type that no item can have, and for a handler beside a consumer.

    Values that are neither a class nor a str are left to the core.
    """
    if config.consumer is not None or config.consumer_factory is not None:
        given = "consumer" if config.consumer is not None else "consumer_factory"
        raise ConfigError(
            f"the queue has a {given}, which gets the items of all types: a handler of "
            f"{_name_of(item_type)} would get none; leave {given} out of the config and add "
            "handlers, or handle the type in the consumer"
        )
    if subclasses and isinstance(item_type, str):
        raise ConfigError(
            f"item_type is the tag {item_type!r} with subclasses=True, and a tag has none; leave "
            "subclasses out"
        )
    if item_type is Any:
        raise ConfigError(
            "item_type is Any, and no item is of that class; give the class of the items, or a "
            "consumer in the config for items of all classes"
        )
    refuse_annotation(item_type)
    if isinstance(item_type, type):
        if getattr(item_type, "_is_protocol", False):
            raise ConfigError(
                f"item_type is the Protocol {item_type.__qualname__}, and no item is of that "
                "class; give the class of the items"
            )
        if is_typeddict(item_type):
            raise ConfigError(
                f"item_type is the TypedDict {item_type.__qualname__}, whose items are of class "
                "dict; give dict, or make the items a dataclass"
            )
        if not subclasses and inspect.isabstract(item_type):
            raise ConfigError(
                f"item_type is the abstract class {item_type.__qualname__}, and items are of its "
                "subclasses only; give subclasses=True, or the class of the items"
            )


def refuse_annotation(item_type: object) -> None:
    """Raise ConfigError for an annotation that is not a class, and name the class to give.

    Other values are left to the core.
    """
    remedy = _class_behind(item_type)
    if remedy is not None:
        raise ConfigError(
            f"item_type is {item_type!r}, and no item is of that class: items go by `type(item)`; "
            f"give {remedy}"
        )


def _class_behind(item_type: Any) -> str | None:
    """Return what to give instead of an annotation; None for anything else."""
    origin = get_origin(item_type)
    if origin is not None:
        return _class_of_alias(item_type, origin)
    if isinstance(item_type, NewType):
        return f"the class behind the NewType: {_name_of(item_type.__supertype__)}"
    if isinstance(item_type, TypeVar):
        return "the class that the TypeVar stands for, once for each class"
    if isinstance(item_type, _TypeAlias):
        return f"the class behind the alias: {_name_of(item_type.__value__)}"
    return None


def _class_of_alias(alias: Any, origin: Any) -> str | None:
    if origin in (Union, types.UnionType):
        members = " and ".join(_name_of(member) for member in get_args(alias))
        return f"a class, and add the handler once for each member: {members}"
    if origin is Literal:
        classes = dict.fromkeys(type(value).__qualname__ for value in get_args(alias))
        return f"the class of the values: {' or '.join(classes)}"
    if origin is Annotated:
        return f"the class that it annotates: {_name_of(alias.__origin__)}"
    if isinstance(origin, type):
        return f"the class without its arguments: {_name_of(origin)}"
    return None


def check_decorated_type(item_type: object) -> None:
    """Raise ConfigError for a bare `@queue.handler`, which gets the handler instead of a type."""
    refuse_annotation(item_type)
    is_class = isinstance(item_type, type)
    if (is_class and callable(getattr(item_type, "consume", None))) or (
        not is_class and not isinstance(item_type, str) and callable(item_type)
    ):
        raise ConfigError(
            f"@queue.handler got {_name_of(item_type)} as the type of its items, which looks like "
            "the handler; name the class of the items: @queue.handler(Order)"
        )


def _name_of(item_type: object) -> str:
    return getattr(item_type, "__qualname__", None) or repr(item_type)


# The live queues of this process, registered with the manager or not.


# In order of creation. Each access is a single atomic step, without a lock: a queue may be made or
# collected at any point, even in the middle of an access.
_references: dict[int, weakref.ref[_core.Queue]] = {}


def note_queue(queue: _core.Queue) -> None:
    """Add a queue to the live ones until it is collected."""
    reference = weakref.ref(queue, lambda gone: _references.pop(id(gone), None))
    _references[id(reference)] = reference


def live_queues() -> list[_core.Queue]:
    """Return the live queues in order of creation, including those that are shut down."""
    queues = [reference() for reference in list(_references.values())]
    return [queue for queue in queues if queue is not None]


def live_stats() -> "list[tuple[_core.Queue, BatchQueueStats]]":
    """Return each live queue with a snapshot, except those made before a fork."""
    from batchqueue.queues.stats import BatchQueueStats

    found = []
    for queue in live_queues():
        try:
            found.append((queue, BatchQueueStats.from_snapshot(_core.stats_of(queue))))
        except QueueForkedError:
            continue
    return found


_core.prepare_for_forks(
    BatchQueueConfig(
        threads=_core.ThreadPolicy.fixed(1),
        retry=RetryPolicy(),
        balancer=DrainBalancer.throughput_weighted(),
    ),
    HandlerOptions(),
)
