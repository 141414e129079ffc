"""Immutable snapshots of a queue."""

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from batchqueue._type_names import has_own_equality, type_name, unique_names
from batchqueue._words import a_type
from batchqueue.display.text import stats_text
from batchqueue.exceptions import ConfigError
from batchqueue.rates import BatchQueueRates, rates_between


@dataclass(frozen=True)
class PartitionStats:
    """One partition at one moment.

    Attributes:
        index: Its index, from 0.
        used: Items queued, held and in flight.
        used_percentage: `used` in percent of `buffer_size`, 0 to 100.
        owner: Index of the drain thread that takes from it, from 0.
        attempts: Items that producers tried to enqueue.
        busy_s: Time that handlers were called for its items so far, in seconds.
        types: The classes and tags that are routed to it.
    """

    index: int
    used: int
    used_percentage: float
    owner: int
    attempts: int
    busy_s: float
    types: tuple[type | str, ...]


@dataclass(frozen=True)
class HandlerStats:
    """One registered type at one moment.

    Attributes:
        consumed: Items whose handler returned.
        failed: Items whose handler raised in their last attempt.
        batches: Calls of `consume`.
        ns_per_item: Moving average of the time in `consume`, in nanoseconds per item.
        call_ms_p50: Half of the calls took no longer, in milliseconds; at most an eighth above the
            exact value. Each attempt counts as a call. 0.0 before the first call.
        call_ms_p99: 99 % of the calls took no longer; the same.
        call_ms_max: The longest call so far, in milliseconds, exactly.
        batch_items_mean: Items, or rows, per call.
        in_call_s: How long the call takes so far that runs now, in seconds; the longest if there
            are several, 0.0 if there is none.
    """

    consumed: int
    failed: int
    batches: int
    ns_per_item: float
    call_ms_p50: float
    call_ms_p99: float
    call_ms_max: float
    batch_items_mean: float
    in_call_s: float


@dataclass(frozen=True)
class DrainThreadStats:
    """One drain thread at one moment.

    Attributes:
        index: Its index, from 0.
        items: Items it dispatched.
        cycles: Cycles it completed.
        cpu_s: CPU time it used, handlers included, up to its last empty cycle or its end, in
            seconds.
    """

    index: int
    items: int
    cycles: int
    cpu_s: float


