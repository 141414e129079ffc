"""The brokers and a topic on them: settings, calls about topics and groups, and a producer."""

import ctypes
import os
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.backend import NewRecord
from batchqueue.groups.errors import KafkaRefusedError, StreamUnavailableError
from batchqueue.groups.record import check_name, check_partitions

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

_log = BackgroundLog("batchqueue")

T = TypeVar("T")

GroupProtocol = Literal["auto", "consumer", "classic"]

CALL_S = 10.0
"""The limit of a call to the brokers."""

_TRY_S = 3.0
"""The limit of one attempt at a call that may be repeated."""

_SILENCE_S = 10.0
"""A client for administration whose calls get no reply for so long is replaced."""

_NO_REPLY = ("_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_NOENT")
"""Names of errors with which a call fails that no broker has answered."""

_LONGEST_CALL_S = 3_600.0
_PAUSE_S = 0.05
_REPEATED_LOG_S = 60

OF_CLASSIC = ("session.timeout.ms", "heartbeat.interval.ms")
"""Settings of the classic protocol, which the other one refuses."""

_SESSION_MS, _HEARTBEAT_MS = 45_000, 5_000
"""The defaults of the brokers: the session of a member, and the interval of its heartbeats."""

LARGEST_RECORD = 1_000_000_000
"""The most bytes of a record that librdkafka can send."""

PERMANENT = ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "RECORD_LIST_TOO_LARGE", "POLICY_VIOLATION")
"""Names of errors that sending the record again does not fix."""

_REMEDIES = {
    "MSG_SIZE_TOO_LARGE": "send smaller records, or raise message.max.bytes in config and "
    "max.message.bytes of the topic",
    "INVALID_RECORD": "give each record a key, or set cleanup.policy=delete of the topic",
    "INVALID_REPLICATION_FACTOR": "start enough brokers, or create the topic yourself",
    "UNSUPPORTED_VERSION": "use protocol='classic', or enable the other one on the brokers",
    "UNKNOWN_MEMBER_ID": "stop the workers of the group first",
    "NON_EMPTY_GROUP": "stop the workers of the group first",
    "UNKNOWN_TOPIC_OR_PART": "create the topic, or check its name",
    "_UNKNOWN_TOPIC": "create the topic, or check its name",
    "TOPIC_EXCEPTION": "give the topic a name of letters, digits, dots, hyphens and underscores",
    "GROUP_ID_NOT_FOUND": "let all workers of a group use the same protocol",
    "INCONSISTENT_GROUP_PROTOCOL": "let all workers of a group use the same protocol and assignor",
    "INVALID_SESSION_TIMEOUT": "set session.timeout.ms within the limits of the brokers",
    "GROUP_MAX_SIZE_REACHED": "start fewer workers, or raise group.max.size of the brokers",
    "OFFSET_OUT_OF_RANGE": "the partition begins anew where it has records",
    "_AUTO_OFFSET_RESET": "the partition begins anew where it has records",
}
"""What to do about an error, by its name."""


class KafkaMembership(NamedTuple):
    """How the members of a group share partitions."""

    protocol: Literal["consumer", "classic"]
    session_ms: int
    """The time after which the group gives up on a silent member."""
    heartbeat_ms: int
    """The interval of the heartbeats of a member."""

    @property
    def lease_ms(self) -> int:
        """How long a member is safe from the group after it has been confirmed."""
        return self.session_ms - self.heartbeat_ms

    def revoke_wait_s(self, wanted_s: float) -> float:
        """Return how long a revoke may wait.

        With the classic protocol all members wait for it, and none may lose its session meanwhile.
        """
        return min(wanted_s, self.lease_ms / 2_000) if self.protocol == "classic" else wanted_s


class TopicState(NamedTuple):
    """What the brokers say about a topic."""

    id: str
    """Another one after the topic was deleted and created again."""
    partitions: int


class Bounds(NamedTuple):
    """The records that a partition has."""

    first: int
    """The offset of the first record."""
    end: int
    """The offset of the next record that consumers will see."""


AskedBounds = dict[int, tuple["Future[Any]", "Future[Any]"]]
"""Two calls that are under way, for both bounds, by partition."""


