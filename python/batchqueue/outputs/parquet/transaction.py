"""A transaction of the Parquet store: changes in memory, written as new files when it commits."""

import functools
import json
import operator
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchqueue.base.files import sync, write_durably
from batchqueue.outputs.layout import KEY_TYPES, Layout, arrow_types, schema_of, schema_of_metric
from batchqueue.outputs.parquet.manifest import (
    DATA_SUFFIX,
    Manifest,
    add_epoch,
    move_recent,
    newest_epochs,
    written_files,
)
from batchqueue.outputs.partitioned import PartitionedTransaction
from batchqueue.outputs.reading import Selection, StoredMetric, stored_type
from batchqueue.outputs.store import Epoch, StoreError


class ParquetTransaction(PartitionedTransaction):
    """A `StoreTransaction` that keeps the files of the partitions it touches in memory."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        errors: Callable[[], AbstractContextManager[None]],
        kept_summaries: int,
        keep_replaced_s: float,
    ) -> None:
        """Make the transaction of a sink whose lock is held.

        Args:
            folder: The folder of the sink.
            manifest: The state to start from; the transaction changes it.
            errors: Turns the errors of files and of Arrow into `StoreError`.
            kept_summaries: Number of summaries to keep for the sink.
            keep_replaced_s: Seconds to keep a replaced file for its readers.
        """
        super().__init__(manifest.partition_s, errors)
        self._folder = folder
        self._manifest = manifest
        self._kept_summaries = kept_summaries
        self._keep_replaced_s = keep_replaced_s
        self._files: dict[str, pa.Table] = {}
        self._committed = manifest.live()

    @property
    def _state(self) -> Manifest:
        return self._manifest

    def _partitions(self, reached: range) -> list[tuple[Layout, int]]:
        return [
            (layout_of(table, self._folder / files[start]), start)
            for table, files in self._manifest.tables.items()
            for start in files
            if start in reached
        ]

    def _stored(self, layout: Layout, start: int) -> pa.Table | None:
        name = self._manifest.tables.get(layout.table, {}).get(start)
        if name is None:
            return None
        if name not in self._files:
            self._files[name] = read_file(self._folder / name, layout)
        return self._files[name]

    def _drop(self, layout: Layout, start: int) -> int:
        return rows_in(self._folder / self._manifest.tables[layout.table].pop(start))

    def add_summary(self, query_id: str, batch_id: int, summary: str) -> None:
        """Store the summary of an epoch, and delete the oldest if there are too many."""
        with self._step():
            epoch = (query_id, batch_id, json.loads(summary))
            add_epoch(self._manifest, epoch, self._kept_summaries)
            self._changed = True

    def summaries(self, newest: int | None = None) -> list[Epoch]:
        """Return the newest summaries that are kept, in the order in which they were recorded."""
        with self._step():
            return [Epoch(*epoch) for epoch in newest_epochs(self._folder, self._manifest, newest)]

    def clear(self) -> None:
        """Delete everything that this sink wrote."""
        with self._step():
            self._changes.clear()
            manifest = self._manifest
            self._manifest = Manifest(
                manifest.sink, manifest.partition_s, replaced=manifest.replaced
            )
            self._changed = True

    def commit(self) -> None:
        """Write the changes: first the data files, then the manifest that names them."""
        if not self._changed:
            return
        written: list[Path] = []
        with self._step():
            now = time.time()
            self._remove_unread_files(now)
            try:
                for layout, start, rows in self._changed_partitions():
                    self._write(layout, start, rows, written)
                written += move_recent(self._folder, self._manifest)
                sync(self._folder)
                live = self._manifest.live()
                self._manifest.replaced |= dict.fromkeys(self._committed - live, now)
                self._manifest.replace(self._folder)
            except Exception:
                # Make room again on a full disk; but if the manifest was replaced, it names these
                # files.
                if not self._is_committed():
                    for path in written:
                        path.unlink(missing_ok=True)
                raise

    def _write(self, layout: Layout, start: int, rows: pa.Table, written: list[Path]) -> None:
        files = self._manifest.tables.setdefault(layout.table, {})
        files.pop(start, None)
        if len(rows):
            path = self._folder / f"{layout.table}.{start}.{uuid.uuid4().hex}{DATA_SUFFIX}"
            written.append(path)
            write_file(path, rows)
            files[start] = path.name

    def _is_committed(self) -> bool:
        found = Manifest.load(self._folder, self._manifest.sink)
        return found is not None and found.live() == self._manifest.live()

    def _remove_unread_files(self, now: float) -> None:
        """Remove files replaced long ago, and files of a writer that died before its commit."""
        replaced = self._manifest.replaced
        for name in [name for name, at in replaced.items() if now - at > self._keep_replaced_s]:
            (self._folder / name).unlink(missing_ok=True)
            del replaced[name]
        for name in written_files(self._folder) - self._committed - replaced.keys():
            (self._folder / name).unlink(missing_ok=True)


# Data files of the Parquet store.


def layout_of(table: str, path: Path) -> Layout:
    """Return the layout of a table from one of its data files.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        schema = pq.read_schema(file)
    kinds = {arrow_type: kind for kind, arrow_type in arrow_types().items()}
    columns = tuple(
        (field.name, kinds[field.type]) for field in schema if field.name not in KEY_TYPES
    )
    return Layout(table, columns, "rank" in schema.names)


