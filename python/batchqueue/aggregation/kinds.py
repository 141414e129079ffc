"""The built-in kinds of metrics: count, sum, mean, extremes, ranking, distinct count, quantiles.

Count, sum, mean and extremes treat None and NaN as Spark SQL does. They override `copy` to copy
their slots, which is faster: merge buffers copy the first item of every key.
"""

import base64
import math
import numbers
from bisect import bisect_right, insort
from collections.abc import Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, Self

from batchqueue import _core
from batchqueue.aggregation.metrics import Entity, Metrics, Row
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError

Number = int | float | Decimal

_EXACT = Context(prec=1_000, traps=[Inexact, InvalidOperation])

_blank = object.__new__


def check_number(kind: str, name: str, value: object) -> None:
    """Check that a value is a number or None. NumPy scalars count as numbers.

    Raises:
        ConfigError: It is neither.
    """
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
        """Add the observations of `other` to this one."""
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
        """Add the observations of `other` to this one."""
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
        """Add the observations of `other` to this one."""
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
        """Add the observations of `other` to this one."""
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
        """Add the observations of `other` to this one."""
        mine, theirs = self.value, other.value
        if theirs is not None and (
            mine is None
            or mine != mine  # noqa: PLR0124
            or (theirs == theirs and theirs < mine)  # noqa: PLR0124
        ):
            self.value = theirs


class RankedEntry(NamedTuple):
    """One row of a ranking."""

    score: int | float
    id: str
    label: str


class Ranking(Metrics):
    """The `limit` entries with the largest scores; ties are broken by id, then label, ascending.

    The top n of single rows can be merged from partial rankings. The top n of *sums* cannot: rank
    them after L2.

    Attributes:
        limit: Entries to keep, 10 by default; set it with `metric_type(name, Ranking, limit=5)`.
    """

    __slots__ = ("_entries",)
    table = "ranking_metrics"
    columns: ClassVar = {"score": float, "id": str, "label": str}
    multi_row = True
    limit: ClassVar[int] = 10

    def __init__(
        self, entity: Entity, time_bucket: int, score: int | float | None, id: str, label: str = ""
    ) -> None:
        """Start a ranking with a single row.

        Args:
            entity: Group of the ranking.
            time_bucket: Start of the bucket, in whole seconds since the epoch, UTC.
            score: The score to rank the row by; None leaves it out, as `IS NOT NULL` does in SQL.
            id: The id of the row, which breaks ties.
            label: Text to show beside the row; empty by default.

        Raises:
            ValueError: The score is NaN, which has no rank.
        """
        if score != score:  # noqa: PLR0124
            raise ValueError(
                f"the score of {id!r} in {self.name} is NaN, which has no rank; "
                "give a number or None"
            )
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)
        # Negated, because `insort` sorts ascending.
        self._entries = [] if score is None else [(-score, id, label)]

    @property
    def entries(self) -> list[RankedEntry]:
        """The rows, best first."""
        return [RankedEntry(-order, id, label) for order, id, label in self._entries]

    def combine(self, other: Self) -> None:
        """Add the rows of `other` that rank high enough."""
        entries, limit = self._entries, self.limit
        for entry in other._entries:
            if len(entries) >= limit:
                if entry >= entries[-1]:
                    return  # the remaining entries of `other` rank even lower
                entries.pop()
            insort(entries, entry)

    def to_rows(self) -> list[Row]:
        """Return a row of value columns per entry, best first."""
        return [tuple(entry) for entry in self.entries]

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        ranking = cls(entity, time_bucket, None, "")
        ranking._entries = [(-score, id, label) for score, id, label in rows]
        return ranking


# `DistinctMetrics`: the number of distinct values, as a metric that combines.
#
# It uses HyperLogLog (Flajolet, Fusy, Gandouet and Meunier, HyperLogLog: the analysis of a
# near-optimal cardinality estimation algorithm, 2007) in the form of Apache DataSketches, which
# Spark SQL uses as well.


@cache
def lg_registers(accuracy: float) -> int:
    """Return the binary logarithm of the registers that give a relative standard error."""
    return math.ceil(2 * math.log2(1.04 / accuracy))


