"""`ParquetStore`: metrics in Parquet files of a directory, without a server."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TypeVar

from batchqueue._requirements import require
from batchqueue.aggregation import Metrics
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.layout import quoted, table_layout
from batchqueue.outputs.parquet.manifest import (
    Manifest,
    acquire,
    newest_of,
    release,
    sink_folder,
    sync_folder,
)
from batchqueue.outputs.store import (
    Epoch,
    StoreError,
    StoreTransaction,
    StoreUnavailableError,
    checked_kept_summaries,
)

M = TypeVar("M", bound=Metrics)
R = TypeVar("R")

_READS = 10
"""Times to begin anew when files are removed while they are read."""

_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}
"""Errors of shared file systems that are over when their server is back."""

_REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk, or have the quota raised",
    errno.EACCES: "let this user write to the directory and to what is in it",
    errno.EPERM: "let this user write to the directory and to what is in it",
    errno.EROFS: "let this user write to the directory: it is on a read-only file system",
    errno.ENOENT: "its parent directory must exist, and no file of it may be removed by others",
    errno.ENOLCK: "use a file system with locks (flock) that hold between machines",
    errno.EOPNOTSUPP: "use a file system with locks (flock) that hold between machines",
    errno.ENOTDIR: "the path belongs to something else: choose another one",
    errno.EEXIST: "the path belongs to something else: choose another one",
}


class ParquetStore:
    """A `MetricsStore` in a directory, local or shared, of a POSIX file system. Needs the extra `parquet`.

    Any number of processes may use it. The writers of one sink wait for each other, on a lock of
    the file system; those of different sinks work side by side, and readers wait for nobody. The
    store can be pickled, and used after a fork. What a transaction has committed survives a power
    cut.

    A data file holds the metrics of one table whose time buckets begin in the same `partition_s`
    seconds. A transaction reads and rewrites the files of the partitions that it touches, in
    memory.

    Attributes:
        directory: As an absolute path.
        partition_s: Seconds of time buckets that one data file covers.
        lock_timeout_s: Seconds that a transaction waits for another one of its sink.
        keep_replaced_s: Seconds that a replaced data file stays for those who read it.
        kept_summaries: Epochs of each sink whose summaries are kept, the newest.
    """

    def __init__(
        self,
        directory: str | PathLike[str],
        *,
        partition_s: int = 86_400,
        lock_timeout_s: float = 30,
        keep_replaced_s: float = 600,
        kept_summaries: int = 1_000,
    ) -> None:
        """Describe a store; nothing is opened yet.

        Args:
            directory: Where to keep it. Its parent must exist; the directory is made when it is
                needed.
            partition_s: Seconds of time buckets that one data file covers, a day by default; at
                least 1. A sink keeps the one that it was first written with.
            lock_timeout_s: Seconds that a transaction waits for another one of its sink.
            keep_replaced_s: Seconds that a replaced data file stays for those who read it, such as
                a Spark query over `files`; the commits after that remove it.
            kept_summaries: Epochs of each sink whose summaries are kept, the newest; at least 1.

        Raises:
            ConfigError: An argument cannot be used as given.
            MissingPackageError: pyarrow is not installed.
        """
        require("pyarrow", "ParquetStore", "parquet")
        if partition_s < 1 or lock_timeout_s < 0 or keep_replaced_s < 0:
            raise ConfigError(
                f"partition_s={partition_s}, lock_timeout_s={lock_timeout_s}, keep_replaced_s={keep_replaced_s}: "
                "give at least 1 second for a partition, and no negative times"
            )
        self.directory = Path(directory).expanduser().absolute()
        self.partition_s = partition_s
        self.lock_timeout_s = lock_timeout_s
        self.keep_replaced_s = keep_replaced_s
        self.kept_summaries = checked_kept_summaries(kept_summaries)

    def __repr__(self) -> str:
        return f"ParquetStore({str(self.directory)!r})"

    def prepare(self) -> None:
        """Make sure that the directory can be written, making it if it is missing.

        Raises:
            StoreError: It cannot.
        """
        with self._errors():
            self._need_folder(self.directory)
            probe = self.directory / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink(missing_ok=True)

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        """Open a transaction that excludes other writers of the sink; commit on a clean exit, else roll back.

        Args:
            sink_id: On whose behalf: several sinks may share one directory.

        Raises:
            StoreError: The directory cannot be written.
            StoreUnavailableError: Another writer of the sink was at work for longer than
                `lock_timeout_s`, or the server of the file system is out of reach.
        """
        from batchqueue.outputs.parquet.transaction import ParquetTransaction

        with self._errors():
            folder = sink_folder(self.directory, sink_id)
            self._need_folder(self.directory)
            self._need_folder(folder)
            lock = acquire(
                folder / "lock",
                self.lock_timeout_s,
                f"sink {sink_id!r} of the store {self.directory}",
            )
        try:
            with self._errors():
                manifest = Manifest.load(folder, sink_id) or Manifest(sink_id, self.partition_s)
                if manifest.partition_s != self.partition_s:
                    raise StoreError(
                        f"sink {sink_id!r} of the store {self.directory} has partition_s={manifest.partition_s}, "
                        f"and cannot be written with {self.partition_s}: use that one, or another directory"
                    )
            transaction = ParquetTransaction(
                folder, manifest, self._errors, self.kept_summaries, self.keep_replaced_s
            )
            yield transaction
            transaction.check()
            transaction.commit()
        finally:
            release(lock)

    def read(self, metric_type: type[M], sink_id: str = "default") -> list[M]:
        """Return the stored partials of one metric, ordered by entity and time bucket; waits for no writer.

        Raises:
            StoreError: There is no such directory, or a file in it cannot be read.
        """
        import pyarrow as pa

        from batchqueue.outputs.parquet.files import partials_of, read_file

        layout = table_layout(metric_type)

        def read_files(folder: Path, manifest: Manifest) -> list[M]:
            names = manifest.tables.get(layout.table, {}).values()
            found = [read_file(folder / name, layout, metric_type.name) for name in names]
            return partials_of(metric_type, layout, pa.concat_tables(found)) if found else []

        return self._reading(sink_id, read_files)

    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        """Return the summaries that are kept for one sink, in their order; waits for no writer.

        Args:
            sink_id: Whose.
            newest: At most so many, the last ones; None: all.

        Raises:
            StoreError: There is no such directory, or a file in it cannot be read.
        """

        def newest_epochs(_folder: Path, manifest: Manifest) -> list[Epoch]:
            return [Epoch(*epoch) for epoch in newest_of(manifest.summaries, newest)]

        return self._reading(sink_id, newest_epochs)

    def files(self, metrics: type[Metrics] | str, sink_id: str = "default") -> list[Path]:
        """Return the data files of one table, ordered by time, as of now.

        Their columns are metric, entity, time_bucket, rank for kinds with several rows per partial,
        and those of the kind. They are not changed, and stay for `keep_replaced_s` after they are
        replaced: read them with `spark.read.parquet(*map(str, files))` or
        `pyarrow.dataset.dataset(files)`.

        Args:
            metrics: A metric type, for the table that it is in, which other metrics of its kind are
                in as well; or the name of the table.
            sink_id: Whose.

        Raises:
            StoreError: There is no such directory, or its manifest cannot be read.
        """
        table = metrics if isinstance(metrics, str) else table_layout(metrics).table
        quoted(table)

        def paths(folder: Path, manifest: Manifest) -> list[Path]:
            return [folder / name for _, name in sorted(manifest.tables.get(table, {}).items())]

        return self._reading(sink_id, paths)

    def _reading(self, sink_id: str, look: Callable[[Path, Manifest], list[R]]) -> list[R]:
        """Look at the newest state, and again if its files were removed meanwhile."""
        with self._errors():
            if not self.directory.is_dir():
                raise StoreError(
                    f"cannot read the store {self.directory}: there is no such directory; write to it first"
                )
            folder = sink_folder(self.directory, sink_id)
            for remaining in reversed(range(_READS)):
                manifest = Manifest.load(folder, sink_id)
                if manifest is None:
                    return []
                try:
                    return look(folder, manifest)
                except FileNotFoundError:
                    if not remaining or Manifest.load(folder, sink_id) == manifest:
                        raise
        raise AssertionError("the last round returns or raises")

    def _need_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (OSError, pa.ArrowException, OverflowError, UnicodeError) as error:
            kind, remedy = (
                StoreError,
                "check the metrics: values fit their columns, and text is valid Unicode",
            )
            if isinstance(error, OSError):
                kind = StoreUnavailableError if error.errno in _PASSING else StoreError
                remedy = _REMEDIES.get(
                    error.errno or 0, "check the disk, and restore what is damaged from a copy"
                )
            elif isinstance(error, pa.ArrowException):
                remedy = "check the disk, and restore what is damaged from a copy"
            raise kind(f"cannot use the store {self.directory}: {error}; {remedy}") from error
