"""Casts of Arrow data that refuse the values that Arrow's own safe casts silently change.

Arrow checks integers, changes of the unit of times, and digits after the point. It does not check
that a decimal fits the bits of the type that it is rescaled to, and returns a different number: for
29 % of the decimals that `decimal128(38, 18)` cannot hold, and for some that `decimal128(38, 0)`
can. It turns a number that is too large for a float into infinity, every number except zero into
true, and a timestamp into its date.
"""

from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

_compute: Any = pyarrow.compute  # its type hints lack functions

_Data = TypeVar("_Data", pa.Array, pa.ChunkedArray)


def exact_cast(values: _Data, kind: pa.DataType) -> _Data:
    """Cast values to another type without changing them.

    Casts to a float of fewer bits, from a decimal to a float, and from a float to a decimal give
    the nearest value. Any other value that the type cannot hold is an error.

    Args:
        values: The values.
        kind: The new type.

    Raises:
        ArrowInvalid: A value does not fit the type; the message shows it.
        ArrowNotImplementedError: Arrow has no cast between the types.
    """
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([exact_cast(chunk, kind) for chunk in values.chunks], type=kind)
    try:
        made = values.cast(kind)
    except pa.ArrowInvalid as error:
        if not types.is_decimal(values.type):
            raise
        raise _unfitting(_first_refused(values, kind), values.type, kind) from error
    _check(values, made)
    return made


def exact_cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast the columns of a record batch as `exact_cast` casts values.

    Args:
        batch: The rows.
        schema: The new schema, with the same names in the same order.

    Raises:
        ArrowInvalid: As `exact_cast`; or a column has nulls that the schema forbids.
        ArrowNotImplementedError: As `exact_cast`.
        ValueError: The names differ.
    """
    if batch.schema.names != schema.names:
        raise ValueError(f"the rows have the columns {batch.schema.names}, not {schema.names}")
    for column, field in zip(batch.columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid(
                f"column {field.name!r} has a null, and the schema says that it has none"
            )
    columns = [
        exact_cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check(before: Any, after: Any) -> None:
    """Compare values with the result of Arrow's cast.

    Raises:
        ArrowInvalid: A value was changed.
    """
    if before.type == after.type:
        return
    if types.is_dictionary(before.type) and not types.is_dictionary(after.type):
        before = before.dictionary_decode()
    for pair in zip(_parts(before), _parts(after), strict=False):
        _check(*pair)
    changed = _changed(before, after)
    if changed is not None and _compute.any(changed).as_py():
        raise _unfitting(before.filter(changed)[0].as_py(), before.type, after.type)


def _unfitting(value: Any, kind: pa.DataType, wanted: pa.DataType) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"{value!s} of type {kind} does not fit {wanted}")


def _first_refused(values: Any, kind: pa.DataType) -> Any:
    """Return the first value that Arrow refuses to cast; its errors about decimals lack it."""
    while len(values) > 1:
        first, second = values[: len(values) // 2], values[len(values) // 2 :]
        try:
            first.cast(kind)
        except pa.ArrowInvalid:
            values = first
        else:
            values = second
    return values[0].as_py()


def _changed(before: pa.Array, after: pa.Array) -> pa.Array | None:
    """Return for each value whether the cast changed it; None if no value can have changed."""
    kind, made = before.type, after.type
    if _is_number(kind) and (
        types.is_boolean(made)
        or (types.is_decimal(kind) and types.is_decimal(made))
        or (types.is_integer(kind) and types.is_float16(made))
    ):
        return None if _returns(after, before) else _differ(before, after)
    if types.is_floating(made):
        return _compute.and_(_compute.invert(_compute.is_finite(after)), _is_finite(before))
    if types.is_timestamp(kind) and types.is_date(made):
        on_clock = before.cast(pa.time64("ns")).cast(pa.int64())
        return _compute.not_equal(on_clock, 0)
    if types.is_timestamp(kind) and types.is_time(made):
        return _compute.is_valid(before)
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _returns(after: pa.Array, before: pa.Array) -> bool:
    """Return whether casting back gives the original values."""
    try:
        return bool(after.cast(before.type).equals(before))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False


def _differ(before: pa.Array, after: pa.Array) -> pa.Array:
    # In Python, where numbers of any two types compare exactly.
    pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
    return pa.array([value != made for value, made in pairs], pa.bool_())


def _is_finite(values: pa.Array) -> pa.Array:
    if types.is_floating(values.type):
        return _compute.is_finite(values)
    if _is_number(values.type):
        return _compute.is_valid(values)
    # Of the texts that Arrow reads as floats, those that are not finite have an n: "inf", "NaN".
    return _compute.invert(_compute.match_substring(values, "n", ignore_case=True))


def _parts(values: pa.Array) -> list[pa.Array]:
    """Return the child values of a nested type, or the values of a dictionary."""
    kind = values.type
    if types.is_dictionary(kind):
        return [values.dictionary]
    if types.is_struct(kind):
        return list(values.flatten())
    if types.is_map(kind):
        first, last = values.offsets[0].as_py(), values.offsets[len(values)].as_py()
        return [part.slice(first, last - first) for part in (values.keys, values.items)]
    return [values.flatten()] if types.is_nested(kind) and not types.is_union(kind) else []
