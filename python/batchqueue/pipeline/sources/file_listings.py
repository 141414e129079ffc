"""The list of files that positions refer to. It stays the same when files are added later."""

import base64
import fcntl
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
from pyarrow import fs, ipc

from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.files import sync
from batchqueue.base.words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Position, PositionError, SourceChangedError
from batchqueue.pipeline.sources.file_formats import format_of
from batchqueue.pipeline.sources.file_scan import FileEntry, scan

_log = BackgroundLog("batchqueue.pipeline")


class FrozenListings:
    """The files that existed when the source was first used, or when a position was made."""

    def __init__(
        self, name: str, filesystem: fs.FileSystem, paths: Sequence[str], named: bool
    ) -> None:
        """Describe the files.

        Args:
            name: The name of the source.
            filesystem: Where the files are.
            paths: The paths to scan.
            named: Whether the names of the files indicate their format.
        """
        self._name, self._filesystem, self._paths, self._named = name, filesystem, paths, named
        self._current: Listing | None = None
        self._found: dict[str, Listing] = {}

    def current(self) -> "Listing":
        """Return the listing of this process, which is made on the first call."""
        if self._current is None:
            listing = FrozenListing(self._scan())
            self._current = self._found[listing.mark["id"]] = listing
        return self._current

    def find(self, place: "FilePlace") -> "Listing":
        """Return the listing of a position, which is recreated if another process made it.

        Raises:
            PositionError: It is a position of a watched directory.
            SourceChangedError: A file of the listing has changed or is gone.
        """
        identity = place.mark["id"]
        if not all(type(place.mark.get(key)) is int for key in ("files", "newest")):
            raise PositionError(
                f"source {self._name!r}: {place.mark!r} is not a list of files that was made once, "
                "but that of a watched directory; begin with a new checkpoint"
            )
        if identity not in self._found:
            found = recover(self._scan(), place.mark, place.at, self._name)
            # The thread that reads the lag may have been faster, and there must be only one
            # listing.
            self._found.setdefault(identity, found)
        return self._found[identity]

    def extend(self) -> None:
        """Do nothing: the list is final."""

    def schema(self, read: Callable[[FileEntry], pa.Schema]) -> tuple[pa.Schema, str]:
        """Return the columns of the first file, and its path."""
        first = self.current().files[0]
        return read(first), first.path

    def _scan(self) -> list[FileEntry]:
        found = scan(self._filesystem, self._paths)
        if not found.files:
            empty = f", except for {found.empty} of zero bytes" if found.empty else ""
            raise ConfigError(f"no file matches {', '.join(self._paths)}{empty}; correct `paths`")
        if self._named:
            format_of(found.files)
        return found.files

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_current": None, "_found": {}}


class WatchedListing:
    """The log of a growing directory."""

    def __init__(
        self,
        filesystem: fs.FileSystem,
        paths: Sequence[str],
        named: bool,
        log: str,
        interval_s: float,
    ) -> None:
        """Describe the directory.

        Args:
            filesystem: Where the files are.
            paths: The paths to scan.
            named: Whether the names of the files indicate their format.
            log: The path of the log.
            interval_s: Seconds between two scans.
        """
        self._filesystem, self._paths, self._named = filesystem, paths, named
        self._path, self._interval_s = log, interval_s
        self._logs: dict[str, ListingLog] = {}  # one at most
        self._next_scan_s = 0.0

    def current(self) -> "ListingLog":
        """Return the log."""
        if not self._logs:
            # The thread that reads the lag may be faster, and there must be only one log.
            self._logs.setdefault(self._path, ListingLog(self._path, self._paths))
        return self._logs[self._path]

    def find(self, place: "FilePlace") -> "ListingLog":
        """Return the log, which must be that of the position.

        Raises:
            SourceChangedError: The log was deleted and recreated, or truncated.
        """
        log = self.current()
        log.require(place.mark, place.file + (place.piece > 0))
        return log

    def extend(self) -> None:
        """Scan, unless the last scan is too recent."""
        if time.monotonic() < self._next_scan_s:
            return
        found = scan(self._filesystem, self._paths).files
        if self._named and found:
            format_of(found)
        self.current().extend(found)
        self._next_scan_s = time.monotonic() + self._interval_s

    def schema(self, read: Callable[[FileEntry], pa.Schema]) -> tuple[pa.Schema, str]:
        """Return the columns of the first file, recording them in case it is deleted later.

        Raises:
            ConfigError: No file has arrived yet.
        """
        log = self.current()
        if not log.files:
            raise ConfigError(
                f"no file has come yet to {', '.join(self._paths)}, so the columns are not known; "
                "give `schema`"
            )
        first = log.files[0]
        return log.schema or log.note_schema(read(first)), first.path

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_logs": {}, "_next_scan_s": 0.0}


_NAMED = 5


