"""`KafkaStreams`: a topic of Kafka, and its groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from batchqueue.base.checks import check_choice, check_finite, check_switch, require
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import GroupInfo, MemberInfo, PartitionInfo, Redriven, lacking
from batchqueue.groups.kafka.connection import KafkaConnection
from batchqueue.groups.kafka.ownership import token_in
from batchqueue.groups.kafka.redrive import KafkaRedrive
from batchqueue.groups.kafka.server import (
    CALL_S,
    ELSEWHERE,
    OF_CLASSIC,
    GroupProtocol,
    KafkaAdmin,
    KafkaServer,
    KafkaWriter,
    check_server,
    known,
    refuse_max_len,
    session_times,
)
from batchqueue.groups.messages import Event, Incarnation, Member
from batchqueue.groups.producer import Key, Producer
from batchqueue.groups.record import check_name, partition_count

OURS = {
    **ELSEWHERE,
    "group.id": "use the group of the worker",
    "group.protocol": "use protocol",
    "group.instance.id": "leave it out: each worker is a separate member",
    "client.id": "use the name of the worker",
    "enable.auto.commit": "leave it out: offsets are committed when their records are done",
    "auto.offset.reset": "use start of the worker",
    "partition.assignment.strategy": "leave it out: it is cooperative",
    "max.poll.interval.ms": "use revoke_wait, which it follows",
    "enable.partition.eof": "leave it out: the worker needs it",
    "transactional.id": "use exactly_once; each worker then has its own",
    "isolation.level": "leave it out: records of open transactions are not read",
    "on_commit": "leave it out: the worker commits",
}
"""Settings of librdkafka that have another place here, and the remedy."""

_LONGEST_REVOKE_S = 3_600


@dataclass(init=False, repr=False, unsafe_hash=True)
class KafkaStreams:
    """A topic of Kafka, whose broker decides which worker owns which partition.

    Needs the extra `kafka`. It is a value: it holds no connection, and cannot be changed. It can be
    pickled, including the settings, and thus any password in them.

    Attributes:
        stream: The topic.
        partition_count: The number of partitions of a new topic, which an existing one must match;
            None for any.

    Example:
        >>> from batchqueue.groups import KafkaStreams
        >>> KafkaStreams("orders", bootstrap="localhost:9092", partitions=8)
        KafkaStreams('orders', bootstrap='localhost:9092', partitions=8)
    """

    _server: KafkaServer
    stream: str
    partition_count: int | None

    def __init__(
        self,
        topic: str,
        *,
        bootstrap: str,
        partitions: int | None = None,
        protocol: GroupProtocol = "auto",
        revoke_wait: float = 30,
        exactly_once: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe the topic, without connecting.

        Args:
            topic: The name of the topic.
            bootstrap: Some of the brokers, as "host:port,host:port".
            partitions: The number of partitions of a new topic, 1 to 16,384, which an existing one
                must match. Default: None, the topic must exist, with any number.
            protocol: How the members of a group share partitions: "consumer", which needs brokers
                from 4.0 on; "classic", with the cooperative assignor; or "auto", the first one
                that the brokers have; it is classic as well if `config` has a setting of that
                protocol, or if the user may not read the settings of the group. All workers of a
                group need the same one. Default: "auto".
            revoke_wait: How many seconds partitions that move wait for their running handlers, at
                most 3,600, and with the classic protocol at most half of the session, because all
                workers wait. Meanwhile the worker fetches nothing. Then the new owner gets the
                unfinished records again. Default: 30.
            exactly_once: Whether handlers may send records to other topics with `Batch.send`, each
                stored once, in the transaction that commits their batch. Needs brokers from 4.0 on,
                and the protocol "consumer". Default: False.
            config: Settings of librdkafka, for instance `security.protocol` or `sasl.username`.
                Default: none.

        Raises:
            ConfigError: An argument is invalid.
        """
        check_server("KafkaStreams", topic, bootstrap, config, OURS)
        check_choice("protocol", protocol, ("auto", "consumer", "classic"))
        check_switch("exactly_once", exactly_once)
        if exactly_once and protocol == "classic":
            raise ConfigError(
                'exactly_once is True, and protocol is "classic", with which brokers do not check '
                'transactions per partition; use protocol="consumer"'
            )
        protocol = "consumer" if exactly_once else protocol
        if protocol == "consumer" and config and (wrong := sorted(set(OF_CLASSIC) & set(config))):
            instead = "" if exactly_once else 'use protocol="classic", or '
            raise ConfigError(
                f"KafkaStreams: config has {wrong[0]!r}, which only the classic protocol has; "
                f"{instead}set consumer.session.timeout.ms of the group on the broker"
            )
        check_finite("revoke_wait", revoke_wait, 0, ", for instance 30")
        if revoke_wait > _LONGEST_REVOKE_S:
            raise ConfigError(f"revoke_wait is {revoke_wait} s; give at most {_LONGEST_REVOKE_S}")
        session_times(config or {})
        setting = object.__setattr__
        count = None if partitions is None else partition_count(partitions)
        setting(self, "stream", topic)
        setting(self, "partition_count", count)
        settings = dict(config or {})
        server = KafkaServer(bootstrap, topic, settings, protocol, revoke_wait, exactly_once)
        setting(self, "_server", server)

    def producer(
        self,
        *,
        codec: Any = "bytes",
        key: Key | None = None,
        max_len: int | None = None,
        partitions: int | None = None,
    ) -> Producer:
        """Return a producer of the topic; see `Producer`.

        Keys that are text or bytes go to the partitions that Java's producers choose; an int is
        sent as its digits.

        Raises:
            ConfigError: `max_len` is given: the length of a topic is bounded by its retention. Or
                `partitions` differs from the topic.
            MissingPackageError: confluent-kafka is not installed.
            StreamUnavailableError: The brokers cannot be reached.
        """
        refuse_max_len(max_len)
        return Producer(self, codec=codec, key=key, partitions=partitions)

    def connect(self, group: str, *, lease_ms: int, name: str) -> KafkaConnection:
        """Connect a worker. The worker calls this when it starts.

        Raises:
            ConfigError: `lease_ms` is not the default: the session of the group takes its place.
        """
        require("confluent_kafka", "KafkaStreams", "kafka")
        check_name("the worker", name)
        group = check_name("the group", group)
        membership = KafkaAdmin(self._server).membership(group)
        if lease_ms != 5_000:
            how = (
                "session.timeout.ms in config"
                if membership.protocol == "classic"
                else "consumer.session.timeout.ms of the group on the broker"
            )
            raise ConfigError(
                f"lease_ms is {lease_ms}, and has no effect on Kafka: set {how} "
                f"(now {membership.session_ms})"
            )
        return KafkaConnection(self._server, group, membership, name=name)

    def open_writer(self) -> KafkaWriter:
        """Connect a producer. The producer calls this when it is created."""
        require("confluent_kafka", "KafkaStreams", "kafka")
        return KafkaWriter(self._server)

    def open_administration(self, group: str) -> "KafkaAdministration":
        """Connect a monitor. The monitor calls this when it is created."""
        require("confluent_kafka", "KafkaStreams", "kafka")
        return KafkaAdministration(self._server, check_name("the group", group))

    def __repr__(self) -> str:
        """Return where the topic is, without secrets."""
        given = "" if self.partition_count is None else f", partitions={self.partition_count}"
        given += ", exactly_once=True" if self._server.exactly_once else ""
        return f"KafkaStreams({self.stream!r}, bootstrap={self._server.bootstrap!r}{given})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse to change the stream.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(f"KafkaStreams cannot be changed: {name}")


