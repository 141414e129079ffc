"""`BatchQueueRates`: what a queue did between two snapshots, per second."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from batchqueue.exceptions import ConfigError

if TYPE_CHECKING:
    from batchqueue.stats import BatchQueueStats


@dataclass(frozen=True)
class BatchQueueRates:
    """What a queue did between two snapshots: items per second of each count.

    Example:
        >>> from batchqueue import BatchQueue
        >>> with BatchQueue("words") as queue:
        ...     queue.add_handler(str, lambda batch: None)
        ...     earlier = queue.stats()
        ...     queue.produce_many(["to", "be", "or", "not"])
        4
        >>> rates = queue.stats() - earlier
        >>> round(rates.consumed * rates.interval_s)
        4

    Attributes:
        name: The queue's name.
        interval_s: The time between the two snapshots, in seconds.
        attempts: Items that producers tried to enqueue, per second.
        produced: Items that were accepted, per second.
        refused: Items that were not accepted, per second.
        consumed: Items whose handler returned, per second.
        dead_lettered: Items that the `dead_letter` handler has kept, per second.
        failed: Items that failed for good otherwise, per second.
        unhandled: Items without a handler, per second.
        abandoned: Items that a shutdown gave up, per second.
    """

    name: str
    interval_s: float
    attempts: float
    produced: float
    refused: float
    consumed: float
    dead_lettered: float
    failed: float
    unhandled: float
    abandoned: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; all of them are JSON."""
        return asdict(self)


_COUNTS = (
    "attempts",
    "produced",
    "refused",
    "consumed",
    "dead_lettered",
    "failed",
    "unhandled",
    "abandoned",
)


def rates_between(earlier: "BatchQueueStats", later: "BatchQueueStats") -> BatchQueueRates:
    """Compare two snapshots of one queue.

    Raises:
        ConfigError: They are of different queues, or `earlier` is not the earlier one.
    """
    if earlier.name != later.name:
        raise ConfigError(
            f"rates need two snapshots of one queue, not of {later.name!r} and {earlier.name!r}"
        )
    if earlier._identity != later._identity:
        raise ConfigError(
            f"rates need two snapshots of one queue; these are of two queues named {later.name!r}, "
            "one made after the other or in another process: take both from the same queue"
        )
    interval_s = later._taken_at_s - earlier._taken_at_s
    if interval_s <= 0:
        raise ConfigError(
            f"the interval of the rates of queue {later.name!r} is {interval_s} s; subtract the "
            "earlier snapshot from the later one: later - earlier"
        )
    per_second = {
        count: (getattr(later, count) - getattr(earlier, count)) / interval_s for count in _COUNTS
    }
    return BatchQueueRates(later.name, interval_s, **per_second)
