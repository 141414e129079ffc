"""The choices that a config names: selectors, balancers, retries. Each is a frozen value that pickles."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchqueue.exceptions import ConfigError


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
        return PartitionSelector("by_key", _callable("PartitionSelector.by_key", key))

    @staticmethod
    def custom(select: Callable[[Any, int], int]) -> "PartitionSelector":
        """A partition of your choice.

        Args:
            select: Takes an item and the number of partitions, returns an index below that number.
                Another value makes `produce` raise ConfigError.
        """
        return PartitionSelector("custom", _callable("PartitionSelector.custom", select))


@dataclass(frozen=True)
class DrainBalancer:
    """What spreads partitions over drain threads by measured load. Make one with the static methods.

    The weighted balancers give every drain thread about the same load with few moves: a repair of
    today's owners where that comes close to longest-processing-time-first (Graham, 1969), else that
    assignment, matched to today's owners. Nothing moves while the largest thread load is below
    `skip_ratio` times the smallest.
    """

    kind: str
    skip_ratio: float = 1.15
    function: Callable[..., Any] | None = None

    @staticmethod
    def throughput_weighted(skip_ratio: float = 1.15) -> "DrainBalancer":
        """A partition weighs the items that producers tried to put in: right when all items cost about the same.

        Args:
            skip_ratio: Largest thread load over smallest, below which nothing moves; 1 or more.

        Raises:
            ConfigError: `skip_ratio` is below 1 or not finite.
        """
        return DrainBalancer("throughput_weighted", _ratio(skip_ratio))

    @staticmethod
    def cost_weighted(skip_ratio: float = 1.15) -> "DrainBalancer":
        """A partition weighs its items times the moving average of its handlers' nanoseconds per item.

        Args:
            skip_ratio: Largest thread load over smallest, below which nothing moves; 1 or more.

        Raises:
            ConfigError: `skip_ratio` is below 1 or not finite.
        """
        return DrainBalancer("cost_weighted", _ratio(skip_ratio))

    @staticmethod
    def custom(
        assign: Callable[[list[float], list[int], int], list[int] | None],
    ) -> "DrainBalancer":
        """An assignment of your own.

        Args:
            assign: Takes the load per partition (items since the last run), the drain thread per
                partition, and the number of drain threads; returns the wanted drain thread per
                partition, or None to leave all where they are. A list of another length, or with a
                thread that does not exist, is refused with a line in the log. It is called on the
                control thread, or on the thread that calls `rebalance`; never on a drain thread.

        Raises:
            ConfigError: `assign` is not callable.
        """
        return DrainBalancer("custom", function=_callable("DrainBalancer.custom", assign))


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often a batch whose handler raised is tried again, and when.

    The drain thread waits in between, outside the handler, so the order is kept and the partition
    fills meanwhile. The batch counts once: as consumed when a try succeeds, as failed when the last
    one raises; only then `on_error` or `error_handler` is called. Each try gets a new list. A
    shutdown ends the wait: the tries that are left follow at once.

    Attributes:
        attempts: All tries, the first included.
        backoff_ms: Wait before the second try.
        factor: Each wait is so many times the one before; 1 or more.
        max_backoff_ms: The longest wait.
        retry_on: Exceptions that are worth another try; others fail the batch at once.

    Raises:
        ConfigError: A value is out of range; the message says which and its limit.
    """

    attempts: int = 3
    backoff_ms: float = 100
    factor: float = 2.0
    max_backoff_ms: float = 5_000
    retry_on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if (
            not isinstance(self.attempts, int)
            or isinstance(self.attempts, bool)
            or not 1 <= self.attempts <= 1_000
        ):
            raise ConfigError(
                f"retry: attempts is {self.attempts!r}; give 1 to 1_000 tries, the first included"
            )
        for name, least in (("backoff_ms", 0), ("factor", 1), ("max_backoff_ms", 0)):
            value = getattr(self, name)
            if (
                not isinstance(value, (int, float))
                or isinstance(value, bool)
                or not least <= value < math.inf
            ):
                raise ConfigError(
                    f"retry: {name} is {value!r}; give a finite number from {least} up"
                )
        kinds = self.retry_on
        if not isinstance(kinds, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
        ):
            raise ConfigError(f"retry: retry_on is {kinds!r}; give a tuple of exception classes")


def _ratio(skip_ratio: float) -> float:
    if (
        not isinstance(skip_ratio, (int, float))
        or isinstance(skip_ratio, bool)
        or not 1 <= skip_ratio < math.inf
    ):
        raise ConfigError(
            f"DrainBalancer: skip_ratio is {skip_ratio!r}; give a finite number from 1 up, for instance 1.15"
        )
    return skip_ratio


def _callable(name: str, function: Any) -> Callable[..., Any]:
    if not callable(function):
        raise ConfigError(f"{name}: {function!r} is not callable; give a function")
    return function  # type: ignore[no-any-return]
