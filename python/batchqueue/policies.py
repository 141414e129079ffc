"""Selectors, balancers and retries: frozen values that pickle."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchqueue._number_rules import refuse_duration
from batchqueue.exceptions import ConfigError

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
"""How each kind is made, by its name."""


@dataclass(frozen=True)
class PartitionSelector:
    """How the partition of an item is found. The static methods make one."""

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

        A key has the same partition in every process, if the number of partitions is the same.

        Args:
            key: Takes an item and returns a str, bytes or int. Another type makes `produce` raise
                ConfigError.

        Raises:
            ConfigError: `key` is not callable.
        """
        return PartitionSelector("by_key", key)

    @staticmethod
    def custom(select: Callable[[Any, int], int]) -> "PartitionSelector":
        """Use a partition of your choice.

        Args:
            select: Takes an item and the number of partitions, and returns an index from 0 to that
                number minus 1. Another value makes `produce` raise ConfigError.

        Raises:
            ConfigError: `select` is not callable.
        """
        return PartitionSelector("custom", select)


@dataclass(frozen=True)
class DrainBalancer:
    """How partitions are spread over drain threads by measured load. The static methods make one.

    The weighted balancers give all drain threads about the same load with few moves. They repair
    the current assignment if the result comes close to longest-processing-time-first (Graham,
    1969); else they use that assignment, matched to the current owners. No partition moves while
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
        """Weigh a partition by the time that its handlers were busy since the last run.

        Fits all queues; `balancer=True` in a config means this one.

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

        Of those that were refused, at most as many count as were accepted. Fits queues whose items
        all cost about the same.

        Args:
            skip_ratio: Ratio of the largest thread load to the smallest, 1 or more, below which no
                partition moves. Default: 1.15.

        Raises:
            ConfigError: `skip_ratio` is below 1 or not finite.
        """
        return DrainBalancer("throughput_weighted", skip_ratio)

    @staticmethod
    def cost_weighted(skip_ratio: float = 1.15) -> "DrainBalancer":
        """Return `load_weighted(skip_ratio)`, under the name that it had before."""
        return DrainBalancer.load_weighted(skip_ratio)

    @staticmethod
    def custom(
        assign: Callable[[list[float], list[int], int], list[int] | None],
    ) -> "DrainBalancer":
        """Use your own assignment.

        Args:
            assign: Takes the load per partition (items since the last run), the drain thread per
                partition (from 0), and the number of drain threads. Returns the wanted drain thread
                per partition, or None to leave all partitions where they are. A list of another
                length, or with an invalid drain thread, is rejected with a line in the log. The
                function runs on the control thread, or on the thread that calls `rebalance`, never
                on a drain thread.

        Raises:
            ConfigError: `assign` is not callable.
        """
        return DrainBalancer("custom", function=assign)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often, and when, a batch whose handler raised is tried again.

    Later items of its class in its partition wait meanwhile, so that the order is kept; other
    classes do not, and no thread waits. The batch counts once: as consumed when an attempt
    succeeds, as failed when the last attempt raises. Only then is `on_error` or `error_handler`
    called. Each attempt gets a new list.

    A shutdown leaves the waits their length while it has time. Shortly before its end, each batch
    that waits is tried once more, and what fails then has failed. For that, each batch that waits
    in the partition has 50 ms and twice the time that a call, and one of its `dead_letter`, are
    expected to take, and the last one 50 ms more; all of them have half of the time of the shutdown
    at most.

    Attributes:
        attempts: All attempts, the first included: 1 to 1000. None: until one succeeds, the handler
            is removed, or a shutdown runs out of time; a shutdown without a `timeout` then lasts
            until the handler succeeds. Default: 3.
        backoff_ms: Wait before the second attempt, at most `max_backoff_ms`. Default: 100 ms.
        factor: Factor from one wait to the next, 1 or more. Default: 2.
        max_backoff_ms: The longest wait, the first one included. Default: 5000 ms.
        retry_on: Exceptions after which the batch is tried again; after others it fails
            immediately. `()`: after none. Default: any `Exception`.
        jitter: The share of each wait, 0 to 1, that chance may cut off: the wait is multiplied by
            `1 - jitter * random()`, so that batches that failed together are not tried together.
            Default: 0.
        bisect: Whether a batch whose attempts are used up is halved, each half tried once, and so
            on, until what fails stands alone: one bad item then fails alone. Of n items, k bad ones
            take at most 2 k (1 + log2(n / k)) further calls. The order is kept. What a handler
            named in a `BatchFailed` is not halved, nor is anything while a shutdown has less than a
            tenth of its time left. Not with `attempts=None`, which are never used up. Default:
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
        if self.attempts is not None and (
            not isinstance(self.attempts, int)
            or isinstance(self.attempts, bool)
            or not 1 <= self.attempts <= 1_000
        ):
            raise ConfigError(
                f"retry: attempts is {self.attempts!r}; give 1 to 1_000 tries, the first included, "
                "or None for no limit"
            )
        for name, least in (("backoff_ms", 0), ("factor", 1), ("max_backoff_ms", 0)):
            check_finite(f"retry: {name}", getattr(self, name), least)
        if (
            not isinstance(self.jitter, (int, float))
            or isinstance(self.jitter, bool)
            or not 0 <= self.jitter <= 1
        ):
            raise ConfigError(f"retry: jitter is {self.jitter!r}; give a number from 0 to 1")
        if not isinstance(self.bisect, bool):
            raise ConfigError(f"retry: bisect is {self.bisect!r}; give True or False")
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


def check_finite(setting: str, value: object, least: float, example: str = "") -> None:
    """Raise ConfigError unless a setting is a finite number, at least `least`."""
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not least <= value < math.inf
    ):
        refuse_duration(setting, value)
        raise ConfigError(f"{setting} is {value!r}; give a finite number from {least} up{example}")


def _check_kind(owner: str, kind: object, function: object, kinds: dict[str, str]) -> None:
    """Raise ConfigError for an unknown kind, or a function that does not fit a kind."""
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