class FrozenListing:
    """The files that existed when it was made, sorted by path.

    Attributes:
        files: The files.
        mark: What positions store of it: a digest of all files, and what it takes to recreate it
            once there are more files.
    """

    def __init__(self, files: Sequence[FileEntry]) -> None:
        self.files = files
        newest = max((file.mtime_ns or 0 for file in files), default=0)
        self.mark: dict[str, Any] = {"id": _digest(files), "files": len(files), "newest": newest}

    def at(self, number: int, piece: int) -> FileEntry | None:
        """Return what a position stores about a file; None after the last one."""
        return self.files[number] if number < len(self.files) else None


def recover(
    found: Sequence[FileEntry], mark: dict[str, Any], at: FileEntry | None, name: str
) -> FrozenListing:
    """Recreate the listing of a position from the files that exist now.

    Later files do not belong to it, and are logged as a warning.

    Args:
        found: The files that exist, sorted.
        mark: The mark of the listing.
        at: The file at the position; None after the last one.
        name: The name of the source.

    Raises:
        SourceChangedError: A file of the listing has changed or is gone.
    """
    listing = FrozenListing(found)
    if listing.mark == mark:
        return listing
    newest = mark["newest"]
    listing = FrozenListing([file for file in found if (file.mtime_ns or 0) <= newest])
    later = [file for file in found if (file.mtime_ns or 0) > newest]
    if listing.mark == mark:
        _log.warning(
            "source %r: %s came after the position was made and %s not read: %s; begin "
            "with a new checkpoint, or use watch=True for directories that grow",
            name,
            counted(len(later), "file"),
            "is" if len(later) == 1 else "are",
            _some(later),
        )
        return listing
    raise SourceChangedError(
        f"source {name!r}: {_difference(found, listing.files, later, mark, at)}; restore them, or "
        "begin with a new checkpoint"
    )


def _difference(
    found: Sequence[FileEntry],
    older: Sequence[FileEntry],
    later: Sequence[FileEntry],
    mark: dict[str, Any],
    at: FileEntry | None,
) -> str:
    if at is not None and at not in found:
        now = next((file for file in found if file.path == at.path), None)
        return f"{at.path} was {at} and is {'gone' if now is None else now}"
    count, missing = mark["files"], mark["files"] - len(older)
    if missing > 0:
        written = f"; written since: {_some(later)}" if later else ""
        verbs = ("is gone or was", "are gone or were")[missing > 1]
        return f"{missing} of its {counted(count, 'file')} {verbs} written again{written}"
    return f"its {count} files are not the same as the {len(older)} that exist now: {_some(older)}"


def _some(files: Sequence[FileEntry]) -> str:
    names = ", ".join(file.path for file in files[:_NAMED])
    return names + (f" and {len(files) - _NAMED} more" if len(files) > _NAMED else "")


