"""`Metrics`: the partial aggregate of one entity in one time bucket."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Self

from batchqueue._words import a_type
from batchqueue.aggregation.entities import (
    Entity,
    KeyValue,
    check_key_columns,
    entity_text,
    key_values,
)
from batchqueue.exceptions import ConfigError

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
    `combine` must be associative and commutative: the order in which partials meet is undefined.

    Subclass it for a new kind of aggregate: set `table` and `columns`, define `combine`, `to_rows`
    and `from_rows`.

    Attributes:
        name: The metric's name, e.g. "departures.carrier.UA"; the name of the class by default.
        table: The storage table, shared by all metrics of a kind.
        columns: The value columns with their types: int, float, str, bool or Decimal; each may hold
            None.
        key_columns: The columns of an entity with their types: str, int, bool or date. Stores have
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
            ConfigError: There are more or fewer values than key columns, one is of another type, or
                the text does not stand for such values.

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
            ValueError: The partial was made of a text that does not stand for such values.
        """
        return key_values(self.key_columns, self.key[0])

    @property
    def time_bucket(self) -> int:
        """Start of the bucket, in whole seconds since the epoch, UTC."""
        return self.key[1]

    def combine(self, other: Self) -> None:
        """Take the observations of `other`, a partial of the same class and key, into this one."""
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
