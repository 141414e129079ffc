"""`MetricSpec`: one entry of a list of metrics. `QueueMetric`: the list for queues."""

from enum import Enum
from typing import NamedTuple


class MetricSpec(NamedTuple):
    """One metric.

    Attributes:
        name: As Prometheus shows it.
        kind: "counter", "gauge" or "histogram".
        labels: Labels of its series, in addition to those of all metrics in its list.
        unit: Unit of the value.
        what: What the value means.
        changes: When the value changes.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    unit: str
    what: str
    changes: str


# The metrics of a queue: the single list of their names, types, units, and when they change.


def _counter(name: str, unit: str, what: str, changes: str) -> MetricSpec:
    return MetricSpec(f"batchqueue_queue_{name}_total", "counter", (), unit, what, changes)


def _gauge(name: str, unit: str, what: str, changes: str) -> MetricSpec:
    return MetricSpec(f"batchqueue_queue_{name}", "gauge", (), unit, what, changes)


def _histogram(name: str, unit: str, what: str, changes: str) -> MetricSpec:
    return MetricSpec(f"batchqueue_queue_{name}", "histogram", ("type",), unit, what, changes)


class QueueMetric(Enum):
    """The metrics of the queues of a process, by queue; histograms also by type.

    OpenTelemetry has the same names, without `_total`.
    """

    PRODUCED = _counter("produced", "items", "items that were accepted", "each put")
    REFUSED = _counter(
        "refused",
        "items",
        "items that were not accepted: full, timed out, interrupted, closed",
        "each put that gives up",
    )
    CONSUMED = _counter("consumed", "items", "items whose handler returned", "each call")
    FAILED = _counter(
        "failed",
        "items",
        "items that failed for good, and that no handler of dead letters has kept",
        "each call that is not tried again",
    )
    DEAD_LETTERED = _counter(
        "dead_lettered",
        "items",
        "items that failed for good, and that a handler of dead letters has kept",
        "each call of that handler",
    )
    UNHANDLED = _counter("unhandled", "items", "items without a handler", "each batch of them")
    ABANDONED = _counter(
        "abandoned", "items", "items that a shutdown gave up", "the end of a shutdown's time"
    )
    MOVES = _counter(
        "moves", "partitions", "partitions that the balancer moved", "each run that moves some"
    )
    QUEUED = _gauge("queued", "items", "items in partitions", "each put and take")
    HELD = _gauge(
        "held", "items", "items taken that wait for a call, or for their next one", "each call"
    )
    IN_FLIGHT = _gauge("in_flight", "items", "items in a running call", "each call")
    CAPACITY = _gauge("capacity", "items", "items that fit into all partitions", "each growth")
    OLDEST_AGE = _gauge(
        "oldest_age_seconds",
        "seconds",
        "how long the oldest item waits that no call has had yet; 0 if there is none",
        "all the time while it waits",
    )
    STUCK = _gauge(
        "stuck", "handlers", "handlers that are inside one call for more than a second", "each call"
    )
    LOG_DROPPED = _counter(
        "log_dropped", "lines", "log lines that were lost while the log was held up", "each one"
    )
    LOG_IN_LINE = _gauge(
        "log_in_line_seconds",
        "seconds",
        "for how long the current line has been on its way into the log; 0 if there is none",
        "all the time while it lasts",
    )
    WAIT = _histogram(
        "wait_seconds",
        "seconds",
        "how long the oldest item of a batch has waited from its put to its first call",
        "each first call of a batch",
    )
    BATCH_ITEMS = _histogram("batch_items", "items", "items of a call", "each call")
    CALL = _histogram("call_seconds", "seconds", "time of a call of a handler", "each call")


LIMITS_NS = [4**power for power in range(5, 20)]
"""The limits of the buckets of times, in nanoseconds: from 1 µs to 275 s, in factors of 4."""

LIMITS_ITEMS = [4**power for power in range(11)]
"""The limits of the buckets of items: from 1 to 1 048 576, in factors of 4."""

MOST_TYPES = 100
"""The most types of a queue with separate series: the first that were registered."""

OTHER_TYPES = "(other)"
"""The label that all further types share."""