def _digest(files: Sequence[FileEntry]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(json.dumps(file).encode())
    return digest.hexdigest()[:32]


# The list of files of a growing directory: each file is recorded once, before it is planned.


_VERSION = 1
_HEAD = b'{"listing": '


class ListingLog:
    """A file of JSON lines: a header, a line per file in order of arrival, and a schema.

    It is only appended to, and synced to disk before positions refer to it, so a position is a
    number of lines. Processes that append concurrently take turns with a lock on the file.

    Attributes:
        files: The files recorded so far.
        schema: The columns of the first file; None until they are recorded.
        mark: What positions store of it: its random id.
    """

    def __init__(self, path: str, paths: Sequence[str]) -> None:
        """Open a log, or create it.

        Args:
            path: Where it is; its directory must exist.
            paths: The watched paths, which the log belongs to.

        Raises:
            ConfigError: The file is not a log, or is the log of other paths.
        """
        self.files: list[FileEntry] = []
        self.schema: pa.Schema | None = None
        self._path, self._paths = path, list(paths)
        self._read_bytes = 0
        self._known: dict[str, FileEntry] = {}
        self._candidates: dict[str, FileEntry] = {}
        self._warned: set[str] = set()
        with self._locked() as file:
            head = file.readline()
            if not head.endswith(b"\n") and _HEAD[: len(head)] == head[: len(_HEAD)]:
                head = self._begin(file)  # empty, or its first writer died
            self.mark = {"id": self._checked(head)}
            self._read_bytes = len(head)
            self._read(file)

    def at(self, number: int, piece: int) -> FileEntry | None:
        """Return what a position stores about a file, if it is known for certain."""
        return self.files[number] if piece and number < len(self.files) else None

    def require(self, mark: dict[str, Any], length: int) -> None:
        """Check that a position refers to this log, and to files that are in it.

        Raises:
            SourceChangedError: The log was deleted and recreated, or truncated.
        """
        if mark == self.mark and length > len(self.files):
            with self._locked() as file:
                self._read(file)
        if mark != self.mark or length > len(self.files):
            raise SourceChangedError(
                f"the listing {self._path} has {counted(len(self.files), 'file')} and id "
                f"{self.mark['id']}, and the position refers to {counted(length, 'file')} of "
                f"{mark['id']}; restore the listing, or begin with a new checkpoint"
            )

    def extend(self, found: Sequence[FileEntry]) -> None:
        """Record the new files that have not changed since the previous scan.

        Args:
            found: All files that exist now.
        """
        candidates = {file.path: file for file in found if file.path not in self._known}
        settled = [file for path, file in candidates.items() if self._candidates.get(path) == file]
        self._candidates = candidates
        for file in found:
            self._warn_if_changed(file)
        if not settled:
            return
        with self._locked() as log:
            self._read(log)
            self._append(log, [file for file in settled if file.path not in self._known])

    def note_schema(self, schema: pa.Schema) -> pa.Schema:
        """Record the columns of the first file, unless another process did; return those."""
        with self._locked() as log:
            self._read(log)
            if self.schema is None:
                text = base64.b64encode(schema.serialize().to_pybytes()).decode()
                self._append(log, [{"schema": text}])
        return self.schema

    def _append(self, log: IO[bytes], lines: Sequence[object]) -> None:
        log.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        log.flush()
        os.fsync(log.fileno())
        self._read(log)

    def _warn_if_changed(self, file: FileEntry) -> None:
        noted = self._known.get(file.path, file)
        if noted != file and file.path not in self._warned:
            self._warned.add(file.path)
            _log.warning(
                "%s was listed (%s) and is %s; if it was read, what is new in it is not: write new "
                "rows to new files",
                file.path,
                noted,
                file,
            )

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        with open(self._path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(self._read_bytes)
            yield file

    def _begin(self, file: IO[bytes]) -> bytes:
        head = {"listing": _VERSION, "id": uuid.uuid4().hex, "paths": self._paths}
        file.truncate(0)
        file.write(json.dumps(head).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        sync(Path(self._path).parent)
        file.seek(0)
        return file.readline()

    def _checked(self, line: bytes) -> str:
        try:
            head = json.loads(line)
            version, identity, paths = head["listing"], head["id"], head["paths"]
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{self._path} is not a listing of files; give another path as `listing`"
            ) from error
        if version != _VERSION or paths != self._paths:
            raise ConfigError(
                f"the listing {self._path} is version {version} for {paths}, and needed is version "
                f"{_VERSION} for {self._paths}; give each source its own `listing`"
            )
        return str(identity)

    def _read(self, file: IO[bytes]) -> None:
        """Read the new lines, and cut off a torn one, which a writer left when it died."""
        file.seek(self._read_bytes)
        for line in file:
            if not line.endswith(b"\n"):
                file.truncate(self._read_bytes)
                break
            self._read_bytes += len(line)
            noted = json.loads(line)
            if isinstance(noted, dict):
                serialized = base64.b64decode(noted["schema"])
                self.schema = ipc.read_schema(pa.py_buffer(serialized))
            else:
                entry = FileEntry(*noted)
                self.files.append(entry)
                self._known[entry.path] = entry
        file.seek(0, os.SEEK_END)


# Positions of `FileSource`: which listing, which file of it, and which piece of that.


class FilePlace(NamedTuple):
    """A checked position."""

    mark: dict[str, Any]
    """The listing."""
    file: int
    """Number of the file in it."""
    piece: int
    """Number of the piece in the file."""
    at: FileEntry | None
    """The file; None after the last one."""

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of the positions of a listing."""
        return self.file, self.piece


def position_of(source: str, place: FilePlace) -> Position:
    """Return a position.

    Args:
        source: The name of the source.
        place: Where it is.
    """
    return {
        "source": source,
        "list": place.mark,
        "file": place.file,
        "piece": place.piece,
        "at": None if place.at is None else list(place.at),
    }


def place_of(source: str, position: Position) -> FilePlace:
    """Parse a position.

    Raises:
        PositionError: The position is not one of a file source with that name.
    """
    wrong = PositionError(
        f"source {source!r}: {position!r} is not a position of it; begin with a new checkpoint, or "
        "give the source the name and paths that it had"
    )
    if not isinstance(position, dict) or position.get("source") != source:
        raise wrong
    try:
        mark, file, piece, at = (position[key] for key in ("list", "file", "piece", "at"))
    except KeyError as error:
        raise wrong from error
    numbers = all(type(number) is int and number >= 0 for number in (file, piece))
    listed = isinstance(mark, dict) and isinstance(mark.get("id"), str)
    entry = at is None or (isinstance(at, (list, tuple)) and len(at) == len(FileEntry._fields))
    if not (numbers and listed and entry):
        raise wrong
    return FilePlace(mark, file, piece, None if at is None else FileEntry(*at))


Listing = FrozenListing | ListingLog


Listings = FrozenListings | WatchedListing
"""The listings of a source. It pickles, without the lists."""
