"""`PostgresStore`: metrics in tables of a PostgreSQL database."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.base.checks import require
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import StoreBase
from batchqueue.outputs.layout import quoted
from batchqueue.outputs.ledger import report_ledgers
from batchqueue.outputs.postgres.schema import COLUMNS_OF
from batchqueue.outputs.reading import Selection, StoredMetric
from batchqueue.outputs.store import (
    Epoch,
    StoreError,
    StoreReport,
    StoreTransaction,
    checked_kept_summaries,
)

if TYPE_CHECKING:
    import psycopg

    from batchqueue.outputs.postgres.transaction import PostgresTransaction

_SHOWN = ("service", "host", "hostaddr", "port", "dbname", "user")
_SECRET = ("password", "sslpassword")
_KEEPALIVES = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Settings that detect a vanished server within a minute; a connection string overrides them."""


class PostgresStore(StoreBase):
    """A `MetricsStore` in a PostgreSQL database; tested with version 15.

    Needs the extra `postgres`. The writers of a sink wait for each other; writers of different
    sinks work concurrently, and readers never wait. Each transaction opens its own connection, so
    the store can be pickled, and used after a fork. Committed transactions survive a crash of the
    server.

    Attributes:
        schema: The schema of the tables.
        connect_timeout_s: Seconds to wait for a connection.
        lock_timeout_s: Seconds that a transaction waits for another transaction of its sink.
        kept_summaries: Number of newest epochs of each sink whose summaries are kept.
    """

    holds_nul = False
    most_name_bytes = 2_600  # an index of PostgreSQL has to hold them

    def __init__(
        self,
        conninfo: str = "",
        *,
        schema: str = "public",
        connect_timeout_s: float = 10,
        lock_timeout_s: float = 30,
        kept_summaries: int = 1_000,
    ) -> None:
        """Declare a store without connecting.

        Args:
            conninfo: A connection string of libpq: "host=db1 dbname=shop user=spark", or a URI
                "postgresql://spark@db1/shop". Each process takes missing parts from the PG*
                variables of its environment. A password in it is never shown, but the pickled store
                contains it: where other users could read that, keep the password in ~/.pgpass or in
                PGPASSWORD.
            schema: The schema of the tables, created if it is missing; "public" by default.
            connect_timeout_s: Seconds to wait for a connection, which override those of `conninfo`;
                10 by default.
            lock_timeout_s: Seconds that a transaction waits for another transaction of its sink; 30
                by default.
            kept_summaries: Number of newest epochs of each sink whose summaries are kept, at least
                1; 1,000 by default.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: psycopg is not installed.
        """
        require("psycopg", "PostgresStore", "postgres")
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        try:
            words = conninfo_to_dict(conninfo)
        except ProgrammingError:
            words = None  # the message of the error may quote the password
        if words is None:
            raise ConfigError(
                "conninfo is not a connection string; write it as "
                "'host=db1 dbname=shop user=spark' or 'postgresql://spark@db1/shop', "
                "with values that have spaces in single quotes"
            )
        quoted(schema)
        if connect_timeout_s <= 0 or lock_timeout_s < 0:
            raise ConfigError(
                f"connect_timeout_s={connect_timeout_s}, lock_timeout_s={lock_timeout_s}: "
                "give seconds above 0"
            )
        self.schema = schema
        self.connect_timeout_s = connect_timeout_s
        self.lock_timeout_s = lock_timeout_s
        self.kept_summaries = checked_kept_summaries(kept_summaries)
        self._words: dict[str, Any] = {
            "application_name": "batchqueue",
            **_KEEPALIVES,
            **words,
            "client_encoding": "UTF8",
        }

    def check_storable(self, item: Metrics, sink_id: str) -> None:
        """Check that a partial could be stored for a sink as it is, without connecting.

        Raises:
            StoreError: The store cannot hold its key or one of its values.
        """
        super().check_storable(item, sink_id)
        names, most = f"{sink_id}{item.name}{item.entity}", self.most_name_bytes
        if most is not None and len(names.encode()) > most:
            raise StoreError(
                f"sink {sink_id!r}, metric {item.name!r} and an entity that begins with "
                f"{item.entity[:40]!r} have more than {most:,} bytes "
                "together: shorten the entity"
            )
        texts = (value for row in item.to_rows() for value in row if isinstance(value, str))
        if "\0" in names or any("\0" in text for text in texts):
            raise StoreError(f"metric {item.name} has text with NUL for {item.entity!r}: remove it")

    def __repr__(self) -> str:
        shown = " ".join(f"{word}={self._words[word]}" for word in _SHOWN if self._words.get(word))
        return f"PostgresStore({shown!r}, schema={self.schema!r})"

    def prepare(self) -> None:
        """Check that the schema can be written; create it and the ledger if they are missing.

        Raises:
            StoreError: The schema cannot be written.
            StoreUnavailableError: The server is down or out of reach.
        """
        from batchqueue.outputs.postgres.transaction import need_ledger, need_rights

        schema = quoted(self.schema)
        with self._connection() as connection, self._errors():
            need_ledger(connection, schema, self.lock_timeout_s)
            need_rights(connection, schema)

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        """Open a transaction that excludes other writers of the sink.

        It commits on a clean exit of the block, and rolls back on an exception.

        Args:
            sink_id: The sink that writes; several sinks may share a schema.

        Raises:
            StoreError: The schema cannot be written.
            StoreUnavailableError: The server is down, out of reach or overloaded, or another writer
                of the sink held the lock for longer than `lock_timeout_s`.
        """
        from batchqueue.outputs.postgres.transaction import need_ledger

        with self._connection() as connection:
            transaction = self._transaction(connection, sink_id)
            with self._errors():
                need_ledger(connection, quoted(self.schema), self.lock_timeout_s)
            transaction.lock(self.lock_timeout_s)
            # Closing the connection before the commit rolls back.
            yield transaction
            transaction.check()
            with self._errors(committing=True):
                connection.commit()

    def sinks(self) -> list[str]:
        """Return the ids of the sinks that have written, sorted as texts.

        It does not wait for writers.

        Raises:
            StoreError: The schema cannot be read.
            StoreUnavailableError: The server is down or out of reach.
        """
        from batchqueue.outputs.postgres.transaction import has_ledger, sinks_of

        schema = quoted(self.schema)
        with self.snapshot() as connection:
            return sinks_of(connection, schema) if has_ledger(connection, schema) else []

    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        """Return the summaries kept for a sink, in the order of recording.

        It does not wait for writers.

        Args:
            sink_id: The sink that recorded them.
            newest: Return at most this many of the newest; `None` for all.

        Raises:
            StoreError: The schema cannot be read.
            StoreUnavailableError: The server is down or out of reach.
        """
        with self.ledger(sink_id) as ledger:
            return [] if ledger is None else ledger.summaries(newest)

    @contextmanager
    def ledger(self, sink_id: str = "default") -> Iterator[StoreTransaction | None]:
        """Read the ledger of a sink as of one commit: its marks, summaries and description.

        It does not wait for writers, and cannot load or change metrics.

        It yields `None` if the schema has no ledger yet.

        Args:
            sink_id: The sink to read.

        Raises:
            StoreError: The schema cannot be read.
            StoreUnavailableError: The server is down or out of reach.
        """
        from batchqueue.outputs.postgres.transaction import has_ledger

        with self.snapshot() as connection:
            exists = has_ledger(connection, quoted(self.schema))
            yield self._transaction(connection, sink_id, reading=True) if exists else None

    @contextmanager
    def snapshot(self) -> Iterator["psycopg.Connection[Any]"]:
        """Open a read-only connection that sees one state of all tables.

        Raises:
            StoreError: The database cannot be read.
            StoreUnavailableError: The server is down or out of reach.
        """
        import psycopg

        with self._connection() as connection, self._errors(reading=True):
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield connection

    def rows(self, selection: Selection) -> Iterator[Row]:
        """Yield the rows of a selection, as of one commit, with the columns of `read_table`."""
        with self._connection() as connection:
            transaction = self._transaction(connection, selection.sink_id, reading=True)
            yield from transaction.rows(selection)

    def metrics(self, sink_id: str = "default") -> list[StoredMetric]:
        """Return what a sink has stored, ordered by the names of the metrics.

        Metrics in tables that this user may not read are left out.

        Raises:
            StoreError: The schema cannot be read.
            StoreUnavailableError: The server is down or out of reach.
        """
        from batchqueue.outputs.postgres.transaction import has_ledger, metrics_of

        schema = quoted(self.schema)
        with self.snapshot() as connection:
            exists = has_ledger(connection, schema)
            return metrics_of(connection, schema, sink_id) if exists else []

    def _transaction(
        self, connection: "psycopg.Connection[Any]", sink_id: str, *, reading: bool = False
    ) -> "PostgresTransaction":
        from batchqueue.outputs.postgres.transaction import PostgresTransaction

        return PostgresTransaction(
            connection,
            quoted(self.schema),
            sink_id,
            partial(self._errors, reading=reading),
            self.kept_summaries,
        )

    @contextmanager
    def _connection(self) -> Iterator["psycopg.Connection[Any]"]:
        import psycopg

        words = {**self._words, "connect_timeout": max(1, round(self.connect_timeout_s))}
        with self._errors():
            # A connection seldom runs a statement twice, so preparing gains nothing, and would rule
            # out a pooler in between.
            connection = psycopg.connect(**words, prepare_threshold=None)
        try:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _errors(self, *, committing: bool = False, reading: bool = False) -> Iterator[None]:
        import psycopg

        from batchqueue.outputs.postgres.errors import store_error

        try:
            yield
        except (psycopg.Error, OverflowError, UnicodeError) as error:
            raise store_error(repr(self), error, committing=committing, reading=reading) from error


