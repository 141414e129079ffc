"""Immutable snapshots of a queue."""

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import Any

from batchqueue.base.checks import LocalPath, is_whole, local_path
from batchqueue.base.words import (
    a_type,
    duration,
    has_own_equality,
    type_name,
    unique_names,
)
from batchqueue.exceptions import ConfigError


@dataclass(frozen=True)
class BatchQueueStats:
    """One queue at one moment. Counts are in items and never decrease.

    At any moment `produced == consumed + dead_lettered + failed + unhandled + abandoned +
    total_used`, and `total_used == queued + held + in_flight`. At rest `total_used` is 0, and
    `attempts == produced + refused`.

    Attributes:
        name: The queue's name.
        partition_count: Number of partitions; `PartitionPolicy.adaptive` lets it grow.
        thread_count: Number of drain threads, without spare ones.
        buffer_size: Capacity of one partition, in items.
        total_capacity: Capacity of all partitions, in items.
        total_used: Items queued, held and in flight.
        used_percentage: `total_used` in percent of `total_capacity`, 0 to 100.
        attempts: Items that producers tried to enqueue.
        produced: Items that were accepted.
        refused: Items that were not accepted: full, timed out, interrupted, closed.
        consumed: Items whose handler returned.
        dead_lettered: Items whose handler raised, and that the `dead_letter` handler has kept.
        failed: Other items whose handler raised.
        unhandled: Items without a handler.
        abandoned: Items that a shutdown gave up when its time ran out.
        queued: Items in partitions.
        held: Items taken that wait for their batch to fill, for their handler, for the next
            attempt, or for the `dead_letter` handler.
        in_flight: Items in a running call.
        oldest_age_ms: Age of the oldest item that no call has had yet, in milliseconds; 0.0 if
            there is none. It counts from the put of the first item of its segment, which may be
            slightly earlier.
        rebalances: Runs of the balancer, skipped and rejected plans included.
        moves: Partitions that the balancer gave to another drain thread, revoked moves included.
        load_ratio: Largest load of a drain thread divided by the smallest, in the interval before
            the balancer's last run; 1.0 before the first run, infinite if a thread had no load.
        longest_handoff_ms: Longest time from the decision to move a partition until its new drain
            thread owned it, in milliseconds.
        stuck_handlers: Names of the types whose handler has been in one call for more than a
            second.
        drain_threads: The drain threads, by index, followed by the spare ones that have run.
        taken_over: Partitions that another drain thread took over because theirs was held up in a
            handler.
        log_waiting: Lines about the queue that wait for the log, including the one being written.
        log_dropped: Lines that were dropped because 1,000 were waiting.
        log_in_line_s: Time spent so far on the line being written, in seconds; 0.0 if there is
            none. It grows while a `logging.Handler` is held up.
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
    drain_threads: "tuple[DrainThreadStats, ...]"
    taken_over: int
    log_waiting: int
    log_dropped: int
    log_in_line_s: float
    _partitions: "tuple[PartitionStats, ...]" = field(repr=False)
    _handlers: "tuple[tuple[type | str, HandlerStats], ...]" = field(repr=False)
    _identity: tuple[int, int] = field(repr=False)
    _taken_at_s: float = field(repr=False, compare=False)

    @classmethod
    def from_snapshot(cls, snapshot: dict[str, Any]) -> "BatchQueueStats":
        """Build a snapshot from the dict that the core returns."""
        size = snapshot["buffer_size"]
        partitions = tuple(
            PartitionStats(
                index, used, _percentage(used, size), owner, attempts, busy_s, tuple(types)
            )
            for index, used, owner, attempts, busy_s, types in snapshot.pop("partitions")
        )
        handlers = tuple(
            (item_type, HandlerStats(*counts)) for item_type, *counts in snapshot.pop("handlers")
        )
        threads = tuple(DrainThreadStats(*thread) for thread in snapshot.pop("drain_threads"))
        return cls(
            _identity=snapshot.pop("identity"),
            **snapshot,
            partition_count=len(partitions),
            used_percentage=_percentage(snapshot["total_used"], snapshot["total_capacity"]),
            drain_threads=threads,
            _partitions=partitions,
            _handlers=handlers,
            _taken_at_s=time.monotonic(),
        )

    def partition(self, index: int) -> "PartitionStats":
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

    def top_n(self, n: int) -> "list[PartitionStats]":
        """Return the `n` fullest partitions, fullest first. Ties are in order of their index.

        Args:
            n: The number of partitions, 0 or more; if there are fewer, all are returned.

        Raises:
            ConfigError: `n` is not an int, or below 0.
        """
        _check_int("top_n: n", n)
        if n < 0:
            raise ConfigError(f"top_n: n is {n}; give a number of partitions from 0 up")
        return sorted(self._partitions, key=lambda partition: -partition.used)[:n]

    def handlers(self) -> "dict[type | str, HandlerStats]":
        """Return the statistics of the handlers, by registered type.

        With a consumer, or one per drain thread, there is one entry, with the key `"consumer"`. A
        class whose metaclass defines equality may not work as a key of a dict, so its key is its
        name, as in `to_dict`.
        """
        names = self._type_names()
        return {
            name if has_own_equality(item_type) else item_type: handler
            for name, (item_type, handler) in zip(names, self._handlers, strict=True)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values: dicts, lists, strings, numbers and None.

        Types are named with their module, as in `"shop.Order"`, except built-in classes, as in
        `"int"`. A second type with the same name gets ` #2`. An infinite `load_ratio` becomes None.

        Returns:
            The attributes by name, plus `"partitions"`, a list, and `"handlers"`, a dict by type.
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
        figures = ", ".join(f"{value} {name}" for name, value in figures_of(self))
        return f"<BatchQueueStats {self.name!r}: {figures}>"

    def _repr_html_(self) -> str:
        return stats_html(self)

    def __sub__(self, earlier: "BatchQueueStats") -> "BatchQueueRates":
        """Return what the queue did since an earlier snapshot, per second.

        Raises:
            ConfigError: `earlier` is a snapshot of another queue, or is not earlier.
        """
        if not isinstance(earlier, BatchQueueStats):
            return NotImplemented
        return rates_between(earlier, self)


def _check_int(argument: str, value: object) -> None:
    if not is_whole(value):
        raise ConfigError(f"{argument} is {value!r}, {a_type(value)}; give an int from 0 up")


def _percentage(used: int, capacity: int) -> float:
    return min(100.0, 100.0 * used / capacity) if capacity else 0.0


@dataclass(frozen=True)
class BatchQueueRates:
    """The rates of a queue between two snapshots: each count in items per second.

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
        failed: Other items that failed for good, per second.
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
        """Return the fields by name; all are JSON values."""
        return asdict(self)


