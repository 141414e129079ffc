"""`MetricsSink`, a handler that merges records as metrics into a store, each exactly once.

Its fence is the ledger of the store. Each partition has a mark with the token of the newest owner
that wrote, and each of its handlers one with the offset of the last stored record. Both are
compared and raised in the transaction that stores the metrics, so all or nothing is committed.
"""

import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from batchqueue.base.words import with_article
from batchqueue.exceptions import ConfigError
from batchqueue.groups.errors import StaleTokenError, quoted_value
from batchqueue.groups.record import Record

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    from batchqueue.aggregation import Aggregation, Metrics
    from batchqueue.outputs import MetricsStore, StoreTransaction


class MetricsSink:
    """A handler that merges records as metrics into a store, so that each counts exactly once.

    L1 merges the metrics of a batch in memory, before the store is locked; L2 merges these partials
    into the store. The results, the offset of the last record and the token of the
    partition are stored in one transaction per batch. A record that comes again, after a crash, a
    retry or a takeover, is therefore left out. A worker that has lost its partition stores nothing
    once its successor has written: the sink raises `StaleTokenError`, and the worker drops the
    partition.

    The sink keeps no state between batches. Give it to `Worker.handler`, to `add_handler` for one
    or more kinds, or return it from `handler_factory`. It pickles if the store and `to_metrics` do.

    A sink id belongs to one group and stream. Others are refused, because their records would be
    added to the stored ones. Metrics whose columns have changed are refused too.

    Example:
        >>> from batchqueue.aggregation import CountMetrics, metric_type
        >>> from batchqueue.groups import MemoryStreams, MetricsSink, Worker
        >>> from batchqueue.outputs import SqliteStore
        >>> ORDERS = metric_type("orders", CountMetrics)
        >>> store = SqliteStore("metrics.db")
        >>> orders = MemoryStreams("orders", partitions=2)
        >>> worker = Worker("billing", orders, codec="json")
        >>> _ = worker.handler(MetricsSink(store, lambda order: [ORDERS(order["city"], 0)]))
        >>> with orders.producer(codec="json") as producer:
        ...     _ = producer.send_many([{"city": "rome"}, {"city": "oslo"}, {"city": "rome"}])
        >>> worker.run(until_idle=0.1).handled
        3
        >>> [(found.entity, found.count) for found in store.read(ORDERS)]
        [('oslo', 1), ('rome', 2)]
    """

    def __init__(
        self,
        store: "MetricsStore",
        to_metrics: "Callable[[Any], Iterable[Metrics]]",
        *,
        sink_id: str = "default",
    ) -> None:
        """Create a sink; the store is opened with the first batch.

        Args:
            store: The store to write to, for instance a `SqliteStore`.
            to_metrics: Takes the value of a record, and returns any number of metrics. It is
                called again for a repeated record, so the same value must give the same
                metrics: take their time from the value, not from the clock.
            sink_id: The sink to write for; "default" by default. Several sinks may share a store.

        Raises:
            ConfigError: The store is not a store, or `to_metrics` is not callable.
        """
        if not hasattr(store, "transaction"):
            raise ConfigError(
                f"store is {quoted_value(store)}; give a store of metrics, for instance "
                'SqliteStore("metrics.db")'
            )
        self._store = store
        self._l1: ByFunction | ByAggregation = ByFunction(to_metrics)
        self._sink_id = sink_id

    @classmethod
    def arrow(
        cls,
        store: "MetricsStore",
        aggregation: "Aggregation",
        metrics: "Callable[[pa.RecordBatch], Iterable[Metrics]]",
        *,
        sink_id: str = "default",
    ) -> Self:
        """Create a sink for records that are Arrow batches, as with the codec "arrow".

        An `Aggregator` merges the rows of a batch of records in Rust; only its groups become Python
        objects.

        Args:
            store: The store to write to.
            aggregation: The aggregation. A batch of records may have up to its `max_groups` groups.
            metrics: Takes a `pyarrow.RecordBatch` with a row for each group, and returns metrics.
                It is called once for consecutive records with the same schema. L2 combines metrics
                of the same key across batches, so return values that can be combined: a mean as its
                sum and count, no quantiles.
            sink_id: The sink to write for; "default" by default.

        Raises:
            ConfigError: An argument is invalid.

        Example:
            >>> import pyarrow as pa
            >>> from batchqueue.aggregation import Aggregation, Count, CountMetrics, metric_type
            >>> from batchqueue.groups import MemoryStreams, MetricsSink, Worker
            >>> from batchqueue.outputs import SqliteStore
            >>> FLIGHTS = metric_type("flights", CountMetrics)
            >>> by_carrier = Aggregation(keys=["carrier"], measures={"flights": Count()})
            >>> def metrics(groups):
            ...     for group in groups.to_pylist():
            ...         yield FLIGHTS(group["carrier"], 0, group["flights"])
            >>> store, flights = SqliteStore("flights.db"), MemoryStreams("flights")
            >>> worker = Worker("statistics", flights, codec="arrow")
            >>> _ = worker.handler(MetricsSink.arrow(store, by_carrier, metrics))
            >>> with flights.producer(codec="arrow") as producer:
            ...     _ = producer.send(pa.record_batch({"carrier": ["UA", "AA", "UA"]}))
            >>> worker.run(until_idle=0.1).handled
            1
            >>> [(found.entity, found.count) for found in store.read(FLIGHTS)]
            [('AA', 1), ('UA', 2)]
        """
        l1 = ByAggregation(aggregation, metrics)
        sink = cls(store, metrics, sink_id=sink_id)
        sink._l1 = l1
        return sink

    def __repr__(self) -> str:
        return f"MetricsSink({self._store!r}, sink_id={self._sink_id!r})"

    def consume(self, batch: "FencedBatch") -> None:
        """Merge the records of a batch that are not stored yet, and commit.

        Args:
            batch: The batch of a worker.

        Raises:
            StaleTokenError: A newer owner of the partition has written. Nothing was changed.
            ConfigError: The sink id belongs to another group, stream or job, or the columns of a
                metric have changed. Nothing was changed.
            TypeError: `to_metrics`, or `metrics`, did not return metrics.
            StoreError: The store cannot be written, for instance because its disk is full.
            StoreUnavailableError: The store is busy or down; another attempt may succeed.
        """
        from batchqueue.outputs.ledger import OwnedSink

        partials = self._merged(batch.records)  # before the lock: other writers need not wait
        marks = _Marks.of(batch)

        def unstored(transaction: "StoreTransaction", stored: int | None) -> "list[Metrics] | None":
            _pass_fence(transaction, batch, marks.token)
            if stored is None or stored < batch.records[0].offset:
                return partials
            if stored >= batch.last:
                return None
            return self._merged([each for each in batch.records if each.offset > stored])

        owner = {"kind": "group", "group": batch.group, "stream": batch.stream}
        sink = OwnedSink(self._store, self._sink_id, owner)
        sink.write_once(marks.offset, batch.last, unstored)

    def _merged(self, records: "Sequence[Record[Any]]") -> "list[Metrics]":
        """L1: one partial per metric type and key."""
        from batchqueue.aggregation import MergeBuffer

        buffer = MergeBuffer()
        buffer.accept_all(self._l1.metrics(records))
        return buffer.drain()


