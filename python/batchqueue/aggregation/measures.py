"""What an `Aggregation` can know about a group: counts, sums, extremes, quantiles, the best rows.

Null is no value and does not count, as in SQL. NaN is larger than any number and makes a sum NaN;
quantiles leave it out. A column may be a dictionary; it is taken as its values.
"""

from dataclasses import dataclass
from typing import Any

from batchqueue.exceptions import ConfigError


def _check_columns(measure: Any) -> None:
    """Refuse a measure whose columns are not named by strings; `Count` and labels may have none."""
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
    """Rows, or those with a value in `column`. The result is an int64."""

    column: str | None = None

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Sum:
    """The sum of a column of numbers; null where there is no value.

    Integers are added exactly, and the result is an int64; one that does not fit raises
    `OverflowError`, and is in the partials as a decimal. For floats the rounding error of each
    addition is kept beside the sum (two-sum: Knuth, The Art of Computer Programming, volume 2,
    4.2.2), and the result is a float64.
    """

    column: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Mean:
    """The mean of a column of numbers, as a float64; null where there is no value. Summed as `Sum` does."""

    column: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Min:
    """The smallest value of a column: numbers, booleans, dates, times, texts or bytes (by their bytes)."""

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
    """The value of `column` in the row with the smallest `by`; of several such rows, in the one that came first.

    Rows with null in either do not count, as in DuckDB's `arg_min`.
    """

    column: str
    by: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Last:
    """The value of `column` in the row with the largest `by`; of several such rows, in the one that came first."""

    column: str
    by: str

    def __post_init__(self) -> None:
        _check_columns(self)


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a column of numbers, as a list of float64; null where there is no value.

    Each is within 1 % of the value of that rank, by DDSketch (Masson, Rim and Lee, PVLDB 12(12),
    2019), as long as the values of each sign are within a factor of 10^17; beyond that the smallest
    lose. Up to 1e-9 is 0. NaN and infinities do not count. A group takes 1 to 32 KiB for it.

    Attributes:
        column: The column.
        quantiles: From 0 (the minimum) to 1 (the maximum), at least one.
    """

    column: str
    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_columns(self)
        if isinstance(self.quantiles, str | int | float):
            raise ConfigError(
                f"quantiles is {self.quantiles!r}; give a list of numbers from 0 to 1"
            )
        object.__setattr__(self, "quantiles", tuple(float(one) for one in self.quantiles))
        if not self.quantiles or not all(0 <= one <= 1 for one in self.quantiles):
            raise ConfigError(
                f"quantiles is {self.quantiles!r}; give at least one, each from 0 to 1"
            )


@dataclass(frozen=True)
class TopN:
    """The `n` rows with the largest values of a column, best first, as a list of structs.

    A struct has the `value` and, if there is one, the `label`; of equal values the smaller label is
    better. NaN is larger than any number: filter it out before. The top n of single rows can be
    merged; that of *sums* cannot, rank those last.

    Attributes:
        column: What is ranked, of the same types as for `Min`.
        n: Rows to keep, at least 1.
        label: A column that says which row it is.
    """

    column: str
    n: int
    label: str | None = None

    def __post_init__(self) -> None:
        _check_columns(self)
        if not isinstance(self.n, int) or isinstance(self.n, bool) or not 1 <= self.n <= _MOST:
            raise ConfigError(f"n is {self.n!r}; give 1 to {_MOST:_} rows")


Measure = Count | Sum | Mean | Min | Max | First | Last | Quantiles | TopN
"""All of them."""

_MOST = 1_000_000


@dataclass(frozen=True)
class Window:
    """Buckets of time, each from a multiple of the width since the epoch (UTC) to the next.

    Attributes:
        column: A timestamp, a date, or a signed integer of seconds since the epoch.
        seconds: The width, above 0; a whole number of the column's unit.
        name: The column with each bucket's start, of the same type, for integers int64; `column` if
            it is None.
    """

    column: str
    seconds: float
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, int | float) or not 1e-9 <= self.seconds <= _MOST_SECONDS:
            raise ConfigError(
                f"the window is {self.seconds!r} s; give a number, 1e-9 to {_MOST_SECONDS:_}"
            )
        object.__setattr__(self, "seconds", float(self.seconds))

    @property
    def output(self) -> str:
        """The name of its column in partials and results."""
        return self.column if self.name is None else self.name


_MOST_SECONDS = 9_000_000_000
