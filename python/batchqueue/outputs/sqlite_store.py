"""Metrics in one SQLite file, without a server."""

import fcntl
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from itertools import chain, groupby
from operator import eq, itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import KeyValue, Row, key_values
from batchqueue.base.checks import LocalPath, local_path
from batchqueue.base.files import sync
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import StoreBase
from batchqueue.outputs.layout import (
    FITTING,
    KEY_COLUMNS,
    Layout,
    check_keys,
    check_names,
    grouped_partials,
    is_name,
    quoted,
    rows_of,
    shown,
)
from batchqueue.outputs.ledger import SqlLedger, report_ledgers
from batchqueue.outputs.reading import (
    Selection,
    StoredMetric,
    name_and_table,
    stored_type,
)
from batchqueue.outputs.store import (
    FIRST_BUCKET,
    Epoch,
    StoreError,
    StoreReport,
    StoreTransaction,
    StoreUnavailableError,
    checked_kept_summaries,
)

__all__ = ["SqliteStore"]


_ELSEWHERE = "use a PostgresStore on a server, or an IcebergStore in object storage"


class SqliteStore(StoreBase):
    """A `MetricsStore` in a file.

    Any number of processes may use it; one writes at a time, and other writers wait. Each
    transaction opens its own connection, so the store can be pickled, and used after a fork.
    Committed transactions survive a power cut.

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
            ConfigError: The path is not local; or it is ":memory:", which would be empty in every
                other process and transaction; or `kept_summaries` is below 1.
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
        with connected(self.path, self.busy_timeout_s) as connection:
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
        """Return the ids of the sinks that have written, sorted as texts.

        It does not wait for writers.

        Raises:
            StoreError: The file is missing, or is not a database.
        """
        with self._reading() as connection:
            return sinks_of(connection)

    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        """Return the summaries kept for a sink, in the order of recording.

        It does not wait for writers.

        Args:
            sink_id: The sink that recorded them.
            newest: Return at most this many of the newest; `None` for all.

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

        It yields `None` if the file has no ledger yet.

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

        A column has a type that all its values fit, because SQLite stores a type per value.

        Raises:
            StoreError: The file is missing, or is not a database.
        """
        with self._reading() as connection:
            return metrics_of(connection, sink_id)

    def _transaction(self, connection: sqlite3.Connection, sink_id: str) -> "SqliteTransaction":
        return SqliteTransaction(connection, sink_id, self._errors, self.kept_summaries)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with connected_for_reading(self.path) as connection, self._errors():
            connection.execute("BEGIN")
            yield connection

    def _errors(self) -> AbstractContextManager[None]:
        return sqlite_errors(self.path)


# The check of a SQLite store: its content, and whether its file and its ledger are intact.


_MOST_PROBLEMS = 10


def check_sqlite(database: Path) -> StoreReport:
    """Read a whole store, and report its content and its problems.

    Raises:
        StoreError: It cannot be opened, or the log beside it continues another file.
    """
    report = StoreReport()
    with connected_for_reading(database) as connection:
        with sqlite_errors(database):
            connection.execute("BEGIN")
            found = connection.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})").fetchall()
            report.problems += [text for (text,) in found if text != "ok"]
            for table in (MARKS_TABLE, EPOCHS_TABLE, "batchqueue_tables"):
                if not has_table(connection, table):
                    report.problems.append(f"it has no table {table}: it is not a store of metrics")
        if not report.problems:
            with sqlite_errors(database):
                report_ledgers(report, connection.execute)
                _add_rows(report, connection)
    return report


def _add_rows(report: StoreReport, connection: sqlite3.Connection) -> None:
    for (table,) in connection.execute("SELECT name FROM batchqueue_tables").fetchall():
        if not has_table(connection, table):
            report.problems.append(f"table {table}, which holds metrics, is missing")
            continue
        for sink, rows in connection.execute(
            f"SELECT sink, count(*) FROM {quoted(table)} GROUP BY sink"
        ):
            report.sink(sink).rows += rows


# Copies of a SQLite store, consistent whenever they are made, and restores from them.
#
# A restore writes into the store's file and never replaces it by another: a program that has the
# old file open, or waits for its lock, would use it together with the new file's log.
#
# SQLite's backup writes the copy in one transaction, so that programs may keep using the store, and
# a killed restore leaves it unchanged. While the backup holds the lock of writers, the former
# content is copied aside, so that no commit is lost in between. The log then has every page of the
# database, which `check_log` recognizes.
#
# If SQLite cannot open the store, or must not because the log beside it continues another file, no
# program can use the store either. Then its bytes are copied aside and overwritten by the copy's,
# the header last: a file without its header is not a database.


# Each connection keeps these bytes locked while it has the file open; see os_unix.c of SQLite.
_SHARED_BYTES = (510, 0x40000002)

_HEADER_BYTES = 512
"""The smallest page size; more than the text that a database begins with."""

_NOT_OPENED = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

WRITER_WAIT_S = 10.0
"""Seconds that a restore waits for the transaction of a writer."""


def backup_sqlite(database: Path, copy: Path) -> None:
    """Copy a store as of one commit into one file, while others may write to the store.

    Args:
        database: The store.
        copy: The file to create.

    Raises:
        ConfigError: `copy` exists.
        StoreError: The store cannot be read, is damaged, or is not a store; or `copy` cannot be
            written.
    """
    _need_new(copy)
    with _partial(copy) as partial:
        _copy(database, partial)
        if not _link(partial, copy):
            _need_new(copy)


def restore_sqlite(
    copy: Path, database: Path, *, writer_wait_s: float = WRITER_WAIT_S
) -> list[Path]:
    """Restore a store from a copy, and put its former content aside.

    Other programs may have the store open: reads that have begun continue on the former state,
    later reads see the restored state.

    Args:
        copy: A file that `backup_sqlite` made, or another copy of a store.
        database: The store; it may be missing, or damaged.
        writer_wait_s: Seconds to wait for the transaction of a writer; 10 by default.

    Returns:
        Where the former store is now: one file, and also its log if SQLite must not open it.

    Raises:
        ConfigError: Both are the same file.
        StoreError: The copy cannot be read, is damaged, or is not a store; or the store cannot be
            written. The store is unchanged; but one that SQLite could not open may be left only in
            the files that were put aside.
        StoreUnavailableError: A writer kept the store busy; or SQLite cannot open it, but another
            process has it open.
    """
    if database.exists() and database.samefile(copy):
        raise ConfigError(f"{copy} is the store itself; give the copy, then the store")
    database = database.resolve()  # where its log is
    with _partial(database) as partial:
        _copy(copy, partial)
        if not database.exists():
            # A program that opens the store meanwhile starts from the copy, or created a file
            # first.
            aside = _logs_aside(database, _aside_of(database))
            _remove_logs(database)
            if _link(partial, database):
                return aside
        if _can_be_opened(database):
            return [_restore(partial, database, writer_wait_s)]
        return _overwrite(partial, database)


def _copy(database: Path, target: Path) -> None:
    """Copy a store including its log, and check the copy."""
    with connected_for_reading(database) as source:
        with sqlite_errors(database):
            if not has_table(source, EPOCHS_TABLE):
                raise StoreError(f"{database} is not a store of metrics: it has no ledger")
        _copy_pages(source, target)
        with sqlite_errors(target), closing(sqlite3.connect(target)) as connection:
            ((found,), *_) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise StoreError(f"{database} is damaged: {found}; copy or restore an earlier state")


def _copy_pages(source: sqlite3.Connection, target: Path) -> None:
    """Copy what a connection reads, unchanged, into a new durable file."""
    with sqlite_errors(target), closing(sqlite3.connect(target)) as connection:
        source.backup(connection)
        connection.execute("PRAGMA journal_mode = DELETE")  # one file, readable without a log
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _can_be_opened(database: Path) -> bool:
    """Return whether SQLite can open a file, and may, because the log beside it continues it."""
    try:
        check_log(database)
    except StoreError:
        return False
    with sqlite_errors(database), closing(sqlite3.connect(database)) as connection:
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in _NOT_OPENED:
                return False
            raise
    return True


def _restore(partial: Path, database: Path, writer_wait_s: float) -> Path:
    """Write a copy into a store in one transaction; return the path of the former content."""
    aside = _aside_of(database)

    def put_aside(status: int, _remaining: int, _total: int) -> None:
        """Copy the former content aside after the first page, under the lock of writers."""
        if status & 0xFF in _BUSY:  # or a reader, if the file is not in WAL mode yet
            raise StoreUnavailableError(
                f"cannot restore {database}: another process kept it busy for {writer_wait_s:g} s; "
                "stop the programs that write to it, and try again"
            )
        if status == sqlite3.SQLITE_OK and not aside.exists():
            with _partial(aside) as former, connected_for_reading(database) as source:
                _copy_pages(source, former)
                os.replace(former, aside)
                sync(aside.parent)

    try:
        with connected(database, writer_wait_s) as target:
            _fit_pages(partial, target)
            with sqlite_errors(database), closing(sqlite3.connect(partial)) as source:
                source.backup(target, pages=1, progress=put_aside)
    except BaseException:
        with suppress(OSError):
            aside.unlink()  # the store is unchanged
        raise
    return aside


def _fit_pages(partial: Path, target: sqlite3.Connection) -> None:
    """Give a copy the page size of a store, which cannot change while others read the store."""
    ((wanted,),) = target.execute("PRAGMA page_size").fetchall()
    with sqlite_errors(partial), closing(sqlite3.connect(partial)) as connection:
        if connection.execute("PRAGMA page_size").fetchall() != [(wanted,)]:
            connection.execute(f"PRAGMA page_size = {wanted}")
            connection.execute("VACUUM")


def _overwrite(partial: Path, database: Path) -> list[Path]:
    """Overwrite a file that SQLite cannot open, or must not, with the bytes of a copy."""
    with _unused(database) as descriptor:
        name = _aside_of(database)
        with _partial(name) as former:
            shutil.copyfile(database, former)
            with former.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(former, name)
        aside = [name, *_logs_aside(database, name)]
        with partial.open("rb") as source:
            beginning = source.read(_HEADER_BYTES)
            os.pwrite(descriptor, bytes(_HEADER_BYTES), 0)
            os.fsync(descriptor)
            _remove_logs(database)  # not earlier, or the file could be used without its log
            with open(descriptor, "r+b", closefd=False) as target:
                target.seek(_HEADER_BYTES)
                shutil.copyfileobj(source, target)
                target.truncate()
            os.fsync(descriptor)
            os.pwrite(descriptor, beginning, 0)
            os.fsync(descriptor)
    return aside


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Yield a name beside a file for its incomplete content, and remove that file in the end."""
    partial = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    try:
        yield partial
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error}; check its directory and disk") from error
    finally:
        for name in (partial, Path(f"{partial}-journal")):
            with suppress(OSError):
                name.unlink()