class _Marks(NamedTuple):
    """The query ids of a partition in the ledger. Names of groups and streams have no bars."""

    token: str
    offset: str

    @classmethod
    def of(cls, batch: "FencedBatch") -> Self:
        """Return the marks for the partition and the handler of a batch."""
        place = f"{batch.stream}/{batch.partition}"
        # All handlers of an owner have its token; one of them may be ahead of the others.
        return cls(
            f"token|{batch.group}|{place}",
            f"offset|{batch.group}|{batch.kind}|{place}",
        )


def _pass_fence(transaction: "StoreTransaction", batch: "FencedBatch", mark: str) -> None:
    """Refuse a former owner, and record the newest one, even if it has nothing new."""
    seen = transaction.last_batch(mark)
    if seen is not None and seen > batch.token:
        raise StaleTokenError(batch.stream, batch.partition, batch.token, seen)
    if seen != batch.token:
        transaction.raise_mark(mark, batch.token)


# L1 of a `MetricsSink`: turns records into metrics, by a function or by an aggregation of columns.
#
# The stores and the aggregations are imported where they are used: importing them takes longer
# than importing all of this package.


@dataclass(frozen=True)
class ByFunction:
    """L1 by a function that makes metrics from each value.

    Attributes:
        to_metrics: The function.

    Raises:
        ConfigError: The function is not callable.
    """

    to_metrics: "Callable[[Any], Iterable[Metrics]]"

    def __post_init__(self) -> None:
        if not callable(self.to_metrics):
            raise ConfigError(
                f"to_metrics is {quoted_value(self.to_metrics)}; give a function that takes a "
                "value and returns a list of metrics"
            )

    def metrics(self, records: "Sequence[Record[Any]]") -> "Iterator[Metrics]":
        """Return the metrics of records."""
        for record in records:
            made = self.to_metrics(record.value)
            yield from _checked("to_metrics", made, f"the record at offset {record.offset}")