def rates_between(earlier: "BatchQueueStats", later: "BatchQueueStats") -> BatchQueueRates:
    """Return the rates between two snapshots of one queue.

    Raises:
        ConfigError: The snapshots are of different queues, or `earlier` is not the earlier one.
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
    counts = [field.name for field in fields(BatchQueueRates)[2:]]
    per_second = {
        count: (getattr(later, count) - getattr(earlier, count)) / interval_s for count in counts
    }
    return BatchQueueRates(later.name, interval_s, **per_second)


@dataclass(frozen=True)
class PartitionStats:
    """One partition at one moment.

    Attributes:
        index: Its index, from 0.
        used: Items queued, held and in flight.
        used_percentage: `used` in percent of `buffer_size`, 0 to 100.
        owner: Index of the drain thread that takes from it, from 0.
        attempts: Items that producers tried to enqueue.
        busy_s: Time spent in handlers for its items so far, in seconds.
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
        call_ms_p50: Median duration of a call, in milliseconds; at most an eighth above the exact
            value. Each attempt counts as a call. 0.0 before the first call.
        call_ms_p99: 99th percentile of the duration of a call; otherwise as `call_ms_p50`.
        call_ms_max: The longest call so far, in milliseconds, exactly.
        batch_items_mean: Items, or rows, per call.
        in_call_s: Time spent so far in the running call, in seconds; of several the longest, 0.0 if
            there is none.
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


# Tables of queues, statistics and configs, for notebooks.


MOST_ROWS = 12
"""The most rows of a table, so that it fits on a screen."""

_HANDLER_COLUMNS = ("type", "consumed", "failed", "items per call", "p50", "p99", "max", "in call")