# The report of `batchqueue store check`.


def check_postgres(store: PostgresStore) -> StoreReport:
    """Read a whole store, and report its content and its problems.

    Raises:
        StoreError: It cannot be read.
        StoreUnavailableError: The server is down or out of reach.
    """
    from batchqueue.outputs.postgres.transaction import has_ledger

    report = StoreReport()
    schema = quoted(store.schema)
    with store.snapshot() as connection:
        if not has_ledger(connection, schema):
            report.problems.append(
                f"schema {store.schema} has no ledger, or a part of one: it is not a store of "
                "metrics, or was not restored as a whole"
            )
        else:
            report_ledgers(report, partial(_rows, connection), f"{schema}.")
            _add_rows(report, connection, schema)
    return report


def _add_rows(report: StoreReport, connection: "psycopg.Connection[Any]", schema: str) -> None:
    for (table,) in _rows(connection, f"SELECT name FROM {schema}.batchqueue_tables"):
        name = f"{schema}.{quoted(table)}"
        if not connection.execute(COLUMNS_OF, (name,)).fetchall():
            report.problems.append(f"table {name}, which holds metrics, is missing")
            continue
        for sink, rows in _rows(connection, f"SELECT sink, count(*) FROM {name} GROUP BY sink"):
            report.sink(sink).rows += rows


def _rows(connection: "psycopg.Connection[Any]", sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql.encode()).fetchall()
