"""`FileSink`: chunks as files of a directory, exactly once."""

import errno
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchqueue._paths import LocalPath, local_path
from batchqueue._requirements import require
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Position
from batchqueue.pipeline.errors import SinkError
from batchqueue.pipeline.sinks.files.commits import Directory
from batchqueue.pipeline.sinks.files.writer import SUFFIXES, FileWriter, check_columns
from batchqueue.pipeline.stage_config import check_count

if TYPE_CHECKING:
    import pyarrow as pa

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
    """Writes a file with each cut. Readers see the rows of all cuts, once, and nothing else.

    `pyarrow.dataset`, Spark, polars and DuckDB read the directory as it is. The file of a cut
    appears by a rename, which is the commit as well: there is no moment at which a crash could
    leave half a cut, or rows without their position. What is written is on the disk by then.

    The directory is local, or on a shared file system with locks and atomic renames. It belongs to
    one pipeline, and one run at a time. Older files may be moved away or merged into others; the
    directory `_batchqueue` must stay.
    """

    needs_origins = False

    def __init__(
        self,
        directory: LocalPath,
        *,
        format: str = "parquet",
        schema: "pa.Schema | None" = None,
        compression: str | None = None,
        batch_rows: int = 2_000,
    ) -> None:
        """Describe the sink. The directory is opened with the first call.

        Args:
            directory: Where the files go. Its parent must exist; the directory is created on
                demand, and must be empty at first.
            format: "parquet", "arrow" (IPC files) or "csv". Default: "parquet".
            schema: The names and types that chunks must have. Default: None, those of the first
                chunk, for this and all later runs.
            compression: Of Parquet ("snappy", "zstd", "none" ...) or Arrow ("lz4", "zstd").
                Default: None, snappy for Parquet and nothing for Arrow.
            batch_rows: Rows that a write should have, 1 to 1,000,000. Row groups are larger: up to
                131,072 rows or 16 MB are kept in memory. Default: 2,000.

        Raises:
            ConfigError: A setting is invalid.
            MissingPackageError: pyarrow is missing.

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
        require("pyarrow", "FileSink", "files")
        import pyarrow as pa

        path = local_path("directory", directory, _ELSEWHERE)
        if format not in SUFFIXES:
            raise ConfigError(f"format is {format!r}; give one of {', '.join(SUFFIXES)}")
        if not (schema is None or isinstance(schema, pa.Schema)):
            raise ConfigError(f"schema is {schema!r}; give a pyarrow.Schema, or None")
        _check_compression(compression, format)
        check_count("batch_rows", batch_rows, _MOST_BATCH_ROWS)
        self.batch_rows = batch_rows
        self._path = path
        self._format, self._given, self._compression = format, schema, compression
        self._pipeline = ""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._calls = threading.Lock()  # held by a call that writes
        self._thread: threading.Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self._directory: Directory | None = None
        self._writer: FileWriter | None = None
        self._failure: BaseException | None = None

    def open(self, pipeline: str) -> None:
        """Begin a run, and drop what a former run wrote and did not commit.

        Args:
            pipeline: The name of the pipeline, which the directory must belong to.

        Raises:
            SinkError: The directory is in use, also by a call of a former run that hangs, belongs
                to another pipeline, or cannot be written.
        """
        if not self._calls.acquire(blocking=False):
            raise SinkError(
                f"sink {self._path} is in use by a former run, which was given up while it wrote; "
                "wait until its call returns, or start a new process"
            )
        try:
            self._end()
            self._thread = threading.current_thread()
        finally:
            self._calls.release()
        self._pipeline = pipeline
        self._opened()

    def close(self) -> None:
        """End a run, and drop what was written and not committed."""
        # A thread that was left behind by a former run ends late.
        if self._thread in (None, threading.current_thread()) or not self._thread.is_alive():
            self._end()

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.abort()
        if self._directory is not None:
            try:
                self._directory.drop_pending()
            except OSError:
                pass  # the next run drops it
            finally:
                self._directory.release()
        self._reset()

    def write(self, chunks: "list[pa.RecordBatch]") -> None:
        """Add chunks to the file of the next cut.

        Raises:
            SinkError: Their columns are not those of the files, or the directory cannot be written.
                Nothing of this cut becomes visible; a new run writes it again.
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
            CutError: The cut does not follow the last one that the directory has.
            SinkError: The directory cannot be written, or a write before failed.
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
        """Return the newest cut that is stored, with its positions; None if there is none.

        Raises:
            SinkError: The directory is in use, belongs to another pipeline, or cannot be read.
        """
        return self._opened().last_cut()

    @property
    def directory(self) -> Path:
        """Where the files go, as an absolute path."""
        return self._path

    @property
    def format(self) -> str:
        """The format of the files."""
        return self._format

    @property
    def compression(self) -> str | None:
        """The compression that was given, or None."""
        return self._compression

    def __repr__(self) -> str:
        return f"FileSink({os.fspath(self._path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_calls", "_thread", "_directory", "_writer", "_failure")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_anew()

    def _begin(self, directory: Directory, found: "pa.Schema") -> FileWriter:
        schema = directory.schema or self._given or _plain(found)
        if self._given is not None:
            check_columns(self._given, schema, str(self._path))
        return FileWriter(directory.pending, self._format, schema, self._compression)

    def _opened(self) -> Directory:
        if self._failure is not None:
            raise SinkError(
                f"sink {self._path} failed before ({self._failure}), so that rows of this cut are "
                "missing; start a new run"
            ) from self._failure
        if self._directory is None:
            with self._named():
                self._directory = Directory(
                    self._path, self._pipeline, self._format, SUFFIXES[self._format]
                )
        return self._directory

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Have all later calls fail as well: rows of this cut may be missing in the file."""
        try:
            with self._named():
                yield
        except BaseException as error:
            self._failure = error
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (OSError, pa.ArrowException) as error:
            remedy = _REMEDIES.get(getattr(error, "errno", None) or 0, "correct the cause")
            raise SinkError(
                f"sink {self._path} cannot be written: {error}; {remedy} and start a new run, "
                "which continues at the last cut"
            ) from error


def _plain(schema: "pa.Schema") -> "pa.Schema":
    """Returns the columns without metadata, and nullable: later chunks may have nulls."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _check_compression(compression: str | None, format: str) -> None:
    import pyarrow as pa

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
