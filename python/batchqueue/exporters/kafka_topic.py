"""`KafkaTopic`: items as records of a topic of Kafka."""

import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from batchqueue.base.checks import check_finite, require
from batchqueue.base.words import a_type
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.exporters.contract import Exporter, NotDelivered, Outcome
from batchqueue.exporters.fields import RowFunction, as_dict, as_json

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from batchqueue.groups.backend import NewRecord
    from batchqueue.groups.kafka.server import KafkaWriter, RecordReport
    from batchqueue.groups.record import Codec, Headers

T = TypeVar("T")

_ELSEWHERE = {
    "acks": "leave it out: all replicas in sync acknowledge each record",
    "request.required.acks": "leave it out: all replicas in sync acknowledge each record",
    "enable.idempotence": "leave it out: the exporter needs it",
    "transactional.id": "leave it out: the exporter uses no transactions",
    "delivery.timeout.ms": "use timeout",
    "message.timeout.ms": "use timeout",
}
_OF_FIELDS = ("json", "msgpack")
"""The codecs that get the fields of a dataclass or named tuple as a dict."""

_UNKNOWN_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
_SEEN_AFTER_MS = 5_000
"""The longest time until all brokers know a new topic."""

_KEYS = (str, bytes, int, type(None))

_ALONE = {"batch.num.messages": 1}


