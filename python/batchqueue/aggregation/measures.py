"""What an `Aggregation` can compute for a group: counts, sums, extremes, quantiles, top rows.

Nulls do not count, as in SQL. NaN is larger than any number and makes a sum NaN; quantiles ignore
it. A dictionary column is read as its values.
"""

from dataclasses import dataclass
from typing import Any

from batchqueue.exceptions import ConfigError


def _check_columns(measure: Any) -> None:
    """Reject a measure whose columns are not strings; those of `Count` and labels may be None."""
    for name in ("column", "by", "label"):
        value = getattr(measure, name, None)
        may_be_none = (
            name == "label"
            or (name == "column" and isinstance(measure, Count))
            or not hasattr(measure, name)
        )
        if not (isinstance(value, str) and value) and not (value is None and may_be_none):
            raise ConfigError(
                f"{name} of {type(measure).__name__} is {value!r}; give the name of a column"
            )


@dataclass(frozen=True)
class Count:
    """Number of rows, or of rows with a value in `column`. The result is an int64."""

    column: str | None = None

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Sum:
    """The sum of a column of numbers; null where there is no value.

    Integers and decimals are summed exactly. The result is an int64, and of decimals a decimal128
    of 38 digits with the scale of the column. A sum that does not fit raises `OverflowError`, and
    partials hold it as a wider decimal. For floats the rounding error of each
    addition is kept beside the sum (two-sum: Knuth, The Art of Computer Programming, volume 2,
    4.2.2), and the result is a float64.
    """

    column: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Mean:
    """The mean of a column of numbers, as a float64; null where there is no value.

    It sums as `Sum` does.
    """

    column: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Min:
    """The smallest value: of numbers, decimals, booleans, dates, times, strings or bytes.

    Strings compare by their bytes.
    """

    column: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Max:
    """The largest value of a column, of the same types as `Min`."""

    column: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class First:
    """The value of `column` in the row with the smallest `by`; in a tie, in the earliest row.

    Rows with a null in either column do not count, as in DuckDB's `arg_min`.
    """

    column: str
    by: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Last:
    """The value of `column` in the row with the largest `by`; in a tie, in the earliest row.

    Rows with a null in either column do not count, as in DuckDB's `arg_max`.
    """

    column: str
    by: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a column of numbers, as a list of float64; null where there is no value.

    Each is within 1 % of the value of that rank, by DDSketch (Masson, Rim and Lee, PVLDB 12(12),
    2019), while the values of each sign are within a factor of 10^17; beyond that the smallest
    values lose accuracy. Values up to 1e-9 count as 0. NaN and infinities do not count. A group
    takes 1 to 32 KiB.

    Attributes:
        column: The column.
        quantiles: Ranks from 0 (the minimum) to 1 (the maximum), at least one. `None`, for metrics
            that a Spark job declares: all of them can be read from what is stored.
    """

    column: str
    quantiles: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check_columns(self)
        if self.quantiles is None:
            return
        if isinstance(self.quantiles, str | int | float):
            raise ConfigError(
                f"quantiles is {self.quantiles!r}; give a list of numbers from 0 to 1"
            )
        object.__setattr__(self, "quantiles", tuple(float(rank) for rank in self.quantiles))
        if not self.quantiles or not all(0 <= rank <= 1 for rank in self.quantiles):
            raise ConfigError(
                f"quantiles is {self.quantiles!r}; give at least one, each from 0 to 1"
            )


@dataclass(frozen=True)
class QuantileBuckets:
    """How many values of a column of numbers are in each bucket of a DDSketch.

    The result is a list of structs of `bucket` and `count`, ordered by the values; empty if all
    are null. `QuantileMetrics` of the same accuracy store the same counts, so that quantiles
    can be read from the sum of any number of them. NaN and infinities do not count.

    Attributes:
        column: The column.
        accuracy: The relative error of a quantile, 0.0001 to 0.5; 0.01 by default.
    """

    column: str
    accuracy: float = 0.01

    def __post_init__(self) -> None:
        _check_columns(self)
        if not isinstance(self.accuracy, float) or not 0.0001 <= self.accuracy <= 0.5:
            raise ConfigError(f"accuracy is {self.accuracy!r}; give 0.0001 to 0.5")


@dataclass(frozen=True)
class Distinct:
    """The estimated number of distinct values of a column, as an int64; 0 if all are null.

    It is HyperLogLog (Flajolet, Fusy, Gandouet and Meunier, 2007) of Apache DataSketches.

    Attributes:
        column: Strings, bytes, booleans, dates, times, or integers up to int64.
        accuracy: The relative standard error, 0.001 to 0.2; 0.02 by default. A group takes up to
            4 KB, and four times as much with half of it.
    """

    column: str
    accuracy: float = 0.02

    def __post_init__(self) -> None:
        _check_columns(self)
        if not isinstance(self.accuracy, float) or not 0.001 <= self.accuracy <= 0.2:
            raise ConfigError(f"accuracy is {self.accuracy!r}; give 0.001 to 0.2")


@dataclass(frozen=True)
class DistinctSketch(Distinct):
    """The sketch that `Distinct` estimates from, as bytes.

    DataSketches of other languages read it, and `DistinctMetrics` of the same accuracy store it in
    base64.
    """


@dataclass(frozen=True)
class TopN:
    """The `n` rows with the largest values of a column, best first, as a list of structs.

    A struct has the `value` and, where `label` is set, the `label`; in a tie the smaller label is
    better. NaN is larger than any number: filter it out before. The top n of single rows can be
    merged; the top n of *sums* cannot: rank them last.

    Attributes:
        column: What is ranked, of the same types as for `Min`.
        n: Rows to keep, 1 to 1,000,000.
        label: A column that identifies the row; `None` for no label.
    """

    column: str
    n: int
    label: str | None = None

    def __post_init__(self) -> None:
        _check_columns(self)
        if not isinstance(self.n, int) or isinstance(self.n, bool) or not 1 <= self.n <= _MOST:
            raise ConfigError(f"n is {self.n!r}; give 1 to {_MOST:_} rows")


Measure = (
    Count | Sum | Mean | Min | Max | First | Last | Quantiles | QuantileBuckets | Distinct | TopN
)
"""Any measure."""

_MOST = 1_000_000
