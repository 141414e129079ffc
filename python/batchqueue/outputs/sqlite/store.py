"""`SqliteStore`: metrics in one SQLite file, without a server."""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from batchqueue._paths import LocalPath, local_path
from batchqueue.aggregation.metrics import Row, key_values
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import StoreBase
from batchqueue.outputs.reading import Selection, StoredMetric
from batchqueue.outputs.sqlite.connection import connected, connected_for_reading, sqlite_errors
from batchqueue.outputs.sqlite.inserting import insert_rows
from batchqueue.outputs.sqlite.schema import (
    EPOCHS_TABLE,
    MARKS_TABLE,
    NEED_WRITABLE,
    select_rows,
    wanted_table,
    wanted_values,
)
from batchqueue.outputs.sqlite.state import enter_state
from batchqueue.outputs.sqlite.transaction import (
    SqliteTransaction,
    create_ledger,
    has_table,
    metrics_of,
    sinks_of,
)
from batchqueue.outputs.sqlite.values import from_sql
from batchqueue.outputs.store import (
    Epoch,
    StoreTransaction,
    checked_kept_summaries,
)

_ELSEWHERE = "use a PostgresStore on a server, or an IcebergStore in object storage"


class SqliteStore(StoreBase):
    """A `MetricsStore` in a file.

    Any number of processes may use it; one writes at a time, and other writers wait. Each
    transaction opens its own connection, so the store can be pickled, and used after a fork. What a
    transaction has committed survives a power cut.

    Attributes:
        path: The file, as an absolute path.
        busy_timeout_s: Seconds that a transaction waits for other writers.
        kept_summaries: Number of newest epochs of each sink whose summaries are kept.
    """

    def __init__(
        self, path: LocalPath, *, busy_timeout_s: float = 30, kept_summaries: int = 1_000
    ) -> None:
        """Declare a store without opening it.

        Args:
            path: The file. Its directory must exist; the file is created on demand.
            busy_timeout_s: Seconds that a transaction waits for other writers; 30 by default.
            kept_summaries: Number of newest epochs of each sink whose summaries are kept, at least
                1; 1,000 by default.

        Raises:
            ConfigError: The path is not a path of this machine; or it is ":memory:", which would be
                empty in every other process and transaction; or `kept_summaries` is below 1.
        """
        if str(path) == ":memory:":
            raise ConfigError(
                "SqliteStore(':memory:') would lose its data after each transaction; give it a file"
            )
        self.path = local_path("the path of SqliteStore", path, _ELSEWHERE)
        self.busy_timeout_s = busy_timeout_s
        self.kept_summaries = checked_kept_summaries(kept_summaries)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r})"

    def prepare(self) -> None:
        """Check that the file can be written, and create it if it is missing.

        Raises:
            StoreError: The file cannot be written.
        """
        with self.transaction():
            pass

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        """Open a transaction that excludes other writers.

        It commits on a clean exit of the block, and rolls back on an exception.

        Args:
            sink_id: The sink that writes; several sinks may share a file.

        Raises:
            StoreError: The file cannot be written.
            StoreUnavailableError: Other writers kept it busy for longer than `busy_timeout_s`.
        """
        with self._connection() as connection:
            with self._errors():
                connection.execute("BEGIN IMMEDIATE")
                create_ledger(connection)
                connection.execute(NEED_WRITABLE)
            # Closing the connection before the COMMIT rolls back.
            transaction = self._transaction(connection, sink_id)
            yield transaction
            transaction.check()
            with self._errors():
                if transaction.has_changes:
                    enter_state(connection)
                connection.execute("COMMIT")

    def sinks(self) -> list[str]:
        """Return the ids of the sinks that have written, in their order as texts.

        It does not wait for writers.

        Raises:
            StoreError: The file is missing, or is not a database.
        """
        with self._reading() as connection:
            return sinks_of(connection)

    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        """Return the summaries that are kept for a sink, in the order of recording.

        It does not wait for writers.

        Args:
            sink_id: The sink that recorded them.
            newest: Return at most this many, the newest; `None` for all.

        Raises:
            StoreError: The file is missing, or is not a database.
        """
        with self._reading() as connection:
            if not has_table(connection, EPOCHS_TABLE):
                return []
            return self._transaction(connection, sink_id).summaries(newest)

    @contextmanager
    def ledger(self, sink_id: str = "default") -> Iterator[StoreTransaction | None]:
        """Read the ledger of a sink as of one commit: its marks, summaries and description.

        It does not wait for writers, and cannot load or change metrics.

        It gives `None` if the file has no ledger yet.

        Args:
            sink_id: The sink to read.

        Raises:
            StoreError: The file is missing, or is not a database.
        """
        with self._reading() as connection:
            has_ledger = has_table(connection, MARKS_TABLE)
            yield self._transaction(connection, sink_id) if has_ledger else None

    def rows(self, selection: Selection) -> Iterator[Row]:
        """Yield the rows of a selection, as of one commit, with the columns of `read_table`."""
        with self._reading() as connection:
            if not has_table(connection, selection.metric_type.table):
                return
            for number, (_, values) in enumerate(wanted_values(selection)):
                create, add = wanted_table(number)
                connection.execute(create)
                insert_rows(connection, add, ((value,) for value in values))
            metric_type = selection.metric_type
            columns, first = metric_type.key_columns, 3 if metric_type.multi_row else 2
            for found in connection.execute(*select_rows(selection)):
                row = from_sql(found, metric_type)
                yield (*row[:first], *key_values(columns, row[0], is_known=True), *row[first:])

    def metrics(self, sink_id: str = "default") -> list[StoredMetric]:
        """Return what a sink has stored, ordered by the names of the metrics.

        A column has the type that all its values fit: SQLite keeps them as they are.

        Raises:
            StoreError: The file is missing, or is not a database.
        """
        with self._reading() as connection:
            return metrics_of(connection, sink_id)

    def _transaction(self, connection: sqlite3.Connection, sink_id: str) -> SqliteTransaction:
        return SqliteTransaction(connection, sink_id, self._errors, self.kept_summaries)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with connected_for_reading(self.path) as connection, self._errors():
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with connected(self.path, self.busy_timeout_s) as connection:
            yield connection

    def _errors(self) -> AbstractContextManager[None]:
        return sqlite_errors(self.path)