def _link(partial: Path, path: Path) -> bool:
    """Give a complete file its name; return False if another file has it."""
    try:
        os.link(partial, path)  # unlike a rename, it replaces nothing
    except FileExistsError:
        return False
    sync(path.parent)
    return True


@contextmanager
def _unused(database: Path) -> Iterator[int]:
    """Keep other processes from using a file, and yield a descriptor of it.

    Raises:
        StoreUnavailableError: Another process has it open.
    """
    descriptor = os.open(database, os.O_RDWR)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, *_SHARED_BYTES)
        except (BlockingIOError, PermissionError) as error:
            raise StoreUnavailableError(
                f"cannot restore {database}: another process has it open; stop the programs that "
                "write to it or read from it, and try again"
            ) from error
        yield descriptor
    finally:
        os.close(descriptor)


def _aside_of(database: Path) -> Path:
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return database.with_name(f"{database.name}.replaced-{at}")


def _logs_aside(database: Path, name: Path) -> list[Path]:
    """Link the logs beside a file to names beside its copy, which can be opened with them."""
    aside: list[Path] = []
    for suffix in ("-wal", "-journal"):
        log = Path(f"{database}{suffix}")
        if log.exists() and log.stat().st_size:
            aside.append(Path(f"{name}{suffix}"))
            os.link(log, aside[-1])
    sync(database.parent)
    return aside