@dataclass(frozen=True)
class BatchQueueStats:
    """One queue at one moment. Counts are in items and never decrease.

    At any moment `produced == consumed + dead_lettered + failed + unhandled + abandoned +
    total_used`, and `total_used == queued + held + in_flight`. At rest `total_used` is 0, and
    `attempts == produced + refused`.

    Attributes:
        name: The queue's name.
        partition_count: Partitions, which `PartitionPolicy.adaptive` lets grow.
        thread_count: Drain threads, without spare ones.
        buffer_size: Capacity of one partition, in items.
        total_capacity: Capacity of all partitions, in items.
        total_used: Items queued, held and in flight.
        used_percentage: `total_used` in percent of `total_capacity`, 0 to 100.
        attempts: Items that producers tried to enqueue.
        produced: Items that were accepted.
        refused: Items that were not accepted: full, timed out, interrupted, closed.
        consumed: Items whose handler returned.
        dead_lettered: Items whose handler raised, and that the `dead_letter` handler has kept.
        failed: Items whose handler raised otherwise.
        unhandled: Items without a handler.
        abandoned: Items that a shutdown gave up when its time ran out.
        queued: Items in partitions.
        held: Items taken that wait: for their batch to become full, for their handler, for the next
            attempt, or for the `dead_letter` handler.
        in_flight: Items in a running call.
        oldest_age_ms: How long the oldest item waits that no call has had yet, in milliseconds;
            0.0 if there is none. It counts from the put of the first item of its segment, which
            may be a little earlier.
        rebalances: Runs of the balancer, skipped and rejected plans included.
        moves: Partitions that the balancer gave to another drain thread, revoked moves included.
        load_ratio: Largest load of a drain thread divided by the smallest, in the interval before
            the balancer's last run; 1.0 before the first run, infinite if a thread had no load.
        longest_handoff_ms: Longest time from the decision to move a partition until its new drain
            thread owned it, in milliseconds.
        stuck_handlers: Names of the types whose handler has been in one call for more than a
            second.
        drain_threads: The drain threads, by index; at the end those spare ones that have run.
        taken_over: Partitions that another drain thread took over because theirs was held up in a
            handler.
        log_waiting: Lines about the queue that wait for the log, the one that is being written
            included.
        log_dropped: Lines that were lost because 1,000 waited.
        log_in_line_s: How long the line takes so far that is being written, in seconds; 0.0 if
            there is none. It grows while a `logging.Handler` is held up.
    """

    name: str
    partition_count: int
    thread_count: int
    buffer_size: int
    total_capacity: int
    total_used: int
    used_percentage: float
    attempts: int
    produced: int
    refused: int
    consumed: int
    failed: int
    unhandled: int
    abandoned: int
    queued: int
    held: int
    in_flight: int
    oldest_age_ms: float
    dead_lettered: int
    rebalances: int
    moves: int
    load_ratio: float
    longest_handoff_ms: float
    stuck_handlers: tuple[str, ...]
    drain_threads: tuple[DrainThreadStats, ...]
    taken_over: int
    log_waiting: int
    log_dropped: int
    log_in_line_s: float
    _partitions: tuple[PartitionStats, ...] = field(repr=False)
    _handlers: tuple[tuple[type | str, HandlerStats], ...] = field(repr=False)
    _identity: tuple[int, int] = field(repr=False)
    _taken_at_s: float = field(repr=False, compare=False)

    @classmethod
    def from_snapshot(cls, snapshot: dict[str, Any]) -> "BatchQueueStats":
        """Build a snapshot from the dict that the core returns."""
        partitions = tuple(
            PartitionStats(
                index,
                used,
                _percentage(used, snapshot["buffer_size"]),
                owner,
                attempts,
                busy_s,
                tuple(types),
            )
            for index, used, owner, attempts, busy_s, types in snapshot.pop("partitions")
        )
        handlers = tuple(
            (item_type, HandlerStats(*counts)) for item_type, *counts in snapshot.pop("handlers")
        )
        threads = tuple(DrainThreadStats(*thread) for thread in snapshot.pop("drain_threads"))
        identity = snapshot.pop("identity")
        return cls(
            **snapshot,
            partition_count=len(partitions),
            used_percentage=_percentage(snapshot["total_used"], snapshot["total_capacity"]),
            drain_threads=threads,
            _partitions=partitions,
            _handlers=handlers,
            _identity=identity,
            _taken_at_s=time.monotonic(),
        )

    def partition(self, index: int) -> PartitionStats:
        """Return the statistics of one partition.

        Args:
            index: From 0 to `partition_count - 1`.

        Raises:
            IndexError: `index` is out of range.
            ConfigError: `index` is not an int.
        """
        _check_int("partition: index", index)
        if not 0 <= index < len(self._partitions):
            raise IndexError(
                f"partition {index} does not exist; the queue has 0 to {len(self._partitions) - 1}"
            )
        return self._partitions[index]

    def top_n(self, n: int) -> list[PartitionStats]:
        """Return the `n` fullest partitions, fullest first. Ties are in order of their index.

        Args:
            n: How many, 0 or more; all of them if there are fewer.

        Raises:
            ConfigError: `n` is not an int, or below 0.
        """
        _check_int("top_n: n", n)
        if n < 0:
            raise ConfigError(f"top_n: n is {n}; give a number of partitions from 0 up")
        return sorted(self._partitions, key=lambda partition: -partition.used)[:n]

    def handlers(self) -> dict[type | str, HandlerStats]:
        """Return the statistics of the handlers, by registered type.

        A queue with a consumer, or one per drain thread, has one entry, with the key `"consumer"`.
        A class whose metaclass says what equals it, so that it may be no key of a dict, has its
        name instead, as in `to_dict`.
        """
        names = self._type_names()
        return {
            name if has_own_equality(item_type) else item_type: handler
            for name, (item_type, handler) in zip(names, self._handlers, strict=True)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON: dicts, lists, strings, numbers and None.

        Types are named with their module, `"shop.Order"`, built-in classes without, `"int"`. A
        second type with the name of another gets ` #2`. An infinite `load_ratio` becomes None.

        Returns:
            The attributes by name, and `"partitions"`, a list, and `"handlers"`, a dict by type.
        """
        whole = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return whole | {
            "load_ratio": self.load_ratio if math.isfinite(self.load_ratio) else None,
            "stuck_handlers": list(self.stuck_handlers),
            "drain_threads": [asdict(thread) for thread in self.drain_threads],
            "partitions": [
                vars(partition) | {"types": [type_name(kind) for kind in partition.types]}
                for partition in self._partitions
            ],
            "handlers": {
                name: dict(vars(handler))
                for name, (_, handler) in zip(self._type_names(), self._handlers, strict=True)
            },
        }

    def _type_names(self) -> list[str]:
        return unique_names([item_type for item_type, _ in self._handlers])

    def __repr__(self) -> str:
        return stats_text(self)

    def _repr_html_(self) -> str:
        from batchqueue.display.html import stats_html

        return stats_html(self)

    def __sub__(self, earlier: "BatchQueueStats") -> BatchQueueRates:
        """Return what the queue did since an earlier snapshot, per second.

        Raises:
            ConfigError: `earlier` is a snapshot of another queue, or not the earlier one.
        """
        if not isinstance(earlier, BatchQueueStats):
            return NotImplemented
        return rates_between(earlier, self)


def _check_int(argument: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{argument} is {value!r}, {a_type(value)}; give an int from 0 up")


def _percentage(used: int, capacity: int) -> float:
    return min(100.0, 100.0 * used / capacity) if capacity else 0.0
