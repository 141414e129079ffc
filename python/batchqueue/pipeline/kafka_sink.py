"""`KafkaSink`: sends rows to a topic of Kafka, each at least once."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from batchqueue.base.checks import check_whole, require
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import NewRecord
from batchqueue.groups.kafka.server import (
    ELSEWHERE,
    KafkaServer,
    KafkaWriter,
    check_server,
)
from batchqueue.groups.record import partition_count
from batchqueue.pipeline.chunks import chunk_origin
from batchqueue.pipeline.contract import SinkError

__all__ = ["KafkaSink"]

_MOST_ROWS = 1_000_000

_ELSEWHERE = {
    **ELSEWHERE,
    "transactional.id": "leave it out: the sink uses no transactions",
}

_ORIGIN = "batchqueue-origin"


class KafkaSink:
    """A sink that sends rows to a topic of Kafka, each at least once.

    A cut is complete when all replicas in sync have its records. After a crash, rows since the last
    cut are sent again. While brokers are away, the sink waits for them, and the pipeline slows its
    sources down.

    Except on Spark, the header `batchqueue-origin` says where a row came from: the name of the
    pipeline, a digest of the chunk's origin, and the number of the row in it. A row that is sent
    again has the same one if the splits of the source are fixed, as those of files and tables are,
    the operators are deterministic and hold nothing back, and graph and `chunk_rows` stay the same.
    The splits of a `KafkaSource` are not fixed; let its rows have the columns `partition` and
    `offset` instead. Another sink of the pipeline may send the same origins to its topic.

    Attributes:
        batch_rows: The preferred number of rows per write, if available.

    Example:
        ```python
        flow.to(KafkaSink("totals", bootstrap="broker:9092", key="city"))
        ```
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap: str,
        value: str | None = None,
        key: str | None = None,
        partitions: int | None = None,
        batch_rows: int = 10_000,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe where to send rows, without connecting.

        Args:
            topic: The name of the topic.
            bootstrap: Some of the brokers, as "host:port,host:port".
            value: The column with the values of records, of type binary or string; null gives a
                record without a value. Default: None, a record is a JSON object of all columns.
                Times are in it as in ISO 8601, and decimals as text.
            key: The column with their keys, binary, string or whole numbers, which are sent as
                their digits. Rows with the same key go to the same partition, that of Java's
                producers. Default: None, any partition.
            partitions: The number of partitions of a new topic, 1 to 16,384, which an existing one
                must match. Default: None, the topic must exist, with any number.
            batch_rows: The preferred number of rows per write, if available, 1 to 1,000,000. A
                write never waits for them. Default: 10,000.
            config: Settings of librdkafka, for instance `compression.type` or `sasl.username`.
                Default: none.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: confluent-kafka is not installed.
        """
        require("confluent_kafka", "KafkaSink", "kafka")
        check_server("KafkaSink", topic, bootstrap, config, _ELSEWHERE)
        for name, column in (("value", value), ("key", key)):
            if column is not None and not isinstance(column, str):
                raise ConfigError(f"{name} is {column!r}, {a_type(column)}; give a column or None")
        check_whole("batch_rows", batch_rows, 1, _MOST_ROWS)
        self.batch_rows = batch_rows
        self._server = KafkaServer(bootstrap, topic, dict(config or {}))
        self._value = value
        self._key = key
        self._partitions = None if partitions is None else partition_count(partitions)
        self._writer: KafkaWriter | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_writer": None}

    def __repr__(self) -> str:
        """Return where the topic is, without secrets."""
        return f"KafkaSink({self._server.topic!r}, bootstrap={self._server.bootstrap!r})"

    def open(self, pipeline: str) -> None:
        """Connect, and create the topic if it is missing and `partitions` is given.

        Raises:
            ConfigError: The topic does not exist, or has another number of partitions.
            StreamUnavailableError: The brokers cannot be reached.
        """
        del pipeline
        self._connected().partitions(self._partitions)

    def write(self, chunks: list[pa.RecordBatch]) -> None:
        """Send rows, and wait until the brokers have them.

        Raises:
            SinkError: A column is missing, or a value cannot be sent.
            KafkaRefusedError: The brokers refuse a record, for instance because it is too large.
        """
        records = [record for chunk in chunks for record in self._records(chunk)]
        if records:
            self._connected().add(records, None)

    def close(self) -> None:
        """Close the connection."""
        self._writer = None

    def _connected(self) -> KafkaWriter:
        if self._writer is None:
            is_given = "delivery.timeout.ms" in self._server.config
            no_limit = {} if is_given else {"delivery.timeout.ms": 0}
            self._writer = KafkaWriter(self._server, **no_limit)
        return self._writer

    def _records(self, chunk: pa.RecordBatch) -> Iterator[NewRecord]:
        keys = self._column(chunk, self._key, _KEYS) if self._key else [None] * chunk.num_rows
        values = self._column(chunk, self._value, _VALUES) if self._value else self._objects(chunk)
        origin = _origin_of(chunk)
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            headers = () if origin is None else ((_ORIGIN, f"{origin}:{row}".encode()),)
            yield NewRecord(-1, value, key, headers)

    def _column(
        self, chunk: pa.RecordBatch, name: str, kinds: Mapping[str, Callable[[Any], bool]]
    ) -> list[Any]:
        if name not in chunk.schema.names:
            raise SinkError(
                f"{self!r}: the rows have no column {name!r}; they have {chunk.schema.names}"
            )
        column = chunk[name]
        if not any(fits(column.type) for fits in kinds.values()):
            raise SinkError(
                f"{self!r}: column {name!r} has the type {column.type}; give {' or '.join(kinds)}"
            )
        values = column.to_pylist()
        return [_as_bytes(each) for each in values]

    def _objects(self, chunk: pa.RecordBatch) -> Iterator[bytes]:
        for row in chunk.to_pylist():
            try:
                yield json.dumps(row, default=_as_json, allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                raise SinkError(
                    f"{self!r}: the row {row!r} is not JSON: {error}; change it in a function that "
                    "you pass to map, or give the column with the values as value="
                ) from error


_VALUES: Mapping[str, Callable[[Any], bool]] = {
    "binary": lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
}
_KEYS = {**_VALUES, "a whole number": pa.types.is_integer}
"""The types of columns, by their names in errors."""


def _as_bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _as_json(value: Any) -> str:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{value!r} is {a_type(value)}")


def _origin_of(chunk: pa.RecordBatch) -> str | None:
    """Return a short name of where a chunk came from; None if that is unknown, as on Spark."""
    try:
        origin = chunk_origin(chunk)
    except ConfigError:
        return None
    # The cut of a chunk that is sent again may differ, unless an operator emitted it at the cut.
    parts = origin.source, origin.partition, origin.position, origin.number, origin.part
    cut = origin.cut if origin.position is None else None
    digest = blake2b(json.dumps([*parts, cut]).encode(), digest_size=8).hexdigest()
    return f"{origin.pipeline}:{digest}"