class KafkaAdministration:
    """A command's or monitor's access to a group; see `backend.Administration`."""

    counts_by_offset = True

    def __init__(self, server: KafkaServer, group: str) -> None:
        """Prepare to connect.

        Args:
            server: The brokers and the topic.
            group: The group.
        """
        self._server = server
        self._group = group
        self._admin = KafkaAdmin(server)
        self._reader = server.reader(group, "read_uncommitted")
        self._session_ms = 0
        self.lacks = {
            "metrics": "read worker.metrics() in the process",
            "log": "see the log of the broker that coordinates the group",
            "drain": "end the worker with SIGTERM",
            "trim": "set the retention of the topic",
        }

    def partitions(self) -> int:
        """Return the number of partitions of the topic; 0 if it does not exist."""
        return self._admin.known_partitions()

    def group(self) -> GroupInfo:
        """Return the members of the group, and the owners of its partitions."""
        if not self._session_ms:
            self._session_ms = self._admin.membership(self._group).session_ms
        members, owners = {}, {}
        for each in self._admin.members(self._group):
            member = Member(each.client_id, Incarnation(0, 1), host=each.host)
            # Brokers report neither the last heartbeat nor what a worker does.
            members[each.member_id] = MemberInfo(member, self._session_ms, "")
            for place in each.assignment.topic_partitions if each.assignment else ():
                if place.topic == self._server.topic:
                    owners[place.partition] = each.member_id
        names = {each: members[session].member.name for each, session in owners.items()}
        return GroupInfo(0, members, owners, dict(owners), names)

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo]:
        """Return the positions in the partitions."""
        wanted = list(partitions)
        committed = self._server.committed_of(self._reader, wanted)
        bounds = self._admin.bounds(wanted, CALL_S)
        infos = []
        for partition in wanted:
            (offset, metadata), (low, high) = known(committed[partition]), known(bounds[partition])
            done = offset if offset >= 0 else low
            infos.append(
                PartitionInfo(
                    token=token_in(metadata),
                    session="",
                    offset=done - 1,
                    done=done,
                    end=high - 1,
                    added=high,
                    length=high - low,
                    dead=0,
                    is_new=offset < 0,
                    has_deletions=True,
                )
            )
        return infos

    def history(self, after: int) -> list[Event]:
        """Return nothing: the brokers keep no history of a group."""
        del after
        return []

    def drain(self, session: str) -> bool:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        del session
        raise lacking(self, "drain")

    def trim(self) -> int:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise lacking(self, "trim")

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions, and return the new number."""
        before = self.partitions()
        if partitions > before:
            self._admin.enlarge(partitions)
        return max(before, partitions)

    def reset(self, partition: int, offset: int, done: int) -> None:
        """Let the group continue after an offset."""
        from confluent_kafka import KafkaException, TopicPartition

        del done
        first, _ = known(self._admin.bounds([partition], CALL_S)[partition])
        # Its token stays, so that tokens keep growing.
        _, metadata = known(self._server.committed_of(self._reader, [partition])[partition])
        kept = metadata if metadata and token_in(metadata) else ""
        place = TopicPartition(self._server.topic, partition, max(offset + 1, first), kept)
        try:
            [found] = self._reader.commit(offsets=[place], asynchronous=False)
        except KafkaException as error:
            raise self._server.refused(partition, error.args[0]) from None
        if found.error is not None:
            raise self._server.refused(partition, found.error)

    def delete(self) -> None:
        """Forget the group."""
        self._admin.delete(self._group)

    def redrive(self, partition: int | None, limit: int | None, redriven: Redriven) -> None:
        """Send dead letters back as new records, each once."""
        KafkaRedrive(self._server, self._group, partition, limit, redriven).run()

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
