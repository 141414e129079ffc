"""The built-in kinds of metrics: count, sum, mean, maximum, minimum.

They treat None and NaN as Spark SQL does. Each kind overrides `copy` to copy its slots, which is
faster: merge buffers copy the first item of every key.
"""

import numbers
from collections.abc import Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, ClassVar, Self

from batchqueue._words import a_type
from batchqueue.aggregation.entities import Entity
from batchqueue.aggregation.metrics import Metrics, Row
from batchqueue.exceptions import ConfigError

Number = int | float | Decimal

_EXACT = Context(prec=1_000, traps=[Inexact, InvalidOperation])

_blank = object.__new__


def check_number(kind: str, name: str, value: object) -> None:
    """Raise ConfigError unless a value is None or a number, for instance one of numpy."""
    if value is not None and not isinstance(value, numbers.Number):
        raise ConfigError(
            f"{kind}: {name} is {value!r}, {a_type(value)}; give a number, or None where "
            "there is no value"
        )


class CountMetrics(Metrics):
    """The number of observations: 1 each, or 0 where SQL's `count(column)` would not count it."""

    __slots__ = ("count",)
    table = "count_metrics"
    columns: ClassVar = {"count": int}

    def __init__(self, entity: Entity, time_bucket: int, count: int = 1) -> None:
        if not isinstance(count, int):
            check_number("CountMetrics", "count", count)
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)
        self.count = count

    def combine(self, other: Self) -> None:
        """Take the observations of `other` into this one."""
        self.count += other.count

    def copy(self) -> Self:
        """Return an equal partial that shares nothing mutable with this one."""
        twin = _blank(type(self))
        twin.key, twin.count = self.key, self.count
        return twin

    def to_rows(self) -> list[Row]:
        """Return the single row of value columns."""
        return [(self.count,)]

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        return cls(entity, time_bucket, *rows[0])


class SumMetrics(Metrics):
    """The sum of the values that are not None; None if all are.

    Ints and decimals are summed exactly. For floats the rounding error of each addition is kept
    beside the sum (two-sum: Knuth, The Art of Computer Programming, volume 2, 4.2.2), so that large
    values of opposite sign cancel in any order.
    """

    __slots__ = ("_error", "_sum")
    table = "sum_metrics"
    columns: ClassVar = {"total": float, "compensation": float}

    def __init__(self, entity: Entity, time_bucket: int, total: Number | None) -> None:
        if not isinstance(total, (int, float)):
            check_number(type(self).__name__, "total", total)
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)
        self._sum: Any = total
        self._error: Any = 0

    @property
    def total(self) -> Any:
        """The sum, rounded once: an int, a float or a Decimal, as the values are, or None."""
        total: Number | None = self._sum
        return self._sum + self._error if total is not None and self._error else total

    def combine(self, other: Self) -> None:
        """Take the observations of `other` into this one."""
        mine, theirs = self._sum, other._sum
        if theirs is None:
            return
        if mine is None:
            self._sum, self._error = theirs, other._error
            return
        self._sum = total = mine + theirs
        if type(total) is Decimal:
            self._sum = _EXACT.add(mine, theirs)
        elif type(total) is not int:
            part = total - mine
            error = (mine - (total - part)) + (theirs - part)
            # The error is NaN once the sum is infinite or NaN, which no error term can correct.
            known = error == error  # noqa: PLR0124
            self._error = self._error + other._error + error if known else 0

    def copy(self) -> Self:
        """Return an equal partial that shares nothing mutable with this one."""
        twin = _blank(type(self))
        twin.key, twin._sum, twin._error = self.key, self._sum, self._error
        return twin

    def to_rows(self) -> list[Row]:
        """Return the single row of value columns."""
        total = self.total
        if total is None or not self._error:
            return [(total, 0)]
        return [(total, (self._sum - total) + self._error)]

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        metrics = _blank(cls)
        metrics.key = (entity, time_bucket)
        metrics._sum, metrics._error = rows[0]
        return metrics


class MeanMetrics(SumMetrics):
    """The mean of the values that are not None, from their sum and count; None if all are."""

    __slots__ = ("count",)
    table = "mean_metrics"
    columns: ClassVar = {"total": float, "compensation": float, "count": int}

    def __init__(
        self, entity: Entity, time_bucket: int, total: Number | None, count: int = 1
    ) -> None:
        """Start a mean, of a single value by default.

        Args:
            entity: What is measured; a tuple if the metric has key columns.
            time_bucket: Start of the bucket, in whole seconds since the epoch, UTC.
            total: The value, or the sum of `count` values; None counts as no value.
            count: Number of values in `total`; 1 by default.
        """
        super().__init__(entity, time_bucket, total)
        self.count = 0 if total is None else count

    @property
    def value(self) -> float | None:
        """The mean."""
        total = self.total
        if isinstance(total, Decimal):
            total = float(total)
        return None if total is None else total / self.count

    def combine(self, other: Self) -> None:
        """Take the observations of `other` into this one."""
        SumMetrics.combine(self, other)  # direct: super() costs as much as an addition
        self.count += other.count

    def copy(self) -> Self:
        """Return an equal partial that shares nothing mutable with this one."""
        twin = SumMetrics.copy(self)  # a `Self`, which pyright does not infer
        twin.count = self.count  # pyright: ignore[reportAttributeAccessIssue]
        return twin  # pyright: ignore[reportReturnType]

    def to_rows(self) -> list[Row]:
        """Return the single row of value columns."""
        return [(*super().to_rows()[0], self.count)]

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        metrics = _blank(cls)
        metrics.key = (entity, time_bucket)
        metrics._sum, metrics._error, metrics.count = rows[0]
        return metrics


class _ExtremeMetrics(Metrics):
    __slots__ = ("value",)
    columns: ClassVar = {"value": float}

    def __init__(self, entity: Entity, time_bucket: int, value: Any) -> None:
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)
        self.value = value

    def copy(self) -> Self:
        """Return an equal partial that shares nothing mutable with this one."""
        twin = _blank(type(self))
        twin.key, twin.value = self.key, self.value
        return twin

    def to_rows(self) -> list[Row]:
        """Return the single row of value columns."""
        return [(self.value,)]

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        return cls(entity, time_bucket, *rows[0])


class MaxMetrics(_ExtremeMetrics):
    """The largest value that is not None; None if all are. NaN is larger than any number."""

    __slots__ = ()
    table = "max_metrics"

    def combine(self, other: Self) -> None:
        """Take the observations of `other` into this one."""
        mine, theirs = self.value, other.value
        if theirs is not None and (
            # NaN first: a decimal cannot be compared with it.
            mine is None
            or theirs != theirs  # noqa: PLR0124
            or (mine == mine and theirs > mine)  # noqa: PLR0124
        ):
            self.value = theirs


class MinMetrics(_ExtremeMetrics):
    """The smallest value that is not None; None if all are. NaN is larger than any number."""

    __slots__ = ()
    table = "min_metrics"

    def combine(self, other: Self) -> None:
        """Take the observations of `other` into this one."""
        mine, theirs = self.value, other.value
        if theirs is not None and (
            mine is None
            or mine != mine  # noqa: PLR0124
            or (theirs == theirs and theirs < mine)  # noqa: PLR0124
        ):
            self.value = theirs
