"""`GroupMonitor`: reads the state of a group, without contacting a worker or joining."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import GroupInfo
from batchqueue.groups.messages import Event, EventKind
from batchqueue.groups.record import check_name
from batchqueue.groups.skew import (
    PartitionReading,
    SkewDetectionConfig,
    SkewDetector,
    SkewReport,
    skew_report,
)

if TYPE_CHECKING:
    from batchqueue.groups.backend import StreamSource


@dataclass(frozen=True, kw_only=True)
class MemberMetrics:
    """A member of a group. Its counts come from its last beat; 0 before the first.

    Attributes:
        name: Its name.
        session: Its session.
        host: The host of its process.
        pid: Its process id.
        capacity: The share of the load that it takes.
        is_leaving: Whether it gives up its partitions.
        partitions: The partitions that it owns.
        lease_left_ms: The time until its lease ends.
        handled: Records whose handler returned.
        dead: Records that were set aside.
        skipped: Records that failed and were skipped.
        dropped: Records that were read and left to another owner.
        failed_attempts: Calls of handlers that raised.
        lost: Partitions that it lost.
        fenced: Tokens that were refused.
        late_heartbeats: Heartbeats sent after half of the lease had passed.
    """

    name: str
    session: str
    host: str
    pid: int
    capacity: float
    is_leaving: bool
    partitions: tuple[int, ...]
    lease_left_ms: int
    handled: int = 0
    dead: int = 0
    skipped: int = 0
    dropped: int = 0
    failed_attempts: int = 0
    lost: int = 0
    fenced: int = 0
    late_heartbeats: int = 0


@dataclass(frozen=True, kw_only=True)
class StreamPartition:
    """A partition of a stream, as a group sees it.

    Attributes:
        partition: Its number.
        owner: The name of the worker that owns it, or None.
        token: The newest token that opened it; 0 if none did.
        done: The offset up to which every record is done.
        end: The offset of the last record that was added.
        lag: Records in the stream that are not done; None if unknown.
        rate: Records per second that its owner handles; None if unknown.
        time_lag_s: Seconds to work off the lag at this rate, infinite at rate 0; None if unknown.
        dead: Records in the dead letters.
        is_blocked: Whether its owner waits to retry records that have used up their attempts.
        is_hot: Whether it lags behind the others; see `SkewDetector`.
    """

    partition: int
    owner: str | None
    token: int
    done: int
    end: int
    lag: int | None
    rate: float | None
    time_lag_s: float | None
    dead: int
    is_blocked: bool
    is_hot: bool


@dataclass(frozen=True, kw_only=True)
class GroupMetrics:
    """A group at one moment.

    Attributes:
        group: Its name.
        stream: Its stream.
        members: Its members, by name.
        partitions: The partitions of the stream, by number.
        lag: The sum of the known lags.
        rebalances: The number of plans in the history that moved a partition.
        moves: The number of partitions that these plans moved.
        skew: The statistics of the lags.
        has_reports: Whether the group holds what its workers report. Without, as on Kafka, counts
            of a worker, dead letters, `rebalances` and `moves` are 0: read `worker.metrics()`.
    """

    group: str
    stream: str
    members: dict[str, MemberMetrics]
    partitions: dict[int, StreamPartition]
    lag: int
    rebalances: int
    moves: int
    skew: SkewReport
    has_reports: bool = True


class GroupMonitor:
    """Reads the state of a group, and lets members leave. It does not join, and no worker notices.

    Example:
        >>> from batchqueue.groups import GroupMonitor, MemoryStreams
        >>> orders = MemoryStreams("orders", partitions=2)
        >>> with orders.producer() as producer:
        ...     _ = producer.send(b"coffee", partition=1)
        >>> with GroupMonitor("billing", orders) as monitor:
        ...     metrics = monitor.metrics()
        >>> metrics.lag, metrics.partitions[1].lag, metrics.members
        (1, 1, {})
    """

    def __init__(
        self, group: str, source: "StreamSource", *, skew: SkewDetectionConfig | None = None
    ) -> None:
        """Connect.

        Args:
            group: The group.
            source: The stream.
            skew: When a partition counts as hot. Default: None, `SkewDetectionConfig()`.

        Raises:
            ConfigError: The name of the group is invalid.
        """
        self.group = check_name("the group", group)
        self.stream = source.stream
        self._administration = source.open_administration(group)
        self._skew_config = skew or SkewDetectionConfig()
        self._detector = SkewDetector(self._skew_config)
        self._read_at = float("-inf")

    def metrics(self) -> GroupMetrics:
        """Return the current state of the group.

        Raises:
            StreamUnavailableError: The server cannot be reached.
            CallRefusedError: A key of a partition holds a value of the wrong type.
        """
        administration = self._administration
        group = administration.group()
        numbers = range(administration.partitions())
        infos = administration.infos(numbers)
        stats = {session: _parsed(each.stats) for session, each in group.members.items()}
        rates = _by_partition(stats, "rates")
        names = {session: each.member.name for session, each in group.members.items()}
        owners = {each: names.get(session) for each, session in group.owners.items()}
        readings = [
            PartitionReading(
                partition=each, lag=info.lag, rate_per_s=rates.get(each), owner=owners.get(each)
            )
            for each, info in zip(numbers, infos, strict=True)
        ]
        hot = self._hot(readings)
        blocked = {each for stat in stats.values() for each in stat.get("blocked", ())}
        plans = [event for event in administration.history(0) if event.kind is EventKind.PLAN]
        return GroupMetrics(
            group=self.group,
            stream=self.stream,
            members=_members(group, stats),
            partitions={
                each.partition: StreamPartition(
                    partition=each.partition,
                    owner=each.owner,
                    token=info.token,
                    done=info.offset,
                    end=info.end,
                    lag=each.lag,
                    rate=each.rate_per_s,
                    time_lag_s=each.time_lag_s,
                    dead=info.dead,
                    is_blocked=each.partition in blocked,
                    is_hot=each.partition in hot,
                )
                for each, info in zip(readings, infos, strict=True)
            },
            lag=sum(reading.lag or 0 for reading in readings),
            rebalances=len(plans),
            moves=sum(len(event.partitions) for event in plans),
            skew=skew_report(readings, self._skew_config),
            has_reports="metrics" not in administration.lacks,
        )

    def history(self, after: int = 0) -> list[Event]:
        """Return the last events of the group, at most about 1,000, oldest first.

        Args:
            after: Return only events whose version is larger. Default: all.
        """
        return self._administration.history(after)

    def drain(self, *, name: str | None = None, host: str | None = None) -> list[str]:
        """Ask workers to leave: they finish what is in hand, commit, and hand over.

        Args:
            name: The worker with this name.
            host: All workers on this host.

        Returns:
            The names of the workers that were asked.

        Raises:
            ConfigError: Neither a name nor a host is given, or both.
        """
        if (name is None) == (host is None):
            given = "both" if name is not None else "neither"
            raise ConfigError(f"drain: {given} of name and host is given; give one of them")
        members = self._administration.group().members
        chosen = {
            session: each.member.name
            for session, each in members.items()
            if (each.member.name == name if host is None else each.member.host == host)
        }
        return [each for session, each in chosen.items() if self._administration.drain(session)]

    def delete(self) -> None:
        """Forget the group, including its positions and dead letters.

        Raises:
            ConfigError: The group has members.
        """
        members = [each.member.name for each in self._administration.group().members.values()]
        if members:
            raise ConfigError(
                f'group "{self.group}" has members: {", ".join(members)}; let them leave before'
            )
        self._administration.delete()

    def close(self) -> None:
        """Close the connection."""
        self._administration.close()

    def __enter__(self) -> Self:
        """Return the monitor."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the connection."""
        self.close()

    def _hot(self, readings: list[PartitionReading]) -> frozenset[int]:
        # Two readings in a row count only if there was time for a change between them.
        now = time.monotonic()
        if now - self._read_at >= self._skew_config.check_interval_s:
            self._read_at = now
            self._detector.update(readings)
        return self._detector.hot