@dataclass(frozen=True)
class ByAggregation:
    """L1 by an aggregator of Arrow rows, and a function that makes metrics from its groups.

    Attributes:
        aggregation: The aggregation.
        to_metrics: The function.

    Raises:
        ConfigError: One of them is invalid.
    """

    aggregation: "Aggregation"
    to_metrics: "Callable[[Any], Iterable[Metrics]]"

    def __post_init__(self) -> None:
        from batchqueue.aggregation import Aggregation

        if not isinstance(self.aggregation, Aggregation):
            raise ConfigError(
                f"aggregation is {quoted_value(self.aggregation)}; give an Aggregation"
            )
        if not callable(self.to_metrics):
            raise ConfigError(
                f"metrics is {quoted_value(self.to_metrics)}; give a function that takes a "
                "pyarrow.RecordBatch of groups and returns a list of metrics"
            )

    def metrics(self, records: "Sequence[Record[Any]]") -> "Iterator[Metrics]":
        """Return the metrics of records."""
        from batchqueue.aggregation import Aggregator

        # An aggregator needs the same types in all rows; another producer's rows may have other
        # types.
        for _, run in groupby(records, key=_schema):
            same = list(run)
            aggregator = Aggregator(self.aggregation)
            aggregator.consume([record.value for record in same])
            groups = aggregator.result()
            if groups is not None:  # there were rows
                where = f"the groups of offsets {same[0].offset}..{same[-1].offset}"
                yield from _checked("metrics", self.to_metrics(groups), where)


def _schema(record: Record[Any]) -> object:
    return getattr(record.value, "schema", None)


def _checked(function: str, made: object, where: str) -> "Iterator[Metrics]":
    from batchqueue.aggregation import Metrics

    if not isinstance(made, Iterable):
        raise TypeError(
            f"{function} returned {quoted_value(made)} for {where}; return a list of metrics, an "
            "empty one for none"
        )
    for item in made:
        if not isinstance(item, Metrics):
            raise TypeError(
                f"{function} gave {quoted_value(item)} for {where}; give metrics, which "
                "metric_type makes classes of"
            )
        yield item


# `Fence`: the records of a batch that a database has not stored yet, for the newest writer only.
#
# A row per group, stream and partition, and per handler if there are several, holds the token of
# the newest owner that wrote and the offset of the last stored record. It is locked, compared and
# written in the transaction that stores the records: both are committed, or neither.


_NOTHING_STORED = -1


class FencedBatch(Protocol):
    """The part of a batch that a fence reads."""

    @property
    def group(self) -> str:
        """The group that reads the stream."""
        ...

    @property
    def stream(self) -> str:
        """The stream."""
        ...

    @property
    def kind(self) -> str:
        """The records that the handler takes; empty for all."""
        ...

    @property
    def partition(self) -> int:
        """The partition that the records come from."""
        ...

    @property
    def token(self) -> int:
        """The token of the assignment under which they were read."""
        ...

    @property
    def last(self) -> int:
        """The offset of the last record."""
        ...

    @property
    def records(self) -> Sequence[Record[Any]]:
        """The records, in the order of their offsets."""
        ...


