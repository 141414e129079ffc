"""A transaction of the Iceberg store: changes in memory, one snapshot when it commits."""

import itertools
import json
import uuid
from collections.abc import Callable, Collection
from copy import copy, deepcopy
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import write_file
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import FileScanTask, Table, Transaction, WriteTask
from pyiceberg.table.metadata import TableMetadata

from batchqueue.outputs.iceberg.errors import iceberg_errors
from batchqueue.outputs.iceberg.table import (
    ALL,
    ICEBERG_TYPES,
    LAYOUTS,
    LEDGER,
    START,
    TABLE,
    Files,
    Ledger,
    Partition,
    SinkTable,
    StoredLayout,
    epochs_of,
    layouts_text,
    ledger_of,
)
from batchqueue.outputs.layout import KEY_TYPES, Layout, shown
from batchqueue.outputs.partitioned import PartitionedTransaction
from batchqueue.outputs.store import Epoch, StoreUnavailableError

# The commit of one snapshot, which replaces partitions of a sink's table.


_COMMIT = "batchqueue.commit"
"""The property of a snapshot by which its writer recognizes it."""


class Replacement:
    """The commit of one snapshot, which replaces partitions of a table."""

    def __init__(self, sink: SinkTable, *, anew: bool) -> None:
        """Start from the table as it was loaded; if it has changed by the commit, nothing is done.

        Args:
            sink: The table.
            anew: Whether all of its rows are replaced, so that its layouts may change.
        """
        self._sink = sink
        self._known = {} if anew else sink.layouts
        self._table = _Exclusive(sink.table)
        self._transaction: Transaction = self._table.transaction()
        self._layouts: dict[str, StoredLayout] = {}
        self._written: list[DataFile] = []
        self._numbers = itertools.count()

    def write(self, layout: Layout, start: int, rows: pa.Table) -> None:
        """Write the data file of a partition."""
        stored = self._stored_layout(layout)
        metadata = self._transaction.table_metadata
        wide = rows.rename_columns(stored.all_columns()).append_column(
            TABLE, pa.array([layout.table] * len(rows), pa.string())
        )
        schema = metadata.schema()
        names = [field.name for field in schema.fields if field.name in wide.column_names]
        values = (layout.table, max(start, ALL.start))
        task = WriteTask(
            write_uuid=self._table.commit_id,
            task_id=next(self._numbers),
            schema=schema.select(*names),
            record_batches=wide.select(names).combine_chunks().to_batches(),
            partition_key=PartitionKey(
                [
                    PartitionFieldValue(field, value)
                    for field, value in zip(metadata.spec().fields, values, strict=True)
                ],
                metadata.spec(),
                schema,
            ),
        )
        self._written += write_file(self._table.io, metadata, iter([task]))

    def _stored_layout(self, layout: Layout) -> StoredLayout:
        if layout.table in self._layouts:
            return self._layouts[layout.table]
        if layout.table in self._known:
            return self._sink.stored_layout(layout)
        schema = self._transaction.table_metadata.schema()
        # Some engines do not distinguish upper and lower case in names.
        there = {field.name.lower(): (field.name, field.field_type) for field in schema.fields}
        fixed = {TABLE, START, *KEY_TYPES}
        columns: list[str] = []
        with self._transaction.update_schema() as update:
            for column, kind in layout.columns:
                name, wanted = column, ICEBERG_TYPES[shown(kind)]
                while not _is_free(name, wanted, {*fixed, *map(str.lower, columns)}, there):
                    name += f"_{shown(kind)}"
                if name.lower() not in there:
                    update.add_column(name, wanted)
                columns.append(name)
        return self._layouts.setdefault(layout.table, StoredLayout(layout, tuple(columns)))

    def commit(self, ledger: Ledger, replaced: Collection[FileScanTask]) -> None:
        """Commit the snapshot.

        Args:
            ledger: The ledger of the snapshot.
            replaced: Data files that the snapshot no longer has.

        Raises:
            CommitFailedException: The table has changed meanwhile.
        """
        properties = {LEDGER: ledger.to_text(), _COMMIT: str(self._table.commit_id)}
        if ledger.epochs:
            query_id, batch_id, _ = ledger.epochs[-1]
            properties |= {"batchqueue.query-id": query_id, "batchqueue.batch-id": str(batch_id)}
        if self._layouts:
            layouts = layouts_text(self._sink.layouts | self._layouts)
            self._transaction.set_properties({LAYOUTS: layouts})
        with self._transaction.update_snapshot(snapshot_properties=properties).overwrite() as made:
            _leave_out_empty_manifests(made)
            _evaluate_with_copies(made)
            for task in replaced:
                made.delete_data_file(task.file)
            for file in self._written:
                made.append_data_file(file)
        snapshot = self._transaction.table_metadata.snapshot_by_id(made.snapshot_id)
        assert snapshot is not None
        self._transaction.set_properties(ledger.to_property(snapshot))
        self._transaction.commit_transaction()

    def remove_written(self) -> None:
        """Remove the data files of a commit that is known to have failed."""
        for file in self._written:
            try:
                self._table.io.delete(file.file_path)
            except Exception:  # the error of the commit counts
                continue