def _members(group: GroupInfo, stats: Mapping[str, Mapping[str, Any]]) -> dict[str, MemberMetrics]:
    owned: dict[str, list[int]] = {}
    for partition, session in sorted(group.owners.items()):
        owned.setdefault(session, []).append(partition)
    members = {}
    for session, each in group.members.items():
        said, member = stats[session], each.member
        counts = said.get("counts", {})
        members[member.name] = MemberMetrics(
            name=member.name,
            session=session,
            host=member.host,
            pid=member.pid,
            capacity=member.capacity,
            is_leaving=member.leaving,
            partitions=tuple(owned.get(session, ())),
            lease_left_ms=each.lease_left_ms,
            **{name: counts.get(name, 0) for name in ("handled", "dead", "skipped", "dropped")},
            **{
                name: said.get(name, 0)
                for name in ("failed_attempts", "lost", "fenced", "late_heartbeats")
            },
        )
    return dict(sorted(members.items()))


def _parsed(stats: str) -> dict[str, Any]:
    try:
        parsed = json.loads(stats)
    except ValueError:
        return {}  # before the first beat, or from another version
    return parsed if isinstance(parsed, dict) else {}


def _by_partition(stats: Mapping[str, Mapping[str, Any]], name: str) -> dict[int, float]:
    return {
        int(partition): float(value)
        for each in stats.values()
        for partition, value in each.get(name, {}).items()
    }