class KafkaTopic(Exporter[T]):
    """Sends items as records to a topic, and waits until the brokers have them.

    Needs the extra `kafka`. The producer is idempotent, and all replicas in sync acknowledge each
    record. Each item is delivered at least once: one that is sent again, because its outcome was
    unknown, may be in the topic twice. Records with the same key go to the same partition, that of
    Java's producers, and are in it in the order of the queue.

    | the brokers | the items |
    |---|---|
    | cannot be reached, do not answer in time, have too few replicas in sync | are tried again |
    | refuse a record, for instance because it is too large | that item is a dead letter |
    | do not have the topic, or the user lacks a right | are dead letters |

    After an item of a partition that is tried again, all later ones of the batch in that partition
    are sent again as well, so that the last record of a key is the newest.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap: str,
        key: str | Callable[[T], str | bytes | int | None] | None = None,
        codec: "str | Codec" = "json",
        row: RowFunction | None = None,
        headers: "Headers | Callable[[T], Headers] | None" = None,
        timeout: float = 30,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare an exporter without connecting: a drain thread connects at the first batch.

        Args:
            topic: The name of the topic, which must exist.
            bootstrap: Some of the brokers, as "host:port,host:port".
            key: The attribute of an item, or the key of a dict, that is the key of its record; or a
                function of the item. A key is a str, bytes, an int, which is sent as its digits, or
                None for any partition. Default: None, no keys.
            codec: Encodes the value: the name of a codec of `batchqueue.groups`, or a `Codec`.
                Default: "json", with dates and times in ISO 8601, decimals and UUIDs as text.
            row: Makes what is encoded from an item; None gives a record without a value, which
                deletes its key from a compacted topic. Default: the item; for "json" and "msgpack",
                a dataclass or named tuple becomes an object with its fields.
            headers: Names and values, bytes or str, of each record; or a function of the item that
                returns them. Default: none.
            timeout: Seconds until a batch that the brokers have not acknowledged has failed, from 1
                up. Default: 30 s.
            config: Settings of librdkafka, for instance `compression.type` or `sasl.username`.
                Default: none.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: confluent-kafka is not installed, or the package of the codec.
        """
        require("confluent_kafka", "KafkaTopic", "kafka")
        from confluent_kafka import Producer

        from batchqueue.groups.kafka.server import ELSEWHERE, KafkaServer, check_server, client_of
        from batchqueue.groups.record import Codec, checked_headers, codec_of

        check_server("KafkaTopic", topic, bootstrap, config, ELSEWHERE | _ELSEWHERE)
        check_finite("timeout", timeout, 1, give="seconds from 1 up")
        if key is not None and not callable(key) and not (isinstance(key, str) and key):
            raise ConfigError(f"key is {key!r}; give the name of an attribute, or a function")
        if row is not None and not callable(row):
            raise ConfigError(f"row is {row!r}; give a function that takes an item")
        self._read_key: Callable[[T], Any] = (
            _key_of(key) if isinstance(key, str) else _none if key is None else key
        )
        self._codec = Codec(_as_json, json.loads, "json") if codec == "json" else codec_of(codec)
        has_fields = isinstance(codec, str) and codec in _OF_FIELDS
        self._row: RowFunction = row or (as_dict if has_fields else _same)
        self._read_headers = headers if callable(headers) else None
        self._headers = checked_headers(() if headers is None or callable(headers) else headers)
        timeout_ms = round(timeout * 1_000)
        self._server = KafkaServer(
            bootstrap,
            topic,
            {
                "topic.metadata.propagation.max.ms": min(_SEEN_AFTER_MS, timeout_ms // 2),
                **(config or {}),
                "delivery.timeout.ms": timeout_ms,
            },
        )
        # Without brokers, so that a wrong setting is an error here and not in a drain thread.
        client_of(Producer, {**self._server.producer_settings(), "bootstrap.servers": ""})
        self._timeout = timeout
        self._writer: KafkaWriter | None = None
        self._alone: KafkaWriter | None = None
        """Sends each record in its own request, because brokers refuse whole requests."""

    def __repr__(self) -> str:
        return f"KafkaTopic({self._server.topic!r}, bootstrap={self._server.bootstrap!r})"

    def export(self, items: list[T]) -> list[Outcome]:
        """Send items; see the class for what becomes of them."""
        from batchqueue.groups.backend import NewRecord
        from batchqueue.groups.record import checked_headers, key_bytes

        outcomes: list[Outcome] = [None] * len(items)
        records, positions = [], []
        headers = self._headers
        for position, item in enumerate(items):
            try:
                key = self._read_key(item)
                if not isinstance(key, _KEYS):
                    raise TypeError(
                        f"the key is {key!r}, {a_type(key)}; give a str, bytes, an int or None"
                    )
                row = self._row(item)
                value: Any = None if row is None else self._codec.encoded(row)
                if self._read_headers is not None:
                    headers = checked_headers(self._read_headers(item))
            except Exception as error:
                outcomes[position] = NotDelivered(error, retry=False)
            else:
                records.append(NewRecord(-1, value, key_bytes(key), headers))
                positions.append(position)
        for position, outcome in zip(positions, self._send(records), strict=True):
            outcomes[position] = outcome
        return outcomes

    def disconnect(self) -> None:
        """Close the connections."""
        self._writer = self._alone = None

    def forget(self) -> None:
        """Drop the connections of the parent; their copies here are never closed."""
        self._writer = self._alone = None

    def _send(self, records: "list[NewRecord]") -> list[Outcome]:
        from batchqueue.groups.kafka.server import KafkaWriter

        if not records:
            return []
        if self._writer is None:
            self._writer = KafkaWriter(self._server)
        reports = self._writer.deliver(records, skips_refused=True)
        rest = _refused_together(reports)
        if rest:
            if self._alone is None:
                self._alone = KafkaWriter(self._server, **_ALONE)
            alone = self._alone.deliver([records[place] for place in rest], skips_refused=True)
            for place, report in zip(rest, alone, strict=True):
                reports[place] = report
        return self._outcomes(reports)

    def _outcomes(self, reports: "list[RecordReport]") -> list[Outcome]:
        outcomes: list[Outcome] = []
        known: dict[str, NotDelivered] = {}
        for report in reports:
            if report.error is None:
                outcomes.append(None)
                continue
            name = report.error.name()
            if name not in known:
                known[name] = self._failure(report.error)
            outcomes.append(known[name])
        return in_order([report.partition for report in reports], outcomes)

    def _failure(self, error: "KafkaError") -> NotDelivered:
        """Return the outcome of a record that has failed."""
        from confluent_kafka import KafkaError

        from batchqueue.groups.errors import KafkaRefusedError
        from batchqueue.groups.kafka.server import KafkaAdmin

        assert self._writer is not None
        found = self._writer.error_of(error)
        if error.name() in _UNKNOWN_TOPIC:
            # Asked again, because the client may not know yet that the topic was created.
            try:
                if KafkaAdmin(self._server).topic(self._timeout) is None:
                    missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                    found = self._server.refused(None, missing, "WRITE")
            except BatchQueueError as reason:
                found = reason
        return NotDelivered(found, retry=not isinstance(found, KafkaRefusedError))


def in_order(partitions: Sequence[int], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Let what was delivered behind an item that is tried again be sent again with it.

    Args:
        partitions: The partition of each record; -1 if that is unknown, so that any may be behind.
        outcomes: What became of each.
    """
    again: dict[int, NotDelivered] = {}
    ordered: list[Outcome] = []
    for partition, outcome in zip(partitions, outcomes, strict=True):
        if outcome is not None and outcome.retry:
            again.setdefault(partition, outcome)
        ordered.append(outcome or again.get(partition) or again.get(-1))
    return ordered


def _refused_together(reports: "Sequence[RecordReport]") -> list[int]:
    """Return the places of the records that brokers refused, in order.

    They refuse a whole request because of one record in it, so each is sent again alone. What
    follows those records in their partitions is sent again too, to keep the order.
    """
    refused = set()
    rest = []
    for place, report in enumerate(reports):
        if report.error is not None and _is_refusal(report.error):
            if report.partition < 0:
                continue  # refused by the client, which does so for this record alone
            refused.add(report.partition)
        if report.partition in refused:
            rest.append(place)
    return rest


def _is_refusal(error: "KafkaError") -> bool:
    from batchqueue.groups.kafka.server import PERMANENT

    return error.name() in PERMANENT or error.name() == "_INVALID_DIFFERENT_RECORD"


def _key_of(name: str) -> Callable[[Any], Any]:
    """Return a function that reads the key of an item by its name."""
    read = attrgetter(name)
    return lambda item: item[name] if isinstance(item, Mapping) else read(item)


def _none(_item: Any) -> None:
    """Return no key."""


def _same(item: Any) -> Any:
    return item


def _as_json(value: Any) -> bytes:
    return as_json(value).encode()
