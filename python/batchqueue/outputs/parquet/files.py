"""Data files of the Parquet store."""

import functools
import operator
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchqueue.outputs.layout import Layout
from batchqueue.outputs.parquet.manifest import write_durably
from batchqueue.outputs.reading import Selection, StoredMetric, stored_type
from batchqueue.outputs.rows import (
    ARROW_TYPES,
    KEY_TYPES,
    schema_of,
    schema_of_metric,
)
from batchqueue.outputs.store import StoreError


def layout_of(table: str, path: Path) -> Layout:
    """Return the layout of a table by one of its data files.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        schema = pq.read_schema(file)
    kinds = {arrow_type: kind for kind, arrow_type in ARROW_TYPES.items()}
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
    """Return the metrics in the data files of a table, in no order.

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
        StoreError: It has other columns than the layout.
    """
    with path.open("rb") as file:
        parquet = pq.ParquetFile(file)
        _check_columns(path, parquet, layout)
        return parquet.read()


def read_selected(path: Path, layout: Layout, selection: Selection) -> pa.Table:
    """Read the rows of a selection in a data file, in their order, without the metric's name.

    Raises:
        OSError: It cannot be read.
        StoreError: It has other columns than the layout.
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
    """Return what rows must meet; None if those of the file meet it by its metadata."""
    conditions = []
    if not _has_only(metadata, selection.metric_type.name):
        conditions.append(pc.field("metric") == selection.metric_type.name)
    if selection.entities is not None:
        conditions.append(pc.field("entity").isin(pa.array(selection.entities, pa.string())))
    for column, wanted in selection.keys:
        kind = ARROW_TYPES[selection.metric_type.key_columns[column]]
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
    """Write a data file; return when its content is on the disk."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    write_durably(path, memoryview(sink.getvalue()))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
