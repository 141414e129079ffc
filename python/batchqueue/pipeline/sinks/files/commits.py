"""How a directory of files gets a cut: by a rename, so that it has all of the cut or nothing.

Beside the files, `_batchqueue` holds what readers do not see:

* `cut.json`: the last cut, its positions and its file, the pipeline, the format and the schema;
* `prepared.json`: the same of the cut that is being committed;
* `pending`: the file of that cut while it is written;
* `lock`, which is held while a sink is open.

A commit writes `pending` and then `prepared.json` to the disk, and renames `pending` to its name
beside the other files: with this the cut has happened, for readers and for the next run. Last, it
renames `prepared.json` to `cut.json`. A cut without rows has no file, and happens with that.
A directory that is opened again finishes the commit if the file of `prepared.json` is there, and
drops it otherwise.
"""

import base64
import fcntl
import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchqueue.pipeline.contract import Position
from batchqueue.pipeline.errors import CutError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa

ROOM = "_batchqueue"
_VERSION = 1
_CUT, _PREPARED, _PENDING, _LOCK = "cut.json", "prepared.json", "pending", "lock"


class Directory:
    """A directory that is open for writing, by one process at a time.

    Attributes:
        pending: Where to write the file of the next cut.
        schema: The columns of its files; None if there is none yet.
    """

    def __init__(self, path: Path, pipeline: str, format: str, suffix: str) -> None:
        """Open it, after a crash as well; create it if it is missing.

        Args:
            path: The directory; its parent must exist.
            pipeline: The name of the pipeline that it must belong to; empty for any.
            format: The format that its files must have.
            suffix: The end of their names.

        Raises:
            SinkError: It is in use, or belongs to another pipeline, or holds other files.
            OSError: It cannot be read or written.
        """
        self._path, self._room = path, path / ROOM
        self._pipeline, self._format, self._suffix = pipeline, format, suffix
        self.schema: pa.Schema | None = None
        self.pending = self._room / (_PENDING + suffix)
        path.mkdir(exist_ok=True)
        self._refuse_other_files()
        self._room.mkdir(exist_ok=True)
        self._lock = _lock(self._room / _LOCK, path)
        self.release = weakref.finalize(self, _unlock, self._lock, os.getpid())
        try:
            self._recover()
        except BaseException:
            self.release()
            raise

    def last_cut(self) -> tuple[int, dict[str, Position]] | None:
        """Return the last cut and its positions; None if there is none."""
        stored = self._read(_CUT)
        return None if stored is None else (stored["cut"], stored["positions"])

    def commit(
        self, cut: int, positions: Mapping[str, Position], schema: "pa.Schema | None"
    ) -> None:
        """Make the pending file visible, together with its cut.

        Args:
            cut: Its number.
            positions: Where each source continues.
            schema: The columns of the pending file; None if there is none.

        Raises:
            CutError: The cut does not follow the last one.
            OSError: It cannot be written; nothing is visible.
        """
        last = self.last_cut()
        if cut != (last[0] if last else 0) + 1:
            stored = f"has cut {last[0]}" if last else "has no cut"
            raise CutError(
                f"sink {self._path} {stored} and is to store cut {cut}, which must be the next "
                "one; give the pipeline the directory that it has written, or begin anew with an "
                "empty directory and a new checkpoint"
            )
        name = None
        if schema is not None:
            _sync(self.pending)
            name = f"cut-{cut:010}{self._suffix}"
            self.schema = schema
        self._write(_PREPARED, self._description(cut, positions, name))
        if name is not None:
            os.rename(self.pending, self._path / name)
            _sync(self._path)
        self._finish()

    def drop_pending(self) -> None:
        """Delete the file of a cut that is given up."""
        self.pending.unlink(missing_ok=True)

    def _recover(self) -> None:
        prepared = self._read(_PREPARED)
        if prepared is not None:
            if prepared["file"] is not None and (self._path / prepared["file"]).exists():
                self._finish()
            else:
                (self._room / _PREPARED).unlink()
        for leftover in (*self._room.glob(_PENDING + ".*"), *self._room.glob("*.next")):
            leftover.unlink()
        last = self._read(_CUT)
        self._refuse_later_files(0 if last is None else last["cut"])
        if last is None:
            return
        if last["version"] != _VERSION or last["format"] != self._format:
            raise SinkError(
                f"sink {self._path}: it was written as version {last['version']}, "
                f"{last['format']}, and now as version {_VERSION}, {self._format}; use another "
                "directory"
            )
        if last["pipeline"] and self._pipeline and last["pipeline"] != self._pipeline:
            raise SinkError(
                f"sink {self._path} belongs to pipeline {last['pipeline']!r} and not to "
                f"{self._pipeline!r}; give each pipeline its own directory"
            )
        self._pipeline = self._pipeline or last["pipeline"]
        self.schema = _schema_of(last["schema"])

    def _refuse_other_files(self) -> None:
        if self._room.exists():
            return
        other = next((each for each in os.listdir(self._path) if each[0] not in "._"), None)
        if other is not None:
            raise SinkError(
                f"sink {self._path} has {other!r}, which it did not write; give an empty directory"
            )

    def _refuse_later_files(self, last: int) -> None:
        for name in os.listdir(self._path):
            number = name.removeprefix("cut-").removesuffix(self._suffix)
            if name.startswith("cut-") and number.isdecimal() and int(number) > last:
                raise CutError(
                    f"sink {self._path} has {name}, and its last cut is {last or 'missing'}: "
                    f"{ROOM} is older than the files; restore both together, or use another "
                    "directory"
                )

    def _description(
        self, cut: int, positions: Mapping[str, Position], name: str | None
    ) -> dict[str, Any]:
        schema = self.schema
        return {
            "version": _VERSION,
            "cut": cut,
            "positions": dict(positions),
            "file": name,
            "pipeline": self._pipeline,
            "format": self._format,
            "schema": schema and base64.b64encode(schema.serialize().to_pybytes()).decode(),
        }

    def _finish(self) -> None:
        os.rename(self._room / _PREPARED, self._room / _CUT)
        _sync(self._room)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        temporary = self._room / f"{name}.next"
        temporary.write_text(json.dumps(content, allow_nan=False))
        _sync(temporary)
        os.rename(temporary, self._room / name)
        _sync(self._room)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._room / name
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SinkError(
                f"{path} is corrupt ({error}); restore it together with the files beside it"
            ) from error
        return content


def _schema_of(text: str | None) -> "pa.Schema | None":
    import pyarrow as pa
    from pyarrow import ipc

    return None if text is None else ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _sync(path: Path) -> None:
    """Return when the content of a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: Path, directory: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise SinkError(
            f"sink {directory} is in use by another run or sink; wait for its end, or give each "
            "its own directory"
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unlock(descriptor: int, pid: int) -> None:
    try:
        if os.getpid() == pid:  # a forked child has it open as well, and must not release it
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
