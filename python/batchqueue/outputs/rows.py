"""Stored rows as Arrow: the schema of a table of metrics, and rows in it."""

from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from batchqueue.base.exact_cast import exact_cast
from batchqueue.outputs.layout import DECIMAL_DIGITS, DECIMAL_PLACES, FITTING, Layout, plain_in
from batchqueue.outputs.store import StoreError

ARROW_TYPES = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    Decimal: pa.decimal128(DECIMAL_DIGITS, DECIMAL_PLACES),
    date: pa.date32(),
}
KEY_TYPES = {
    "metric": pa.string(),
    "entity": pa.string(),
    "time_bucket": pa.int64(),
    "rank": pa.int64(),
}


_CAST_TO_INT = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)


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
    arrays = [typed_array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def typed_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array of a type.

    Raises:
        ArrowException: A value is not one of the type.
    """
    if pa.types.is_decimal(kind):
        return pa.array([value if value is None else _decimal(value) for value in values], kind)
    if kind != pa.int64():
        return pa.array(values, kind)
    # Asked for int64 directly, Arrow would cut the fraction off a float; the cast rejects it. But
    # the cast would parse text, and turn a datetime into microseconds.
    array = pa.array(values)
    if not any(is_kind(array.type) for is_kind in _CAST_TO_INT):
        odd = next(value for value in values if value is not None)
        raise pa.ArrowTypeError(f"{odd!r} is not a number")
    return exact_cast(array, kind)


def _decimal(value: Any) -> Decimal:
    try:
        return FITTING[Decimal](value)  # type: ignore[no-any-return]
    except (TypeError, OverflowError) as error:
        raise pa.ArrowInvalid(str(error)) from error


def values_of(column: pa.ChunkedArray | pa.Array) -> Sequence[Any]:
    """Return the values of a stored column, decimals in their plain form."""
    values = column.to_pylist()
    return plain_in(values) if pa.types.is_decimal(column.type) else values


def batch_of(metric: str, rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a metric as a record batch.

    Raises:
        StoreError: A value does not fit its column.
    """
    try:
        (batch,) = table_of(rows, schema).to_batches()
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        declared = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise StoreError(
            f"metric {metric} has a value that does not fit the columns ({declared}): {error}; "
            'give metric_type the types of its values, for instance columns={"total": int}, or '
            "use read(), which returns them as they are"
        ) from error
    return batch
