"""`Metrics`: the partial aggregate of one entity in one time bucket."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, ClassVar, Self

from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import ConfigError

# Entities of several key columns: conversion of their values to a text and back.
#
# The text has the values in the order of the columns, with `|` between them: "UA|JFK|2024-03-10".
# `|` and the backslash are escaped with a backslash, a bool is "true" or "false", and a date is in
# ISO 8601. So each text stands for exactly one tuple of values, given the types of the columns.


KeyValue = str | int | bool | date
"""A value of a key column."""

Entity = str | tuple[KeyValue, ...]
"""An entity as callers give it: its text, or the value of each key column."""

SEPARATOR, ESCAPE = "|", "\\"

_PART = re.compile(r"(?:\\.|[^|\\])*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str.__str__(value)  # str() of a text that is an Enum would be its name


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
    if type(value) is not date:  # a datetime is a date only by inheritance
        raise TypeError
    return value


CHECKED: dict[type, Callable[[object], KeyValue]] = {
    str: _str,
    int: _int,
    bool: _bool,
    date: _date,
}
"""By key column type, the function that returns a value for it, or raises TypeError or
OverflowError.
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
        metric: The name of the metric.
        keys: The key columns with their types.
        columns: The value columns of the metric.

    Raises:
        ConfigError: There are no key columns, a key cannot have the type of one, or two columns
            share a name.
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
    """Return a value converted to the type of its key column.

    Raises:
        ValueError: It is None, has another type, or has more than 64 bits.
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
        ValueError: There are more or fewer values than columns, or a value has another type.
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


Row = tuple[Any, ...]
"""The value columns of one stored row, in the order of `Metrics.columns`."""


VALUE_TYPES = (int, float, str, bool, Decimal)
"""What a value column may hold."""


class MetricClass(type):
    """The metaclass of metric types, through which pickle rebuilds those of `metric_type`."""

    made_by: tuple[Any, ...] | None = None
    """The arguments of `metric_type` for a class that it made; `None` for a class statement."""


class Metrics(metaclass=MetricClass):
    """A partial aggregate: what is known so far about one entity in one time bucket.

    A single observation is a `Metrics` too, so that producers, L1, L2 and the store share a type.
    `combine` must be associative and commutative: the order in which partials are combined is
    undefined.

    Subclass it for a new kind of aggregate: set `table` and `columns`, define `combine`, `to_rows`
    and `from_rows`.

    Attributes:
        name: The metric's name, e.g. "departures.carrier.UA"; the name of the class by default.
        table: The storage table, shared by all metrics of a kind.
        columns: The value columns with their types: int, float, str, bool or Decimal; each may hold
            None.
        key_columns: The columns of an entity with their types: str, int, bool or date. Stores keep
            them beside the entity. Empty by default: an entity is one text.
        multi_row: Whether a partial may take several stored rows, in order, or no row; False by
            default.
        key: (entity, time_bucket): partials of a class with the same key belong together.
    """

    __slots__ = ("key",)

    name: ClassVar[str] = "Metrics"
    table: ClassVar[str]
    columns: ClassVar[Mapping[str, type]]
    multi_row: ClassVar[bool] = False
    key_columns: ClassVar[Mapping[str, type]] = {}

    key: tuple[str, int]

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        if "key_columns" in cls.__dict__:
            check_key_columns(cls.name, cls.key_columns, getattr(cls, "columns", {}))
            if "table" not in cls.__dict__:
                raise ConfigError(
                    f"kind {cls.__name__} has key columns and the table of another kind: give it "
                    "its own `table`"
                )

    def __init__(self, entity: Entity, time_bucket: int) -> None:
        """Start a partial.

        Args:
            entity: What is measured, e.g. a carrier. If the metric has key columns, a tuple with a
                value for each, or the text that `entity_of` returns.
            time_bucket: Start of the bucket, in whole seconds since the epoch, UTC.
        """
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)

    @classmethod
    def entity_of(cls, entity: Entity) -> str:
        """Return the text of an entity.

        Args:
            entity: A value for each key column, in their order; or the text, in which `|` and the
                backslash are escaped.

        Raises:
            ConfigError: There are more or fewer values than key columns, a value has another type,
                or the text does not stand for such values.

        Example:
            >>> from batchqueue.aggregation import CountMetrics, metric_type
            >>> routes = metric_type("routes", CountMetrics, keys={"origin": str, "stops": int})
            >>> routes.entity_of(("JFK", 2))
            'JFK|2'
        """
        if not cls.key_columns and not isinstance(entity, tuple):
            return entity  # other types are refused when they are stored
        try:
            if isinstance(entity, str):
                key_values(cls.key_columns, entity)
                return entity
            if not isinstance(entity, tuple):
                raise ValueError(f"the entity is {entity!r}, {a_type(entity)}, and not a tuple")
            return entity_text(cls.key_columns, entity)
        except ValueError as error:
            raise ConfigError(
                f"metric {cls.name}: {error}; give a tuple with a value for each key column, "
                "declared by metric_type(name, kind, keys={column: type})"
            ) from error

    @property
    def entity(self) -> str:
        """What is measured; the text of its `key_values` if the metric has key columns."""
        return self.key[0]

    @property
    def key_values(self) -> tuple[KeyValue, ...]:
        """The value of each key column; empty if the metric has none.

        Raises:
            ValueError: The partial was made from a text that does not stand for such values.
        """
        return key_values(self.key_columns, self.key[0])

    @property
    def time_bucket(self) -> int:
        """Start of the bucket, in whole seconds since the epoch, UTC."""
        return self.key[1]

    def combine(self, other: Self) -> None:
        """Add the observations of `other`, a partial of the same class and key, to this one."""
        raise NotImplementedError(f"{type(self).__name__} must define combine(other)")

    def to_rows(self) -> list[Row]:
        """Return the value columns, in order: a single row, or several where `multi_row` is set."""
        raise NotImplementedError(f"{type(self).__name__} must define to_rows()")

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild the partial that `to_rows` wrote."""
        raise NotImplementedError(
            f"{cls.__name__} must define from_rows(entity, time_bucket, rows)"
        )

    def copy(self) -> Self:
        """Return an equal partial that shares nothing mutable with this one."""
        return self.from_rows(*self.key, self.to_rows())

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.key == other.key and self.to_rows() == other.to_rows()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.to_rows()]
        return f"<{self.name} {self.entity} @{self.time_bucket} {rows}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_rows, (*self.key, self.to_rows())


