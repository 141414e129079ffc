"""The settings of a queue, as a frozen value that can be pickled."""

import datetime
import enum
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from batchqueue._core import PartitionPolicy, ThreadPolicy
from batchqueue.base.checks import (
    check_finite,
    check_switch,
    check_whole,
    refuse_duration,
)
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.queues.callbacks import DeadLetter
from batchqueue.queues.handlers import SupportsConsume, handler_methods, refuse_generator_function

__all__ = [
    "BatchQueueConfig",
    "BufferStrategy",
    "DrainBalancer",
    "PartitionPolicy",
    "PartitionSelector",
    "RetryPolicy",
    "ThreadPolicy",
]


# Selectors, balancers and retries: frozen values that can be pickled.


_SELECTORS = {
    "by_type": "by_type()",
    "round_robin": "round_robin()",
    "by_key": "by_key(function)",
    "custom": "custom(function)",
}
_BALANCERS = {
    "load_weighted": "load_weighted()",
    "throughput_weighted": "throughput_weighted()",
    "custom": "custom(function)",
}
"""The calls that make each kind, by its name."""


@dataclass(frozen=True)
class PartitionSelector:
    """The rule that picks the partition of an item. Use the static methods to make one."""

    kind: str
    function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        _check_kind("PartitionSelector", self.kind, self.function, _SELECTORS)

    @staticmethod
    def by_type() -> "PartitionSelector":
        """Use the partition of the item's class. Keeps the order per class and producer thread.

        The default with handlers.
        """
        return PartitionSelector("by_type")

    @staticmethod
    def round_robin() -> "PartitionSelector":
        """Use the next partition for each item, which spreads the items evenly.

        Keeps the order per partition. The default with `consumer` and `consumer_factory`.
        """
        return PartitionSelector("round_robin")

    @staticmethod
    def by_key(key: Callable[[Any], Any]) -> "PartitionSelector":
        """Use the partition of a key. Keeps the order per key and producer thread.

        A key maps to the same partition in every process with the same number of partitions.

        Args:
            key: Takes an item and returns a str, bytes or int. Any other type makes `produce` raise
                ConfigError.

        Raises:
            ConfigError: `key` is not callable.
        """
        return PartitionSelector("by_key", key)

    @staticmethod
    def custom(select: Callable[[Any, int], int]) -> "PartitionSelector":
        """Use the partition that your function returns.

        Args:
            select: Takes an item and the number of partitions, and returns an index from 0 to that
                number minus 1. Any other value makes `produce` raise ConfigError.

        Raises:
            ConfigError: `select` is not callable.
        """
        return PartitionSelector("custom", select)


