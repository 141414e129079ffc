"""Finds values that Arrow changes without an error when it makes an array of them.

It makes the integer 1 of 1.5 and a date of a time, cuts a time to the unit of its column, moves a
time between zones where only one side has a zone, and drops what a struct has no field for.
"""

import datetime
import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute

_compute: Any = pyarrow.compute

_CHANGED = "the value would change"

_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}
"""Microseconds of a unit of time; 0 for one that is finer."""


def check_kept(values: list[Any], array: pa.Array) -> None:
    """Check that an array has the values that it was made of; floats may be rounded.

    Args:
        values: The values, at any depth.
        array: What `pyarrow.array` made of them.

    Raises:
        ValueError: One has changed.
    """
    if _has_changed(values, array):
        raise ValueError(_CHANGED)


def _has_changed(values: list[Any], array: pa.Array) -> bool:
    kind, types = array.type, pa.types
    if _is_right(array):
        return False
    if types.is_dictionary(kind):
        return _has_changed(values, array.dictionary_decode())
    if types.is_nested(kind):
        return _have_parts_changed(values, array)
    if types.is_temporal(kind):
        return _have_times_changed(values, kind)
    return _have_numbers_changed(values, array)


def _have_parts_changed(values: list[Any], array: pa.Array) -> bool:
    present = (value for value in values if value is not None)
    if pa.types.is_struct(array.type):
        return _have_fields_changed(values, array)
    if pa.types.is_map(array.type):
        pairs = list(chain.from_iterable(map(_pairs, present)))
        return _has_changed([key for key, _ in pairs], array.keys) or _has_changed(
            [item for _, item in pairs], array.items
        )
    items = array.flatten()
    return not _is_right(items) and _has_changed(list(chain.from_iterable(present)), items)


def _have_numbers_changed(values: list[Any], array: pa.Array) -> bool:
    if pa.types.is_integer(array.type):
        if set(map(type, values)) <= {int, type(None)}:
            return False
        return any(
            kept is not None and kept != value
            for value, kept in zip(values, array.to_pylist(), strict=True)
        )
    return any(
        kept is not None and math.isinf(kept) and not math.isinf(value)
        for value, kept in zip(values, array.to_pylist(), strict=True)
    )


def _is_right(array: pa.Array) -> bool:
    """Return whether an array has what it was made of, whatever that is."""
    if pa.types.is_floating(array.type):
        return not _compute.any(_compute.is_inf(array.cast(pa.float64()))).as_py()
    return _is_exact(array.type)


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether Arrow refuses all that a type does not hold."""
    types = pa.types
    if types.is_dictionary(kind) or _is_list(kind):
        return _is_exact(kind.value_type)
    if types.is_map(kind):
        return _is_exact(kind.key_type) and _is_exact(kind.item_type)
    is_inexact = (types.is_struct, types.is_integer, types.is_temporal, types.is_floating)
    return not any(is_kind(kind) for is_kind in is_inexact)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_kind(kind)
        for is_kind in (
            types.is_list,
            types.is_large_list,
            types.is_fixed_size_list,
            types.is_list_view,
            types.is_large_list_view,
        )
    )


def _pairs(value: Any) -> Iterable[Any]:
    return value.items() if isinstance(value, Mapping) else value


def _have_fields_changed(values: list[Any], array: pa.Array) -> bool:
    names = [field.name for field in array.type]
    rows = [_fields_of(value, names) for value in values]
    known = set(names)
    for row in rows:
        if not known.issuperset(row):
            lost = next((name for name in row if name not in known and row[name] is not None), None)
            if lost is not None:
                raise ValueError(f"there is no field {lost!r} in {array.type}")
    # Not `field`, which has the children of structs that are null.
    return any(
        _has_changed([row.get(name) for row in rows], child)
        for name, child in zip(names, array.flatten(), strict=True)
    )


def _fields_of(value: Any, names: list[str]) -> Mapping[str, Any]:
    """Return a struct as a mapping; Arrow also takes its values in order, or pairs."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    items = list(value)
    if all(isinstance(item, tuple) and len(item) == 2 and item[0] in names for item in items):
        return dict(items)
    return dict(zip(names, items, strict=False))


def _have_times_changed(values: list[Any], kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_date(kind):
        return any(isinstance(value, datetime.datetime) and _has_time(value) for value in values)
    unit = _PER_UNIT[kind.unit]
    if types.is_timestamp(kind):
        has_zone = kind.tz is not None
        for value in values:
            if not isinstance(value, datetime.datetime):
                if isinstance(value, float) and not value.is_integer():
                    return True
            elif not _is_nat(value):
                if (value.tzinfo is not None) != has_zone:
                    raise ValueError("times with a zone and times without one do not go together")
                if _is_cut(value.microsecond, getattr(value, "nanosecond", 0), unit):
                    return True
        return False
    if types.is_duration(kind):
        spans = (
            value
            for value in values
            if isinstance(value, datetime.timedelta) and not _is_nat(value)
        )
        return any(
            _is_cut(value.microseconds, getattr(value, "nanoseconds", 0), unit) for value in spans
        )
    times = (value for value in values if isinstance(value, datetime.time))
    return any(value.tzinfo is not None or _is_cut(value.microsecond, 0, unit) for value in times)


def _has_time(value: datetime.datetime) -> bool:
    if _is_nat(value):
        raise ValueError("NaT is not a date; give None")
    if value.tzinfo is not None:
        raise ValueError("a time with a zone has another date elsewhere; give its date()")
    return value.time() != datetime.time.min or getattr(value, "nanosecond", 0) != 0


def _is_nat(value: object) -> bool:
    """Return whether it is the `NaT` of pandas, which Arrow takes for a null except in dates."""
    return type(value).__name__ == "NaTType"


def _is_cut(microseconds: int, nanoseconds: int, unit: int) -> bool:
    """Return whether a unit, in microseconds, does not hold all of a time."""
    return unit > 0 and (nanoseconds != 0 or microseconds % unit != 0)
