"""A reading: the samples of all queues of the process at one moment."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from batchqueue import _core
from batchqueue.base.words import type_name
from batchqueue.exceptions import QueueForkedError
from batchqueue.metrics.names import (
    LIMITS_ITEMS,
    LIMITS_NS,
    MOST_TYPES,
    OTHER_TYPES,
    QueueMetric,
)
from batchqueue.queues.queue import live_stats
from batchqueue.queues.stats import BatchQueueStats

_OF_THE_LONGEST = (QueueMetric.OLDEST_AGE, QueueMetric.LOG_IN_LINE)
"""Times; of queues with the same name, the longest one counts."""


@dataclass
class Buckets:
    """The values of one histogram.

    Attributes:
        limits: The upper limits of its buckets, inclusive; the last one is infinite.
        at_most: The number of values up to each limit.
        sum: The sum of all values.
    """

    limits: list[float]
    at_most: list[float]
    sum: float

    @property
    def count(self) -> float:
        """The number of values."""
        return self.at_most[-1]

    def by_label(self) -> Iterator[tuple[str, float]]:
        """Yield each limit as the label `le` shows it, with its value of `at_most`."""
        for limit, at_most in zip(self.limits, self.at_most, strict=True):
            yield "+Inf" if limit == float("inf") else repr(limit), at_most

    def add(self, other: "Buckets") -> None:
        """Add the values of another histogram with the same limits."""
        self.at_most = [mine + more for mine, more in zip(self.at_most, other.at_most, strict=True)]
        self.sum += other.sum


@dataclass
class Reading:
    """The values of all queues. Queues with the same name count as one, as do types.

    Attributes:
        values: By metric and queue. Counts are summed; of times, the longest is kept.
        histograms: By metric, queue and type.
    """

    values: dict[tuple[QueueMetric, str], float] = field(default_factory=dict)
    histograms: dict[tuple[QueueMetric, str, str], Buckets] = field(default_factory=dict)

    def _add(self, metric: QueueMetric, queue: str, value: float) -> None:
        before = self.values.get((metric, queue), 0.0)
        together = max(before, value) if metric in _OF_THE_LONGEST else before + value
        self.values[metric, queue] = together

    def _add_histogram(self, metric: QueueMetric, queue: str, kind: str, buckets: Buckets) -> None:
        known = self.histograms.setdefault((metric, queue, kind), buckets)
        if known is not buckets:
            known.add(buckets)


def read_queues() -> Reading:
    """Read all live queues of this process."""
    reading = Reading()
    for queue, stats in live_stats():
        for metric, value in _values_of(stats):
            reading._add(metric, stats.name, float(value))
        for number, (kind, of_type) in enumerate(_histograms_of(queue)):
            label = kind if number < MOST_TYPES else OTHER_TYPES
            for metric, buckets in of_type:
                reading._add_histogram(metric, stats.name, label, buckets)
    return reading


def _values_of(stats: BatchQueueStats) -> Iterator[tuple[QueueMetric, float]]:
    yield QueueMetric.PRODUCED, stats.produced
    yield QueueMetric.REFUSED, stats.refused
    yield QueueMetric.CONSUMED, stats.consumed
    yield QueueMetric.FAILED, stats.failed
    yield QueueMetric.DEAD_LETTERED, stats.dead_lettered
    yield QueueMetric.UNHANDLED, stats.unhandled
    yield QueueMetric.ABANDONED, stats.abandoned
    yield QueueMetric.MOVES, stats.moves
    yield QueueMetric.QUEUED, stats.queued
    yield QueueMetric.HELD, stats.held
    yield QueueMetric.IN_FLIGHT, stats.in_flight
    yield QueueMetric.CAPACITY, stats.total_capacity
    yield QueueMetric.OLDEST_AGE, stats.oldest_age_ms / 1e3
    yield QueueMetric.STUCK, len(stats.stuck_handlers)
    yield QueueMetric.LOG_DROPPED, stats.log_dropped
    yield QueueMetric.LOG_IN_LINE, stats.log_in_line_s


OfType = Iterable[tuple[QueueMetric, Buckets]]


def _histograms_of(queue: _core.Queue) -> Iterator[tuple[str, OfType]]:
    try:
        found = _core.histograms_of(queue, LIMITS_NS, LIMITS_ITEMS)
    except QueueForkedError:
        return
    for item_type, waits, items, calls in found:
        of_type = (
            (QueueMetric.WAIT, _buckets(waits, LIMITS_NS, 1e9)),
            (QueueMetric.BATCH_ITEMS, _buckets(items, LIMITS_ITEMS, 1.0)),
            (QueueMetric.CALL, _buckets(calls, LIMITS_NS, 1e9)),
        )
        yield type_name(item_type), of_type


def _buckets(figures: tuple[int, int, list[int]], limits: list[int], scale: float) -> Buckets:
    count, total, at_most = figures
    upper = [limit / scale for limit in limits]
    return Buckets([*upper, float("inf")], [float(n) for n in (*at_most, count)], total / scale)