ELSEWHERE = {
    "bootstrap.servers": "use bootstrap",
    "metadata.broker.list": "use bootstrap",
    "delivery.report.only.error": "leave it out: the producer needs all reports",
    "error_cb": "leave it out: errors are raised or logged",
}
"""Settings of librdkafka that have another place in all classes, and the remedy."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check_server(
    what: str,
    topic: object,
    bootstrap: object,
    config: Mapping[str, Any] | None,
    elsewhere: Mapping[str, str],
) -> None:
    """Refuse arguments that cannot be those of a topic.

    Args:
        what: The name of the class that takes them.
        topic: The name of the topic.
        bootstrap: Some of the brokers.
        config: Settings of librdkafka, or None.
        elsewhere: Settings that have another place, and the remedy.

    Raises:
        ConfigError: One of them is invalid.
    """
    if not isinstance(bootstrap, str) or not bootstrap:
        raise ConfigError(
            f'{what}: bootstrap is {bootstrap!r}, {a_type(bootstrap)}; give "host:port"'
        )
    if not _TOPIC.fullmatch(check_name("the topic", topic)) or topic in (".", ".."):
        raise ConfigError(
            f"the topic is {topic!r}; a topic of Kafka has 1 to 249 letters, digits, "
            "dots, hyphens and underscores"
        )
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"{what}: config is {a_type(config)}; give a dict, or None for none")
    for name in config or {}:
        if name in elsewhere:
            raise ConfigError(f"{what}: config has {name!r}; {elsewhere[name]}")


_OF_READING = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",  # readers say where they begin
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "fetch.queue.backoff.ms": 10,  # the default lets a consumer wait for a second
    "topic.metadata.refresh.interval.ms": 10_000,  # finds added partitions
}
"""Settings of consumers."""


@dataclass(frozen=True)
class KafkaServer:
    """The brokers, and a topic on them.

    Attributes:
        bootstrap: Hosts and ports.
        topic: The topic.
        config: Settings of librdkafka.
        protocol: How members share partitions.
        revoke_wait_s: How long a revoke waits for what is in hand.
        exactly_once: Whether offsets are stored by transactions.
    """

    bootstrap: str
    topic: str
    config: Mapping[str, Any] = field(hash=False, repr=False)
    protocol: GroupProtocol = "auto"
    revoke_wait_s: float = 30
    exactly_once: bool = False

    @property
    def of_dead_letters(self) -> "KafkaServer":
        """The topic of dead letters, on the same brokers."""
        return replace(self, topic=f"{self.topic}.dead")

    def settings(self) -> dict[str, Any]:
        """Return the settings of all clients, which ignore those that are for another kind.

        librdkafka logs only what is critical, because errors are raised where they matter.
        """
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 2,
            "allow.auto.create.topics": False,
            "reconnect.backoff.max.ms": 300,  # by default up to 10 s pass after a broker's restart
            "socket.timeout.ms": 10_000,  # then a silent connection is made anew
            # With "rebootstrap", librdkafka loses calls that wait for brokers which are away. With
            # "none" it never finds brokers again that its metadata have left out: so a client
            # that gets no replies is replaced.
            "metadata.recovery.strategy": "none",
            **self.config,
        }

    def consumer_settings(
        self, group: str, name: str, membership: KafkaMembership
    ) -> dict[str, Any]:
        """Return the settings of a worker's consumer."""
        settings: dict[str, Any] = {
            **_OF_READING,
            "group.id": group,
            "client.id": name,
            # The thread keeps polling, except while a revoke waits.
            "max.poll.interval.ms": max(
                300_000, int(2_000 * self.revoke_wait_s), membership.session_ms
            ),
            **self.settings(),
            "group.protocol": membership.protocol,
        }
        if membership.protocol == "consumer":
            return {each: settings[each] for each in settings if each not in OF_CLASSIC}
        settings["partition.assignment.strategy"] = "cooperative-sticky"
        settings["session.timeout.ms"] = membership.session_ms
        settings["heartbeat.interval.ms"] = membership.heartbeat_ms
        return settings

    def reader_settings(self, partitions: int) -> dict[str, Any]:
        """Return the settings of a consumer that reads partitions without a group.

        It fetches little ahead: the size of a fetch counts before decompression, and each record
        takes a few hundred bytes besides. The next fetch begins when few records are left, so a
        full queue is checked often.
        """
        return {
            **_OF_READING,
            "client.id": "batchqueue",
            # All partitions share one queue.
            "queued.max.messages.kbytes": 4 << 10,
            "queued.min.messages": max(200, 4_000 // partitions),
            "fetch.queue.backoff.ms": 2,
            "fetch.max.bytes": 1 << 20,
            "fetch.message.max.bytes": max(64 << 10, (1 << 20) // partitions),
            "fetch.wait.max.ms": 100,  # a partition that is added waits as long
            **self.settings(),
            "group.id": "none",  # librdkafka requires one
            "group.protocol": "classic",
        }

    def producer_settings(self) -> dict[str, Any]:
        """Return the settings of a producer."""
        return {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "delivery.timeout.ms": int(CALL_S * 1_000),
            **self.settings(),
        }

    def transaction_settings(self) -> dict[str, Any]:
        """Return the settings of the producer of a worker's transactions.

        It reports only the records that have failed, and they fail before the transaction does.
        """
        limit_ms = milliseconds(self.config, "delivery.timeout.ms", int(CALL_S * 1_000))
        limit_ms = milliseconds(self.config, "transaction.timeout.ms", limit_ms)
        return {
            **self.producer_settings(),
            "transaction.timeout.ms": limit_ms,
            "delivery.timeout.ms": limit_ms,
            "socket.timeout.ms": limit_ms,  # at most
            "topic.metadata.propagation.max.ms": 1_000,  # then a topic is missing
            **self.config,
            "delivery.report.only.error": True,
        }

    def places(self, partitions: Iterable[int]) -> list[Any]:
        """Return the partitions as the client names them."""
        from confluent_kafka import TopicPartition

        return [TopicPartition(self.topic, each) for each in partitions]

    def reader(
        self, group: str, isolation: Literal["read_committed", "read_uncommitted"]
    ) -> "Consumer":
        """Return a consumer that asks for offsets of a group, and never joins it.

        If it is assigned partitions, it reads them to their ends.

        Args:
            group: The group.
            isolation: If an offset is pending in a transaction, "read_committed" waits for its end,
                and "read_uncommitted" gets the one before.
        """
        from confluent_kafka import Consumer

        own = {
            "group.id": group,
            "group.protocol": "classic",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.queue.backoff.ms": 10,
        }
        return client_of(Consumer, {**self.settings(), **own})

    def committed(
        self, consumer: "Consumer", partitions: Iterable[int], timeout_s: float
    ) -> dict[int, tuple[int, str | None] | BatchQueueError]:
        """Return the committed offset and its metadata, by partition; below 0 for none.

        Asked by a consumer of the group: the same call of librdkafka's admin client ends the
        process if the coordinator of the group has just moved.
        """
        from confluent_kafka import KafkaException

        try:
            found = consumer.committed(self.places(partitions), timeout_s)
        except KafkaException as error:
            raise self.error_of(error.args[0], "READ") from None
        return {
            each.partition: self.error_of(each.error, "READ")
            if each.error is not None
            else (each.offset, each.metadata)
            for each in found
        }

    def committed_of(
        self, reader: "Consumer", partitions: Iterable[int]
    ) -> dict[int, tuple[int, str | None] | BatchQueueError]:
        """Return the same for the group of a `reader`, whose errors say what it lacks."""
        try:
            return self.committed(reader, partitions, CALL_S)
        except StreamUnavailableError:
            message = reader.poll(0)
            error = None if message is None else message.error()
            if error is not None:
                raise self.error_of(error, "READ") from None
            raise

    def refused(
        self, partition: int | None, error: "KafkaError", right: str = "READ"
    ) -> KafkaRefusedError:
        """Return the error of a call that the brokers refused.

        Args:
            partition: The partition, if the call concerned one.
            error: Their reply.
            right: The right that the call needs.
        """
        name = _cause_of(error)
        what, is_forbidden, _ = name.partition("_AUTHORIZATION_FAILED")
        if is_forbidden:
            # A producer without `right` on any topic is refused by the cluster.
            on = "topic" if what == "CLUSTER" else what.lower().replace("_", " ")
            remedy = f"give this user {right} on the {on}"
        else:
            remedy = _REMEDIES.get(name, "see the log of the broker")
        where = self.topic if partition is None else f"{self.topic}/{partition}"
        reason = error.str().removeprefix("Broker: ")
        return KafkaRefusedError(f"{where}: the broker refused: {reason}: {remedy}")

    def error_of(self, error: "KafkaError", right: str) -> BatchQueueError:
        """Return the error of a call that needs a right: refused, or to be tried again."""
        name = error.name()
        if name.endswith("_AUTHORIZATION_FAILED") or name in PERMANENT:
            return self.refused(None, error, right)
        return StreamUnavailableError(self.topic, f"{name} ({error.str().strip(' :')})")


def _cause_of(error: "KafkaError") -> str:
    """Return the name of an error, or of the cause of a fatal one, which only its text has."""
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._FATAL:
        for name in ("GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED", *_REMEDIES):
            if KafkaError(getattr(KafkaError, name)).str() in error.str():
                return name
    return str(error.name())


def _is_fatal(error: "KafkaError") -> bool:
    return bool(error.fatal()) or error.name() == "_FATAL"


def client_of(kind: Callable[[dict[str, Any]], T], settings: Mapping[str, Any]) -> T:
    """Return a client with settings.

    Raises:
        ConfigError: librdkafka does not know a setting, or its value is invalid.
    """
    from confluent_kafka import KafkaException

    try:
        client: T = _with_weak_references(kind)(dict(settings))
        _clients.add(client)
        return client
    except KafkaException as error:
        raise ConfigError(f"{error.args[0].str()}; correct `config`") from None


def _note_cause(errors: "deque[KafkaError]", error: "KafkaError") -> None:
    """Keep the last error that says more than that all brokers are down."""
    if error.name() != "_ALL_BROKERS_DOWN" or not errors:
        errors.append(error)


def _clear_elsewhere(clients: list[Any]) -> None:
    """Delete clients of administration on a new thread.

    Their own threads set the futures, and Python may collect garbage there. But librdkafka ends
    the process if a client is deleted on one of its threads.
    """
    if clients:
        with suppress(RuntimeError):  # the interpreter is ending
            threading.Thread(target=clients.clear, daemon=True).start()


class MinuteLog:
    """Logs warnings about a client, each kind at most once a minute."""

    def __init__(self, client: str, log: BackgroundLog = _log) -> None:
        """Begin.

        Args:
            client: What the client is, for instance "consumer of orders".
            log: Where the lines go.
        """
        self._client = client
        self._log = log
        self._logged: dict[str, float] = {}

    def warn(self, kind: str, reason: str) -> None:
        """Log a warning, unless one of its kind was logged just now."""
        now = time.monotonic()
        if now - self._logged.get(kind, -_REPEATED_LOG_S) >= _REPEATED_LOG_S:
            self._logged[kind] = now
            self._log.warning("%s: %s", self._client, reason)

    def warn_of(self, error: "KafkaError") -> None:
        """Log an error of the client."""
        self.warn(error.name(), error.str())


_clients: "weakref.WeakSet[Any]" = weakref.WeakSet()


@cache
def _with_weak_references(kind: Any) -> Any:
    return type(kind.__name__, (kind,), {})


def _keep_clients() -> None:
    """Never delete the clients of a parent process: that waits for threads which are not here."""
    for client in list(_clients):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


os.register_at_fork(after_in_child=_keep_clients)


def session_times(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the session and the interval of heartbeats of the classic protocol, in milliseconds.

    Raises:
        ConfigError: One is not a whole number, or the session is not longer.
    """
    session, heartbeat = OF_CLASSIC
    session_ms = milliseconds(config, session, _SESSION_MS)
    heartbeat_ms = milliseconds(config, heartbeat, min(1_000, session_ms // 6))
    if heartbeat_ms >= session_ms:
        raise ConfigError(
            f"KafkaStreams: heartbeat.interval.ms is {heartbeat_ms}, and session.timeout.ms is "
            f"{session_ms}; give a third of the session or less"
        )
    return session_ms, heartbeat_ms


def milliseconds(config: Mapping[str, Any], name: str, default: int) -> int:
    """Return a setting of librdkafka in milliseconds.

    Raises:
        ConfigError: It is not a whole number.
    """
    value = config.get(name, default)
    if not str(value).isdecimal() or int(value) == 0:
        raise ConfigError(f"KafkaStreams: {name} is {value!r}; give milliseconds, such as 6000")
    return int(value)


def known(reply: T | BatchQueueError) -> T:
    """Return a reply, or raise the error that came in its place."""
    if isinstance(reply, BatchQueueError):
        raise reply
    return reply


class KafkaAdmin:
    """Calls about a topic and its groups. It may be used by several threads."""

    def __init__(self, server: KafkaServer) -> None:
        """Prepare to connect.

        Args:
            server: The brokers and the topic.
        """
        self._server = server
        self._errors: deque[KafkaError] = deque(maxlen=1)
        self._clients: list[Any] = []
        weakref.finalize(self, _clear_elsewhere, self._clients).atexit = False
        self._connect()

    def _connect(self) -> None:
        from confluent_kafka.admin import AdminClient

        settings = {**self._server.settings(), "error_cb": partial(_note_cause, self._errors)}
        self._clients[:] = [client_of(AdminClient, settings)]
        self._silent_since: float | None = None

    def membership(self, group: str) -> KafkaMembership:
        """Return the protocol of a group, and the session of its members."""
        from confluent_kafka import KafkaError
        from confluent_kafka.admin import ConfigResource

        server = self._server
        classic = KafkaMembership("classic", *session_times(server.config))
        if server.protocol == "classic" or not server.config.keys().isdisjoint(OF_CLASSIC):
            return classic
        resource = ConfigResource(ConfigResource.Type.GROUP, group)
        [asked] = self._client.describe_configs([resource]).values()
        try:
            unsupported = (KafkaError.INVALID_REQUEST, KafkaError.UNSUPPORTED_VERSION)
            found: Any = self._found(asked, unsupported, CALL_S, "DESCRIBE_CONFIGS")
        except KafkaRefusedError as error:
            if server.protocol == "consumer":
                return KafkaMembership("consumer", _SESSION_MS, _HEARTBEAT_MS)
            _log.info("%s; using the classic group protocol", error)
            return classic
        if found is not None:
            session, interval = (
                int(found[f"consumer.{name}.ms"].value)
                for name in ("session.timeout", "heartbeat.interval")
            )
            return KafkaMembership("consumer", session, interval)
        if server.protocol == "consumer":
            what, instead = "", "protocol='classic', or "
            if server.exactly_once:
                what, instead = ", which exactly_once needs", ""
            raise KafkaRefusedError(
                f"{server.topic}: the brokers do not have the group protocol 'consumer'{what}: use "
                f"{instead}brokers from 4.0 on"
            )
        _log.info("The brokers of %s have the classic group protocol only; using it", server.topic)
        return classic

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions of the topic, which is created if a number is given.

        Raises:
            ConfigError: The topic has another number; or it is missing, and none is given.
        """
        topic = self._server.topic
        known = self.known_partitions()
        if known == 0 and given is not None:
            known = self.create(given)
        if known == 0:
            raise ConfigError(
                f'topic "{topic}" does not exist on {self._server.bootstrap}: create it, or give '
                "partitions=..., so that its first user creates it"
            )
        check_partitions(topic, known, given)
        return known

    def known_partitions(self, timeout_s: float | None = None) -> int:
        """Return the number of partitions of the topic; 0 if it does not exist.

        Args:
            timeout_s: The limit of the call. Default: None, `CALL_S`.
        """
        found = self.topic(timeout_s)
        return 0 if found is None else found.partitions

    def topic(self, timeout_s: float | None = None) -> "TopicState | None":
        """Return what the brokers say about the topic; None if it does not exist."""

        def ask(try_s: float) -> TopicState | None:
            return self.topic_of(self.ask_topic(try_s), try_s)

        return self._repeated(ask, CALL_S if timeout_s is None else timeout_s)

    def ask_topic(self, timeout_s: float) -> "Future[Any]":
        """Ask about the topic, without waiting for the reply."""
        from confluent_kafka import TopicCollection

        topics = TopicCollection([self._server.topic])
        [asked] = self._client.describe_topics(topics, request_timeout=timeout_s).values()
        reply: Future[Any] = asked
        return reply

    def topic_of(self, asked: "Future[Any]", timeout_s: float) -> "TopicState | None":
        """Return the reply about the topic; None if it does not exist."""
        from confluent_kafka import KafkaError

        found = self._found(asked, (KafkaError.UNKNOWN_TOPIC_OR_PART,), timeout_s)
        return None if found is None else TopicState(str(found.topic_id), len(found.partitions))

    def create(self, partitions: int) -> int:
        """Create the topic unless another has, and return the number of its partitions."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        topic = self._server.topic
        [made] = self._client.create_topics([NewTopic(topic, partitions, -1)]).values()
        try:
            made.result(CALL_S)
            _log.info("Created topic %s with %d partition(s)", topic, partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._server.refused(None, error.args[0], "CREATE") from None
        except TimeoutError:
            pass  # the topic may still appear
        end = time.monotonic() + CALL_S
        while not (known := self.known_partitions()):
            if time.monotonic() >= end:
                raise StreamUnavailableError(topic, "the brokers did not create the topic")
            time.sleep(_PAUSE_S)  # until all of the brokers know it
        return known

    def enlarge(self, partitions: int) -> None:
        """Raise the number of partitions of the topic."""
        from confluent_kafka.admin import NewPartitions

        new = NewPartitions(self._server.topic, partitions)
        [asked] = self._client.create_partitions([new]).values()
        self._result(asked, CALL_S, "ALTER")

    def bounds(
        self, partitions: Sequence[int], timeout_s: float
    ) -> dict[int, Bounds | BatchQueueError]:
        """Return which records partitions have, or the error of each whose leader is away."""
        end = time.monotonic() + timeout_s
        found: dict[int, Bounds | BatchQueueError] = {}
        wanted = list(partitions)
        while wanted:
            found |= self._bounds(wanted, min(_TRY_S, timeout_s))
            wanted = [each for each in wanted if isinstance(found[each], StreamUnavailableError)]
            if not wanted or time.monotonic() >= end:
                break
            self.look_up(timeout_s)
            time.sleep(_PAUSE_S)
        return found

    def look_up(self, timeout_s: float) -> None:
        """Let the client look up partitions that were added, and leaders that have changed."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException):
            self._client.list_topics(self._server.topic, timeout=timeout_s)

    def _bounds(
        self, partitions: Sequence[int], timeout_s: float
    ) -> dict[int, Bounds | BatchQueueError]:
        return self.bounds_of(self.ask_bounds(partitions, timeout_s), timeout_s)

    def ask_bounds(self, partitions: Sequence[int], timeout_s: float) -> "AskedBounds":
        """Ask which records partitions have, without waiting for the replies."""
        from confluent_kafka.admin import OffsetSpec

        places = self._server.places(partitions)
        first, end = (
            self._ask_offsets(places, spec, timeout_s)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return {each.partition: (first[each], end[each]) for each in places}

    def _ask_offsets(self, places: Sequence[Any], spec: Any, timeout_s: float) -> Any:
        from confluent_kafka import IsolationLevel

        return self._client.list_offsets(
            dict.fromkeys(places, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=timeout_s,
        )

    def bounds_of(
        self, asked: "AskedBounds", timeout_s: float
    ) -> dict[int, Bounds | BatchQueueError]:
        """Return the replies, or the error of each partition whose leader is away."""
        found: dict[int, Bounds | BatchQueueError] = {}
        for partition, both in asked.items():
            try:
                found[partition] = Bounds(*(self._offset(each, timeout_s) for each in both))
            except BatchQueueError as error:
                found[partition] = error
        return found

    def offsets_at(self, partitions: Sequence[int], time_ms: int) -> dict[int, int]:
        """Return the offset of the first record from a time on, by partition; -1 for none."""
        from confluent_kafka.admin import OffsetSpec

        places = self._server.places(partitions)

        def ask(try_s: float) -> dict[int, int]:
            asked = self._ask_offsets(places, OffsetSpec.for_timestamp(time_ms), try_s)
            return {each.partition: self._offset(asked[each], try_s) for each in places}

        return self._repeated(ask, CALL_S)

    def log_end(self, partition: int, timeout_s: float) -> int:
        """Return the end of a partition, behind transactions that are still open."""
        from confluent_kafka.admin import OffsetSpec

        [place] = self._server.places([partition])

        def ask(try_s: float) -> int:
            asked = self._client.list_offsets({place: OffsetSpec.latest()}, request_timeout=try_s)
            return self._offset(asked[place], try_s)

        return self._repeated(ask, timeout_s)

    def _offset(self, asked: "Future[Any]", timeout_s: float) -> int:
        """Return an offset; librdkafka may report an invalid one as a success after a timeout."""
        from confluent_kafka import OFFSET_INVALID

        offset = int(self._result(asked, timeout_s).offset)
        if offset == OFFSET_INVALID:
            raise StreamUnavailableError(self._server.topic, "the brokers returned no offset")
        return offset

    def close(self) -> None:
        """Close the connection. A call that is made later is refused."""
        self._clients.clear()

    @property
    def _client(self) -> Any:
        if not self._clients:
            raise StreamUnavailableError(self._server.topic, "the connection is closed")
        if self._silent_since is not None and time.monotonic() - self._silent_since >= _SILENCE_S:
            self._connect()  # it may have lost its brokers for good
        return self._clients[0]

    def _note_reply(self, is_reply: bool) -> None:
        if is_reply:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = time.monotonic()

    def members(self, group: str) -> list[Any]:
        """Return the members of a group, with what they own; none if there is no such group."""
        from confluent_kafka import KafkaError

        # librdkafka aborts the process if a call to a coordinator times out before the coordinator
        # is back (an assertion in `rd_kafka_enq_once_del_source_return`). So the call gets an hour,
        # and is abandoned together with its client.
        groups = [group]
        [asked] = self._client.describe_consumer_groups(
            groups, request_timeout=_LONGEST_CALL_S
        ).values()
        try:
            found: Any = self._found(asked, (KafkaError.GROUP_ID_NOT_FOUND,), CALL_S)
        except StreamUnavailableError:
            if not asked.done():
                self._connect()
            raise
        return [] if found is None else list(found.members)

    def delete(self, group: str) -> None:
        """Delete a group without members."""
        [asked] = self._client.delete_consumer_groups(
            [group], request_timeout=_LONGEST_CALL_S
        ).values()
        try:
            self._result(asked, CALL_S, "DELETE")
        except StreamUnavailableError:
            if not asked.done():
                self._connect()
            raise

    def _repeated(self, ask: Callable[[float], T], timeout_s: float) -> T:
        """Make a call that changes nothing, and repeat it while no broker answers.

        librdkafka loses a call that waits for a broker which it forgets meanwhile.
        """
        end = time.monotonic() + timeout_s
        while True:
            try:
                return ask(min(_TRY_S, timeout_s))
            except StreamUnavailableError:
                if time.monotonic() >= end:
                    raise
            time.sleep(_PAUSE_S)

    def _found(
        self,
        asked: "Future[T]",
        missing: Collection[int],
        timeout_s: float,
        right: str = "DESCRIBE",
    ) -> T | None:
        """Return the reply to a call; None for the errors of what is missing."""
        from confluent_kafka import KafkaException

        try:
            return self._result(asked, timeout_s, right)
        except StreamUnavailableError:
            error = asked.exception() if asked.done() else None
            if isinstance(error, KafkaException) and error.args[0].code() in missing:
                return None
            raise

    def _result(self, asked: "Future[T]", timeout_s: float, right: str = "DESCRIBE") -> T:
        """Wait for the reply to a call that needs a right.

        Raises:
            KafkaRefusedError: The right is missing.
            StreamUnavailableError: The brokers did not answer, or could not do it now.
        """
        from confluent_kafka import KafkaException

        try:
            result = asked.result(timeout_s)
        except KafkaException as error:
            self._note_reply(error.args[0].name() not in _NO_REPLY)
            raise self._server.error_of(error.args[0], right) from None
        except TimeoutError:
            self._note_reply(False)
            self._client.poll(0)  # reports why connections fail
            why = "".join(f" ({each.str()})" for each in self._errors)
            reason = f"the brokers did not answer in {timeout_s:g} s{why}"
            raise StreamUnavailableError(self._server.topic, reason) from None
        self._note_reply(True)
        return result


def refuse_max_len(max_len: int | None) -> None:
    """Refuse a bound for the length of a partition.

    Raises:
        ConfigError: There is one.
    """
    if max_len is not None:
        raise ConfigError(
            f"max_len is {max_len}, and has no effect on Kafka: set the retention of the topic"
        )


class RecordReport(NamedTuple):
    """What became of a record that was sent."""

    error: "KafkaError | None"
    partition: int = -1
    """Its partition; -1 if it had none before it failed, or if it was not sent."""
    offset: int = -1


class KafkaWriter:
    """A producer's connection to a topic; see `backend.Writer`."""

    chooses_partition = True

    def __init__(self, server: KafkaServer, **settings: Any) -> None:
        """Prepare to connect.

        Args:
            server: The brokers and the topic.
            settings: Further settings of librdkafka.
        """
        self._server = server
        self._settings = {**server.producer_settings(), **settings}
        self._log = MinuteLog(f"producer of {server.topic}")
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._causes: deque[KafkaError] = deque(maxlen=1)
        self._connect()

    def _connect(self) -> None:
        from confluent_kafka import Producer

        noted = {"error_cb": partial(_note_cause, self._causes)}
        self._producer = client_of(Producer, {**self._settings, **noted})

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions of the topic."""
        return KafkaAdmin(self._server).partitions(given)

    def add(self, records: Sequence[NewRecord], max_len: int | None) -> list[int | None]:
        """Add records, and wait until the brokers have them."""
        refuse_max_len(max_len)
        reports = self.deliver(records)
        for report in reports:
            if report.error is not None:
                raise self.error_of(report.error)
        return [report.offset for report in reports]

    def error_of(self, error: "KafkaError") -> BatchQueueError:
        """Return the error of a record, with why the brokers could not be reached."""
        if error.name() == "_MSG_TIMED_OUT" and self._causes:
            why = f"{error.name()} ({self._causes[0].str().strip(' :')})"
            return StreamUnavailableError(self._server.topic, why)
        return self._server.error_of(error, "WRITE")

    def deliver(
        self, records: Sequence[NewRecord], *, skips_refused: bool = False
    ) -> list[RecordReport]:
        """Send records, and wait until each is delivered or has failed.

        Args:
            records: The records, in order.
            skips_refused: Whether those behind a record that the client refuses, for instance
                because it is too large, are sent. Otherwise they have its error. Default: False.

        Returns:
            What became of each record.
        """
        if self._process != os.getpid():
            # A forked child has neither the threads of the producer nor those that hold the lock.
            self._lock, self._process = threading.Lock(), os.getpid()
            self._causes = deque(maxlen=1)
            self._connect()
        with self._lock:
            return self._deliver(records, skips_refused)

    def _deliver(self, records: Sequence[NewRecord], skips_refused: bool) -> list[RecordReport]:
        from confluent_kafka import KafkaException

        reports: list[RecordReport | None] = [None] * len(records)
        failed: list[KafkaError] = []
        """Errors that keep the rest from being sent."""
        self._causes.clear()

        def note(error: Any, message: Any, place: int) -> None:
            # The reports may come in another order than the records.
            partition = message.partition()
            if error is None:
                reports[place] = RecordReport(None, partition, message.offset())
                return
            reports[place] = RecordReport(error, -1 if partition is None else partition)
            if not (skips_refused and error.name() in PERMANENT):
                failed.append(error)

        for place, record in enumerate(records):
            try:
                is_sent = self._produce(record, partial(note, place=place), failed)
            except KafkaException as error:
                reports[place] = RecordReport(error.args[0])
                if skips_refused and error.args[0].name() in PERMANENT:
                    continue
                failed.append(error.args[0])
                break
            if not is_sent:
                break
        try:
            # Each record is delivered or has failed after the time limit of a delivery.
            while left := self._producer.flush(CALL_S):
                self._log.warn("waits", f"{counted(left, 'record')} not delivered yet")
        except (KafkaException, SystemError) as error:
            # The call reports a fatal error, and `note` was called meanwhile: a SystemError.
            reason = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(reason, KafkaException):
                raise
            failed.insert(0, reason.args[0])
        fatal = next(filter(_is_fatal, [*failed, *self._causes]), None)
        if fatal is not None:
            reports = [
                RecordReport(fatal) if each is None or each.error is not None else each
                for each in reports
            ]
        outcomes = [RecordReport(failed[0]) if each is None else each for each in reports]
        if fatal is not None or any(each.name() == "_MSG_TIMED_OUT" for each in failed):
            self._connect()  # this producer has failed for good, or has lost its brokers
        return outcomes

    def _produce(
        self,
        record: NewRecord,
        on_delivery: Callable[[Any, Any], None],
        failed: "list[KafkaError]",
    ) -> bool:
        """Put a record into the client's queue; return False if others have failed meanwhile."""
        partition, value, key, headers = record
        topic = self._server.topic
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, on_delivery=on_delivery, headers=list(headers)
                )
                return True
            except BufferError:
                self._producer.poll(_PAUSE_S)
            if failed:
                return False

    def close(self) -> None:
        """Close the connection. Nothing is under way: `add` waits for it."""


class DeadLetterWriter:
    """Sends dead letters of a group to `<topic>.dead`, which is created if it is missing."""

    def __init__(self, server: KafkaServer, group: str) -> None:
        """Connect.

        Args:
            server: The brokers, and the topic of the records.
            group: The group.
        """
        dead, source = KafkaAdmin(server.of_dead_letters), KafkaAdmin(server)
        self._partitions = dead.known_partitions() or dead.create(source.partitions(None))
        limit = {"message.max.bytes": LARGEST_RECORD}
        self._writer = KafkaWriter(server.of_dead_letters, **limit)
        self._about = (("dead-group", group.encode()),)

    def add(self, partition: int, letters: Sequence[Any]) -> int:
        """Add letters, without the value of one that its topic does not take."""
        records = [
            NewRecord(
                partition % self._partitions, each.value, each.key, each.headers + self._about
            )
            for each in letters
        ]
        try:
            self._writer.add(records, None)
        except KafkaRefusedError:  # one of them, or all
            for record in records:
                self._add_alone(record)
        return len(records)

    def _add_alone(self, record: NewRecord) -> None:
        try:
            self._writer.add([record], None)
        except KafkaRefusedError:
            size = (("dead-bytes", str(len(record.value)).encode()),)
            self._writer.add([record._replace(value=b"", headers=record.headers + size)], None)