def _is_free(name: str, wanted: Any, taken: set[str], there: dict[str, tuple[str, Any]]) -> bool:
    """Return whether a column can have a name, which must be new or belong to an equal column."""
    return name.lower() not in taken and there.get(name.lower(), (name, wanted)) == (name, wanted)


def _leave_out_empty_manifests(snapshot: Any) -> None:
    """Leave manifests without a live file out of a snapshot in the making.

    Each commit that replaces files writes a manifest with their names. Java's writers leave that
    manifest out of the next snapshot; pyiceberg 0.12 keeps it, so that each commit reads one more.
    """
    existing = snapshot._existing_manifests
    snapshot._existing_manifests = lambda: [
        manifest
        for manifest in existing()
        if manifest.has_added_files() or manifest.has_existing_files()
    ]


def _evaluate_with_copies(snapshot: Any) -> None:
    """Give each call of a manifest evaluator its own state.

    pyiceberg 0.12 finds the files to delete in several threads, and its evaluator keeps the current
    manifest in an attribute. A thread that read another thread's manifest there would skip its own,
    and the commit would miss the files in it.
    """
    build = snapshot._build_manifest_evaluator

    def built(spec_id: int) -> Callable[[ManifestFile], bool]:
        evaluator = build(spec_id).__self__
        return lambda manifest: bool(copy(evaluator).eval(manifest))

    snapshot._build_manifest_evaluator = built


