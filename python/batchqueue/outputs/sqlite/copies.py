"""Copies of a SQLite store that are whole whenever they are made, and the way back from them."""

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from batchqueue.exceptions import ConfigError
from batchqueue.outputs.sqlite.connection import connected_for_reading, sqlite_errors
from batchqueue.outputs.sqlite.schema import EPOCHS_TABLE
from batchqueue.outputs.sqlite.transaction import has_table
from batchqueue.outputs.store import StoreError, StoreUnavailableError

# Each connection holds a lock of these bytes while it has the file open, see os_unix.c of SQLite.
_SHARED_BYTES = (510, 0x40000002)


def backup_sqlite(database: Path, copy: Path) -> None:
    """Copy a store as of one commit into one file, while others write to the store.

    Args:
        database: The store.
        copy: The file to make.

    Raises:
        ConfigError: `copy` exists.
        StoreError: The store cannot be read, is damaged, or is not a store; or `copy` cannot be
            written.
    """
    _need_new(copy)
    with _partial(copy) as partial:
        _copy(database, partial)
        try:
            os.link(partial, copy)  # unlike a rename, it replaces nothing
        except FileExistsError:
            _need_new(copy)
        _sync_folder(copy)


def restore_sqlite(copy: Path, database: Path) -> list[Path]:
    """Put a copy in the place of a store, whose file and log are put aside.

    Args:
        copy: What `backup_sqlite` made, or another copy of a store.
        database: The store; it may be missing.

    Returns:
        Where the former file and log are now.

    Raises:
        ConfigError: Both are the same file.
        StoreError: The copy cannot be read, is damaged, or is not a store; or the store cannot be
            replaced.
        StoreUnavailableError: Another process has the store open.
    """
    if database.exists() and database.samefile(copy):
        raise ConfigError(f"{copy} is the store itself; give the copy, then the store")
    with _partial(database) as partial:
        _copy(copy, partial)
        with _unused(database):
            aside = _put_aside(database)
            os.replace(partial, database)
            _sync_folder(database)
    return aside


def _copy(database: Path, target: Path) -> None:
    """Copy a store with what is in its log, and check the copy."""
    with connected_for_reading(database) as source:
        with sqlite_errors(database):
            if not has_table(source, EPOCHS_TABLE):
                raise StoreError(f"{database} is not a store of metrics: it has no ledger")
        with sqlite_errors(target), closing(sqlite3.connect(target)) as connection:
            source.backup(connection)
            connection.execute("PRAGMA journal_mode = DELETE")  # one file, readable as it is
            ((found,), *_) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise StoreError(f"{database} is damaged: {found}; copy or restore an earlier state")
    with target.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Give a name beside a file for what is not complete yet, and remove it in the end."""
    partial = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    try:
        yield partial
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error}; check its directory and disk") from error
    finally:
        with suppress(OSError):
            partial.unlink()


@contextmanager
def _unused(database: Path) -> Iterator[None]:
    """Keep other processes from opening a file.

    Raises:
        StoreUnavailableError: One of them has it open.
    """
    if not database.exists():
        yield
        return
    descriptor = os.open(database, os.O_RDWR)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, *_SHARED_BYTES)
        except (BlockingIOError, PermissionError) as error:
            raise StoreUnavailableError(
                f"cannot restore {database}: another process has it open; stop the programs that "
                "write to it or read from it, and try again"
            ) from error
        yield
    finally:
        os.close(descriptor)


def _put_aside(database: Path) -> list[Path]:
    """Give the file a second name and move the log there, so that both can be opened there."""
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    name = database.with_name(f"{database.name}.replaced-{at}")
    aside: list[Path] = []
    if database.exists():
        os.link(database, name)
        aside.append(name)
    for suffix in ("-wal", "-journal"):
        log = Path(f"{database}{suffix}")
        if log.exists() and log.stat().st_size:
            aside.append(log.rename(f"{name}{suffix}"))
        log.unlink(missing_ok=True)
    Path(f"{database}-shm").unlink(missing_ok=True)
    return aside


def _need_new(copy: Path) -> None:
    if copy.exists():
        raise ConfigError(f"{copy} exists; give the copy another name, or remove it before")


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