class DistinctMetrics(Metrics):
    """The number of distinct values that are not None, as an estimate.

    Up to a few hundred values it is nearly exact. A partial takes up to 5.5 KB in a store at the
    default accuracy.

    Attributes:
        accuracy: The relative standard error of the estimate, 0.001 to 0.2; 0.02 by default: two of
            three estimates are within it, and nearly all within three times it. Set it with
            `metric_type(name, DistinctMetrics, accuracy=0.01)`. Halving it takes four times the
            memory.

    Example:
        >>> from batchqueue.aggregation import metric_type
        >>> USERS = metric_type("users", DistinctMetrics)
        >>> today = USERS("shop", 0, "ann")
        >>> for name in ("bob", "ann", "eve"):
        ...     today.combine(USERS("shop", 0, name))
        >>> round(today.estimate)
        3
    """

    __slots__ = ("_sketch",)
    table = "distinct_metrics"
    columns: ClassVar = {"sketch": str, "estimate": float}
    accuracy: ClassVar[float] = 0.02
    accuracies: ClassVar = (0.001, 0.2)

    def __init__(self, entity: Entity, time_bucket: int, value: str | bytes | int | None) -> None:
        """Start with a single value.

        Args:
            entity: What is measured; a tuple if the metric has key columns.
            time_bucket: Start of the bucket, in whole seconds since the epoch, UTC.
            value: The value to count: a text, which counts as its bytes in UTF-8, bytes, or an int
                of 64 bits, where a bool is 0 or 1. None does not count.

        Raises:
            ConfigError: The value is of another type.
        """
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)
        self._sketch = _core.DistinctSketch(lg_registers(self.accuracy))
        if value is None:
            return
        if not isinstance(value, (str, bytes, int)):
            raise ConfigError(
                f"{type(self).__name__}: value is {value!r}, {a_type(value)}; give a text, bytes "
                "or an int of 64 bits"
            )
        self._sketch.add(value)

    @property
    def estimate(self) -> float:
        """The estimated number of distinct values."""
        return self._sketch.estimate()

    def combine(self, other: Self) -> None:
        """Add the values of `other` to this one."""
        self._sketch.merge(other._sketch.to_bytes())

    def copy(self) -> Self:
        """Return an equal partial that shares nothing mutable with this one."""
        twin: Any = object.__new__(type(self))
        twin.key, twin._sketch = self.key, self._sketch.copy()
        return twin  # type: ignore[no-any-return]

    def to_rows(self) -> list[Row]:
        """Return the single row of value columns: the sketch in base64, and its estimate."""
        return [(base64.b64encode(self._sketch.to_bytes()).decode(), self.estimate)]

    @classmethod
    def row_of(cls, sketch: bytes | None) -> Row:
        """Return the row of value columns for a sketch of DataSketches; None is an empty one.

        Raises:
            ConfigError: It is damaged.
        """
        merged = _core.DistinctSketch(lg_registers(cls.accuracy))
        if sketch is not None:
            merged.merge(sketch)
        return base64.b64encode(merged.to_bytes()).decode(), merged.estimate()

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote.

        Raises:
            ConfigError: The sketch is damaged.
        """
        made = cls(entity, time_bucket, None)
        try:
            made._sketch.merge(base64.b64decode(rows[0][0]))
        except (ConfigError, ValueError) as error:
            raise ConfigError(
                f"metric {cls.name} has a damaged sketch for {entity!r} in time bucket "
                f"{time_bucket}: {error}; restore the store, or delete this time bucket"
            ) from error
        return made


# `QuantileMetrics`: a distribution as a metric, from which quantiles are read.
#
# It is a DDSketch (Masson, Rim and Lee, DDSketch: a fast and fully-mergeable quantile sketch with
# relative-error guarantees, PVLDB 12(12), 2019): values are counted in buckets whose limits grow by
# a constant factor, and two sketches are combined by adding the counts.


LEAST = 1e-9
"""Values closer to 0 than this count as 0."""


@cache
def _mapping(accuracy: float) -> tuple[float, int]:
    """Return the logarithm of the factor between bucket limits, and the first bucket number."""
    log_gamma = math.log((1 + accuracy) / (1 - accuracy))
    return log_gamma, 1 - int(math.log(LEAST) / log_gamma)


class QuantileMetrics(Metrics):
    """The distribution of the values that are not None; NaN and infinities do not count.

    A partial takes as many stored rows as it has buckets with values: a hundred for values within a
    factor of ten, and two thousand within a factor of 10^18, at the default accuracy.

    Attributes:
        accuracy: The relative error of a quantile, 0.0001 to 0.5; 0.01 by default. Set it with
            `metric_type(name, QuantileMetrics, accuracy=0.02)`. It cannot be changed afterwards:
            stored buckets of another accuracy are an error.

    Example:
        >>> from batchqueue.aggregation import metric_type
        >>> MS = metric_type("ms", QuantileMetrics)
        >>> latency = MS("search", 0, 12)
        >>> for value in (3, 250, 14, 9):
        ...     latency.combine(MS("search", 0, value))
        >>> round(latency.quantile(0.5)), latency.count
        (12, 5)
    """

    __slots__ = ("_counts",)
    table = "quantile_metrics"
    columns: ClassVar = {"bucket": int, "count": int, "accuracy": float}
    multi_row = True
    accuracy: ClassVar[float] = 0.01
    accuracies: ClassVar = (0.0001, 0.5)

    def __init__(self, entity: Entity, time_bucket: int, value: float | None) -> None:
        """Start a distribution with a single value.

        Args:
            entity: What is measured; a tuple if the metric has key columns.
            time_bucket: Start of the bucket, in whole seconds since the epoch, UTC.
            value: The value; None, NaN and infinities count as no value.
        """
        if not isinstance(value, (int, float)):
            check_number(type(self).__name__, "value", value)
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)
        self._counts: dict[int, int] = {}
        if value is not None and math.isfinite(value):
            self._counts[self._bucket_of(float(value))] = 1

    @classmethod
    def _bucket_of(cls, value: float) -> int:
        """Return the bucket of a value: numbers are in the order of values, and 0 is near 0."""
        distance = abs(value)
        if distance < LEAST:
            return 0
        log_gamma, offset = _mapping(cls.accuracy)
        number = math.floor(math.log(distance) / log_gamma) + offset
        return -number if value < 0 else number

    @classmethod
    def bucket_value(cls, bucket: int) -> float:
        """Return the value that represents those of a stored bucket."""
        if bucket == 0:
            return 0.0
        log_gamma, offset = _mapping(cls.accuracy)
        lower = math.exp((abs(bucket) - offset) * log_gamma)
        return math.copysign(lower * (1 + cls.accuracy), bucket)

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self._counts.values())

    def quantile(self, rank: float) -> float | None:
        """Return the value of a rank, with a relative error of at most `accuracy`.

        Args:
            rank: From 0, the smallest value, to 1, the largest.

        Returns:
            The value; None if there are no values.

        Raises:
            ConfigError: The rank is not from 0 to 1.
        """
        if not 0 <= rank <= 1:
            raise ConfigError(f"the rank of a quantile is {rank!r}; give 0 to 1")
        if not self._counts:
            return None
        buckets = sorted(self._counts)
        counts = list(accumulate(self._counts[bucket] for bucket in buckets))
        return self.bucket_value(buckets[bisect_right(counts, rank * (counts[-1] - 1))])

    def combine(self, other: Self) -> None:
        """Add the values of `other` to this one."""
        counts = self._counts
        for bucket, count in other._counts.items():
            counts[bucket] = counts.get(bucket, 0) + count

    def to_rows(self) -> list[Row]:
        """Return a row of value columns for each bucket, in the order of values."""
        accuracy = self.accuracy
        return [(bucket, count, accuracy) for bucket, count in sorted(self._counts.items())]

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote.

        Raises:
            ConfigError: The rows are of another accuracy.
        """
        made: Any = cls(entity, time_bucket, None)
        for bucket, count, accuracy in rows:
            if accuracy != cls.accuracy:
                raise ConfigError(
                    f"metric {cls.name} has accuracy={cls.accuracy}, and {entity!r} was stored "
                    f"with accuracy={accuracy}, whose buckets are others: keep the accuracy, or "
                    "give the metric another name"
                )
            made._counts[bucket] = count
        return made  # type: ignore[no-any-return]
