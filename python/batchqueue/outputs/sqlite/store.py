"""`SqliteStore`: metrics in one SQLite file, without a server."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import TypeVar

from batchqueue.aggregation import Metrics
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.sqlite.schema import EPOCHS_TABLE, NEED_WRITABLE, table_sql
from batchqueue.outputs.sqlite.transaction import (
    SqliteTransaction,
    create_ledger,
    from_sql,
    has_table,
)
from batchqueue.outputs.store import (
    Epoch,
    StoreError,
    StoreTransaction,
    StoreUnavailableError,
    checked_kept_summaries,
)

M = TypeVar("M", bound=Metrics)

_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
"""The classes of errors that are over when another process has done its work."""

_REMEDIES = {
    "locked": "another process kept it busy: raise busy_timeout_s, or stop that process",
    "unable to open": "its directory must exist, and this user must be able to write to it",
    "readonly": "let this user write to the file, to those beside it (-wal, -shm) and to its directory",
    "not a database": "the file belongs to something else: choose another path",
    "full": "make room on the disk",
    "disk I/O": "check the disk",
}
"""What to do, by a part of the message of SQLite."""


class SqliteStore:
    """A `MetricsStore` in a file. Any number of processes may use it; one writes at a time, the others wait.

    Each transaction opens its own connection, so the store can be pickled, and used after a fork.
    What a transaction has committed survives a power cut.

    Attributes:
        path: The file, as an absolute path.
        busy_timeout_s: Seconds that a transaction waits for other writers.
        kept_summaries: Epochs of each sink whose summaries are kept, the newest.
    """

    def __init__(
        self, path: str | PathLike[str], *, busy_timeout_s: float = 30, kept_summaries: int = 1_000
    ) -> None:
        """Describe a store; nothing is opened yet.

        Args:
            path: The file. Its directory must exist; the file is created when it is needed.
            busy_timeout_s: Seconds that a transaction waits for other writers.
            kept_summaries: Epochs of each sink whose summaries are kept, the newest; at least 1.

        Raises:
            ConfigError: The path is ":memory:", which would be empty in every other process and
                transaction; or `kept_summaries` is below 1.
        """
        if str(path) == ":memory:":
            raise ConfigError(
                "SqliteStore(':memory:') would lose its data after each transaction; give it a file"
            )
        self.path = Path(path).expanduser().absolute()
        self.busy_timeout_s = busy_timeout_s
        self.kept_summaries = checked_kept_summaries(kept_summaries)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    def prepare(self) -> None:
        """Make sure that the file can be written, creating it if it is missing.

        Raises:
            StoreError: It cannot.
        """
        with self.transaction():
            pass

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        """Open a transaction that excludes other writers; commit on a clean exit, roll back on an exception.

        Args:
            sink_id: On whose behalf: several sinks may share one file.

        Raises:
            StoreError: The file cannot be written.
            StoreUnavailableError: Others kept it busy for longer than `busy_timeout_s`.
        """
        with self._connection() as connection:
            with self._errors():
                connection.execute("BEGIN IMMEDIATE")
                create_ledger(connection)
                connection.execute(NEED_WRITABLE)
            # Closing the connection before the COMMIT rolls back.
            transaction = SqliteTransaction(connection, sink_id, self._errors, self.kept_summaries)
            yield transaction
            transaction.check()
            with self._errors():
                connection.execute("COMMIT")

    def read(self, metric_type: type[M], sink_id: str = "default") -> list[M]:
        """Return the stored partials of one metric, ordered by entity and time bucket; waits for no writer.

        Raises:
            StoreError: There is no such file, or it is no database.
        """
        with self._reading() as connection:
            if not has_table(connection, metric_type.table):
                return []
            rows = connection.execute(
                table_sql(metric_type).select_all, (sink_id, metric_type.name)
            )
            return [
                metric_type.from_rows(entity, time_bucket, [from_sql(row[2:]) for row in group])
                for (entity, time_bucket), group in groupby(rows, key=lambda row: row[:2])
            ]

    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        """Return the summaries that are kept for one sink, in their order; waits for no writer.

        Args:
            sink_id: Whose.
            newest: At most so many, the last ones; None: all.

        Raises:
            StoreError: There is no such file, or it is no database.
        """
        with self._reading() as connection:
            if not has_table(connection, EPOCHS_TABLE):
                return []
            transaction = SqliteTransaction(connection, sink_id, self._errors, self.kept_summaries)
            return transaction.summaries(newest)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if not self.path.exists():
            raise StoreError(
                f"cannot read the store {self.path}: there is no such file; write to it first"
            )
        with self._connection() as connection, self._errors():
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._errors():
            connection = sqlite3.connect(
                self.path,
                timeout=self.busy_timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
        with closing(connection):
            with self._errors():
                _use_wal(connection)
                connection.execute("PRAGMA synchronous = FULL")
            yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            code = (
                getattr(error, "sqlite_errorcode", 0) & 0xFF
            )  # the low byte is the class of the error
            kind = StoreUnavailableError if code in _PASSING else StoreError
            raise kind(f"cannot use the store {self.path}: {error}; {_remedy(error)}") from error


def _use_wal(connection: sqlite3.Connection) -> None:
    """Let readers and the writer work side by side; the file remembers it."""
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # SQLite does not wait here when another connection is switching; that one does the work.
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise


def _remedy(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "SQLite keeps ints of 64 bits: measure in a larger unit"
    known = (remedy for part, remedy in _REMEDIES.items() if part in str(error))
    return next(known, "check the metrics: values are int, float, str or None, entities are str")
