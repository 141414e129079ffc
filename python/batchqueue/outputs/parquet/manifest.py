"""The manifest of a sink in a Parquet store: its state, in a small file replaced as a whole."""

import errno
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any

from batchqueue.base.files import sync, try_lock, write_durably
from batchqueue.base.words import counted
from batchqueue.outputs.store import StoreError, StoreUnavailableError

_FORMAT = 2
_NAME = "manifest.json"
DATA_SUFFIX, EPOCHS_SUFFIX = ".parquet", ".epochs.json"
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_LONGEST_NAME = 100  # characters of a sink id in the name of its folder

Summary = tuple[str, int, dict[str, Any]]
"""Query id, batch id, content."""


@dataclass
class Manifest:
    """The state of a sink after a commit.

    Attributes:
        sink: The sink id.
        partition_s: Seconds of time buckets that a data file covers.
        tables: Table → first second of a partition → name of its data file.
        marks: Query id → largest batch id.
        recent: The newest epochs, the oldest first; see `add_epoch`.
        older: The files with earlier epochs, the oldest first, each with its number of epochs.
        forgotten: Number of epochs in the oldest file that count as deleted.
        description: Description of the job that wrote last.
        replaced: Files of earlier states, by name, with the time (seconds since 1970) when they
            were replaced.
    """

    sink: str
    partition_s: int
    tables: dict[str, dict[int, str]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    recent: list[Summary] = field(default_factory=list)
    older: list[tuple[str, int]] = field(default_factory=list)
    forgotten: int = 0
    description: dict[str, Any] | None = None
    replaced: dict[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, sink_id: str) -> "Manifest | None":
        """Return the state that was committed last; `None` if there was no commit.

        Raises:
            OSError: The file cannot be read.
            StoreError: It is damaged, or belongs to another sink or version.
        """
        path = folder / _NAME
        try:
            content = json.loads(path.read_bytes())
            found = content.pop("format")
            if found == 1:  # all epochs were in the manifest
                content["recent"] = content.pop("summaries", [])
            manifest = cls(**content) if found in (1, _FORMAT) else None
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged(path, error) from error
        if manifest is None or manifest.sink != sink_id:
            raise StoreError(
                f"{path} has format {found} and is not the manifest of {sink_id!r}: "
                "use another directory"
            )
        manifest.tables = {
            table: {int(start): name for start, name in files.items()}
            for table, files in manifest.tables.items()
        }
        return manifest

    def replace(self, folder: Path) -> None:
        """Commit this state, atomically even in a crash.

        The data files that it names must be on the disk already.
        """
        text = json.dumps({"format": _FORMAT, **vars(self)})
        temporary = folder / f"{_NAME}.new"
        write_durably(temporary, text.encode())
        os.replace(temporary, folder / _NAME)
        sync(folder)

    def data_files(self) -> set[str]:
        """Return the names of the data files of this state."""
        return {name for files in self.tables.values() for name in files.values()}

    def has_anything(self) -> bool:
        """Return whether something was written since the last `clear`, if ever."""
        return bool(self.live() or self.marks or self.recent or self.description is not None)

    def live(self) -> set[str]:
        """Return the names of all files of this state."""
        return self.data_files() | {name for name, _ in self.older}


def written_files(folder: Path) -> set[str]:
    """Return the names of all files of states in a folder, including those that no state names."""
    with os.scandir(folder) as entries:
        return {
            entry.name for entry in entries if entry.name.endswith((DATA_SUFFIX, EPOCHS_SUFFIX))
        }


def sinks_in(directory: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder and the id of each sink that has a manifest.

    Raises:
        OSError: A manifest cannot be read.
        StoreError: A manifest is damaged.
    """
    for path in sorted(directory.glob(f"sink-*/{_NAME}")):
        try:
            yield path.parent, str(json.loads(path.read_bytes())["sink"])
        except (ValueError, TypeError, KeyError) as error:
            raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> StoreError:
    """Return the error for a file of a state that cannot be parsed."""
    return StoreError(f"{path} is damaged ({error}): restore it from a copy, with its folder")


def sink_folder(directory: Path, sink_id: str) -> Path:
    """Return the folder of a sink.

    Characters that are not safe in file names are replaced; a hash keeps such names distinct.
    """
    name = "".join(
        character if character in _SAFE else "_" for character in sink_id[:_LONGEST_NAME]
    )
    if name != sink_id:
        name += "-" + sha256(sink_id.encode()).hexdigest()[:16]
    return directory / f"sink-{name}"


def acquire(path: Path, timeout_s: float, what: str) -> int:
    """Take the lock of a file, which is created on demand and never deleted.

    Args:
        path: The file.
        timeout_s: Seconds to wait for another holder, in this or another process.
        what: What is locked, for the message.

    Returns:
        The descriptor, for `unlock`.

    Raises:
        OSError: The file cannot be opened for writing, or the file system has no locks.
        StoreUnavailableError: Another holder kept the lock for longer.
    """
    deadline, pause_s = time.monotonic() + timeout_s, 0.001
    while True:
        try:
            descriptor = try_lock(path)
            if descriptor is not None:
                return descriptor
        except FileNotFoundError:  # a restore is replacing the folder
            if time.monotonic() >= deadline:
                raise
        if time.monotonic() >= deadline:
            raise StoreUnavailableError(
                f"cannot use {what}: it stayed locked for {timeout_s} s; another writer kept it "
                "busy: raise lock_timeout_s, or stop that writer"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


# The epochs of a sink in a Parquet store: the newest in its manifest, older ones in files.
#
# Such a file never changes, like those of the data. Enough small files become a larger one, because
# each commit writes the names of all files, and lists the folder to find others. So the cost of a
# commit does not depend on the number of kept epochs.


FILE_EPOCHS = 32
"""The number of epochs in the manifest that become a file, and of these files that become one. Each
commit writes the manifest, and a file costs another `fsync`."""


def add_epoch(manifest: Manifest, epoch: Summary, kept: int) -> None:
    """Add the newest epoch; forget the oldest if there would be more than `kept`."""
    manifest.recent.append(epoch)
    excess = max(manifest.forgotten, _stored(manifest) - kept)
    while manifest.older and excess >= manifest.older[0][1]:
        excess -= manifest.older.pop(0)[1]
    if not manifest.older:
        del manifest.recent[:excess]
        excess = 0
    manifest.forgotten = excess


def move_recent(folder: Path, manifest: Manifest) -> list[Path]:
    """Move the epochs of a manifest into a file, if there are enough; return the file."""
    if len(manifest.recent) < FILE_EPOCHS:
        return []
    small = list(takewhile(_is_small, reversed(manifest.older)))
    merged = manifest.older[-len(small) :] if len(small) >= FILE_EPOCHS - 1 else []
    try:
        epochs = [epoch for name, number in merged for epoch in _epochs_in(folder / name, number)]
    except (OSError, StoreError):
        # Readers report a damaged file; it must not stop programs that only write.
        merged, epochs = [], []
    epochs += manifest.recent
    path = folder / f"{uuid.uuid4().hex[:16]}{EPOCHS_SUFFIX}"
    write_durably(path, json.dumps(epochs).encode())
    manifest.older = [
        *manifest.older[: len(manifest.older) - len(merged)],
        (path.name, len(epochs)),
    ]
    manifest.recent = []
    return [path]


def _is_small(file: tuple[str, int]) -> bool:
    return file[1] < FILE_EPOCHS * FILE_EPOCHS


def newest_epochs(folder: Path, manifest: Manifest, newest: int | None = None) -> list[Summary]:
    """Return the newest epochs that are kept, the oldest first.

    Args:
        folder: The folder of the sink.
        manifest: Its state.
        newest: At most this many; `None` for all.

    Raises:
        OSError: A file cannot be read.
        StoreError: A file is damaged.
    """
    kept = _stored(manifest) - manifest.forgotten
    wanted = kept if newest is None else max(0, min(newest, kept))
    found = deepcopy(manifest.recent)
    for name, number in reversed(manifest.older):
        if len(found) >= wanted:
            break
        found = _epochs_in(folder / name, number) + found
    return found[len(found) - wanted :]


def _stored(manifest: Manifest) -> int:
    return len(manifest.recent) + sum(number for _, number in manifest.older)


def _epochs_in(path: Path, number: int) -> list[Summary]:
    try:
        epochs: list[Summary] = json.loads(path.read_bytes())
        if len(epochs) != number:
            raise ValueError(f"{counted(len(epochs), 'epoch')} instead of {number}")
    except (ValueError, TypeError) as error:
        raise damaged(path, error) from error
    return epochs


# Conversion of file and Arrow errors into store errors: temporary or lasting, with a remedy.


_TEMPORARY = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}
"""Errors of shared file systems that pass once their server is back."""

_REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk, or have the quota raised",
    errno.EACCES: "let this user write to the directory and to what is in it",
    errno.EPERM: "let this user write to the directory and to what is in it",
    errno.EROFS: "let this user write to the directory: it is on a read-only file system",
    errno.ENOENT: "its parent directory must exist, and others must not remove its files",
    errno.ENOLCK: "use a file system with locks (flock) that hold between machines",
    errno.EOPNOTSUPP: "use a file system with locks (flock) that hold between machines",
    errno.ENOTDIR: "the path belongs to something else: choose another one",
    errno.EEXIST: "the path belongs to something else: choose another one",
}

_RESTORE = "check the disk, and restore what is damaged from a copy"


@contextmanager
def directory_errors(directory: Path) -> Iterator[None]:
    """Turn errors of a block into store errors that name the directory."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException, OverflowError, UnicodeError) as error:
        kind, remedy = (
            StoreError,
            "check the metrics: values fit their columns, and text is valid Unicode",
        )
        if isinstance(error, OSError):
            kind = StoreUnavailableError if error.errno in _TEMPORARY else StoreError
            remedy = _REMEDIES.get(error.errno or 0, _RESTORE)
        elif isinstance(error, pa.ArrowException):
            remedy = _RESTORE
        raise kind(f"cannot use the store {directory}: {error}; {remedy}") from error