def _remove_logs(database: Path) -> None:
    for suffix in ("-wal", "-journal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)
    sync(database.parent)


def _need_new(copy: Path) -> None:
    if copy.exists():
        raise ConfigError(f"{copy} exists; give the copy another name, or remove it before")


# A transaction, and its SQL. Values are bound; table and column names are checked and quoted.


EPOCHS_TABLE = "batchqueue_epochs"
CREATE_LEDGER = (
    # seq keeps the order of the summaries; AUTOINCREMENT, so that clear() does not restart it.
    f"CREATE TABLE IF NOT EXISTS {EPOCHS_TABLE} (seq INTEGER PRIMARY KEY AUTOINCREMENT, "
    "sink TEXT NOT NULL, query_id TEXT NOT NULL, batch_id INTEGER NOT NULL, summary TEXT NOT NULL)",
    f"CREATE INDEX IF NOT EXISTS batchqueue_epochs_of_sink ON {EPOCHS_TABLE} (sink, seq)",
    "CREATE TABLE IF NOT EXISTS batchqueue_sinks (sink TEXT PRIMARY KEY, description TEXT) "
    "WITHOUT ROWID",
    # The tables that hold metrics. The owner of the file may have others, which clear() must not
    # touch.
    "CREATE TABLE IF NOT EXISTS batchqueue_tables (name TEXT PRIMARY KEY) WITHOUT ROWID",
)
MARKS_TABLE = "batchqueue_marks"
SINK_TABLES = (MARKS_TABLE, EPOCHS_TABLE, "batchqueue_sinks")
"""The tables of the ledger, each with a column `sink`."""
CREATE_MARKS = (
    f"CREATE TABLE {MARKS_TABLE} (sink TEXT NOT NULL, query_id TEXT NOT NULL, "
    "batch_id INTEGER NOT NULL, PRIMARY KEY (sink, query_id)) WITHOUT ROWID",
    # An older version kept every epoch but no marks; the epochs in its files must not be applied
    # again.
    f"INSERT INTO {MARKS_TABLE} SELECT sink, query_id, max(batch_id) FROM {EPOCHS_TABLE} "
    "GROUP BY sink, query_id",
)

NEED_WRITABLE = f"DELETE FROM {EPOCHS_TABLE} WHERE 0"
"""Changes nothing, and fails if the file is read-only; BEGIN IMMEDIATE alone would succeed."""


def wanted_values(selection: Selection) -> list[tuple[str, list[str | int]]]:
    """Return the columns that a selection restricts, each with its wanted values."""
    wanted: list[tuple[str, list[str | int]]] = [
        (quoted(column), list(map(key_in_sql, values))) for column, values in selection.keys
    ]
    if selection.entities is not None:
        wanted.append(("entity", list(selection.entities)))
    return wanted


def wanted_table(number: int) -> tuple[str, str]:
    """Return the statements that create a temporary table of wanted values, and insert into it.

    The second statement ends before its values.
    """
    table = f"{_WANTED_TABLE}_{number}"
    create = f"CREATE TEMP TABLE {table} (value PRIMARY KEY) WITHOUT ROWID"
    return create, f"INSERT OR IGNORE INTO {table}"


_WANTED_TABLE = "batchqueue_wanted"

_WANTED_KEYS = "temp.batchqueue_wanted_keys"
CREATE_WANTED_KEYS = (
    f"CREATE TABLE IF NOT EXISTS {_WANTED_KEYS} (entity TEXT, time_bucket INTEGER, "
    "PRIMARY KEY (entity, time_bucket)) WITHOUT ROWID"
)
DELETE_WANTED_KEYS = f"DELETE FROM {_WANTED_KEYS}"
INSERT_WANTED_KEYS = f"INSERT OR IGNORE INTO {_WANTED_KEYS}"


class SqliteTableSql(NamedTuple):
    """The statements for the table of a kind of metrics; `insert` ends before its values."""

    create: str
    select_wanted: str
    select: str
    delete_key: str
    insert: str


@cache
def table_sql(metric_type: type[Metrics]) -> SqliteTableSql:
    """Return the statements for a metric type.

    Value columns have no SQL type, so that SQLite keeps values as they are: it would turn ints into
    floats in a REAL column, and floats into ints in a NUMERIC column.

    Raises:
        ConfigError: The name of the table or of a column is invalid.
    """
    check_names(metric_type)
    table = quoted(metric_type.table)
    keyed = [quoted(column) for column in metric_type.key_columns]
    values = [quoted(column) for column in metric_type.columns]
    keys = ["sink", "metric", "entity", "time_bucket", *(["rank"] if metric_type.multi_row else [])]
    rank_column = "rank INTEGER NOT NULL, " if metric_type.multi_row else ""
    order = ", ".join(keys[2:])
    same_key = "sink = ? AND metric = ? AND entity = ? AND time_bucket = ?"
    columns = ", ".join(values)
    stored = "stored.entity, stored.time_bucket"
    return SqliteTableSql(
        create=f"CREATE TABLE IF NOT EXISTS {table} (sink TEXT NOT NULL, metric TEXT NOT NULL, "
        f"entity TEXT NOT NULL, time_bucket INTEGER NOT NULL, {rank_column}"
        f"{', '.join([*keyed, *values])}, "
        f"PRIMARY KEY ({', '.join(keys)})) WITHOUT ROWID",
        # A CROSS JOIN looks up each wanted key, instead of reading each row of the metric.
        select_wanted=f"SELECT {stored}, {', '.join(f'stored.{value}' for value in values)} "
        f"FROM {_WANTED_KEYS} AS wanted CROSS JOIN {table} AS stored "
        "WHERE stored.sink = ? AND stored.metric = ? "
        "AND stored.entity = wanted.entity AND stored.time_bucket = wanted.time_bucket "
        "ORDER BY wanted.entity, wanted.time_bucket"
        f"{', stored.rank' if metric_type.multi_row else ''}",
        select=f"SELECT {order}, {columns} FROM {table} WHERE sink = ? AND metric = ?",
        delete_key=f"DELETE FROM {table} WHERE {same_key}",
        insert=f"INSERT OR REPLACE INTO {table} ({', '.join([*keys, *keyed, *values])})",
    )


def key_in_sql(value: KeyValue) -> str | int:
    """Return a value of a key column as SQLite holds it: dates as text, bools as 0 and 1."""
    if isinstance(value, date):
        return value.isoformat()
    return int(value) if isinstance(value, bool) else value


def select_rows(selection: Selection) -> tuple[str, list[str | int]]:
    """Return the statement for the rows of a selection, in order, and its values.

    Its columns are those of `read_table` without the key columns, which follow from the entity.
    Wanted values are in temporary tables, because a statement can bind only a limited number of
    values.
    """
    sql = table_sql(selection.metric_type).select
    values: list[str | int] = [selection.sink_id, selection.metric_type.name]
    for number, (column, _) in enumerate(wanted_values(selection)):
        sql += f" AND {column} IN (SELECT value FROM temp.{_WANTED_TABLE}_{number})"
    if selection.since is not None:
        sql += " AND time_bucket >= ?"
        values.append(selection.since)
    if selection.before is not None:
        sql += " AND time_bucket < ?"
        values.append(selection.before)
    rank = ", rank" if selection.metric_type.multi_row else ""
    return f"{sql} ORDER BY entity, time_bucket{rank}", values


M = TypeVar("M", bound=Metrics)


class SqliteTransaction(SqlLedger):
    """A `StoreTransaction` on an open connection.

    Wanted keys are in a temporary table, because a statement can bind only a limited number of
    values.
    """

    rows_at_once = 2_000  # their objects fit into the cache of a core

    def __init__(
        self,
        connection: sqlite3.Connection,
        sink_id: str,
        errors: Callable[[], AbstractContextManager[None]],
        kept_summaries: int,
    ) -> None:
        """Make the transaction of a sink.

        Args:
            connection: A connection in a transaction, which its owner commits.
            sink_id: The sink whose rows to read and write.
            errors: Turns the errors of SQLite into `StoreError`.
            kept_summaries: Number of summaries to keep for the sink.
        """
        super().__init__(sink_id, kept_summaries)
        self._connection = connection
        self._errors = errors
        self._tables: set[str] = set()
        self._wanted = 0  # changes to the temporary table

    @property
    def has_changes(self) -> bool:
        """Whether it has changed what is stored."""
        return self._connection.total_changes > self._wanted

    def load(self, metric_type: type[M], keys: Iterable[tuple[str, int]]) -> list[M]:
        """Return the stored partials of the given keys."""
        with self._statements():
            wanted = list(keys)
            check_keys(metric_type.name, wanted)
            sql = self._table(metric_type)
            execute = self._connection.execute
            execute(CREATE_WANTED_KEYS)
            before = self._connection.total_changes
            execute(DELETE_WANTED_KEYS)
            insert_rows(self._connection, INSERT_WANTED_KEYS, wanted)
            self._wanted += self._connection.total_changes - before
            rows = execute(sql.select_wanted, (self._sink_id, metric_type.name)).fetchall()
            return grouped_partials(metric_type, all_from_sql(rows, metric_type), 2)

    def save(self, metrics: Sequence[Metrics]) -> None:
        """Store partials, replacing those of the same type and key."""
        with self._statements():
            for metric_type, group in groupby(metrics, key=_type):
                sql = self._table(metric_type)
                latest = {item.key: item for item in group}
                head = (self._sink_id, metric_type.name)
                if metric_type.multi_row:  # a partial may have fewer rows than before
                    self._connection.executemany(sql.delete_key, ((*head, *key) for key in latest))
                insert_rows(self._connection, sql.insert, stored_rows(metric_type, latest), head)

    def merge_rows(self, metric_type: type[Metrics], rows: Sequence[Row]) -> None:
        """Combine partials given as rows with what is stored."""
        with self.guarded():
            # Sorted like the table, adjacent rows are on the same pages.
            super().merge_rows(metric_type, sorted(rows, key=itemgetter(0)))

    def may_have(self, metric_type: type[Metrics]) -> bool:
        """Return whether the sink has a partial of a metric."""
        with self._statements():
            self._table(metric_type)
            found = self._connection.execute(
                f"SELECT 1 FROM {quoted(metric_type.table)} WHERE sink = ? AND metric = ? LIMIT 1",
                (self._sink_id, metric_type.name),
            )
            return found.fetchone() is not None

    def save_rows(self, metric_type: type[Metrics], rows: Sequence[Row]) -> None:
        """Store partials given as rows, under keys that the store does not have."""
        with self._statements():
            sql = self._table(metric_type)
            head = (self._sink_id, metric_type.name)
            insert_rows(self._connection, sql.insert, rows_to_sql(metric_type, rows), head)

    def delete(
        self, before: int, *, since: int = FIRST_BUCKET, keep: Collection[type[Metrics]] = ()
    ) -> int:
        """Delete the metrics of this sink in a range of time buckets."""
        kept: dict[str, list[str]] = {}
        for metric_type in keep:
            kept.setdefault(metric_type.table, []).append(metric_type.name)
        with self._statements():
            return sum(
                self._connection.execute(
                    f"DELETE FROM {quoted(table)} WHERE sink = ? AND time_bucket >= ? "
                    "AND time_bucket < ? AND metric NOT IN (SELECT value FROM json_each(?))",
                    (self._sink_id, since, before, json.dumps(kept.get(table, []))),
                ).rowcount
                for table in self._tables_of_metrics()
            )

    def clear(self) -> None:
        """Delete everything that this sink wrote."""
        with self._statements():
            tables = self._tables_of_metrics()
            for table in [*tables, EPOCHS_TABLE, MARKS_TABLE, "batchqueue_sinks"]:
                self._connection.execute(
                    f"DELETE FROM {quoted(table)} WHERE sink = ?", (self._sink_id,)
                )

    @contextmanager
    def _statements(self) -> Iterator[None]:
        with self.guarded(), self._errors():
            # After some errors, such as a full disk, SQLite has rolled back on its own and would
            # commit each further statement.
            if not self._connection.in_transaction:
                raise sqlite3.OperationalError(
                    "the transaction was rolled back after an earlier error"
                )
            yield

    @contextmanager
    def _ran(self, sql: str, *values: object) -> Iterator[sqlite3.Cursor]:
        with self._statements():
            yield self._connection.execute(sql, values)

    def _tables_of_metrics(self) -> list[str]:
        found = self._connection.execute("SELECT name FROM batchqueue_tables")
        return [name for (name,) in found.fetchall()]

    def _table(self, metric_type: type[Metrics]) -> SqliteTableSql:
        sql = table_sql(metric_type)
        if metric_type.table not in self._tables:
            self._connection.execute(sql.create)
            self._connection.execute(
                "INSERT OR IGNORE INTO batchqueue_tables VALUES (?)", (metric_type.table,)
            )
            self._tables.add(metric_type.table)
        return sql


def create_ledger(connection: sqlite3.Connection) -> None:
    """Create the tables of the ledger that are missing."""
    for statement in (*CREATE_LEDGER, *CREATE_STATE):
        connection.execute(statement)
    if not has_table(connection, MARKS_TABLE):
        for statement in CREATE_MARKS:
            connection.execute(statement)


def has_table(connection: sqlite3.Connection, table: str) -> bool:
    """Return whether the database has a table with this name."""
    sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return connection.execute(sql, (table,)).fetchone() is not None


def sinks_of(connection: sqlite3.Connection) -> list[str]:
    """Return the ids of the sinks that have metrics, marks, summaries or a description."""
    tables = [table for table in SINK_TABLES if has_table(connection, table)]
    if has_table(connection, "batchqueue_tables"):
        tables += [name for (name,) in connection.execute("SELECT name FROM batchqueue_tables")]
    found = {
        sink
        for table in tables
        for (sink,) in connection.execute(f"SELECT DISTINCT sink FROM {quoted(table)}")
    }
    return sorted(found)


def metrics_of(connection: sqlite3.Connection, sink_id: str) -> list[StoredMetric]:
    """Return the metrics of a sink, ordered by their names."""
    if not has_table(connection, "batchqueue_tables"):
        return []
    found = []
    for (table,) in connection.execute("SELECT name FROM batchqueue_tables").fetchall():
        names = [column[1] for column in connection.execute(f"PRAGMA table_info({quoted(table)})")]
        values = [name for name in names if name not in KEY_COLUMNS and is_name(name)]
        largest = "".join(f", max({_ORDER_OF_TYPES.format(quoted(name))})" for name in values)
        for name, rows, first, last, *types in connection.execute(
            f"SELECT metric, count(*), min(time_bucket), max(time_bucket){largest} "
            f"FROM {quoted(table)} WHERE sink = ? GROUP BY metric",
            (sink_id,),
        ):
            kinds = [_KINDS[kind] for kind in types]
            layout = Layout(table, tuple(zip(values, kinds, strict=True)), "rank" in names)
            found.append(StoredMetric(stored_type(name, layout), rows, first, last))
    return sorted(found, key=name_and_table)


_ORDER_OF_TYPES = (
    "CASE typeof({}) WHEN 'text' THEN 3 WHEN 'null' THEN 0 WHEN 'integer' THEN 1 ELSE 2 END"
)
_KINDS = (float, int, float, str)
"""The type that holds all values of a column, by the largest of their `_ORDER_OF_TYPES`."""


def _type(item: Metrics) -> type[Metrics]:
    return type(item)


# Insertion of many rows: a statement costs as much as several rows, so each inserts many.


_MOST_VALUES = 999
"""The most values that a statement can bind in SQLite before 3.32."""

_MOST_ROWS = 100
"""The most rows of a statement; more would not be faster."""


def insert_rows(
    connection: sqlite3.Connection,
    insert: str,
    rows: Iterable[tuple[Any, ...]],
    head: tuple[Any, ...] = (),
) -> None:
    """Insert rows.

    Args:
        connection: A connection in a transaction, because a row may fail after others.
        insert: A statement up to the values.
        rows: The rows, all of the same length.
        head: Values that come first in each row; none by default.
    """
    rows = list(rows)
    if not rows:
        return
    width = len(rows[0])
    at_once = max(1, min(_MOST_ROWS, (_MOST_VALUES - len(head)) // width))
    if len(set(map(len, rows))) > 1:
        at_once = 1  # SQLite refuses a row of another length, instead of shifting values
    whole = len(rows) // at_once * at_once
    columns = ", ".join([*"?" * len(head), "*"])  # the head is bound once for all rows
    for count, some in ((at_once, rows[:whole]), (1, rows[whole:])):
        if not some:
            continue
        values = ", ".join([f"({', '.join('?' * width)})"] * count)
        connection.executemany(
            f"{insert} SELECT {columns} FROM (VALUES {values})",
            (
                [*head, *chain.from_iterable(some[first : first + count])]
                for first in range(0, len(some), count)
            ),
        )


# Values as SQLite holds them: decimals as text, bools as 0 and 1, NaN as a blob.


# SQLite silently turns NaN into NULL. This blob stands for NaN; no other value is stored as a blob.
_NAN = b"NaN"
_KEPT = {int, float, str, type(None)}


def stored_rows(
    metric_type: type[Metrics], metrics: Mapping[tuple[str, int], Metrics]
) -> Iterator[Row]:
    """Convert partials, given by key, to rows with the columns of `read_table`, as SQLite has them.

    Raises:
        StoreError: A key or a value has another type.
    """
    check_keys(metric_type.name, metrics)
    heads, rows = rows_of(metrics, multi_row=metric_type.multi_row)
    if metric_type.key_columns:
        first = len(heads[0]) - len(metric_type.key_columns) if heads else 0
        heads = [(*head[:first], *map(key_in_sql, head[first:])) for head in heads]
    if not _are_kept(metric_type, rows):
        rows = [
            _stored_values(metric_type, row, head[:2])
            for head, row in zip(heads, rows, strict=True)
        ]
    return ((*head, *row) for head, row in zip(heads, rows, strict=True))


def rows_to_sql(metric_type: type[Metrics], rows: Sequence[Row]) -> Sequence[Row]:
    """Convert rows with the columns of `read_table`, and values of their types, to SQLite's.

    Raises:
        StoreError: A value does not fit its column.
    """
    kinds = metric_type.columns.values()
    floats = [position for position, kind in enumerate(kinds, 2) if kind is float]
    if not (
        metric_type.key_columns
        or _kinds_unlike_sql(metric_type)
        or any(_has_nan([row[position] for row in rows]) for position in floats)
    ):
        return rows
    first = 2 + len(metric_type.key_columns)
    return [
        (
            *row[:2],
            *map(key_in_sql, row[2:first]),
            *_stored_values(metric_type, row[first:], row[:2]),
        )
        for row in rows
    ]


def _are_kept(metric_type: type[Metrics], rows: Sequence[Row]) -> bool:
    """Return whether SQLite keeps all values unchanged."""
    values = list(chain.from_iterable(rows))
    is_plain = set(map(type, values)) <= _KEPT and not _has_nan(values)
    return is_plain and not _kinds_unlike_sql(metric_type)


def _has_nan(values: Sequence[Any]) -> bool:
    return not all(map(eq, values, values))


def _stored_values(metric_type: type[Metrics], row: Row, key: tuple[Any, ...]) -> Row:
    """Return the values of a row as SQLite holds them."""
    odd = _kinds_unlike_sql(metric_type)
    return tuple(
        value
        if type(value) in _KEPT and value == value  # noqa: PLR0124 - false for NaN
        else _checked(value, metric_type, key)
        for value in (_in_sql(metric_type, row, odd) if odd else row)
    )


@cache
def _kinds_unlike_sql(metric_type: type[Metrics]) -> dict[int, type]:
    """Return the value column types that SQLite lacks, by position from the end."""
    kinds = metric_type.columns.values()
    return {
        position - len(kinds): kind
        for position, kind in enumerate(kinds)
        if kind in (bool, Decimal)
    }


def _in_sql(metric_type: type[Metrics], row: Row, odd: Mapping[int, type]) -> Row:
    """Return the values of a row, with decimals as text and bools as 0 and 1."""
    values = list(row)
    for position, kind in odd.items():
        if values[position] is not None:
            try:
                value = FITTING[kind](values[position])
            except (TypeError, OverflowError) as error:
                column = list(metric_type.columns)[position]
                raise StoreError(
                    f"{row!r} of metric {metric_type.name} does not fit the column {column} "
                    f"{shown(kind)}: {error}; check the metrics, or give metric_type other columns="
                ) from error
            values[position] = str(value) if kind is Decimal else int(value)
    return tuple(values)


def _checked(value: Any, metric_type: type[Metrics], key: tuple[Any, ...]) -> Any:
    """Return the stored form of NaN, or of a value whose type is a subclass of a plain type."""
    if not isinstance(value, int | float | str):
        raise StoreError(
            f"metric {metric_type.name} has the value {value!r} under {key}; "
            "check the metrics: values are int, float, str or None, and Decimal or bool where "
            "metric_type has such columns="
        )
    return _NAN if value != value else value  # noqa: PLR0124


def all_from_sql(rows: list[Row], metric_type: type[Metrics]) -> list[Row]:
    """Return stored rows, whose last columns are the value columns, with their original values."""
    if not _kinds_unlike_sql(metric_type) and bytes not in set(map(type, chain(*rows))):
        return rows
    return [from_sql(row, metric_type) for row in rows]


def from_sql(row: Row, metric_type: type[Metrics]) -> Row:
    """Return a stored row, whose last columns are the value columns, with its original values."""
    values = [float(value) if type(value) is bytes else value for value in row]
    for position, kind in _kinds_unlike_sql(metric_type).items():
        value = values[position]
        if value is not None:
            if type(value) is not (str if kind is Decimal else int):
                raise StoreError(
                    f"metric {metric_type.name} was stored with {value!r} in a column that is now "
                    f"of {shown(kind)}: keep the types of its columns, or give the metric another "
                    "name"
                )
            values[position] = kind(value)
    return tuple(values)


# Connections to a SQLite file, and its errors as store errors with a remedy.


_TEMPORARY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
"""The error classes that pass once another process is done."""

_REMEDIES = {
    "locked": "another process kept it busy: raise busy_timeout_s, or stop that process",
    "unable to open": "its directory must exist, and this user must be able to write to it, or, to "
    "read, to read the file and those beside it (-wal, -shm)",
    "readonly": "let this user write to the file, to those beside it (-wal, -shm) and to its "
    "directory",
    "not a database": "the file belongs to something else: choose another path",
    "full": "make room on the disk",
    "disk I/O": "check the disk",
    "malformed": "the file is damaged: restore a copy with `batchqueue store restore`",
}
"""The remedies, by a part of SQLite's message."""

_READERS_WAIT_S = 30
"""Readers wait only while the file is not in WAL mode yet."""


def need_file(path: Path) -> None:
    """Check that a store exists, because SQLite would create it.

    Raises:
        StoreError: There is no such file.
    """
    try:
        exists = path.exists()
    except OSError as error:
        raise StoreError(
            f"cannot read the store {path}: {error.strerror}; let this user enter its folders"
        ) from error
    if not exists:
        raise StoreError(f"cannot read the store {path}: there is no such file; write to it first")


@contextmanager
def connected(path: Path, busy_timeout_s: float) -> Iterator[sqlite3.Connection]:
    """Open a connection for a block, in which the caller begins and ends transactions.

    Args:
        path: The file, as an absolute path; it is created if it is missing.
        busy_timeout_s: Seconds to wait for other writers.

    Raises:
        StoreError: The file cannot be opened, or the log beside it continues another file.
    """
    check_log(path)
    with _opened(path, str(path), busy_timeout_s) as connection:
        with sqlite_errors(path):
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")
        yield connection


@contextmanager
def connected_for_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that leaves the file as it is, even if it is a copy in another mode.

    It needs no write permission. SQLite reads a WAL store by an index of its log, which a writer or
    the reader itself must have made. Without a log there is no writer either, so a user who cannot
    create one reads the file alone.

    Raises:
        StoreError: The file cannot be opened, or the log beside it continues another file.
        StoreUnavailableError: A writer changed the file while it was read alone.
    """
    need_file(path)
    check_log(path)
    database = path.resolve()
    # The owner of the file could not write to a log that this user creates.
    if log_of(database).exists() or (_can_write(database) and _can_write(database.parent)):
        with _opened(path, f"{path.as_uri()}?mode=ro", _READERS_WAIT_S) as connection:
            yield connection
        return
    before = _version(database)
    try:
        with _opened(path, f"{path.as_uri()}?immutable=1", _READERS_WAIT_S) as connection:
            yield connection
    finally:
        # A mixture of two states may also look damaged.
        if log_of(database).exists() or _version(database) != before:
            raise StoreUnavailableError(
                f"cannot read the store {path}: a writer changed it meanwhile, and this user "
                "cannot write to it, as SQLite needs to read beside a writer; read it again"
            )


def _can_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _version(database: Path) -> tuple[int, int, int] | None:
    """Return values that change with the file; None if the file is missing."""
    try:
        found = database.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def _opened(path: Path, address: str, busy_timeout_s: float) -> Iterator[sqlite3.Connection]:
    with sqlite_errors(path):
        connection = sqlite3.connect(
            address,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            uri=address != str(path),
        )
    with closing(connection):
        yield connection


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite in a block into store errors."""
    try:
        yield
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        # The low byte of the code is the class of the error.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = StoreUnavailableError if code in _TEMPORARY else StoreError
        raise kind(f"cannot use the store {path}: {error}; {_remedy(error)}") from error


def _use_wal(connection: sqlite3.Connection) -> None:
    """Let readers and the writer work concurrently; the file keeps the setting."""
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # SQLite does not wait here for another connection that is switching the mode already.
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise


def _remedy(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "SQLite keeps ints of 64 bits: measure in a larger unit"
    known = (remedy for part, remedy in _REMEDIES.items() if part in str(error))
    return next(known, "check the metrics: values are int, float, str or None, entities are str")


# Whether a SQLite file and the log beside it belong together, checked before SQLite opens them.
#
# A killed writer leaves a write-ahead log. SQLite puts its pages into the file beside it, whatever
# file that is, because the checksums of a log cover only the log. An older copy of the file would
# get the newest pages of the ledger, and keep its old pages of metrics.
#
# So the table `batchqueue_store` has one row with a random name for the state that the last
# transaction made, and the name of the previous state. A log has that row for each of its
# transactions. It continues the file if the file has the state before the first transaction, or
# after one of them: then the log up to that one is in the file already. It continues any file if
# one of its transactions wrote every page, as a restore does, because nothing of the file remains.


_descriptors: dict[tuple[int, int], int] = {}
"""By device and inode. An inode is not reused while its file is open."""

STORE_TABLE = "batchqueue_store"
_FORMAT = "batchqueue-1"
_NO_STATE = "0" * 32
_NO_DATABASE = "none"
"""The state of a file that does not begin like a database; no log continues it."""

CREATE_STATE = (
    f"CREATE TABLE IF NOT EXISTS {STORE_TABLE} (id INTEGER PRIMARY KEY, format TEXT NOT NULL, "
    "previous TEXT NOT NULL, state TEXT NOT NULL)",
    f"INSERT OR IGNORE INTO {STORE_TABLE} VALUES (1, '{_FORMAT}', '{_NO_STATE}', '{_NO_STATE}')",
)

# https://www.sqlite.org/fileformat2.html describes logs, pages and rows. A page of a table with one
# row begins with its kind, and has the row's offset at byte 8; the row begins with its length, its
# id, and the length and the types of its columns.
_LOG_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_LOG_BEGINS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_LEAF, _ONE_ROW = b"\x0d", b"\x00\x01"
_ROW_BEGINS = bytes([81, 1, 5, 0, 37, 77, 77]) + _FORMAT.encode()
_NAME_BYTES = 32
_LOCK_BYTE = 0x40000000
"""The page that contains it is never written."""

_ATTEMPTS = 20
"""Attempts to read the file and its log while other processes write both."""


class _State(NamedTuple):
    previous: str
    name: str


class _Frame(NamedTuple):
    """A state in a log, and the page that contains it."""

    state: _State
    page: int
    page_bytes: int


class _LogCommit(NamedTuple):
    """A transaction in a log: the states that it wrote, and whether it wrote every page."""

    frames: list[_Frame]
    is_whole: bool


def enter_state(connection: sqlite3.Connection) -> None:
    """Name the state that the open transaction makes."""
    connection.execute(
        f"UPDATE {STORE_TABLE} SET previous = state, state = ?", (secrets.token_hex(16),)
    )


def check_log(path: Path) -> None:
    """Check that SQLite may put the log beside a file into that file.

    It costs a system call if there is no log, and otherwise reads the log.

    Raises:
        StoreError: The log continues another state of the store, or another store.
    """
    database = path.resolve()  # the log is beside the file, and not beside a link to it
    log = log_of(database)
    for _ in range(_ATTEMPTS):
        if not (_size(log) and _size(database)):
            return
        with suppress(OSError):  # SQLite will report what cannot be read
            in_file, beginning = _state_in(database), _beginning_of(log)
            commits = list(_committed(log))
            states = [frame.state for commit in commits for frame in commit.frames]
            if not states or any(commit.is_whole for commit in commits):
                return
            if in_file in (states[0].previous, *(state.name for state in states)):
                return
            # Another process may have restarted the log since the file was read.
            if (in_file, beginning) == (_state_in(database), _beginning_of(log)):
                raise StoreError(
                    f"cannot use the store {path}: the file has state {in_file[:8]}, which the "
                    f"log {log.name} does not continue, as it begins after state "
                    f"{states[0].previous[:8]}: the file was replaced, for instance by an older "
                    "copy, and the log was left. SQLite would mix the two. Restore the copy with "
                    f"`batchqueue store restore COPY {path}`, which puts the log aside, or put "
                    "the file back to which the log belongs"
                )


def log_of(database: Path) -> Path:
    """Return the path of the write-ahead log of a file."""
    return Path(f"{database}-wal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _state_in(database: Path) -> str:
    """Return the state in a file, ignoring its log; zeros if it has none, or looks damaged."""
    address = f"{database.as_uri()}?immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            row = connection.execute(f"SELECT state FROM {STORE_TABLE}").fetchone()
            return _NO_STATE if row is None else str(row[0])
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            return _NO_STATE  # no such table
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            return _NO_DATABASE  # for instance after a killed restore
    # A checkpoint writes the new number of pages first, and the last pages at the end. While it
    # runs, or if it was killed, the file alone looks damaged.
    frames = (frame for commit in _committed(log_of(database)) for frame in commit.frames)
    frame = next(frames, None)
    if frame is None:
        return _NO_STATE
    descriptor = _kept_open(database)
    state = _state_on(os.pread(descriptor, frame.page_bytes, (frame.page - 1) * frame.page_bytes))
    return _NO_STATE if state is None else state.name


def _kept_open(database: Path) -> int:
    """Return a descriptor of a file that stays open until the process exits.

    Closing any descriptor of a file releases all POSIX locks that the process has on it, including
    those of SQLite in other threads: https://www.sqlite.org/howtocorrupt.html, 2.2.
    """
    found = database.stat()
    kept = _descriptors.get((found.st_dev, found.st_ino))
    if kept is None:
        opened = os.open(database, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(opened)
        # If another thread was first, this descriptor stays open as well.
        kept = _descriptors.setdefault((found.st_dev, found.st_ino), opened)
    return kept


def _beginning_of(log: Path) -> bytes:
    with log.open("rb") as file:
        return file.read(_LOG_HEADER_BYTES)


def _committed(log: Path) -> Iterator[_LogCommit]:
    """Yield the committed transactions in a log, the oldest first."""
    with log.open("rb") as file:
        header = file.read(_LOG_HEADER_BYTES)
        page_bytes, salts = int.from_bytes(header[8:12], "big"), header[16:24]
        if header[:4] not in _LOG_BEGINS or not 512 <= page_bytes <= 65_536:
            return
        frames: list[_Frame] = []
        pages: set[int] = set()
        lock_page = _LOCK_BYTE // page_bytes + 1
        frame_bytes = _FRAME_HEADER_BYTES + page_bytes
        while len(frame := file.read(frame_bytes)) == frame_bytes and frame[8:16] == salts:
            page = int.from_bytes(frame[:4], "big")
            pages.add(page)
            state = _state_on(frame[_FRAME_HEADER_BYTES:])
            if state is not None:
                frames.append(_Frame(state, page, page_bytes))
            size = int.from_bytes(frame[4:8], "big")
            if size:  # the last page of a transaction has the file's new number of pages
                written = sum(page <= size for page in pages) + (lock_page <= size)
                yield _LogCommit(frames, is_whole=written >= size)
                frames, pages = [], set()


def _state_on(page: bytes) -> _State | None:
    """Return the row of the table on a page; None if the page lacks it."""
    if page[:1] != _LEAF or page[3:5] != _ONE_ROW:
        return None
    start = int.from_bytes(page[8:10], "big")
    if not page.startswith(_ROW_BEGINS, start):
        return None
    start += len(_ROW_BEGINS)
    end = start + _NAME_BYTES
    return _State(page[start:end].decode(), page[end : end + _NAME_BYTES].decode())
