"""Stored rows as Arrow: the schema of a table of metrics, and rows in it."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from batchqueue.outputs.layout import Layout
from batchqueue.outputs.store import StoreError

ARROW_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}
KEY_TYPES = {
    "metric": pa.string(),
    "entity": pa.string(),
    "time_bucket": pa.int64(),
    "rank": pa.int64(),
}


def schema_of(layout: Layout) -> pa.Schema:
    """Return the schema of a table of metrics."""
    keys = [(name, KEY_TYPES[name]) for name in layout.key_columns]
    return pa.schema(keys + [(name, ARROW_TYPES[kind]) for name, kind in layout.columns])


def schema_of_metric(layout: Layout) -> pa.Schema:
    """Return the schema of what is read of one metric: without the column of its name."""
    return schema_of(layout).remove(0)


def table_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Return rows of all columns as an Arrow table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def batch_of(metric: str, rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a metric as a record batch.

    Raises:
        StoreError: A value does not fit its column.
    """
    try:
        (batch,) = table_of(rows, schema).to_batches()
    except (pa.ArrowException, OverflowError) as error:
        declared = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise StoreError(
            f"metric {metric} has a value that does not fit the columns ({declared}): {error}; "
            'give metric_type the types of its values, for instance columns={"total": int}, or '
            "use read(), which returns them as they are"
        ) from error
    return batch
