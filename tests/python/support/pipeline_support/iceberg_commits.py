"""Commits to Iceberg tables that pyiceberg itself does not make: delete files, compaction."""

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

_POSITIONS = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _AddDeletes(_FastAppendFiles):
    def new_manifest_writer(self, spec: Any) -> _DeleteManifestWriter:
        output = self.new_manifest_output()
        return _DeleteManifestWriter(
            spec, self.schema(), output, self._snapshot_id, self._compression
        )


class _RewriteFiles(_OverwriteFiles):
    def _summary(self, snapshot_properties: Any = None) -> Summary:
        counts = super()._summary(snapshot_properties or {}).additional_properties
        return Summary(operation=Operation.REPLACE, **counts)


def delete_positions(table: Table, path: str, positions: list[int]) -> None:
    """Delete rows of a data file by a position delete file, as merge-on-read does."""
    rows = pa.table(
        {"file_path": [path] * len(positions), "pos": pa.array(positions, pa.int64())},
        schema=_POSITIONS.as_arrow().set(0, pa.field("file_path", pa.string(), False)),
    )
    _add_deletes(table, rows, DataFileContent.POSITION_DELETES, None)


def delete_equal(table: Table, ids: list[int]) -> None:
    """Delete rows by the values of the first column, as Flink does."""
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    _add_deletes(table, rows, DataFileContent.EQUALITY_DELETES, [1])


def _add_deletes(
    table: Table, rows: pa.Table, content: DataFileContent, equality_ids: list[int] | None
) -> None:
    path = f"{table.location()}/data/deletes-{uuid4()}.parquet"
    with table.io.new_output(path).create() as output:
        pq.write_table(rows, output)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=len(table.io.new_input(path)),
        equality_ids=equality_ids,
    )
    file.spec_id = 0
    with table.transaction() as transaction:
        commit = _AddDeletes(Operation.DELETE, transaction, table.io)
        commit.append_data_file(file)
        commit.commit()


def compact(table: Table) -> None:
    """Put all rows into one data file, as `rewrite_data_files` of other engines does."""
    path = f"{table.location()}/data/compacted-{uuid4()}.parquet"
    with table.io.new_output(path).create() as output:
        pq.write_table(table.scan().to_arrow().cast(table.schema().as_arrow()), output)
    with table.transaction() as transaction:
        commit = _RewriteFiles(Operation.OVERWRITE, transaction, table.io)
        for task in table.scan().plan_files():
            commit.delete_data_file(task.file)
        commit.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
        commit.commit()
