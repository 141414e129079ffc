"""The fields of items: of dataclasses, named tuples and dicts; and items as JSON."""

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from batchqueue.base.words import a_type, counted

Columns = tuple[str, ...]
Row = tuple[Columns, Sequence[Any]]
"""The names of the fields of an item, and its values."""

RowFunction = Callable[[Any], Any]


@lru_cache(maxsize=1_000)
def _reader(kind: type) -> tuple[Columns, Callable[[Any], Sequence[Any]]] | None:
    """Return the fields of a class and a function that reads them; None if it declares none."""
    if is_dataclass(kind):
        names = tuple(field.name for field in fields(kind))
    elif issubclass(kind, tuple) and (found := getattr(kind, "_fields", None)) is not None:
        return tuple(found), tuple
    else:
        return None
    return (names, attributes(names)) if names else None


def rows_of(items: Sequence[Any]) -> tuple[Columns, list[Sequence[Any]]] | None:
    """Return the names and the values of items of one class; None if it declares no fields."""
    kinds = set(map(type, items))
    reader = _reader(kinds.pop()) if len(kinds) == 1 else None
    return None if reader is None else (reader[0], list(map(reader[1], items)))


def attributes(names: Columns) -> Callable[[Any], Sequence[Any]]:
    """Return a function that reads attributes as a tuple."""
    if len(names) == 1:
        (only,) = names
        return lambda item: (getattr(item, only),)
    return operator.attrgetter(*names)


def row_of(item: Any) -> Row:
    """Return the names and values of an item.

    Raises:
        TypeError: It has no names.
    """
    reader = _reader(type(item))  # type: ignore[arg-type]
    if reader is not None:
        names, read = reader
        return names, read(item)
    if isinstance(item, Mapping):
        return tuple(item), tuple(item.values())
    raise TypeError(
        f"{a_type(item)} has no names for its columns; give a dataclass, a named tuple or a dict, "
        "or columns=[...]"
    )


def values_of(item: Any, columns: Columns) -> Sequence[Any]:
    """Return the values of given columns.

    Raises:
        KeyError: A dict lacks one.
        AttributeError: An object lacks one.
        ValueError: A tuple or list has another number of values.
    """
    if isinstance(item, Mapping):
        return [item[column] for column in columns]
    if isinstance(item, (tuple, list)) and not hasattr(item, "_fields"):
        if len(item) != len(columns):
            raise ValueError(f"{counted(len(item), 'value')} for {counted(len(columns), 'column')}")
        return item
    return attributes(columns)(item)


def as_dict(item: Any) -> Any:
    """Return a dataclass or a named tuple as a dict, and anything else as it is."""
    reader = _reader(type(item))  # type: ignore[arg-type]
    return item if reader is None else dict(zip(reader[0], reader[1](item), strict=True))


def as_columns(given: Iterable[str]) -> Columns:
    """Return the names that a user gave; a str alone is one name."""
    return (given,) if isinstance(given, str) else tuple(given)


# JSON.


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return as_dict(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"an object of class {type(value).__qualname__} is not JSON; give row=function")


as_json = json.JSONEncoder(
    default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")
).encode
"""Encodes a value on one line, without NaN."""
