"""Makes record batches of dicts, and refuses values that a column could only hold changed."""

import datetime
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from batchqueue._words import counted
from batchqueue.pipeline.errors import SourceDataError


def batch_of_dicts(
    source: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None
) -> pa.RecordBatch:
    """Return rows as a record batch; what a row does not have is null.

    Arrow alone would convert 1.5 to the integer 1, and a time to its date.

    Args:
        source: The name of the source.
        rows: The rows, at least one.
        schema: The columns; `None` for those of these rows, in the order in which they appear.

    Raises:
        SourceDataError: A value does not fit its column, or there is no column.
    """
    if schema is not None:
        columns = [(field.name, field.type) for field in schema]
    else:
        columns = [(name, None) for name in dict.fromkeys(chain.from_iterable(rows))]
    if not columns:
        raise SourceDataError(
            f"source {source!r} gave {counted(len(rows), 'row')} without a column; give schema=, "
            "or leave such rows out"
        )
    arrays = [
        _column(source, name, [row.get(name) for row in rows], kind) for name, kind in columns
    ]
    if schema is not None:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])


def _column(source: str, name: str, values: list[Any], kind: pa.DataType | None) -> pa.Array:
    if not isinstance(name, str):
        raise SourceDataError(
            f"source {source!r} gave a column named {name!r}; give texts as names"
        )
    try:
        return _array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SourceDataError(
            f"source {source!r}: column {name!r}{_first_refused(values, kind)} ({error}); give "
            "schema= with a type for all values, or convert them first"
        ) from error


def _first_refused(values: list[Any], kind: pa.DataType | None) -> str:
    """Return which value does not fit, or that they do not go together, for an error."""
    for value in values:
        try:
            _array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            text = repr(value)
            text = text if len(text) <= 80 else f"{text[:77]}..."
            return f" cannot have {text}" + ("" if kind is None else f" as {kind}")
    return f" cannot have these {len(values)} values"


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # Arrow knows some values with their type only, such as those of a map.
        if kind is None:
            raise
        array = pa.array(values, kind)
    if kind is not None and array.type != kind:
        found, array = array, pa.array(values, kind)
        if not _is_kept(found, array):
            raise ValueError("the value would change")
    _check_times(values, array.type)
    return array


def _is_kept(found: pa.Array, kept: pa.Array) -> bool:
    """Return whether a column of a given type has the values that were found.

    Floating-point numbers may be rounded to those of another width.
    """
    types = pa.types
    both = (found.type, kept.type)
    if found.type == kept.type or types.is_null(found.type) or all(map(types.is_floating, both)):
        return True
    if all(map(types.is_struct, both)):
        places = [kept.type.get_field_index(field.name) for field in found.type]
        return all(
            place >= 0 and _is_kept(found.field(number), kept.field(place))
            for number, place in enumerate(places)
        )
    if all(map(_is_list, both)):
        return _is_kept(found.flatten(), kept.flatten())
    if any(map(types.is_nested, both)):
        return True
    try:
        back = kept.cast(found.type)
    except pa.ArrowException:
        return bool(kept.to_pylist() == found.to_pylist())
    return bool(back.equals(found))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    is_any = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_any)


def _check_times(values: list[Any], kind: pa.DataType) -> None:
    """Refuse what Arrow converts without an error: zones that are mixed, and times in dates."""
    if pa.types.is_timestamp(kind):
        zone = kind.tz is not None
        times = (value for value in values if isinstance(value, datetime.datetime))
        if any((time.tzinfo is not None) != zone for time in times):
            raise ValueError("times with a zone and times without one do not go into one column")
    elif pa.types.is_date(kind):
        times = (value for value in values if isinstance(value, datetime.datetime))
        if any(time.timetz() != datetime.time.min for time in times):
            raise ValueError("the value would change")
