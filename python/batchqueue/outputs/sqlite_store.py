"""Metrics in one SQLite file, without a server.

`sqlite_connection` connects to the file, and `sqlite_transaction` runs the statements.
"""

import fcntl
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from batchqueue.aggregation.metrics import Row, key_values
from batchqueue.base.checks import LocalPath, local_path
from batchqueue.base.files import sync
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import StoreBase
from batchqueue.outputs.layout import quoted
from batchqueue.outputs.ledger import report_ledgers
from batchqueue.outputs.reading import Selection, StoredMetric
from batchqueue.outputs.sqlite_connection import (
    check_log,
    connected,
    connected_for_reading,
    enter_state,
    sqlite_errors,
)
from batchqueue.outputs.sqlite_transaction import (
    EPOCHS_TABLE,
    MARKS_TABLE,
    NEED_WRITABLE,
    SqliteTransaction,
    create_ledger,
    from_sql,
    has_table,
    insert_rows,
    metrics_of,
    select_rows,
    sinks_of,
    wanted_table,
    wanted_values,
)
from batchqueue.outputs.store import (
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

    def _transaction(self, connection: sqlite3.Connection, sink_id: str) -> SqliteTransaction:
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
