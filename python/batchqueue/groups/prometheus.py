"""`GroupCollector`: a group as Prometheus metrics."""

import enum
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.checks import require
from batchqueue.groups.monitor import GroupMetrics, GroupMonitor
from batchqueue.metrics.names import families

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_log = BackgroundLog("batchqueue")


class _Spec(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    what: str


class GroupMetric(enum.Enum):
    """The metrics. All have the labels `group` and `stream` before their own.

    Those of a partition are read from the stream, so they continue when its owner changes. Those
    of a worker begin at 0 with each worker.
    """

    UP = _Spec("batchqueue_group_up", "gauge", (), "1 if the group could be read")
    MEMBERS = _Spec("batchqueue_group_members", "gauge", (), "Workers")
    MOVES = _Spec(
        "batchqueue_group_moves", "gauge", (), "Partitions that were moved, in the history kept"
    )
    SKEW = _Spec("batchqueue_group_skew_ratio", "gauge", (), "Largest lag divided by the mean lag")
    OWNED = _Spec(
        "batchqueue_group_partition_owned", "gauge", ("partition",), "1 if it has an owner"
    )
    LAG = _Spec(
        "batchqueue_group_partition_lag", "gauge", ("partition",), "Records that are not done"
    )
    TIME_LAG = _Spec(
        "batchqueue_group_partition_lag_seconds",
        "gauge",
        ("partition",),
        "Seconds that the lag takes at the rate of the owner",
    )
    DEAD = _Spec(
        "batchqueue_group_partition_dead_letters",
        "gauge",
        ("partition",),
        "Records in the dead letters",
    )
    BLOCKED = _Spec(
        "batchqueue_group_partition_blocked",
        "gauge",
        ("partition",),
        "1 if records are tried again after their last attempt",
    )
    HOT = _Spec(
        "batchqueue_group_partition_hot", "gauge", ("partition",), "1 if it lags behind the others"
    )
    RECORDS = _Spec(
        "batchqueue_group_worker_records",
        "counter",
        ("worker", "outcome"),
        "Records that ended: handled, dead, skipped or dropped",
    )
    FAILED = _Spec(
        "batchqueue_group_worker_failed_attempts",
        "counter",
        ("worker",),
        "Calls of handlers that raised",
    )
    LOST = _Spec(
        "batchqueue_group_worker_lost_partitions",
        "counter",
        ("worker",),
        "Partitions that another worker took over",
    )
    LATE = _Spec(
        "batchqueue_group_worker_late_heartbeats",
        "counter",
        ("worker",),
        "Heartbeats that were sent after half of the lease",
    )


Sample = tuple[GroupMetric, tuple[str, ...], float]
"""A metric, the values of its labels but `group` and `stream`, and its value."""

_OUTCOMES = ("handled", "dead", "skipped", "dropped")


class GroupCollector:
    """A collector for `prometheus_client`, which reads a group at each scrape.

    It works in every process that can reach the server, and no worker is contacted. A group that
    cannot be read has `batchqueue_group_up` 0, and no other metric in that scrape; the log says
    why, once. See `GroupMetric` for the names.

    Example:
        REGISTRY.register(GroupCollector(GroupMonitor("billing", source)))
        start_http_server(9108, addr="127.0.0.1")
    """

    def __init__(self, monitor: GroupMonitor) -> None:
        """Describe what to read; nothing is read yet.

        Args:
            monitor: The group.

        Raises:
            MissingPackageError: prometheus_client is not installed.
        """
        require("prometheus_client.core", "GroupCollector", "metrics")
        self._monitor = monitor
        self._was_readable = True

    def describe(self) -> "Iterable[Metric]":
        """Return the metrics without values; the registry calls this when it gets the collector."""
        return self._families([])

    def collect(self) -> "Iterable[Metric]":
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
        return self._families(samples)

    def _families(self, samples: Iterable[Sample]) -> "list[Metric]":
        found = families(GroupMetric, ("group", "stream"))
        for metric, labels, value in samples:
            group, stream = self._monitor.group, self._monitor.stream
            found[metric].add_metric((group, stream, *labels), value)
        return list(found.values())


def samples_of(metrics: GroupMetrics) -> Iterator[Sample]:
    """Return the samples of a reading. What is not known has none."""
    yield GroupMetric.UP, (), 1
    yield GroupMetric.MEMBERS, (), len(metrics.members)
    yield GroupMetric.MOVES, (), metrics.moves
    yield GroupMetric.SKEW, (), metrics.skew.skew_ratio
    for number, partition in metrics.partitions.items():
        labels = (str(number),)
        yield GroupMetric.OWNED, labels, partition.owner is not None
        yield GroupMetric.DEAD, labels, partition.dead
        yield GroupMetric.BLOCKED, labels, partition.is_blocked
        yield GroupMetric.HOT, labels, partition.is_hot
        if partition.lag is not None:
            yield GroupMetric.LAG, labels, partition.lag
        if partition.time_lag_s is not None and partition.time_lag_s < math.inf:
            yield GroupMetric.TIME_LAG, labels, partition.time_lag_s
    for name, member in metrics.members.items():
        for outcome in _OUTCOMES:
            yield GroupMetric.RECORDS, (name, outcome), getattr(member, outcome)
        yield GroupMetric.FAILED, (name,), member.failed_attempts
        yield GroupMetric.LOST, (name,), member.lost
        yield GroupMetric.LATE, (name,), member.late_heartbeats
