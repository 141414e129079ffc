"""`GroupCollector`: exports a group as Prometheus metrics."""

import math
from collections.abc import Iterator
from enum import Enum

from batchqueue.base.background_log import BackgroundLog
from batchqueue.groups.monitor import GroupMetrics, GroupMonitor
from batchqueue.metrics.names import MetricSpec
from batchqueue.metrics.prometheus import MetricCollector, Sample

_log = BackgroundLog("batchqueue")


_SCRAPE = "each scrape"
_BEAT = "each heartbeat of the worker"

_P = ("partition",)


def _gauge(
    name: str, unit: str, what: str, changes: str, labels: tuple[str, ...] = ()
) -> MetricSpec:
    return MetricSpec(f"batchqueue_group_{name}", "gauge", labels, unit, what, changes)


def _counter(name: str, unit: str, what: str, labels: tuple[str, ...] = ()) -> MetricSpec:
    labels = ("worker", *labels)
    return MetricSpec(f"batchqueue_group_worker_{name}", "counter", labels, unit, what, _BEAT)


class GroupMetric(Enum):
    """The metrics. Each starts with the labels `group` and `stream`.

    Metrics of a partition are read from the stream, so they continue when its owner changes.
    Metrics of a worker begin at 0 with each worker.
    """

    UP = _gauge("up", "1 or 0", "1 if the group could be read", "each scrape")
    MEMBERS = _gauge("members", "workers", "Workers", "each one that joins or leaves")
    MOVES = _gauge(
        "moves",
        "partitions",
        "Partitions that were moved, in the history kept",
        "each plan that moves some",
    )
    SKEW = _gauge("skew_ratio", "ratio", "Largest lag divided by the mean lag", _SCRAPE)
    OWNED = _gauge("partition_owned", "1 or 0", "1 if it has an owner", "each change of owner", _P)
    LAG = _gauge("partition_lag", "records", "Records that are not done", _SCRAPE, _P)
    TIME_LAG = _gauge(
        "partition_lag_seconds",
        "seconds",
        "Seconds that the lag takes at the rate of the owner",
        _SCRAPE,
        _P,
    )
    DEAD = _gauge(
        "partition_dead_letters",
        "records",
        "Records in the dead letters",
        "each record that goes there or is sent again",
        _P,
    )
    BLOCKED = _gauge(
        "partition_blocked",
        "1 or 0",
        "1 if records are tried again after their last attempt",
        _BEAT,
        _P,
    )
    HOT = _gauge("partition_hot", "1 or 0", "1 if it lags behind the others", _SCRAPE, _P)
    RECORDS = _counter(
        "records",
        "records",
        "Records that ended: handled, dead, skipped or dropped",
        ("outcome",),
    )
    FAILED = _counter("failed_attempts", "calls", "Calls of handlers that raised")
    LOST = _counter("lost_partitions", "partitions", "Partitions that another worker took over")
    LATE = _counter(
        "late_heartbeats", "heartbeats", "Heartbeats that were sent after half of the lease"
    )


_OUTCOMES = ("handled", "dead", "skipped", "dropped")


class GroupCollector(MetricCollector):
    """A collector for `prometheus_client` that reads a group at each scrape.

    It works in every process that can reach the server, and does not contact the workers. If a
    group cannot be read, `batchqueue_group_up` is 0 and its only metric in that scrape; the reason
    is logged once. See `GroupMetric` for the names.

    Example:
        REGISTRY.register(GroupCollector(GroupMonitor("billing", source)))
        start_http_server(9108, addr="127.0.0.1")
    """

    metrics = GroupMetric
    labels = ("group", "stream")

    def __init__(self, monitor: GroupMonitor) -> None:
        """Describe what to read; nothing is read yet.

        Args:
            monitor: The group.

        Raises:
            MissingPackageError: prometheus_client is not installed.
        """
        super().__init__()
        self._monitor = monitor
        self._was_readable = True

    def _samples(self) -> Iterator[Sample]:
        """Read the group. It never raises, because other collectors share the scrape."""
        try:
            samples = list(samples_of(self._monitor.metrics()))
        except Exception as error:
            if self._was_readable:
                _log.warning("group %s cannot be read: %s", self._monitor.group, error)
            self._was_readable = False
            samples = [(GroupMetric.UP, (), 0)]
        else:
            self._was_readable = True
        for metric, labels, value in samples:
            yield metric, (self._monitor.group, self._monitor.stream, *labels), value


def samples_of(metrics: GroupMetrics) -> Iterator[Sample]:
    """Return the samples of a reading. Unknown values have none."""
    yield GroupMetric.UP, (), 1
    yield GroupMetric.MEMBERS, (), len(metrics.members)
    yield GroupMetric.SKEW, (), metrics.skew.skew_ratio
    for number, partition in metrics.partitions.items():
        labels = (str(number),)
        yield GroupMetric.OWNED, labels, partition.owner is not None
        yield GroupMetric.HOT, labels, partition.is_hot
        if partition.lag is not None:
            yield GroupMetric.LAG, labels, partition.lag
        if partition.time_lag_s is not None and partition.time_lag_s < math.inf:
            yield GroupMetric.TIME_LAG, labels, partition.time_lag_s
    if metrics.has_reports:
        yield from _reported(metrics)


def _reported(metrics: GroupMetrics) -> Iterator[Sample]:
    yield GroupMetric.MOVES, (), metrics.moves
    for number, partition in metrics.partitions.items():
        yield GroupMetric.DEAD, (str(number),), partition.dead
        yield GroupMetric.BLOCKED, (str(number),), partition.is_blocked
    for name, member in metrics.members.items():
        for outcome in _OUTCOMES:
            yield GroupMetric.RECORDS, (name, outcome), getattr(member, outcome)
        yield GroupMetric.FAILED, (name,), member.failed_attempts
        yield GroupMetric.LOST, (name,), member.lost
        yield GroupMetric.LATE, (name,), member.late_heartbeats