def rows_in(path: Path) -> int:
    """Return the number of rows of a data file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return int(pq.read_metadata(file).num_rows)


def metrics_in(table: str, paths: Sequence[Path]) -> list[StoredMetric]:
    """Return the metrics in the data files of a table, unordered.

    Raises:
        OSError: A file cannot be read.
    """
    columns = []
    for path in paths:
        with path.open("rb") as file:
            columns.append(pq.read_table(file, columns=["metric", "time_bucket"]))
    if not columns:
        return []
    layout = layout_of(table, paths[0])
    found = (
        pa.concat_tables(columns)
        .group_by("metric")
        .aggregate([("time_bucket", "count"), ("time_bucket", "min"), ("time_bucket", "max")])
    )
    return [
        StoredMetric(stored_type(name, layout), *numbers)
        for name, *numbers in zip(*(column.to_pylist() for column in found.columns), strict=True)
    ]


def read_file(path: Path, layout: Layout) -> pa.Table:
    """Read a data file.

    Raises:
        OSError: It cannot be read.
        StoreError: Its columns differ from those of the layout.
    """
    with path.open("rb") as file:
        parquet = pq.ParquetFile(file)
        _check_columns(path, parquet, layout)
        return parquet.read()


def read_selected(path: Path, layout: Layout, selection: Selection) -> pa.Table:
    """Read the selected rows of a data file, in order, without the metric's name.

    Raises:
        OSError: It cannot be read.
        StoreError: Its columns differ from those of the layout.
    """
    names = schema_of_metric(layout).names
    with path.open("rb") as file:
        parquet = pq.ParquetFile(file)
        _check_columns(path, parquet, layout)
        condition = _condition(selection, parquet.metadata)
        if condition is None:
            return parquet.read(columns=names)
        return pq.read_table(file, columns=names, filters=condition)


def _check_columns(path: Path, parquet: pq.ParquetFile, layout: Layout) -> None:
    expected = schema_of(layout)
    if not parquet.schema_arrow.equals(expected):
        raise StoreError(
            f"{path} has the columns {_shown(parquet.schema_arrow)}, and not {_shown(expected)}: "
            "give the kind of metrics another table, or the store another directory"
        )


def _condition(selection: Selection, metadata: pq.FileMetaData) -> pc.Expression | None:
    """Return the condition for rows; None if all rows meet it according to the metadata."""
    conditions = []
    if not _has_only(metadata, selection.metric_type.name):
        conditions.append(pc.field("metric") == selection.metric_type.name)
    if selection.entities is not None:
        conditions.append(pc.field("entity").isin(pa.array(selection.entities, pa.string())))
    for column, wanted in selection.keys:
        kind = arrow_types()[selection.metric_type.key_columns[column]]
        conditions.append(pc.field(column).isin(pa.array(wanted, kind)))
    if selection.since is not None:
        conditions.append(pc.field("time_bucket") >= selection.since)
    if selection.before is not None:
        conditions.append(pc.field("time_bucket") < selection.before)
    return functools.reduce(operator.and_, conditions) if conditions else None


def _has_only(metadata: pq.FileMetaData, metric: str) -> bool:
    """Return whether all rows are known to be of a metric."""
    columns = (metadata.row_group(number).column(0) for number in range(metadata.num_row_groups))
    return all(
        column.statistics is not None
        and column.statistics.has_min_max
        and column.statistics.min == column.statistics.max == metric
        for column in columns
    )


def write_file(path: Path, rows: pa.Table) -> None:
    """Write a data file; return once its content is on the disk."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    write_durably(path, memoryview(sink.getvalue()))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