class _Exclusive(Table):
    """A table whose commit is not retried on top of another writer's.

    pyiceberg would retry it if the two touch different data files; but the other writer's ledger
    counts. As the catalog's response may be lost, a failed commit reloads the table to see whether
    it was applied.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(
            table.name(),
            table.metadata,
            table.metadata_location,
            table.io,
            table.catalog,
            table.config,
        )
        self.commit_id = uuid.uuid4()

    def transaction(self) -> Transaction:
        return _Remembering(self)

    def _do_commit(self, *arguments: Any, **options: Any) -> None:
        try:
            super()._do_commit(*arguments, **options)
        except CommitFailedException:
            self.refresh()  # raises if it was not applied

    def refresh(self) -> Table:
        super().refresh()
        commits = (
            snapshot.summary.additional_properties.get(_COMMIT)
            for snapshot in self.metadata.snapshots
            if snapshot.summary is not None
        )
        if str(self.commit_id) not in commits:
            raise CommitFailedException(
                f"table {'.'.join(self.name())} has another snapshot than at the beginning"
            )
        return self


class _Remembering(Transaction):
    """A transaction that makes its table metadata once for each change, and not at each access.

    Such metadata is a deep copy of all kept snapshots.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._made: tuple[Any, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._made is None or self._made[0] is not self._updates:
            self._made = self._updates, super().table_metadata
        return self._made[1]


_PLANS = 3
"""The most partitions to look up one by one; a transaction that touches more looks all up."""


class IcebergTransaction(PartitionedTransaction):
    """A `StoreTransaction` that keeps the partitions it touches in memory."""

    def __init__(
        self,
        sink: SinkTable | None,
        create: Callable[[], SinkTable],
        partition_s: int,
        store: str,
        kept_summaries: int,
    ) -> None:
        """Start from a snapshot.

        Args:
            sink: The table of the sink with its current snapshot; `None` if there is none yet.
            create: Creates the table.
            partition_s: Seconds of time buckets that a partition covers.
            store: The store, for messages.
            kept_summaries: The most summaries of the sink to read.
        """
        super().__init__(partition_s, lambda: iceberg_errors(store))
        self._store = store
        self._kept_summaries = kept_summaries
        self._sink = sink
        self._create = create
        self._ledger = (Ledger() if sink is None else ledger_of(sink.metadata, sink.name)).next()
        self._files: dict[int, dict[Partition, Files]] = {}
        self._rows: dict[Partition, pa.Table] = {}
        self._dropped: dict[Partition, Files] = {}
        self._all_files: dict[Partition, Files] | None = None
        self._cleared = False

    @property
    def _state(self) -> Ledger:
        return self._ledger

    def _partitions(self, reached: range) -> list[tuple[Layout, int]]:
        files = self._files_in(range(reached.start, reached.stop + self.partition_s - 1))
        return [
            (self._sink.layouts[table].layout, start)
            for table, start in files
            if self._sink is not None and start in reached and (table, start) not in self._dropped
        ]

    def _stored(self, layout: Layout, start: int) -> pa.Table | None:
        partition = (layout.table, start)
        files = self._files_of(partition)
        if self._sink is None or not files or partition in self._dropped:
            return None
        if partition not in self._rows:
            stored = self._sink.stored_layout(layout)
            try:
                self._rows[partition] = self._sink.rows(stored, files, AlwaysTrue())
            except FileNotFoundError as error:
                raise StoreUnavailableError(
                    f"cannot use the store {self._store}: {error}; if the snapshot has expired "
                    "meanwhile, start another transaction"
                ) from error
        return self._rows[partition]

    def _drop(self, layout: Layout, start: int) -> int:
        files = self._files_of((layout.table, start))
        self._dropped[layout.table, start] = files
        return 0 if self._sink is None else self._sink.rows_in(files)

    def _files_of(self, partition: Partition) -> Files:
        _, start = partition
        if self._all_files is None and start not in self._files:
            if len(self._files) < _PLANS:
                self._files[start] = self._files_in(range(start, start + self.partition_s))
            else:
                self._all_files = self._files_in(ALL)
        files = self._files.get(start) if self._all_files is None else self._all_files
        return (files or {}).get(partition, [])

    def _files_in(self, buckets: range) -> dict[Partition, Files]:
        return {} if self._sink is None else self._sink.files(buckets)

    def add_summary(self, query_id: str, batch_id: int, summary: str) -> None:
        """Record the summary of an epoch, which is kept as long as this transaction's snapshot."""
        with self._step():
            self._ledger.epochs.append((query_id, batch_id, json.loads(summary)))
            self._changed = True

    def summaries(self, newest: int | None = None) -> list[Epoch]:
        """Return the newest summaries that are kept, in the order in which they were recorded."""
        with self._step():
            own = [Epoch(*epoch) for epoch in deepcopy(self._ledger.epochs)]
            count = self._kept_summaries if newest is None else min(newest, self._kept_summaries)
            found = self._earlier(count - len(own)) + own
            return found[len(found) - count :] if count < len(found) else found

    def _earlier(self, newest: int) -> list[Epoch]:
        if self._sink is None or self._ledger.begins or newest <= 0:
            return []
        return epochs_of(self._sink.metadata, self._sink.name, newest)

    def clear(self) -> None:
        """Delete everything that this sink wrote."""
        with self._step():
            self._dropped = self._files_in(ALL)
            self._changes.clear()
            self._ledger = Ledger()
            self._cleared = self._changed = True

    def has_table(self) -> bool:
        """Return whether something was ever committed for the sink."""
        return self._sink is not None

    def has_anything(self) -> bool:
        """Return whether something was written since the last `clear`, if ever."""
        with self._step():
            return self._ledger.has_anything() or bool(self._files_in(ALL))

    def commit(self) -> None:
        """Write the changes: first the data files, then the snapshot that has them.

        Raises:
            StoreUnavailableError: Another writer has committed meanwhile, or it is not known
                whether the commit succeeded.
        """
        if not self._changed:
            return
        with self.guarded(), iceberg_errors(self._store, committing=True):
            self._sink = self._sink or self._create()
            replacement = Replacement(self._sink, anew=self._cleared)
            try:
                self._write(replacement)
            except CommitFailedException:
                replacement.remove_written()
                raise

    def _write(self, replacement: Replacement) -> None:
        replaced = dict(self._dropped)
        for layout, start, rows in self._changed_partitions():
            partition = (layout.table, start)
            replaced[partition] = self._files_of(partition)
            if len(rows):
                replacement.write(layout, start, rows)
        files = [file for some in replaced.values() for file in some]
        replacement.commit(self._ledger, files)
