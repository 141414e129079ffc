"""Data files of the Parquet store, and column-wise operations on their rows."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchqueue.aggregation import Metrics
from batchqueue.outputs.layout import Layout, PartialKey
from batchqueue.outputs.parquet.manifest import write_durably
from batchqueue.outputs.store import StoreError

M = TypeVar("M", bound=Metrics)

_ARROW_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}
_KEY_TYPES = {
    "metric": pa.string(),
    "entity": pa.string(),
    "time_bucket": pa.int64(),
    "rank": pa.int64(),
}
_KEY_SCHEMA = pa.schema([(name, _KEY_TYPES[name]) for name in ("metric", "entity", "time_bucket")])


def schema_of(layout: Layout) -> pa.Schema:
    """Return the schema of the data files of a table."""
    keys = [(name, _KEY_TYPES[name]) for name in layout.key_columns]
    return pa.schema(keys + [(name, _ARROW_TYPES[kind]) for name, kind in layout.columns])


def layout_of(table: str, path: Path) -> Layout:
    """Return the layout of a table by one of its data files.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        schema = pq.read_schema(file)
    kinds = {arrow_type: kind for kind, arrow_type in _ARROW_TYPES.items()}
    columns = tuple(
        (field.name, kinds[field.type]) for field in schema if field.name not in _KEY_TYPES
    )
    return Layout(table, columns, "rank" in schema.names)


def rows_in(path: Path) -> int:
    """Return the number of rows of a data file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return int(pq.read_metadata(file).num_rows)


def keys_before(stored: pa.Table, before: int) -> list[PartialKey]:
    """Return the key of each stored row whose time bucket is below `before`."""
    old = stored.filter(pc.field("time_bucket") < before).select(_KEY_SCHEMA.names)
    return list(zip(*(column.to_pylist() for column in old.columns), strict=True))


def read_file(path: Path, layout: Layout, metric: str | None = None) -> pa.Table:
    """Read a data file, or only the rows of a metric in it.

    Raises:
        OSError: It cannot be read.
        StoreError: It has other columns than the layout.
    """
    rows = None if metric is None else pc.field("metric") == metric
    with path.open("rb") as file:
        found = pq.read_table(file, filters=rows)
    expected = schema_of(layout)
    if not found.schema.equals(expected):
        raise StoreError(
            f"{path} has the columns {_shown(found.schema)}, and not {_shown(expected)}: "
            "give the kind of metrics another table, or the store another directory"
        )
    return found


def write_file(path: Path, layout: Layout, rows: pa.Table) -> None:
    """Write a data file, sorted by its key columns; return when its content is on the disk."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows.sort_by(_order(layout)), sink, compression="zstd")
    write_durably(path, memoryview(sink.getvalue()))


def table_of(layout: Layout, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Return rows of all columns as an Arrow table."""
    return _table(rows, schema_of(layout))


def without_rows_of(stored: pa.Table, keys: Iterable[PartialKey]) -> pa.Table:
    """Return the stored rows without the rows of the given keys, in no order."""
    return _joined(stored, keys, "left anti")


def rows_of(stored: pa.Table, keys: Iterable[PartialKey]) -> pa.Table:
    """Return the stored rows of the given keys, in no order."""
    return _joined(stored, keys, "inner")


def partials_of(metric_type: type[M], layout: Layout, rows: pa.Table) -> list[M]:
    """Rebuild the partials of a metric from their rows, ordered by entity and time bucket."""
    columns = [column.to_pylist() for column in rows.sort_by(_order(layout)).columns]
    values = slice(len(layout.key_columns), None)
    return [
        metric_type.from_rows(entity, time_bucket, [row[values] for row in group])
        for (entity, time_bucket), group in groupby(
            zip(*columns, strict=True), key=lambda row: row[1:3]
        )
    ]


def _joined(stored: pa.Table, keys: Iterable[PartialKey], how: str) -> pa.Table:
    return stored.join(_table(keys, _KEY_SCHEMA), _KEY_SCHEMA.names, join_type=how).select(
        stored.schema.names
    )


def _table(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _order(layout: Layout) -> list[tuple[str, str]]:
    return [(column, "ascending") for column in layout.key_columns]


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
