"""The commit of one snapshot, which replaces partitions of a sink's table."""

import itertools
import uuid
from collections.abc import Collection
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import FileScanTask, Table, Transaction, WriteTask
from pyiceberg.table.metadata import TableMetadata

from batchqueue.outputs.iceberg.ledger import LEDGER, Ledger
from batchqueue.outputs.iceberg.table import (
    ALL,
    ICEBERG_TYPES,
    LAYOUTS,
    START,
    TABLE,
    SinkTable,
    StoredLayout,
    layouts_text,
)
from batchqueue.outputs.layout import Layout
from batchqueue.outputs.rows import KEY_TYPES
from batchqueue.outputs.values import shown

_COMMIT = "batchqueue.commit"
"""The property of a snapshot by which its writer knows it again."""


class Replacement:
    """The commit of one snapshot, which replaces partitions of a table."""

    def __init__(self, sink: SinkTable, *, anew: bool) -> None:
        """Begin with the table as it was loaded; if it is another one by then, nothing is done.

        Args:
            sink: The table.
            anew: Whether all of its rows are replaced, so that its layouts may become others.
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
            ledger: What it says of epochs.
            replaced: Data files that it no longer has.

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
    """Return whether a column can be stored under a name: that of a new one, or of an equal one."""
    return name.lower() not in taken and there.get(name.lower(), (name, wanted)) == (name, wanted)


def _leave_out_empty_manifests(snapshot: Any) -> None:
    """Leave manifests without a live file out of a snapshot that is being made.

    Each commit that replaces files writes a manifest with their names. Java's writers leave it out
    of the next snapshot; pyiceberg 0.12 keeps all of them, so that each commit reads one more.
    """
    existing = snapshot._existing_manifests
    snapshot._existing_manifests = lambda: [
        manifest
        for manifest in existing()
        if manifest.has_added_files() or manifest.has_existing_files()
    ]


class _Exclusive(Table):
    """A table whose commit is not repeated on top of another writer's.

    pyiceberg would repeat it wherever the two touch different data files; but the ledger of the
    other one counts. Its answer to a commit may be lost, though, so that it has to ask.
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
    """A transaction that makes its state of the table once for each change, and not at each look.

    Such a state is a deep copy of all snapshots that are kept.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._made: tuple[Any, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._made is None or self._made[0] is not self._updates:
            self._made = self._updates, super().table_metadata
        return self._made[1]