class MergeBuffer:
    """A buffer that combines partials. Not thread-safe; queues never enter a handler concurrently.

    It copies or combines the objects that it accepts and keeps none of them: the caller may reuse
    an object, or produce it twice. Memory grows with the number of distinct keys.
    """

    def __init__(self) -> None:
        self._partials: dict[type[Metrics], dict[tuple[str, int], Metrics]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._partials.values()))

    def accept_all(self, batch: Iterable[Metrics]) -> None:
        """Combine every item of `batch` into the partial of its type and key."""
        metric_type: type[Metrics] | None = None
        partials: dict[tuple[str, int], Metrics] = {}
        find = partials.get
        for item in batch:
            if type(item) is not metric_type:
                metric_type = type(item)
                partials = self._partials.setdefault(metric_type, {})
                find = partials.get
            partial = find(item.key)
            if partial is None:
                partials[item.key] = item.copy()
            else:
                partial.combine(item)

    def keys(self) -> dict[type[Metrics], list[tuple[str, int]]]:
        """Return the keys of the partials, by type."""
        return {metric_type: list(partials) for metric_type, partials in self._partials.items()}

    def drain(self) -> list[Metrics]:
        """Remove all partials and return them, grouped by type."""
        drained = [partial for partials in self._partials.values() for partial in partials.values()]
        self._partials.clear()
        return drained
