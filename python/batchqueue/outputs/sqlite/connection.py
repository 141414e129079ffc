"""Connections to a SQLite file, and its errors as store errors with a remedy."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from batchqueue.outputs.sqlite.state import check_log, log_of
from batchqueue.outputs.store import StoreError, StoreUnavailableError

_TEMPORARY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
"""The classes of errors that end when another process is done."""

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
"""The remedy, by a part of the message of SQLite."""

_READERS_WAIT_S = 30
"""Readers wait only while the file is not in WAL mode yet."""


def need_file(path: Path) -> None:
    """Check that a store exists, before SQLite would create it.

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

    It needs no right to write. SQLite reads a file of a WAL store with an index of its log, which
    the writers or the reader itself must have made. Without a log there is no writer either: then a
    user who cannot make one reads the file alone.

    Raises:
        StoreError: The file cannot be opened, or the log beside it continues another file.
        StoreUnavailableError: A writer came while the file was read alone.
    """
    need_file(path)
    check_log(path)
    database = path.resolve()
    # A log that this user makes could not be written by the owner of the file.
    if log_of(database).exists() or (_can_write(database) and _can_write(database.parent)):
        with _opened(path, f"{path.as_uri()}?mode=ro", _READERS_WAIT_S) as connection:
            yield connection
        return
    before = _version(database)
    try:
        with _opened(path, f"{path.as_uri()}?immutable=1", _READERS_WAIT_S) as connection:
            yield connection
    finally:
        # What was read of two states may also look damaged.
        if log_of(database).exists() or _version(database) != before:
            raise StoreUnavailableError(
                f"cannot read the store {path}: a writer changed it meanwhile, and this user "
                "cannot write to it, as SQLite needs to read beside a writer; read it again"
            )


def _can_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _version(database: Path) -> tuple[int, int, int] | None:
    """Return what changes with the file; None once it is gone."""
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
    """Turn the errors of SQLite in a block into those of a store."""
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
        # SQLite does not wait here while another connection switches the mode; that one does it.
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise


def _remedy(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "SQLite keeps ints of 64 bits: measure in a larger unit"
    known = (remedy for part, remedy in _REMEDIES.items() if part in str(error))
    return next(known, "check the metrics: values are int, float, str or None, entities are str")