@dataclass(frozen=True)
class DrainBalancer:
    """The rule that spreads partitions over drain threads. Use the static methods to make one.

    The weighted balancers give all drain threads about the same load with few moves. They repair
    the current assignment if the result comes close to longest-processing-time-first (Graham,
    1969); otherwise they use the latter, matched to the current owners. No partition moves while
    the largest thread load is below `skip_ratio` times the smallest.
    """

    kind: str
    skip_ratio: float = 1.15
    function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        _check_kind("DrainBalancer", self.kind, self.function, _BALANCERS)
        check_finite("DrainBalancer: skip_ratio", self.skip_ratio, 1, ", for instance 1.15")

    @staticmethod
    def load_weighted(skip_ratio: float = 1.15) -> "DrainBalancer":
        """Weigh a partition by how long its handlers were busy since the last run.

        Suits all queues; `balancer=True` in a config selects it.

        Args:
            skip_ratio: Ratio of the largest thread load to the smallest, 1 or more, below which no
                partition moves. Default: 1.15.

        Raises:
            ConfigError: `skip_ratio` is below 1 or not finite.
        """
        return DrainBalancer("load_weighted", skip_ratio)

    @staticmethod
    def throughput_weighted(skip_ratio: float = 1.15) -> "DrainBalancer":
        """Weigh a partition by the items that producers tried to enqueue.

        Refused items count up to the number of accepted ones. Suits queues whose items all cost
        about the same.

        Args:
            skip_ratio: Ratio of the largest thread load to the smallest, 1 or more, below which no
                partition moves. Default: 1.15.

        Raises:
            ConfigError: `skip_ratio` is below 1 or not finite.
        """
        return DrainBalancer("throughput_weighted", skip_ratio)

    @staticmethod
    def cost_weighted(skip_ratio: float = 1.15) -> "DrainBalancer":
        """Return `load_weighted(skip_ratio)`; this is its former name."""
        return DrainBalancer.load_weighted(skip_ratio)

    @staticmethod
    def custom(
        assign: Callable[[list[float], list[int], int], list[int] | None],
    ) -> "DrainBalancer":
        """Use your own assignment.

        Args:
            assign: Takes the load per partition (items since the last run), the drain thread per
                partition (from 0), and the number of drain threads. Returns the wanted drain thread
                per partition, or None to leave all partitions where they are. A list of the wrong
                length, or with an invalid drain thread, is rejected and logged. The function runs
                on the control thread, or on the thread that calls `rebalance`, never on a drain
                thread.

        Raises:
            ConfigError: `assign` is not callable.
        """
        return DrainBalancer("custom", function=assign)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The rule for retrying a batch whose handler raised: how often, and when.

    Meanwhile, later items of its class in its partition wait, which keeps the order; other classes
    do not wait, and no thread does. The batch counts once: as consumed when an attempt succeeds, as
    failed when the last attempt raises. Only then is `on_error` or `error_handler` called. Each
    attempt gets a new list.

    A shutdown does not shorten the waits while it has time. Shortly before it runs out, each
    waiting batch is tried once more, and a batch that fails then has failed for good. This attempt
    starts early enough to leave each waiting batch of the partition 50 ms plus twice the expected
    time of a call and of a call of its `dead_letter` handler, and the last batch another 50 ms;
    together, at most half of the time of the shutdown.

    Attributes:
        attempts: The number of attempts, including the first: 1 to 1000. None retries until an
            attempt succeeds, the handler is removed, or a shutdown runs out of time; a shutdown
            without a `timeout` then lasts until the handler succeeds. Default: 3.
        backoff_ms: Wait before the second attempt, at most `max_backoff_ms`. Default: 100 ms.
        factor: The ratio of each wait to the previous one, 1 or more. Default: 2.
        max_backoff_ms: The longest wait, including the first. Default: 5000 ms.
        retry_on: Exceptions after which the batch is tried again; after any other it fails
            immediately. `()` retries after none. Default: any `Exception`.
        jitter: The largest share of each wait, 0 to 1, that is cut off at random: the wait is
            multiplied by `1 - jitter * random()`, so that batches that failed together are not
            retried together. Default: 0.
        bisect: Whether a batch that has used up its attempts is halved, each half tried once, and
            so on, until each bad item fails alone. For n items, of which k are bad, this takes at
            most 2 k (1 + log2(n / k)) further calls. The order is kept. Items that a handler named
            in a `BatchFailed` are not halved, nor is any batch while a shutdown has less than a
            tenth of its time left. Invalid with `attempts=None`, which are never used up. Default:
            False.

    Raises:
        ConfigError: A value is out of range; the message names the setting and its limit.
    """

    attempts: int | None = 3
    backoff_ms: float = 100
    factor: float = 2.0
    max_backoff_ms: float = 5_000
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    jitter: float = 0.0
    bisect: bool = False

    def __post_init__(self) -> None:
        tries = "1 to 1_000 tries, the first included, or None for no limit"
        check_whole("retry: attempts", self.attempts, 1, 1_000, tries, is_optional=True)
        for name, least in (("backoff_ms", 0), ("factor", 1), ("max_backoff_ms", 0)):
            check_finite(f"retry: {name}", getattr(self, name), least)
        check_finite("retry: jitter", self.jitter, 0, most=1, give="a number from 0 to 1")
        check_switch("retry: bisect", self.bisect)
        if self.bisect and self.attempts is None:
            raise ConfigError(
                "retry: attempts is None, so that no batch is ever halved; give 1 to 1_000 tries, "
                "or leave bisect out"
            )
        kinds = self.retry_on
        if not isinstance(kinds, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
        ):
            raise ConfigError(f"retry: retry_on is {kinds!r}; give a tuple of exception classes")


def wait_ms(retry: RetryPolicy, tries: int) -> float:
    """Return the wait in milliseconds after `tries` attempts, at least one."""
    try:
        wait = retry.backoff_ms * float(retry.factor) ** (tries - 1)
    except OverflowError:
        return longest_wait_ms(retry) if retry.backoff_ms > 0 else 0.0
    return min(wait, retry.max_backoff_ms) * _cut(retry)


def longest_wait_ms(retry: RetryPolicy) -> float:
    """Return the longest wait of a policy in milliseconds, less its jitter."""
    return retry.max_backoff_ms * _cut(retry)


def _cut(retry: RetryPolicy) -> float:
    import random

    return 1 - retry.jitter * random.random()


def _check_kind(owner: str, kind: object, function: object, kinds: dict[str, str]) -> None:
    """Raise ConfigError for an unknown kind, or a function that does not fit the kind."""
    if not isinstance(kind, str) or kind not in kinds:
        ways = [f"{owner}.{way}" for way in kinds.values()]
        raise ConfigError(
            f"{owner}({kind!r}) is not a known kind; use {', '.join(ways[:-1])} or {ways[-1]}"
        )
    takes_function = kinds[kind].endswith("(function)")
    if takes_function and not callable(function):
        raise ConfigError(
            f"{owner}.{kind}: {function!r} is not callable; give a function: {owner}.{kinds[kind]}"
        )
    if not takes_function and function is not None:
        ways = [f"{owner}.{way}" for way in kinds.values() if way.endswith("(function)")]
        raise ConfigError(
            f"{owner}({kind!r}) takes no function, and {function!r} is given; leave it out, or use "
            f"{' or '.join(ways)}"
        )


if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=Any)  # of a config without handlers
else:
    T = TypeVar("T")

_IN_SECONDS = ("warn_after", "shutdown_timeout")


class BufferStrategy(enum.Enum):
    """The reaction of `produce` to a full partition."""

    BLOCKING = "blocking"
    """The producer waits: no item is lost."""

    IF_POSSIBLE = "if_possible"
    """The item is refused and counted, and `produce` returns False: no producer waits."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchQueueConfig(Generic[T]):
    """The settings of one queue.

    Times are in milliseconds if the name ends in `_ms`; otherwise they are in seconds, or a
    `timedelta`, which is converted to seconds.

    Attributes:
        threads: Drain threads. Exactly one of `threads` and `shared_scheduler` must be given.
        shared_scheduler: Name and size of a pool of threads that several queues share. The first
            queue that names the pool decides its size, and the pool ends with its last queue. Use
            it for many queues with little traffic: each of them has a single drain task and no
            balancer. Default: None, the queue has its own threads.
        partitions: Number of partitions; if there are fewer than threads, threads are reduced, with
            a warning. Default: one partition.
        selector: The rule that picks the partition of an item. Default: None, which means by type
            with handlers, and round robin with a consumer.
        buffer_size: Capacity of each partition, in items; an exact bound. Default: 10 000.
        strategy: What `produce` does when a partition is full. Default: it waits.
        consumer: A single handler for items of all types, in place of handlers by type. Default:
            None.
        consumer_factory: Makes one consumer per drain thread, so that consumers work in parallel.
            Default: None.
        error_handler: Called with the batch and the exception when a handler without `on_error`
            raises. Default: None, the error is logged.
        retry: How a batch whose handler raised is retried before it counts as failed. Default:
            None, never.
        dead_letter: A handler that gets a list of `DeadLetter`: the items that failed for good. It
            gets each of them once, is never called concurrently, and makes them count as failed if
            it raises. Up to `buffer_size` items wait for it; beyond that, later items of their
            class and partition wait as well. Default: None, such items count as failed.
        default_handler: A handler for items whose class has no handler, not even as a subclass, and
            for rows whose tag has none. It is chosen when an item is enqueued. Default: None, such
            items count as unhandled and are logged.
        min_idle_ms: How long a drain thread rests after its first empty cycle, so that a batch can
            form; also between cycles with quick, tiny batches. It does not rest while items arrive
            too far apart for a batch to form. 0 means no rest. Default: 5 ms.
        max_idle_ms: The longest sleep of an idle drain thread between two calls of `on_idle`. Rests
            between cycles with tiny batches grow up to this time while such cycles would use more
            than a third of the cores. Default: 200 ms.
        max_batch_items: The exact limit of items, or rows, per call of a handler, and the most that
            a drain thread takes from a partition in one cycle. Default: 10 000.
        max_delay_ms: How long an item may wait for its batch to fill. A batch is handled when it
            has `max_batch_items`, or when its oldest item has waited this long; earlier if its
            partition is full, a producer or a `flush` waits, or the queue is shut down. The order
            is unaffected, and a retry does not wait again. Default: None, a batch is handled as
            soon as a drain thread takes it.
        balancer: How partitions are spread over the drain threads by measured load; True means
            `DrainBalancer.load_weighted()`. It has no effect with one drain thread or on a shared
            scheduler. Default: None, partitions stay where they are.
        rebalance_interval_ms: Time between two runs of the balancer. 0 means that only
            `BatchQueue.rebalance` runs it. Default: 1000 ms.
        takeover_after_ms: The time in one call after which a drain thread counts as held up. Others
            take over its partitions after one to two times this time. Default: 20 ms.
        spare_threads: The number of extra drain threads, which start while all others are held up
            and end after ten seconds without work. On a shared scheduler they run in addition to
            its threads. Default: None, which means one per drain thread, at most 8, and none with a
            single drain thread, on a shared scheduler, or with a consumer_factory.
        warn_after: Seconds until a warning that a handler call takes long, a producer waits for
            room, or an item waits for its call. The warning includes the stack of the handler, and
            is repeated each time the duration has doubled, and when it is over. None means never.
            Default: 10 s.
        restart_after_fork: Whether a forked child, as of `multiprocessing` or `gunicorn --preload`,
            gets an empty queue with its own drain threads and the handlers that the queue has at
            its first use in the child. Items that the parent has accepted stay with the parent.
            Invalid for an AsyncBatchQueue. Default: False, the child gets QueueForkedError.
        inline: For unit tests of handlers: the queue has no threads, and the handlers run in
            `produce`, in the caller's thread and `contextvars` context, with the same checks,
            retries, dead letters, errors and counts. The wait before a retry holds up `produce`, no
            batch waits for `max_delay_ms`, and a timeout does not interrupt a handler. Invalid for
            an AsyncBatchQueue and with a shared scheduler. Default: False.
        shutdown_timeout: Seconds that leaving a `with` block, or the exit of the interpreter, waits
            for accepted items to be handled. None means no limit. Default: 30 s.

    Raises:
        ConfigError: A setting is invalid; the message names the setting, its limit and the remedy.
    """

    threads: ThreadPolicy | None = None
    shared_scheduler: tuple[str, ThreadPolicy] | None = None
    partitions: PartitionPolicy = field(default_factory=lambda: PartitionPolicy.fixed(1))
    selector: PartitionSelector | None = None
    buffer_size: int = 10_000
    strategy: BufferStrategy = BufferStrategy.BLOCKING
    consumer: SupportsConsume[T] | Callable[[list[T]], Any] | None = None
    consumer_factory: Callable[[], SupportsConsume[T] | Callable[[list[T]], Any]] | None = None
    error_handler: Callable[[list[T], BaseException], Any] | None = None
    retry: RetryPolicy | None = None
    dead_letter: SupportsConsume[DeadLetter[T]] | Callable[[list[DeadLetter[T]]], Any] | None = None
    default_handler: SupportsConsume[T] | Callable[[list[T]], Any] | None = None
    min_idle_ms: float = 5
    max_idle_ms: float = 200
    max_batch_items: int = 10_000
    max_delay_ms: float | None = None
    balancer: DrainBalancer | bool | None = None
    rebalance_interval_ms: float = 1_000
    takeover_after_ms: float = 20
    spare_threads: int | None = None
    warn_after: float | datetime.timedelta | None = 10
    restart_after_fork: bool = False
    inline: bool = False
    shutdown_timeout: float | datetime.timedelta | None = 30

    def __post_init__(self) -> None:
        if isinstance(self.balancer, bool):
            balancer = DrainBalancer.load_weighted() if self.balancer else None
            object.__setattr__(self, "balancer", balancer)
        self._check_scheduler()
        self._check_types()
        self._check_switches()
        self._check_numbers()
        if self.consumer is not None and self.consumer_factory is not None:
            raise ConfigError("consumer and consumer_factory are both given; give one of them")
        if self.consumer is not None:
            handler_methods(self.consumer)
        if self.dead_letter is not None:
            handler_methods(self.dead_letter)
        self._check_default_handler()
        for name in ("consumer_factory", "error_handler"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigError(f"{name} is {function!r}; it must be callable")
            refuse_generator_function(f"{name} {function!r}", function)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in settings_of(self))
        return f"BatchQueueConfig({settings})"

    def _repr_html_(self) -> str:
        from batchqueue.queues.stats import table_html

        return table_html((), settings_of(self), "BatchQueueConfig")

    @property
    def effective_selector(self) -> PartitionSelector:
        """The selector that the queue uses: `selector`, or its default."""
        if self.selector is not None:
            return self.selector
        has_consumer = self.consumer is not None or self.consumer_factory is not None
        return PartitionSelector.round_robin() if has_consumer else PartitionSelector.by_type()

    def _check_switches(self) -> None:
        for name in ("restart_after_fork", "inline"):
            check_switch(name, getattr(self, name))
        if self.inline and self.shared_scheduler is not None:
            raise ConfigError(
                "inline=True is given with a shared_scheduler, and an inline queue has no threads; "
                "give threads instead, which it does not start"
            )

    def _check_default_handler(self) -> None:
        if self.default_handler is None:
            return
        handler_methods(self.default_handler)
        for name in ("consumer", "consumer_factory"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"default_handler is given beside a {name}, which gets the items of all types; "
                    "give one of them"
                )

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
        for name, kind, example in (
            ("threads", ThreadPolicy, "ThreadPolicy.fixed(2)"),
            ("partitions", PartitionPolicy, "PartitionPolicy.fixed(4)"),
            ("selector", PartitionSelector, "PartitionSelector.round_robin()"),
            ("strategy", BufferStrategy, "BufferStrategy.BLOCKING"),
            ("retry", RetryPolicy, "RetryPolicy(attempts=3)"),
            ("balancer", DrainBalancer, "True"),
        ):
            value = getattr(self, name)
            is_required = name in ("partitions", "strategy")
            if not isinstance(value, kind) and (value is not None or is_required):
                raise ConfigError(
                    f"{name} is {value!r}, {a_type(value)}; give {kind.__name__}"
                    f"{'' if is_required else ' or None'}, for instance {example}"
                )

    def _check_numbers(self) -> None:
        for name in _IN_SECONDS:
            value = getattr(self, name)
            if isinstance(value, datetime.timedelta):
                object.__setattr__(self, name, value.total_seconds())
        for name, rule in NUMBER_RULES.items():
            rule.check(name, getattr(self, name))
        if self.max_delay_ms and self.max_batch_items == 1:
            raise ConfigError(
                f"max_delay_ms is {self.max_delay_ms} with max_batch_items 1, and a batch of one "
                "item is full; raise max_batch_items, or leave max_delay_ms out"
            )
        if self.spare_threads and self.consumer_factory is not None:
            raise ConfigError(
                f"spare_threads is {self.spare_threads} with a consumer_factory, and a spare "
                "thread has no consumer; leave it out, or give 0"
            )
        if self.max_idle_ms < self.min_idle_ms:
            raise ConfigError(
                f"max_idle_ms ({self.max_idle_ms}) is below min_idle_ms ({self.min_idle_ms}); "
                "raise max_idle_ms or lower min_idle_ms"
            )


