"""Stored cuts, and the choice of the one that a run continues from."""

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from batchqueue import _core
from batchqueue.pipeline.contract import CheckpointError, CutError, Position

Positions = Mapping[str, Position]


class StoredCut(NamedTuple):
    """A cut as a checkpoint or a sink has it."""

    number: int
    positions: Positions


State = Mapping[tuple[str, int], bytes]
"""The snapshots of the workers, by stage and worker number."""

_VERSION = 1
_CREATE = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "CREATE TABLE IF NOT EXISTS pipeline (name TEXT NOT NULL, version INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS cuts (number INTEGER PRIMARY KEY, positions TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS states (cut INTEGER NOT NULL, stage TEXT NOT NULL, "
    "worker INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (cut, stage, worker))",
)
_KEPT_CUTS = 2

_open_here: set[str] = set()
_open_lock = threading.Lock()

_NO_ROOM = "give a directory that this user can write to, on a disk with room"
_DAMAGED = "it is damaged: restore a copy of the directory, or begin with another one"


class Checkpoint:
    """A directory with the positions and the state of the last two cuts of a pipeline.

    A cut is stored here before the sinks store it. If the process ends in between, the sinks
    determine which of the two cuts counts, so both are kept.

    At most one process has it open, and one thread at a time uses it.
    """

    def __init__(self, directory: str, pipeline: str) -> None:
        """Open a checkpoint, creating it if missing.

        Args:
            directory: Where it is.
            pipeline: The name of the pipeline.

        Raises:
            CheckpointError: The checkpoint is in use by a running pipeline, belongs to another one,
                or cannot be written.
        """
        self._directory = Path(directory)
        self._pipeline = pipeline
        with self._errors(), ExitStack() as opened:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = _Lock(self._directory)
            opened.callback(self._lock.release)
            self._connection = sqlite3.connect(
                self._directory / "cuts.db", isolation_level=None, check_same_thread=False
            )
            opened.callback(self._connection.close)
            for statement in _CREATE:
                self._connection.execute(statement)
            self._check_owner()
            opened.pop_all()

    def __repr__(self) -> str:
        return f"Checkpoint({str(self._directory)!r})"

    def close(self) -> None:
        """Close it, so that another run may open it."""
        self._connection.close()
        self._lock.release()

    def cuts(self) -> list[StoredCut]:
        """Return the cuts that are kept, the oldest first."""
        with self._errors(), closing(self._connection.cursor()) as cursor:
            rows = cursor.execute("SELECT number, positions FROM cuts ORDER BY number").fetchall()
        return [StoredCut(number, json.loads(positions)) for number, positions in rows]

    def state(self, cut: int) -> dict[tuple[str, int], bytes]:
        """Return the state of a cut."""
        sql = "SELECT stage, worker, state FROM states WHERE cut = ?"
        with self._errors(), closing(self._connection.cursor()) as cursor:
            rows = cursor.execute(sql, (cut,)).fetchall()
        return {(stage, worker): state for stage, worker, state in rows}

    def store(self, cut: int, positions: Mapping[str, Position], state: State) -> None:
        """Store a cut, keep the one before it, and drop any later ones."""
        oldest = cut - _KEPT_CUTS + 1
        text = json.dumps(positions, sort_keys=True)
        with self._transaction() as connection:
            for table, column in (("cuts", "number"), ("states", "cut")):
                connection.execute(
                    f"DELETE FROM {table} WHERE {column} >= ? OR {column} < ?", (cut, oldest)
                )
            connection.execute("INSERT INTO cuts VALUES (?, ?)", (cut, text))
            connection.executemany(
                "INSERT INTO states VALUES (?, ?, ?, ?)",
                [(cut, stage, worker, blob) for (stage, worker), blob in state.items()],
            )

    def _check_owner(self) -> None:
        with self._transaction() as connection:
            found = connection.execute("SELECT name, version FROM pipeline").fetchone()
            if found is None:
                connection.execute("INSERT INTO pipeline VALUES (?, ?)", (self._pipeline, _VERSION))
                return
        name, version = found
        if name != self._pipeline:
            raise CheckpointError(
                f"checkpoint {self._directory} belongs to pipeline {name!r}, and this one is "
                f"{self._pipeline!r}; give each pipeline a directory"
            )
        if version != _VERSION:
            raise CheckpointError(
                f"checkpoint {self._directory} has format {version}, and this version of "
                f"batchqueue knows {_VERSION}; use the version that wrote it"
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            # SQLite raises exactly this class if the file is not a database or is damaged.
            remedy = _DAMAGED if type(error) is sqlite3.DatabaseError else _NO_ROOM
            raise CheckpointError(
                f"cannot use checkpoint {self._directory}: {error}; {remedy}"
            ) from error


class _Lock:
    """A lock that keeps a second run out of a directory, even one in this process."""

    def __init__(self, directory: Path) -> None:
        self._key = os.path.realpath(directory)
        _core.forget_parent()
        with _open_lock:
            if self._key in _open_here:
                raise _in_use(directory)
            # A record lock: a forked child does not inherit it. It ends when this process closes
            # the file, so the file is opened nowhere else.
            self._file: Any = (directory / "lock").open("w")
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._file.close()
                raise _in_use(directory) from error
            _open_here.add(self._key)

    def release(self) -> None:
        """Release the lock."""
        with _open_lock:
            _open_here.discard(self._key)
            self._file.close()


def _in_use(directory: Path) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {directory} is in use by a running pipeline; stop that one, or give this one "
        "another directory"
    )


