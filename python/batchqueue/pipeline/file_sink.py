"""`FileSink`: a directory of files, which readers see exactly as they were committed."""

import base64
import errno
import json
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from batchqueue.base.checks import LocalPath, check_whole, local_path
from batchqueue.base.files import sync, try_lock, unlock
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import CutError, Position, SinkError

__all__ = ["FileSink"]


_ELSEWHERE = (
    "give a mounted folder, or write there with a FunctionSink, at least once, or into an Iceberg "
    "table with a MetricsSink and an IcebergStore"
)
_MOST_BATCH_ROWS = 1_000_000
_REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk, or have the quota raised",
    errno.EACCES: "let this user write to the directory and to what is in it",
    errno.EPERM: "let this user write to the directory and to what is in it",
    errno.EROFS: "it is on a read-only file system: use another directory",
    errno.ENOENT: "its parent directory must exist, and others must not remove its files",
    errno.ENOTDIR: "the path belongs to a file: use another directory",
    errno.EEXIST: "the path belongs to a file: use another directory",
    errno.ENOLCK: "use a file system with locks (flock)",
}


class FileSink:
    """A sink that writes a file per cut. Readers see the rows of all cuts once, and nothing else.

    `pyarrow.dataset`, Spark, polars and DuckDB read the directory as it is. The file of a cut
    appears by a rename, which is also the commit: at no moment could a crash leave half a cut, or
    rows without their position. The data has been synced to disk by then.

    The directory is local, or on a shared file system with locks and atomic renames. It belongs to
    one pipeline, and to one run at a time. Older files may be moved away or merged into others; the
    directory `_batchqueue` must stay.

    Attributes:
        batch_rows: The preferred number of rows per write, if available.
        directory: Where the files go, as an absolute path.
        format: The format of the files.
        compression: The compression that was given, or None.
    """

    needs_origins = False

    def __init__(
        self,
        directory: LocalPath,
        *,
        format: str = "parquet",
        schema: pa.Schema | None = None,
        compression: str | None = None,
        batch_rows: int = 2_000,
    ) -> None:
        """Describe the sink. The first call opens the directory.

        Args:
            directory: Where the files go. Its parent must exist; the directory is created on
                demand, and must be empty at first.
            format: "parquet", "arrow" (IPC files) or "csv". Default: "parquet".
            schema: The names and types that chunks must have. Default: None, those of the first
                chunk, for this and all later runs.
            compression: The codec for Parquet ("snappy", "zstd", "none" ...) or Arrow ("lz4",
                "zstd"). Default: None, snappy for Parquet and none for Arrow.
            batch_rows: The preferred number of rows per write, 1 to 1,000,000. Row groups are
                larger: up to 131,072 rows or 16 MB are kept in memory. Default: 2,000.

        Raises:
            ConfigError: A setting is invalid.

        Example:
            >>> import pyarrow as pa
            >>> from pyarrow import dataset
            >>> sink = FileSink("clean")
            >>> sink.write([pa.record_batch({"n": [1, 2, 3]})])
            >>> sink.commit(1, {"orders": {"file": 7}})
            >>> dataset.dataset("clean").count_rows(), sink.last_cut()
            (3, (1, {'orders': {'file': 7}}))
            >>> sink.close()
        """
        self.directory = local_path("directory", directory, _ELSEWHERE)
        if format not in SUFFIXES:
            raise ConfigError(f"format is {format!r}; give one of {', '.join(SUFFIXES)}")
        if not (schema is None or isinstance(schema, pa.Schema)):
            raise ConfigError(f"schema is {schema!r}; give a pyarrow.Schema, or None")
        _check_compression(compression, format)
        check_whole("batch_rows", batch_rows, 1, _MOST_BATCH_ROWS)
        self.batch_rows = batch_rows
        self.format, self.compression = format, compression
        self._given = schema
        self._pipeline = ""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._calls = threading.Lock()  # held during a call that writes
        self._thread: threading.Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self._directory: Directory | None = None
        self._writer: FileWriter | None = None
        self._failure: BaseException | None = None

    def open(self, pipeline: str) -> None:
        """Begin a run, and discard what an earlier run wrote but did not commit.

        Args:
            pipeline: The name of the pipeline, which the directory must belong to.

        Raises:
            SinkError: The directory is in use, possibly by a hung call of an earlier run, belongs
                to another pipeline, or cannot be written.
        """
        if not self._calls.acquire(blocking=False):
            raise SinkError(
                f"sink {self.directory} is in use by a former run, which was given up while it "
                "wrote; wait until its call returns, or start a new process"
            )
        try:
            self._end()
            self._thread = threading.current_thread()
        finally:
            self._calls.release()
        self._pipeline = pipeline
        self._opened()

    def close(self) -> None:
        """End a run, and discard what was written but not committed."""
        # A thread that an earlier run left behind may call this late, and must not end the new run.
        if self._thread in (None, threading.current_thread()) or not self._thread.is_alive():
            self._end()

    def _end(self) -> None:
        try:
            if self._writer is not None:
                self._writer.abort()
        finally:
            if self._directory is not None:
                with suppress(OSError):  # the next run discards it
                    self._directory.pending.unlink(missing_ok=True)
                self._directory.release()
            self._reset()

    def write(self, chunks: list[pa.RecordBatch]) -> None:
        """Add chunks to the file of the next cut.

        Raises:
            SinkError: The columns differ from those of the files, or the directory cannot be
                written. Nothing of this cut becomes visible; a new run writes it again.
        """
        directory = self._opened()
        with self._calls, self._failing():
            for chunk in chunks:
                if not chunk.num_rows:
                    continue
                if self._writer is None:
                    self._writer = self._begin(directory, chunk.schema)
                self._writer.write(chunk)

    def commit(self, cut: int, positions: Mapping[str, Position]) -> None:
        """Make what was written visible, together with the cut.

        Raises:
            CutError: The cut does not follow the last one in the directory.
            SinkError: The directory cannot be written, or an earlier write failed.
        """
        directory = self._opened()
        with self._calls, self._failing():
            schema = None
            if self._writer is not None:
                schema = self._writer.schema
                self._writer.finish()
            directory.commit(cut, positions, schema)
            self._writer = None

    def last_cut(self) -> tuple[int, Mapping[str, Position]] | None:
        """Return the newest stored cut with its positions; None if there is none.

        Raises:
            SinkError: The directory is in use, belongs to another pipeline, or cannot be read.
        """
        return self._opened().last_cut()

    def __repr__(self) -> str:
        return f"FileSink({os.fspath(self.directory)!r})"

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_calls", "_thread", "_directory", "_writer", "_failure")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_anew()

    def _begin(self, directory: "Directory", found: pa.Schema) -> "FileWriter":
        schema = directory.schema or self._given or _plain(found)
        if self._given is not None:
            check_columns(self._given, schema, str(self.directory))
        return FileWriter(directory.pending, self.format, schema, self.compression)

    def _opened(self) -> "Directory":
        if self._failure is not None:
            raise SinkError(
                f"sink {self.directory} failed before ({self._failure}), so that rows of this cut "
                "are missing; start a new run"
            ) from self._failure
        if self._directory is None:
            with self._named():
                self._directory = Directory(
                    self.directory, self._pipeline, self.format, SUFFIXES[self.format]
                )
        return self._directory

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Make all later calls fail, too: rows of this cut may be missing from the file."""
        try:
            with self._named():
                yield
        except BaseException as error:
            self._failure = error
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            remedy = _REMEDIES.get(getattr(error, "errno", None) or 0, "correct the cause")
            raise SinkError(
                f"sink {self.directory} cannot be written: {error}; {remedy} and start a new run, "
                "which continues at the last cut"
            ) from error


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return the columns without metadata, and nullable: later chunks may have nulls."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _check_compression(compression: str | None, format: str) -> None:
    if compression is None:
        return
    try:
        known = format != "csv" and (compression == "none" or pa.Codec.is_available(compression))
    except (ValueError, TypeError):
        known = False
    if not known:
        raise ConfigError(
            f"compression is {compression!r} for {format}; give None, or for Parquet and Arrow "
            'the name of a codec, for instance "zstd"'
        )


# How a directory of files gets a cut: by a rename, so that it has the whole cut or none of it.
#
# Next to the files, `_batchqueue` holds what readers do not see:
#
# * `cut.json`: the last cut, its positions and its file, the pipeline, the format and the schema;
# * `prepared.json`: the same for the cut that is being committed;
# * `pending`: the file of that cut while it is being written;
# * `lock`: held while a sink is open.
#
# A commit syncs `pending` and then `prepared.json` to disk, and renames `pending` to its name next
# to the other files. This is the commit point, for readers and for the next run. Last, it renames
# `prepared.json` to `cut.json`, which is the commit point of a cut without rows, since that has no
# file. Opening the directory again completes the commit if the file named in `prepared.json`
# exists, and discards it otherwise.


ROOM = "_batchqueue"
_VERSION = 1
_CUT, _PREPARED, _PENDING, _LOCK = "cut.json", "prepared.json", "pending", "lock"


class Directory:
    """A directory that is open for writing, by one process at a time.

    Attributes:
        pending: Where to write the file of the next cut.
        schema: The columns of its files; None before the first.
    """

    def __init__(self, path: Path, pipeline: str, format: str, suffix: str) -> None:
        """Open the directory, recovering from a crash; create it if it is missing.

        Args:
            path: The directory; its parent must exist.
            pipeline: The name of the pipeline that it must belong to; empty for any.
            format: The format that its files must have.
            suffix: The suffix of their names.

        Raises:
            SinkError: The directory is in use, belongs to another pipeline, or holds other files.
            OSError: The directory cannot be read or written.
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

    def commit(self, cut: int, positions: Mapping[str, Position], schema: pa.Schema | None) -> None:
        """Make the pending file visible, together with its cut.

        Args:
            cut: Its number.
            positions: Where each source continues.
            schema: The columns of the pending file; None if there is none.

        Raises:
            CutError: The cut does not follow the last one.
            OSError: The directory cannot be written; nothing becomes visible.
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
            sync(self.pending)
            name = f"cut-{cut:010}{self._suffix}"
            self.schema = schema
        self._write(_PREPARED, self._description(cut, positions, name))
        if name is not None:
            os.rename(self.pending, self._path / name)
            sync(self._path)
        self._finish()

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
        if last["schema"] is not None:
            self.schema = ipc.read_schema(pa.py_buffer(base64.b64decode(last["schema"])))

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
        sync(self._room)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        temporary = self._room / f"{name}.next"
        temporary.write_text(json.dumps(content, allow_nan=False))
        sync(temporary)
        os.rename(temporary, self._room / name)
        sync(self._room)

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


def _lock(path: Path, directory: Path) -> int:
    descriptor = try_lock(path)
    if descriptor is None:
        raise SinkError(
            f"sink {directory} is in use by another run or sink; wait for its end, or give each "
            "its own directory"
        )
    return descriptor


def _unlock(descriptor: int, pid: int) -> None:
    if os.getpid() == pid:
        unlock(descriptor)
    else:  # a forked child has it open, too, and must not release it
        os.close(descriptor)


# Writes a file of record batches, in row groups of a good size regardless of the chunk size.


SUFFIXES = {"parquet": ".parquet", "arrow": ".arrow", "csv": ".csv"}

_GROUP_ROWS = 128 * 1_024
_GROUP_BYTES = 16 << 20


class FileWriter:
    """A file that is being written.

    Attributes:
        schema: Its columns.
    """

    def __init__(self, path: Path, format: str, schema: pa.Schema, compression: str | None) -> None:
        """Create the file.

        Args:
            path: Its path; an existing file is overwritten.
            format: One of `SUFFIXES`.
            schema: The columns.
            compression: The codec for Parquet and Arrow; None for pyarrow's default.

        Raises:
            SinkError: The format has no type for a column.
        """
        check_types(schema, format, str(path.parent.parent))
        self.schema = schema
        self._path = path
        self._writer = _open(path, format, schema, compression)
        self._kept: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, chunk: pa.RecordBatch) -> None:
        """Add a chunk, which must have the columns of the file.

        Raises:
            SinkError: The chunk has other columns.
        """
        check_columns(chunk.schema, self.schema, str(self._path.parent.parent))
        # Not the chunk itself: its schema may carry metadata that differs from chunk to chunk.
        self._kept.append(pa.RecordBatch.from_arrays(chunk.columns, schema=self.schema))
        self._rows += chunk.num_rows
        self._bytes += chunk.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        """Write the buffered rows and the end of the file."""
        self._write_group()
        self._writer.close()

    def abort(self) -> None:
        """Close the incomplete file, ignoring errors."""
        self._kept.clear()
        with suppress(OSError, pa.ArrowException):
            self._writer.close()

    def _write_group(self) -> None:
        if self._kept:
            table = pa.Table.from_batches(self._kept, self.schema).combine_chunks()
            self._kept, self._rows, self._bytes = [], 0, 0
            self._writer.write_table(table)


def _open(path: Path, format: str, schema: pa.Schema, compression: str | None) -> Any:
    import pyarrow.csv
    import pyarrow.parquet

    match format:
        case "parquet":
            return pyarrow.parquet.ParquetWriter(path, schema, compression=compression or "snappy")
        case "arrow":
            codec = None if compression == "none" else compression
            return ipc.new_file(path, schema, options=ipc.IpcWriteOptions(compression=codec))
        case _:
            return pyarrow.csv.CSVWriter(path, schema)


def check_types(schema: pa.Schema, format: str, directory: str) -> None:
    """Refuse columns that a format has no type for.

    Raises:
        SinkError: The format has no type for a column.
    """
    for field in schema:
        if format == "csv" and pa.types.is_nested(field.type):
            raise SinkError(
                f"sink {directory}: column {field.name!r} is {field.type}, and CSV has no such "
                "type; leave it out in a step before, or write another format"
            )


def check_columns(found: pa.Schema, expected: pa.Schema, directory: str) -> None:
    """Refuse columns that differ from those of a directory.

    Raises:
        SinkError: A name or a type differs.
    """
    if found.names != expected.names:
        raise SinkError(
            f"sink {directory}: a chunk has the columns {found.names} and the files have "
            f"{expected.names}; select them in a step before, or use another directory"
        )
    for field, wanted in zip(found, expected, strict=True):
        if field.type != wanted.type:
            raise SinkError(
                f"sink {directory}: column {field.name!r} is {field.type} in a chunk and "
                f"{wanted.type} in the files; cast it in a step before, or use another directory"
            )