_MAX_ITEMS = 100_000_000
_MAX_THREADS = 1_024


class NumberRule(NamedTuple):
    """The range of a setting, and the remedy for messages."""

    remedy: str
    least: float
    most: float = math.inf
    """The greatest value; infinity itself is never valid."""
    is_whole: bool = False
    is_optional: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise ConfigError for a value of the wrong type or out of range."""
        if value is None and self.is_optional:
            return
        kinds = int if self.is_whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            refuse_duration(name, value)
            raise ConfigError(f"{name} is {value!r}, {a_type(value)}; give {self.remedy}")
        if not self.least <= value <= self.most or value == math.inf:
            raise ConfigError(f"{name} is {value}; give {self.remedy}")


_ITEMS = NumberRule(f"an int, 1 to {_MAX_ITEMS:_} items", 1, _MAX_ITEMS, is_whole=True)
_MILLISECONDS = NumberRule("milliseconds, a finite number from 0 up", 0)
_DELAY = NumberRule("milliseconds, a finite number from 0 up, or None", 0, is_optional=True)

NUMBER_RULES = {
    "buffer_size": _ITEMS,
    "max_batch_items": _ITEMS,
    "min_idle_ms": _MILLISECONDS,
    "max_idle_ms": _MILLISECONDS,
    "max_delay_ms": _DELAY,
    "rebalance_interval_ms": _MILLISECONDS,
    "takeover_after_ms": NumberRule("milliseconds, a finite number from 1 up", 1),
    "spare_threads": NumberRule(
        f"an int, 0 to {_MAX_THREADS:_} threads, or None for the default",
        0,
        _MAX_THREADS,
        is_whole=True,
        is_optional=True,
    ),
    "warn_after": NumberRule(
        "a finite number of seconds from 0.001 up, a timedelta, or None for no warning",
        0.001,
        is_optional=True,
    ),
    "shutdown_timeout": NumberRule(
        "a finite number of seconds from 0 up, a timedelta, or None for no limit",
        0,
        is_optional=True,
    ),
}
"""The rules of `BatchQueueConfig`, by setting."""


DEFAULT_CONFIG: BatchQueueConfig[Any] = BatchQueueConfig(
    threads=ThreadPolicy.cpu_cores(1.0), partitions=PartitionPolicy.adaptive()
)
"""One drain thread per core that this process may use; partitions grow with the handlers."""


def settings_of(config: "BatchQueueConfig[Any]") -> list[tuple[str, str]]:
    """Return the names and the `repr` of the settings that differ from their defaults."""
    found = []
    for setting in fields(config):
        value = getattr(config, setting.name)
        if setting.default is MISSING or value != setting.default:
            found.append((setting.name, repr(value)))
    return found