def _forget() -> None:
    global _open_lock  # noqa: PLW0603 - a thread that does not exist here may hold the parent's
    _open_lock = threading.Lock()
    _open_here.clear()


# Which cut a run continues from: decided by the checkpoint and the sinks. Pure.


class Recovery(NamedTuple):
    """Where a run begins."""

    cut: int
    """The last cut that counts; 0 if there is none."""
    positions: Positions
    """Where the sources begin, for those that the cut names."""
    replay_to: Positions | None = None
    """Where to stop reading for cut `cut + 1`, which some sinks already have; None for no limit."""
    ahead: frozenset[str] = frozenset()
    """The sinks that already have cut `cut + 1`, which skip the replay."""


def recover(
    kept: list[StoredCut], sinks: Mapping[str, StoredCut | None], where: str = "the checkpoint"
) -> Recovery:
    """Decide where a run begins.

    Args:
        kept: The cuts of the checkpoint; only the last may be missing from a sink. Empty without a
            checkpoint.
        sinks: The last cut of each transactional sink; None if it has none.
        where: The name of the checkpoint in errors.

    Raises:
        CutError: They disagree about more than the last cut.
    """
    numbers = {name: 0 if cut is None else cut.number for name, cut in sinks.items()}
    if not kept:
        return _by_sinks(sinks, numbers)
    known = {cut.number: cut for cut in kept}
    newest = max(known)
    for name, number in numbers.items():
        if number not in known:
            raise CutError(
                f"sink {name!r} has cut {number} and {where} has "
                f"{' and '.join(f'cut {each}' for each in sorted(known))}; give the pipeline the "
                "checkpoint and the sink that belong together, or begin anew with both empty"
            )
    # Without a transactional sink nothing is stored twice, so the newest cut counts.
    last = min(numbers.values(), default=newest)
    ahead = frozenset(name for name, number in numbers.items() if number > last)
    return Recovery(last, known[last].positions, known[newest].positions if ahead else None, ahead)


def _by_sinks(sinks: Mapping[str, StoredCut | None], numbers: Mapping[str, int]) -> Recovery:
    last, newest = min(numbers.values(), default=0), max(numbers.values(), default=0)
    if newest > last + 1:
        older, newer = (
            next(name for name, number in numbers.items() if number == wanted)
            for wanted in (last, newest)
        )
        raise CutError(
            f"sink {older!r} has cut {last} and sink {newer!r} has cut {newest}, which are more "
            "than one apart; give the pipeline the sinks that belong together, or begin anew with "
            "both empty"
        )
    positions: dict[int, Positions] = {number: {} for number in (last, newest)} | {
        cut.number: cut.positions for cut in sinks.values() if cut is not None
    }
    ahead = frozenset(name for name, number in numbers.items() if number > last)
    return Recovery(last, positions[last], positions[newest] if ahead else None, ahead)


os.register_at_fork(after_in_child=_forget)