@dataclass(frozen=True)
class Fence:
    """Keeps records from being stored twice, and former owners from storing any.

    Attributes:
        table: The table of positions, optionally qualified with its schema.
    """

    table: str

    @staticmethod
    def sql(table: str = "batchqueue_fence") -> "Fence":
        """Return a fence for an SQLite or PostgreSQL database.

        Args:
            table: The name of its table, "batchqueue_fence" by default; "shop.fence" is a table in
                the schema `shop`. It is created on first use. Several groups and streams may share
                it.

        Raises:
            ConfigError: The name of the table is invalid.
        """
        return Fence(table)

    def __post_init__(self) -> None:
        _quoted_table(self.table)

    def new(
        self, connection: "sqlite3.Connection | psycopg.Connection[Any]", batch: FencedBatch
    ) -> list[Record[Any]]:
        """Return the records of a batch that are not stored yet, and mark them as stored.

        Store exactly these records in the same transaction, then commit. Call it first in the
        transaction: it waits for other writers of the partition (on SQLite, of the file), and an
        earlier statement would read data that they are about to change.

        Args:
            connection: A connection of `sqlite3` or psycopg 3, in a transaction or about to begin
                one.
            batch: The batch of a worker.

        Returns:
            The records after the last stored offset; empty if all are stored.

        Raises:
            StaleTokenError: A newer owner of the partition has stored records. Nothing was changed:
                do not catch it in the handler, so that the worker drops the partition.
            ConfigError: The connection is in autocommit mode, so there is no transaction, or it is
                not of a supported kind.
        """
        database = _database_of(connection)
        statements = _statements(self.table, database)
        # Each handler of a partition has its own position, because one may be ahead of another.
        reader = f"{batch.group}|{batch.kind}" if batch.kind else batch.group
        row = (reader, batch.stream, batch.partition)
        with closing(database.cursor(connection)) as cursor:
            seen, stored = database.lock(cursor, statements, row, batch.token)
            if seen > batch.token:
                raise StaleTokenError(batch.stream, batch.partition, batch.token, seen)
            last = max(stored, batch.last)
            if (batch.token, last) != (seen, stored):
                cursor.execute(statements.update, (batch.token, last, *row))
        return [record for record in batch.records if record.offset > stored]


class _Statements(NamedTuple):
    """The SQL for a table. Values are bound; the table name is checked and quoted."""

    table: str
    create: str
    insert: str
    select: str
    update: str


_Row = tuple[str, str, int]


class _Database(ABC):
    """The differences between the databases."""

    placeholder: ClassVar[str]
    text: ClassVar[str]
    lock_clause: ClassVar[str] = ""

    @staticmethod
    @abstractmethod
    def cursor(connection: Any) -> Any:
        """Return a cursor whose rows are tuples; reject a connection without a transaction."""

    @staticmethod
    @abstractmethod
    def lock(cursor: Any, sql: _Statements, row: _Row, token: int) -> tuple[int, int]:
        """Lock the row, inserting it with `token` if it is missing; return its values."""


class _Sqlite(_Database):
    placeholder = "?"
    text = "TEXT"

    @staticmethod
    def cursor(connection: Any) -> Any:
        # `autocommit` is new in Python 3.12. Both it and `isolation_level` only say that the module
        # begins no transaction: the caller may have begun one with BEGIN, which is just as good.
        autocommit = getattr(connection, "autocommit", False) is True
        if not connection.in_transaction and (autocommit or connection.isolation_level is None):
            raise ConfigError(
                "Fence: the connection is in autocommit mode, so that position and records would "
                "be stored apart; connect without isolation_level=None and autocommit=True, or "
                "execute BEGIN IMMEDIATE first"
            )
        cursor = connection.cursor()
        cursor.row_factory = None  # the caller's factory may return anything
        return cursor

    @staticmethod
    def lock(cursor: Any, sql: _Statements, row: _Row, token: int) -> tuple[int, int]:
        # An INSERT locks the file even if it inserts nothing. A SELECT before it would take a
        # snapshot, and SQLite would refuse the lock if another connection had written since.
        values = (*row, token, _NOTHING_STORED)
        try:
            cursor.execute(sql.insert, values)
        except sqlite3.OperationalError as error:
            # Not CREATE TABLE first: it takes a snapshot as well if the table exists.
            if not str(error).startswith("no such table:"):
                raise
            cursor.execute(sql.create)
            cursor.execute(sql.insert, values)
        found: tuple[int, int] = cursor.execute(sql.select, row).fetchone()
        return found


