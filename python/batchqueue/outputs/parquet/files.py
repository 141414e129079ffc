"""Data files of the Parquet store, and column-wise operations on their rows."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchqueue.aggregation import Metrics
from batchqueue.outputs.layout import Layout, PartialKey
from batchqueue.outputs.parquet.manifest import write_durably
from batchqueue.outputs.reading import Selection, StoredMetric, partials_of, stored_type
from batchqueue.outputs.rows import ARROW_TYPES, KEY_TYPES, schema_of, table_of
from batchqueue.outputs.store import StoreError

M = TypeVar("M", bound=Metrics)

_KEY_SCHEMA = pa.schema([(name, KEY_TYPES[name]) for name in ("metric", "entity", "time_bucket")])


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


def keys_in(stored: pa.Table, buckets: range) -> list[PartialKey]:
    """Return the key of each stored row in a range of time buckets."""
    bucket = pc.field("time_bucket")
    inside = stored.filter((bucket >= buckets.start) & (bucket < buckets.stop))
    columns = inside.select(_KEY_SCHEMA.names).columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def read_file(path: Path, layout: Layout, selection: Selection | None = None) -> pa.Table:
    """Read a data file, or only the rows of a selection in it.

    Raises:
        OSError: It cannot be read.
        StoreError: It has other columns than the layout.
    """
    rows = None if selection is None else _condition(selection)
    with path.open("rb") as file:
        found = pq.read_table(file, filters=rows)
    expected = schema_of(layout)
    if not found.schema.equals(expected):
        raise StoreError(
            f"{path} has the columns {_shown(found.schema)}, and not {_shown(expected)}: "
            "give the kind of metrics another table, or the store another directory"
        )
    return found


def _condition(selection: Selection) -> pc.Expression:
    condition = pc.field("metric") == selection.metric_type.name
    if selection.entities is not None:
        condition &= pc.field("entity").isin(pa.array(selection.entities, pa.string()))
    if selection.since is not None:
        condition &= pc.field("time_bucket") >= selection.since
    if selection.before is not None:
        condition &= pc.field("time_bucket") < selection.before
    return condition


def write_file(path: Path, layout: Layout, rows: pa.Table) -> None:
    """Write a data file, sorted by its key columns; return when its content is on the disk."""
    sink = pa.BufferOutputStream()
    pq.write_table(in_order(layout, rows), sink, compression="zstd")
    write_durably(path, memoryview(sink.getvalue()))


def without_rows_of(stored: pa.Table, keys: Iterable[PartialKey]) -> pa.Table:
    """Return the stored rows without the rows of the given keys, in no order."""
    return _joined(stored, keys, "left anti")


def rows_of(stored: pa.Table, keys: Iterable[PartialKey]) -> pa.Table:
    """Return the stored rows of the given keys, in no order."""
    return _joined(stored, keys, "inner")


def in_order(layout: Layout, rows: pa.Table) -> pa.Table:
    """Return rows in the order of their keys."""
    return rows.sort_by([(column, "ascending") for column in layout.key_columns])


def partials_in(metric_type: type[M], layout: Layout, rows: pa.Table) -> list[M]:
    """Rebuild the partials of a metric from their rows, ordered by entity and time bucket."""
    _, *columns = in_order(layout, rows).columns
    return partials_of(metric_type, zip(*(column.to_pylist() for column in columns), strict=True))


def _joined(stored: pa.Table, keys: Iterable[PartialKey], how: str) -> pa.Table:
    return stored.join(table_of(keys, _KEY_SCHEMA), _KEY_SCHEMA.names, join_type=how).select(
        stored.schema.names
    )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
