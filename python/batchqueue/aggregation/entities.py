"""Entities of several key columns: their values as a text, and back.

The text has the values in the order of the columns, with `|` between them: "UA|JFK|2024-03-10".
`|` and the backslash are escaped by a backslash, a bool is "true" or "false", and a date is that of
ISO 8601. So each text stands for a single tuple of values, given the types of the columns.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from batchqueue._words import a_type, counted
from batchqueue.exceptions import ConfigError

KeyValue = str | int | bool | date
"""A value of a key column."""

Entity = str | tuple[KeyValue, ...]
"""An entity as it is given: its text, or the value of each key column."""

SEPARATOR, ESCAPE = "|", "\\"

_PART = re.compile(r"(?:\\.|[^|\\])*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str.__str__(value)  # of a text that is an Enum, str() would be its name


def _int(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError
    number: int = operator.index(value)  # type: ignore[arg-type]  # it raises for other types
    if not -(2**63) <= number < 2**63:
        raise OverflowError
    return number


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _date(value: object) -> date:
    if type(value) is not date:  # a datetime is a date in its class only
        raise TypeError
    return value


CHECKED: dict[type, Callable[[object], KeyValue]] = {
    str: _str,
    int: _int,
    bool: _bool,
    date: _date,
}
"""By the type of a key column, what returns a value for it, or raises TypeError or OverflowError.
"""

_BOOLS = {"true": True, "false": False}
_READ: dict[type, Callable[[str], Any]] = {
    str: str,
    int: lambda text: _int(int(text)),
    bool: _BOOLS.__getitem__,
    date: date.fromisoformat,
}


def check_key_columns(metric: str, keys: object, columns: Mapping[str, type]) -> None:
    """Check the key columns of a metric.

    Args:
        metric: Its name.
        keys: The key columns with their types.
        columns: Its value columns.

    Raises:
        ConfigError: There are none, one has another type than a key may have, or two columns have
            one name.
    """
    if not isinstance(keys, Mapping) or not keys:
        raise ConfigError(
            f"keys of metric {metric!r} is {keys!r}; give a dict from column to type, e.g. "
            '{"carrier": str, "origin": str}, or leave it out'
        )
    taken = {column.lower() for column in columns}
    for column, kind in keys.items():
        if not isinstance(column, str) or not isinstance(kind, type) or kind not in CHECKED:
            raise ConfigError(
                f"key column {column!r} of metric {metric!r} is of type {kind!r}; give a name, "
                "and str, int, bool or datetime.date"
            )
        if column.lower() in taken:
            raise ConfigError(
                f"metric {metric!r} has two columns {column!r}: give the key column another name"
            )
        taken.add(column.lower())


def checked_value(column: str, kind: type, value: object) -> KeyValue:
    """Return a value of a key column as one of its type.

    Raises:
        ValueError: It is of another type, or has more than 64 bits.
    """
    if value is None:
        raise ValueError(f"{column} is None: leave such rows out, or choose a value for it")
    try:
        return CHECKED[kind](value)
    except OverflowError:
        raise ValueError(f"{column} is {value!r}, which has more than 64 bits") from None
    except TypeError:
        plain = getattr(value, "item", None)  # a scalar of NumPy
        if plain is not None:
            return checked_value(column, kind, plain())
        hint = "; give its date()" if kind is date and isinstance(value, datetime) else ""
        raise ValueError(
            f"{column} is {value!r}, {a_type(value)}, and the key column is of {kind.__name__}"
            f"{hint}"
        ) from None


def entity_text(columns: Mapping[str, type], values: Sequence[object]) -> str:
    """Return the text of an entity.

    Args:
        columns: The key columns with their types, in order.
        values: The value of each.

    Raises:
        ValueError: There are more or fewer values than columns, or one is of another type.
    """
    if len(values) != len(columns):
        raise ValueError(
            f"{tuple(values)!r} has {counted(len(values), 'value')} for "
            f"{counted(len(columns), 'key column')} ({', '.join(columns) or 'none'})"
        )
    return SEPARATOR.join(
        _text(checked_value(column, kind, value))
        for (column, kind), value in zip(columns.items(), values, strict=True)
    )


def key_values(
    columns: Mapping[str, type], entity: str, *, is_known: bool = False
) -> tuple[KeyValue, ...]:
    """Return the values in the text of an entity; none if there are no key columns.

    Args:
        columns: The key columns with their types, in order.
        entity: The text.
        is_known: Whether `entity_text` made it, so that it need not be checked.

    Raises:
        ValueError: The text does not stand for values of these columns.
    """
    if not columns:
        return ()
    parts = _parts(entity)
    try:
        values = tuple(
            _READ[kind](part) for kind, part in zip(columns.values(), parts, strict=True)
        )
        if not is_known and SEPARATOR.join(map(_text, values)) != entity:
            raise ValueError
    except (ValueError, KeyError, OverflowError):
        declared = ", ".join(f"{name} {kind.__name__}" for name, kind in columns.items())
        raise ValueError(
            f"the entity {entity!r} does not stand for values of its key columns ({declared}): "
            "give a tuple of values"
        ) from None
    return values


def _text(value: KeyValue) -> str:
    if isinstance(value, str):
        if SEPARATOR in value or ESCAPE in value:
            escaped = value.replace(ESCAPE, ESCAPE + ESCAPE)
            return escaped.replace(SEPARATOR, ESCAPE + SEPARATOR)
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _parts(entity: str) -> list[str]:
    if ESCAPE not in entity:
        return entity.split(SEPARATOR)
    parts, at = [], 0
    while True:
        found = _PART.match(entity, at)
        assert found is not None  # it matches the empty text
        parts.append(_ESCAPED.sub(r"\1", found.group()))
        at = found.end() + 1
        if at > len(entity):
            return parts
