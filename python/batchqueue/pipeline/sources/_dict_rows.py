"""Makes record batches of dicts, and refuses values that a column could only hold changed."""

import reprlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from batchqueue._words import counted
from batchqueue.pipeline.errors import SourceDataError
from batchqueue.pipeline.sources._kept_values import check_kept

_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value; its own errors are among the first."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def batch_of_dicts(
    source: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None
) -> pa.RecordBatch:
    """Return rows as a record batch; what a row does not have is null.

    Args:
        source: The name of the source.
        rows: The rows, at least one.
        schema: The columns; `None` for those of these rows, in the order in which they appear.

    Raises:
        SourceDataError: A value does not fit its column, or there is no column.
    """
    if schema is None:
        names = list(dict.fromkeys(chain.from_iterable(rows)))
        odd = next((name for name in names if not isinstance(name, str)), None)
        if odd is not None:
            raise SourceDataError(
                f"source {source!r} gave a column named {odd!r}; give texts as names"
            )
        fields = [pa.field(name, pa.null()) for name in names]
    else:
        fields = list(schema)
    if not fields:
        raise SourceDataError(
            f"source {source!r} gave {counted(len(rows), 'row')} without a column; give schema=, "
            "or leave such rows out"
        )
    arrays = []
    for field in fields:
        name = field.name
        values = [row.get(name) for row in rows]
        arrays.append(_column(source, field, values, is_typed=schema is not None))
    if schema is not None:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])


def _column(source: str, field: pa.Field, values: list[Any], *, is_typed: bool) -> pa.Array:
    kind = field.type if is_typed else None
    try:
        array = _array(values, kind)
    except _REFUSALS as error:
        refused = _refused(values, kind)
        what = f"{len(values)} values together" if len(refused) > 1 else _short.repr(refused[0])
        given = "" if kind is None else f" as {kind}"
        raise SourceDataError(
            f"source {source!r}: column {field.name!r} cannot have {what}{given} ({error}); give "
            "schema= with a type for all values, or convert them first"
        ) from error
    if array.null_count and not field.nullable:
        raise SourceDataError(
            f"source {source!r}: column {field.name!r} has a null, and schema= says that it has "
            "none; make the field nullable, or leave such rows out"
        )
    return array


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    array = pa.array(values, kind)
    check_kept(values, array)
    return array


def _refused(values: list[Any], kind: pa.DataType | None) -> list[Any]:
    """Return the first value that is refused without others; all if there is none."""
    rest = values
    while len(rest) > 1:
        half = len(rest) // 2
        for part in (rest[:half], rest[half:]):
            try:
                _array(part, kind)
            except _REFUSALS:
                rest = part
                break
        else:
            return values
    return rest
