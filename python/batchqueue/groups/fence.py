"""`Fence`: the records of a batch that a database has not stored yet, and no writer but the newest.

A row per group, stream and partition, and per handler if there are several, holds the token of the
newest owner that wrote and the offset of the last record that is stored. It is locked, compared and
written in the transaction that stores the records: both are committed, or neither.
"""

import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from batchqueue._words import with_article
from batchqueue.exceptions import ConfigError
from batchqueue.groups.errors import StaleTokenError
from batchqueue.groups.record import Record

if TYPE_CHECKING:
    import psycopg

_NOTHING_STORED = -1


class FencedBatch(Protocol):
    """What a fence reads of a batch."""

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
        """What records its handler takes; empty for all of them."""
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
        table: The table of positions, perhaps after its schema and a dot.
    """

    table: str

    @staticmethod
    def sql(table: str = "batchqueue_fence") -> "Fence":
        """Return a fence for an SQLite or PostgreSQL database.

        Args:
            table: The name of its table, "batchqueue_fence" by default; "shop.fence" is a table in
                the schema `shop`. It is created when it is first used. Several groups and streams
                may share it.

        Raises:
            ConfigError: The name of the table is invalid.
        """
        return Fence(table)

    def __post_init__(self) -> None:
        _quoted_table(self.table)

    def new(
        self, connection: "sqlite3.Connection | psycopg.Connection[Any]", batch: FencedBatch
    ) -> list[Record[Any]]:
        """Return the records of a batch that are not stored yet, and note that they are.

        Store exactly these records in the same transaction, then commit. Call it first in the
        transaction: it waits for other writers of the partition (on SQLite, of the file), and a
        statement before it would read what they are about to change.

        Args:
            connection: A connection of `sqlite3` or psycopg 3, in a transaction or about to begin
                one.
            batch: The batch of a worker.

        Returns:
            The records after the last stored offset; empty if all are stored.

        Raises:
            StaleTokenError: A newer owner of the partition has stored records. Nothing was changed:
                let it out of the handler, so that the worker drops the partition.
            ConfigError: The connection is in autocommit mode, so that there is no transaction, or
                it is not of a supported kind.
        """
        database = _database_of(connection)
        statements = _statements(self.table, database)
        # Each handler of a partition has its own position: one may be ahead of the other.
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
    """The SQL for a table. Values are bound; the name of the table is checked and quoted."""

    table: str
    create: str
    insert: str
    select: str
    update: str


_Row = tuple[str, str, int]


class _Database(ABC):
    """How the databases differ."""

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
        """Lock the row, first inserting it with `token` if it is missing; return what it holds."""


class _Sqlite(_Database):
    placeholder = "?"
    text = "TEXT"

    @staticmethod
    def cursor(connection: Any) -> Any:
        # `autocommit` is new in Python 3.12. Both it and `isolation_level` only say that the module
        # begins no transaction: the caller may have begun one with BEGIN, which is as good.
        autocommit = getattr(connection, "autocommit", False) is True
        if not connection.in_transaction and (autocommit or connection.isolation_level is None):
            raise ConfigError(
                "Fence: the connection is in autocommit mode, so that position and records would "
                "be stored apart; connect without isolation_level=None and autocommit=True, or "
                "execute BEGIN IMMEDIATE first"
            )
        cursor = connection.cursor()
        cursor.row_factory = None  # the caller's may return anything
        return cursor

    @staticmethod
    def lock(cursor: Any, sql: _Statements, row: _Row, token: int) -> tuple[int, int]:
        # An INSERT locks the file even if it inserts nothing. A SELECT before it would take a
        # snapshot, and then SQLite refuses the lock if another connection has written since.
        values = (*row, token, _NOTHING_STORED)
        try:
            cursor.execute(sql.insert, values)
        except sqlite3.OperationalError as error:
            # Not CREATE TABLE first: for a table that exists, it takes a snapshot as well.
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

        # With autocommit, there still is a transaction inside `with connection.transaction()`.
        idle = connection.info.transaction_status == TransactionStatus.IDLE
        if connection.autocommit and idle:
            raise ConfigError(
                "Fence: the connection is in autocommit mode, so that position and records would "
                "be stored apart; connect with autocommit=False, or use "
                "`with connection.transaction()`"
            )
        # Not connection.cursor(): the caller may have chosen other rows and other placeholders.
        return Cursor(connection, row_factory=tuple_row)

    @staticmethod
    def lock(cursor: Any, sql: _Statements, row: _Row, token: int) -> tuple[int, int]:
        # Checked each time: a statement on a missing table would abort the caller's transaction,
        # and a table that this transaction created is gone if it is rolled back.
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
    # Imported here: it loads the stores with it, which take longer than all of this package.
    from batchqueue.outputs.layout import quoted

    schema, dot, name = table.rpartition(".")
    return f"{quoted(schema)}.{quoted(name)}" if dot else quoted(name)
