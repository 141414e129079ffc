"""Connections to a SQLite file, and its errors as store errors with a remedy."""

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from batchqueue.outputs.store import StoreError, StoreUnavailableError

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