class _Postgres(_Database):
    placeholder = "%s"
    # Byte order is the same on every server, and the fastest.
    text = 'text COLLATE "C"'
    lock_clause = " FOR UPDATE"

    @staticmethod
    def cursor(connection: Any) -> Any:
        from psycopg import Cursor
        from psycopg.pq import TransactionStatus
        from psycopg.rows import tuple_row

        # With autocommit, there is still a transaction inside `with connection.transaction()`.
        idle = connection.info.transaction_status == TransactionStatus.IDLE
        if connection.autocommit and idle:
            raise ConfigError(
                "Fence: the connection is in autocommit mode, so that position and records would "
                "be stored apart; connect with autocommit=False, or use "
                "`with connection.transaction()`"
            )
        # Not connection.cursor(): the caller may have chosen other row and placeholder styles.
        return Cursor(connection, row_factory=tuple_row)

    @staticmethod
    def lock(cursor: Any, sql: _Statements, row: _Row, token: int) -> tuple[int, int]:
        # Checked each time: a statement on a missing table would abort the caller's transaction,
        # and a table created in a transaction disappears if that is rolled back.
        if not _Postgres._has_table(cursor, sql):
            # Held until the transaction ends: concurrent CREATE TABLE IF NOT EXISTS may fail.
            cursor.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended('batchqueue fence ' || %s, 0))",
                (sql.table,),
            )
            if not _Postgres._has_table(cursor, sql):
                cursor.execute(sql.create)
        while True:
            found: tuple[int, int] | None = cursor.execute(sql.select, row).fetchone()
            if found is not None:
                return found
            # A missing row cannot be locked. If another transaction inserts it concurrently, this
            # waits for its end, and the next SELECT finds what it committed.
            cursor.execute(sql.insert, (*row, token, _NOTHING_STORED))

    @staticmethod
    def _has_table(cursor: Any, sql: _Statements) -> bool:
        found: tuple[bool] = cursor.execute(
            "SELECT to_regclass(%s) IS NOT NULL", (sql.table,)
        ).fetchone()
        return found[0]


def _database_of(connection: object) -> type[_Database]:
    if isinstance(connection, sqlite3.Connection):
        return _Sqlite
    psycopg = sys.modules.get("psycopg")  # if it was never imported, this is not its connection
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return _Postgres
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise ConfigError(
        f"Fence: cannot use {with_article(kind)}; give a connection of sqlite3 "
        "or psycopg 3. Elsewhere, store batch.token with the records and refuse smaller ones"
    )


@cache
def _statements(table: str, database: type[_Database]) -> _Statements:
    quoted = _quoted_table(table)
    value = database.placeholder
    same_row = f'"group" = {value} AND stream = {value} AND "partition" = {value}'
    return _Statements(
        table=quoted,
        create=f'CREATE TABLE IF NOT EXISTS {quoted} ("group" {database.text} NOT NULL, '
        f'stream {database.text} NOT NULL, "partition" bigint NOT NULL, token bigint NOT NULL, '
        '"offset" bigint NOT NULL, PRIMARY KEY ("group", stream, "partition"))',
        insert=f'INSERT INTO {quoted} ("group", stream, "partition", token, "offset") '
        f"VALUES ({', '.join([value] * 5)}) ON CONFLICT DO NOTHING",
        select=f'SELECT token, "offset" FROM {quoted} WHERE {same_row}{database.lock_clause}',
        update=f'UPDATE {quoted} SET token = {value}, "offset" = {value} WHERE {same_row}',
    )


def _quoted_table(table: str) -> str:
    # Imported here, because it also imports the stores, which takes longer than all of this
    # package.
    from batchqueue.outputs.layout import quoted

    schema, dot, name = table.rpartition(".")
    return f"{quoted(schema)}.{quoted(name)}" if dot else quoted(name)
