"""The list of files of a directory that grows: each file is noted once, before it is planned."""

import base64
import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from batchqueue._background_log import BackgroundLog
from batchqueue._words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.errors import SourceChangedError
from batchqueue.pipeline.sources.files.scan import FileEntry

if TYPE_CHECKING:
    import pyarrow as pa

_log = BackgroundLog("batchqueue.pipeline")
_VERSION = 1
_HEAD = b'{"listing": '


class ListingLog:
    """A file of JSON lines: a head, a line for each file in the order of arrival, and a schema.

    It is only appended to, and synchronized to the disk before positions refer to it; so a position
    is a number of lines. Processes that append concurrently take turns by a lock on the file.

    Attributes:
        files: The files that were noted so far.
        schema: The columns of the first file; None if they were not noted yet.
        mark: What positions keep of it: its random id.
    """

    def __init__(self, path: str, paths: Sequence[str]) -> None:
        """Open a log, or create it.

        Args:
            path: Where it is; its directory must exist.
            paths: The paths that are watched. A log belongs to them.

        Raises:
            ConfigError: The file is not a log, or that of other paths.
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
        """Return what a position keeps of a file; only of one that is known for certain."""
        return self.files[number] if piece and number < len(self.files) else None

    def require(self, mark: dict[str, Any], length: int) -> None:
        """Check that a position refers to this log, and to files that are in it.

        Raises:
            SourceChangedError: The log was deleted and made again, or truncated.
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
        """Note the files that are new and were the same in the scan before.

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

    def note_schema(self, schema: "pa.Schema") -> "pa.Schema":
        """Note the columns of the first file, unless another process did; return what is noted."""
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
        directory = os.open(os.path.dirname(self._path), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
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
        """Read the lines that are new. A torn one is that of a writer which died: cut it off."""
        import pyarrow as pa
        from pyarrow import ipc

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