def stats_html(stats: "BatchQueueStats", title: str | None = None) -> str:
    """Return the main figures, and the handlers that took the most time.

    Args:
        stats: The statistics.
        title: The caption. Default: None, the name of the queue.
    """
    handlers = sorted(
        stats.handlers().items(), key=lambda each: -each[1].ns_per_item * each[1].consumed
    )
    rows = [
        (
            type_name(kind),
            f"{handler.consumed:_}",
            f"{handler.failed:_}",
            f"{handler.batch_items_mean:.3g}",
            *(
                duration(ms / 1e3)
                for ms in (handler.call_ms_p50, handler.call_ms_p99, handler.call_ms_max)
            ),
            duration(handler.in_call_s) if handler.in_call_s else "",
        )
        for kind, handler in handlers
    ]
    parts = [table_html((), figures_of(stats), title or f"BatchQueueStats {stats.name!r}")]
    if rows:
        parts.append(table_html(_HANDLER_COLUMNS, rows))
    return "".join(parts)


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Return a table that shows at most `MOST_ROWS` of the rows."""
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = f"<tr>{_cells('th', columns)}</tr>" if columns else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        more = f"{len(rows) - MOST_ROWS:_} more"
        body += f'<tr><td colspan="{len(rows[0])}">{more}</td></tr>'
    return f"<table>{caption}{head}{body}</table>"


def _cells(tag: str, texts: Iterable[str]) -> str:
    shortened = (text if len(text) <= 100 else text[:99] + "…" for text in texts)
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in shortened)


# The load of each thread and partition, before and after balancing, as SVG.


_WIDTH, _BAR, _ROW, _LEFT, _TOP = 760, 560, 22, 90, 46
_SMALLEST = 1.0
"""Partitions that are narrower than this are drawn together."""

_OTHER_FORMATS = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".pdf", ".ps"}

_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#F0E442", "#E69F00", "#D55E00", "#CC79A7")
"""The palette of Okabe and Ito, which colour-blind people can distinguish."""


_Loads = list[tuple[PartitionStats, float]]


def draw(stats: "BatchQueueStats", path: LocalPath) -> None:
    """Write the picture to a file.

    Raises:
        ConfigError: `path` is not a path, or names a file of another format.
    """
    file = local_path("picture: path", path)
    stem, suffix = os.path.splitext(os.fspath(path))
    if suffix.lower() in _OTHER_FORMATS:
        raise ConfigError(
            f"picture: path is {os.fspath(path)!r}, and the picture is an SVG; give "
            f"{stem + '.svg'!r}, which a browser shows and can print"
        )
    file.write_text(picture(stats), encoding="utf-8")


def picture(stats: "BatchQueueStats") -> str:
    """Return an SVG with two bars per drain thread: partitions as first dealt, and as they are now.

    The width of a partition is the time spent in handlers for its items or, if no call has taken
    any time, its attempts.
    """
    partitions = [stats.partition(index) for index in range(stats.partition_count)]
    is_timed = any(partition.busy_s > 0 for partition in partitions)
    loads = [part.busy_s if is_timed else float(part.attempts) for part in partitions]
    # A queue deals its partitions in turn; spare threads have none at first.
    before = [partition.index % stats.thread_count for partition in partitions]
    now = [partition.owner for partition in partitions]
    threads = max(stats.thread_count, max(now, default=0) + 1)
    panels: list[list[_Loads]] = [[[] for _ in range(threads)] for _ in (before, now)]
    for panel, owners in zip(panels, (before, now), strict=True):
        for partition, load, owner in zip(partitions, loads, owners, strict=True):
            panel[owner].append((partition, load))
    sums = (sum(load for _, load in mine) for panel in panels for mine in panel)
    most = max(sums, default=0.0) or 1.0
    unit = "time in handlers" if is_timed else "items"
    height = 2 * (_TOP + _ROW * threads) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="{escape(stats.name)}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    titles = (
        f"{stats.name}: {unit} by thread, without balancing",
        f"with {stats.moves:_} moves in {stats.rebalances:_} runs of the balancer",
    )
    top = 0
    for title, panel in zip(titles, panels, strict=True):
        parts.append(f'<text x="10" y="{top + 28}" font-weight="bold">{escape(title)}</text>')
        for thread, mine in enumerate(panel):
            parts += _bar(thread, mine, top + _TOP + thread * _ROW, _BAR / most, is_timed)
        top += _TOP + _ROW * threads
    return "\n".join([*parts, "</svg>", ""])


def _bar(thread: int, mine: _Loads, y: float, scale: float, is_timed: bool) -> Iterator[str]:
    def text(load: float) -> str:
        return duration(load) if is_timed else f"{load:_.0f}"

    total = sum(load for _, load in mine)
    yield f'<text x="10" y="{y + 13}">thread {thread}</text>'
    x, small = float(_LEFT), 0.0
    for partition, load in sorted(mine, key=lambda each: -each[1]):
        width = load * scale
        if width < _SMALLEST:
            small += load
            continue
        names = ", ".join(type_name(kind) for kind in partition.types[:5])
        tip = f"partition {partition.index}: {text(load)}" + (f", {names}" if names else "")
        colour = _COLOURS[partition.index % len(_COLOURS)]
        yield _rect(x, y, width, colour, tip)
        x += width
    if small * scale >= _SMALLEST:
        yield _rect(x, y, small * scale, "#bbbbbb", f"the smallest partitions: {text(small)}")
        x += small * scale
    yield f'<text x="{x + 6:.1f}" y="{y + 13}">{text(total)}</text>'


def _rect(x: float, y: float, width: float, colour: str, tip: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" fill="{colour}" '
        f'stroke="#ffffff" stroke-width="0.5"><title>{escape(tip)}</title></rect>'
    )


_RARE = ("refused", "dead_lettered", "failed", "unhandled", "abandoned")


def figures_of(stats: "BatchQueueStats") -> list[tuple[str, str]]:
    """Return the main figures with their names; those that are usually 0 only if they are not."""
    figures = [("produced", f"{stats.produced:_}"), ("consumed", f"{stats.consumed:_}")]
    rare = [(name, getattr(stats, name)) for name in _RARE]
    figures += [(name.replace("_", " "), f"{count:_}") for name, count in rare if count]
    figures.append(("in use", f"{stats.total_used:_} of {stats.total_capacity:_}"))
    if stats.oldest_age_ms:
        figures.append(("oldest", duration(stats.oldest_age_ms / 1e3)))
    if stats.stuck_handlers:
        figures.append(("stuck", ", ".join(stats.stuck_handlers[:3])))
    return figures
