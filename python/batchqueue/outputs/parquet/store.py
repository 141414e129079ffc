"""`ParquetStore`: metrics in Parquet files of a directory, without a server."""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from batchqueue.aggregation import Metrics
from batchqueue.base.checks import LocalPath, local_path, require
from batchqueue.base.files import sync, unlock
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import TableStore
from batchqueue.outputs.layout import quoted, table_layout
from batchqueue.outputs.parquet.manifest import (
    Manifest,
    acquire,
    directory_errors,
    newest_epochs,
    sink_folder,
    sinks_in,
)
from batchqueue.outputs.reading import Selection, StoredMetric, name_and_table
from batchqueue.outputs.store import (
    Epoch,
    StoreError,
    StoreTransaction,
    checked_kept_summaries,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from batchqueue.outputs.parquet.transaction import ParquetTransaction

R = TypeVar("R")

_ELSEWHERE = "use an IcebergStore in object storage, or mount it where all writers see it"

_PART_BYTES = 64 * 1024 * 1024
"""The size of files at which a part of a selection is full; its last file may exceed it."""

_READS = 10
"""Attempts to read a state whose files are removed meanwhile."""


class ParquetStore(TableStore):
    """A `MetricsStore` in a local or shared directory of a POSIX file system.

    Needs the extra `parquet`. Any number of processes may use it. The writers of a sink wait for
    each other, on a lock of the file system; writers of different sinks work concurrently, and
    readers never wait. The store can be pickled, and used after a fork. Committed transactions
    survive a power cut.

    A data file holds the metrics of a table whose time buckets start in the same `partition_s`
    seconds. A transaction reads and rewrites, in memory, the files of the partitions that it
    touches.

    Attributes:
        directory: The directory, as an absolute path.
        partition_s: Seconds of time buckets that a data file covers.
        lock_timeout_s: Seconds that a transaction waits for another transaction of its sink.
        keep_replaced_s: Seconds that a replaced data file stays for its readers.
        kept_summaries: Number of newest epochs of each sink whose summaries are kept.
    """

    def __init__(
        self,
        directory: LocalPath,
        *,
        partition_s: int = 86_400,
        lock_timeout_s: float = 30,
        keep_replaced_s: float = 600,
        kept_summaries: int = 1_000,
    ) -> None:
        """Declare a store without opening it.

        Args:
            directory: The directory. Its parent must exist; the directory is created on demand.
            partition_s: Seconds of time buckets that a data file covers, at least 1; 86,400, a day,
                by default. A sink keeps the value that it was first written with.
            lock_timeout_s: Seconds that a transaction waits for another transaction of its sink; 30
                by default.
            keep_replaced_s: Seconds that a replaced data file stays for its readers, such as a
                Spark query over `files`; 600 by default. A later commit removes it.
            kept_summaries: Number of newest epochs of each sink whose summaries are kept, at least
                1; 1,000 by default.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: pyarrow is not installed.
        """
        require("pyarrow", "ParquetStore", "parquet")
        if type(partition_s) is not int or partition_s < 1:
            raise ConfigError(
                f"partition_s={partition_s!r}: give at least 1 second for a partition, as an int"
            )
        times = {"lock_timeout_s": lock_timeout_s, "keep_replaced_s": keep_replaced_s}
        for name, seconds in times.items():
            if not isinstance(seconds, int | float) or not seconds >= 0:
                raise ConfigError(f"{name}={seconds!r}: give a number of seconds from 0 up")
        self.directory = local_path("the directory of ParquetStore", directory, _ELSEWHERE)
        self.partition_s = partition_s
        self.lock_timeout_s = lock_timeout_s
        self.keep_replaced_s = keep_replaced_s
        self.kept_summaries = checked_kept_summaries(kept_summaries)

    def __repr__(self) -> str:
        return f"ParquetStore({str(self.directory)!r})"

    def prepare(self) -> None:
        """Check that the directory can be written, and create it if it is missing.

        Raises:
            StoreError: The directory cannot be written.
        """
        with self._errors():
            self._need_folder(self.directory)
            probe = self.directory / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink(missing_ok=True)

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        """Open a transaction that excludes other writers of the sink.

        It commits on a clean exit of the block, and rolls back on an exception.

        Args:
            sink_id: The sink that writes; several sinks may share a directory.

        Raises:
            StoreError: The directory cannot be written.
            StoreUnavailableError: Another writer of the sink held the lock for longer than
                `lock_timeout_s`, or the server of the file system is out of reach.
        """
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
                        f"sink {sink_id!r} of the store {self.directory} has "
                        f"partition_s={manifest.partition_s}, and cannot be written with "
                        f"{self.partition_s}: use partition_s={manifest.partition_s}, or another "
                        "directory"
                    )
            transaction = self._transaction(folder, manifest)
            yield transaction
            transaction.check()
            transaction.commit()
        finally:
            unlock(lock)

    def sinks(self) -> list[str]:
        """Return the ids of the sinks that have written, sorted as texts.

        It does not wait for writers.

        Raises:
            StoreError: The directory is missing, or a manifest in it cannot be read.
        """
        with self._errors():
            self._need_store()
            manifests = itertools.starmap(Manifest.load, sinks_in(self.directory))
            return sorted(found.sink for found in manifests if found and found.has_anything())

    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        """Return the summaries kept for a sink, in the order of recording.

        It does not wait for writers.

        Args:
            sink_id: The sink that recorded them.
            newest: Return at most this many of the newest; `None` for all.

        Raises:
            StoreError: The directory is missing, or a file in it cannot be read.
        """

        def epochs(folder: Path, manifest: Manifest) -> list[Epoch]:
            return [Epoch(*epoch) for epoch in newest_epochs(folder, manifest, newest)]

        return self._reading(sink_id, epochs)

    def files(self, metrics: type[Metrics] | str, sink_id: str = "default") -> list[Path]:
        """Return the current data files of a table, ordered by time.

        Their columns are metric, entity, time_bucket, rank (for kinds with several rows per
        partial), and the columns of the kind. They never change, and stay for `keep_replaced_s`
        after they are replaced: read them with `spark.read.parquet(*map(str, files))` or
        `pyarrow.dataset.dataset(files)`.

        Args:
            metrics: A metric type, whose table other metrics of its kind share; or the name of the
                table.
            sink_id: The sink that wrote them.

        Raises:
            StoreError: The directory is missing, or its manifest cannot be read.
        """
        table = metrics if isinstance(metrics, str) else table_layout(metrics).table
        quoted(table)

        def paths(folder: Path, manifest: Manifest) -> list[Path]:
            return [folder / name for _, name in sorted(manifest.tables.get(table, {}).items())]

        return self._reading(sink_id, paths)

    @contextmanager
    def ledger(self, sink_id: str = "default") -> Iterator[StoreTransaction | None]:
        """Read the ledger of a sink as of one commit: its marks, summaries and description.

        It does not wait for writers, and cannot load or change metrics.

        It yields `None` if nothing was committed for the sink yet.

        Args:
            sink_id: The sink to read.

        Raises:
            StoreError: The directory is missing, or its manifest cannot be read.
        """
        folder = sink_folder(self.directory, sink_id)
        with self._errors():
            manifest = Manifest.load(folder, sink_id)
        yield None if manifest is None else self._transaction(folder, manifest)

    def parts(self, selection: Selection, count: int = 1) -> list[Selection]:
        """Split a selection into parts of one commit, each with some of the data files."""

        def groups(folder: Path, manifest: Manifest) -> list[Selection]:
            sizes = {
                name: (folder / name).stat().st_size for name in _wanted_files(manifest, selection)
            }
            most = min(_PART_BYTES, math.ceil(sum(sizes.values()) / count))
            return [replace(selection, files=names) for names in _grouped(sizes, most)]

        return self._reading(selection.sink_id, groups)

    def metrics(self, sink_id: str = "default") -> list[StoredMetric]:
        """Return what a sink has stored, ordered by the names of the metrics.

        Raises:
            StoreError: The directory is missing, or a file in it cannot be read.
        """
        from batchqueue.outputs.parquet.transaction import metrics_in

        def found(folder: Path, manifest: Manifest) -> list[StoredMetric]:
            return [
                metric
                for table, files in manifest.tables.items()
                for metric in metrics_in(table, [folder / name for name in files.values()])
            ]

        return sorted(self._reading(sink_id, found), key=name_and_table)

    def tables(self, selection: Selection) -> Iterator["pa.Table"]:
        """Yield the rows of a selection as one table, or of a part as a table per data file."""
        import pyarrow as pa

        from batchqueue.outputs.parquet.transaction import read_selected
        from batchqueue.outputs.partitioned import in_order

        layout = table_layout(selection.metric_type)

        def read_files(folder: Path, manifest: Manifest) -> list[pa.Table]:
            names = _wanted_files(manifest, selection)
            return [read_selected(folder / name, layout, selection) for name in names]

        if selection.files is None:
            found = self._reading(selection.sink_id, read_files)
            if found:
                yield in_order(pa.concat_tables(found), layout)
            return
        folder = sink_folder(self.directory, selection.sink_id)
        for name in selection.files:
            with self._errors():
                try:
                    table = read_selected(folder / name, layout, selection)
                except FileNotFoundError as error:
                    raise StoreError(
                        f"cannot read {folder / name}: it was replaced after the read was planned, "
                        "and removed keep_replaced_s later: plan it again (in Spark, load() the "
                        "DataFrame again), or give the writer a larger keep_replaced_s"
                    ) from error
            yield table

    def _transaction(self, folder: Path, manifest: Manifest) -> "ParquetTransaction":
        from batchqueue.outputs.parquet.transaction import ParquetTransaction

        return ParquetTransaction(
            folder, manifest, self._errors, self.kept_summaries, self.keep_replaced_s
        )

    def _reading(self, sink_id: str, read: Callable[[Path, Manifest], list[R]]) -> list[R]:
        """Read the newest state, and retry if its files were removed meanwhile."""
        with self._errors():
            self._need_store()
            folder = sink_folder(self.directory, sink_id)
            for remaining in reversed(range(_READS)):
                manifest = Manifest.load(folder, sink_id)
                if manifest is None:
                    return []
                try:
                    return read(folder, manifest)
                except FileNotFoundError:
                    if not remaining or Manifest.load(folder, sink_id) == manifest:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _need_store(self) -> None:
        if not self.directory.is_dir():
            raise StoreError(
                f"cannot read the store {self.directory}: there is no such directory; "
                "write to it first"
            )

    def _need_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync(folder.parent)

    def _errors(self) -> AbstractContextManager[None]:
        return directory_errors(self.directory)


def _wanted_files(manifest: Manifest, selection: Selection) -> list[str]:
    """Return the names of the data files that may have rows of a selection, ordered by time."""
    files = manifest.tables.get(table_layout(selection.metric_type).table, {})
    return [
        name
        for start, name in sorted(files.items())
        if selection.overlaps(start, start + manifest.partition_s)
    ]


def _grouped(sizes: Mapping[str, int], most: int) -> list[tuple[str, ...]]:
    """Group adjacent files until a group reaches a size, which its last file may exceed."""
    groups: list[tuple[str, ...]] = []
    filled = most
    for name, size in sizes.items():
        if filled >= most:
            groups.append(())
            filled = 0
        groups[-1] += (name,)
        filled += size
    return groups
