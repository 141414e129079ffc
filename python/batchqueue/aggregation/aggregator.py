"""`Aggregation` and `Aggregator`: grouped aggregation of Arrow data in Rust."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

from batchqueue import _core
from batchqueue.aggregation.kinds import lg_registers
from batchqueue.aggregation.windows import Window
from batchqueue.base.checks import check_whole
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError

# The measures that an `Aggregation` can compute for a group: counts, sums, extremes, quantiles, top
# rows.
#
# Nulls do not count, as in SQL. NaN is larger than any number and makes a sum NaN; quantiles ignore
# it. A dictionary column is read as its values.


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

    Integers and decimals are summed exactly. The result is an int64, or for decimals a decimal128
    of 38 digits with the scale of the column. A sum that does not fit raises `OverflowError`;
    partials hold it as a wider decimal. For floats the rounding error of each addition is kept
    beside the sum (two-sum: Knuth, The Art of Computer Programming, volume 2, 4.2.2), and the
    result is a float64.
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
    2019), as long as the values of each sign are within a factor of 10^17; beyond that the smallest
    values lose accuracy. Values up to 1e-9 count as 0. NaN and infinities do not count. A group
    takes 1 to 32 KiB.

    Attributes:
        column: The column.
        quantiles: Ranks from 0 (the minimum) to 1 (the maximum), at least one. `None` is for
            metrics that a Spark job declares, from whose stored rows all quantiles can be read.
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
    """The number of values of a column of numbers in each bucket of a DDSketch.

    The result is a list of structs of `bucket` and `count`, ordered by the values; empty if all
    are null. `QuantileMetrics` of the same accuracy store the same counts, so that quantiles can be
    read from any sum of them. NaN and infinities do not count.

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

    It uses the HyperLogLog (Flajolet, Fusy, Gandouet and Meunier, 2007) of Apache DataSketches.

    Attributes:
        column: Strings, bytes, booleans, dates, times, or integers up to int64.
        accuracy: The relative standard error, 0.001 to 0.2; 0.02 by default. A group takes up to 4
            KB; half the error takes four times as much.
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

    The DataSketches libraries of other languages read it, and `DistinctMetrics` of the same
    accuracy store it in base64.
    """


@dataclass(frozen=True)
class TopN:
    """The `n` rows with the largest values of a column, best first, as a list of structs.

    A struct has the `value` and, where `label` is set, the `label`; in a tie the smaller label
    wins. NaN is larger than any number: filter it out first. The top n of single rows can be
    merged; the top n of *sums* cannot: rank sums last.

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
        check_whole("n", self.n, 1, _MOST, f"1 to {_MOST:_} rows")


Measure = (
    Count | Sum | Mean | Min | Max | First | Last | Quantiles | QuantileBuckets | Distinct | TopN
)
"""Any measure."""

_MOST = 1_000_000


MAX_GROUPS = 2**31
_MOST_MS = 1_000_000_000_000


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """A declaration of a grouped aggregation: keys, measures and an optional time window.

    It pickles, and partials made from equal aggregations can be merged, whatever process made them.

    Attributes:
        keys: Columns whose values form a group; empty for a single group of all rows. Numbers,
            decimals of 128 bits, booleans, dates, times, strings or bytes, or dictionaries of
            these. Null is a key value like any other, all NaN are equal, and -0.0 equals 0.0.
        measures: What to compute for each group, by the name of its column in the result; at least
            one measure.
        window: The time bucket, which is a key as well; `None` for no time bucket.
        max_groups: Groups that an aggregator keeps at the same time, 1 to 2^31; 1,000,000 by
            default. It bounds the memory. With two million groups, a group takes 55 bytes with an
            integer key and a `Count`, 43 with a string key of 13 bytes, and 140 with both keys.
            Each further measure takes 8 (`Count`) to 32 bytes (`Sum`); measures of strings take the
            length of the string, `TopN` its rows and `Quantiles` kilobytes. Growing tables take up
            to twice as much, and so do counts and sums while merging a batch with more rows than
            there is room for groups.

    Raises:
        ConfigError: A value is invalid, or a column name occurs twice.

    Example:
        >>> import pyarrow as pa
        >>> from batchqueue.aggregation import Aggregation, Aggregator, Count, Mean
        >>> measures = {"flights": Count(), "delay": Mean("delay")}
        >>> aggregator = Aggregator(Aggregation(keys=["carrier"], measures=measures))
        >>> aggregator.update(pa.table({"carrier": ["UA", "AA", "UA"], "delay": [10, None, 5]}))
        >>> for group in aggregator.result().to_pylist():
        ...     print(group)
        {'carrier': 'UA', 'flights': 2, 'delay': 7.5}
        {'carrier': 'AA', 'flights': 1, 'delay': None}
    """

    keys: Sequence[str]
    measures: Mapping[str, Measure]
    window: Window | None = None
    max_groups: int = 1_000_000

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            raise ConfigError(f"keys is {self.keys!r}; give a list of column names")
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "measures", dict(self.measures))
        for name, measure in self.measures.items():
            if not isinstance(measure, Measure):
                raise ConfigError(
                    f"measure {name!r} is {measure!r}; give a Count, Sum, Mean, Min, Max, First, "
                    "Last, Quantiles, QuantileBuckets, Distinct, DistinctSketch or TopN"
                )
            if isinstance(measure, Quantiles) and measure.quantiles is None:
                raise ConfigError(
                    f"measure {name!r} is {measure!r}: give the quantiles to compute, for instance "
                    "[0.5, 0.99], or QuantileBuckets to compute them later"
                )
        names = [*self.keys, *([self.window.output] if self.window else []), *self.measures]
        for name in names:
            if not isinstance(name, str) or not name:
                raise ConfigError(f"{name!r} is the name of a column; give a str that is not empty")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"{twice[0]!r} is the name of two columns of the result; "
                "rename one (keys, window, measures)"
            )
        if not self.measures:
            raise ConfigError("measures is empty; give at least one, like {'rows': Count()}")
        if not isinstance(self.max_groups, int) or not 1 <= self.max_groups <= MAX_GROUPS:
            raise ConfigError(f"max_groups is {self.max_groups!r}; give 1 to 2**31")

    @property
    def text(self) -> str:
        """The aggregation without `max_groups` as JSON.

        Partials carry it, and only partials with equal texts are merged.
        """
        # Sorted, because equal aggregations may name their measures in any order.
        named = sorted(self.measures.items())
        measures = [
            {"name": name, "kind": _kind(measure), **asdict(measure)} for name, measure in named
        ]
        window = None if self.window is None else self.window.description
        return json.dumps({"keys": self.keys, "window": window, "measures": measures})

    @property
    def columns(self) -> list[str]:
        """The columns that it reads, each once."""
        named: list[str | None] = [*self.keys, *([self.window.column] if self.window else [])]
        for measure in self.measures.values():
            named += [getattr(measure, place, None) for place in ("column", "by", "label")]
        return list(dict.fromkeys(name for name in named if name is not None))


class Aggregator(_core.Aggregator):
    """A handler that aggregates Arrow rows in Rust; drain threads run it without the interpreter.

    Register it for tags and enqueue rows with `produce_arrow`, or call `update` and `consume`
    yourself. It takes rows, and partials of aggregators with an equal `Aggregation`, in any mix. A
    batch is merged as a whole, or not at all and is counted as failed. The columns that the
    aggregation names must have the same types in all batches.

    With a next worker it is an L1: it emits what it has merged at the first batch after the flush
    period, when its drain thread is idle, when there are `max_groups` groups, and at close. Without
    a next worker it keeps everything, and `result` and `partials` may be called at any time, from
    any thread.

    A drain thread takes from a partition without the interpreter if all handlers of the partition
    are aggregators: give the queue partitions for them, as `PartitionPolicy.adaptive()` does. Retry
    policies do not apply to it.

    Example:
        >>> import pyarrow as pa
        >>> from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy
        >>> from batchqueue.aggregation import Aggregation, Aggregator, Sum
        >>> sales = Aggregation(keys=["shop"], measures={"total": Sum("amount")})
        >>> total = Aggregator(sales)
        >>> orders = pa.table({"kind": ["sale"] * 3, "shop": [1, 2, 1], "amount": [5, 7, 9]})
        >>> with BatchQueue("sales", BatchQueueConfig(threads=ThreadPolicy.fixed(1))) as queue:
        ...     l1 = Aggregator(sales, total.update)
        ...     queue.add_handler("sale", l1)
        ...     queue.produce_arrow(orders, type_column="kind")
        3
        >>> total.result().to_pylist()
        [{'shop': 1, 'total': 14}, {'shop': 2, 'total': 7}]
    """

    aggregation: Aggregation

    def __new__(
        cls,
        aggregation: Aggregation,
        next_worker: Callable[[Any], Any] | None = None,
        *,
        flush_period_ms: float = 500,
    ) -> Self:
        """Make an aggregator without groups.

        Args:
            aggregation: What to compute.
            next_worker: Takes a record batch of partials; returns how many rows it took, from the
                front, or `None` for all. Rows that it refuses are merged again and offered later.
                If it raises, or returns anything else, that batch is dropped. While it refuses
                rows, a batch with more than `max_groups` groups may fail after it was partly
                merged. `None`: the aggregator keeps everything.
            flush_period_ms: Longest time that a partial waits for the next worker while batches
                arrive, in milliseconds; 500 by default.

        Raises:
            ConfigError: A value is invalid.
        """
        if not isinstance(aggregation, Aggregation):
            raise ConfigError(f"aggregation is {a_type(aggregation)}; give an Aggregation")
        if next_worker is not None and not callable(next_worker):
            raise ConfigError(
                f"next_worker is {next_worker!r}; "
                "give a function that takes a record batch, or None"
            )
        if not 0 <= flush_period_ms <= _MOST_MS:
            raise ConfigError(f"flush_period_ms is {flush_period_ms}; give 0 to {_MOST_MS:_}")
        window = aggregation.window
        made = super().__new__(
            cls,
            list(aggregation.keys),
            None if window is None else window.in_core,
            [_declared(name, measure) for name, measure in aggregation.measures.items()],
            aggregation.max_groups,
            aggregation.text,
            next_worker,
            flush_period_ms / 1_000,
        )
        aggregator = cast(Self, made)  # the stub returns the class of the core, not `Self`
        aggregator.aggregation = aggregation
        return aggregator

    def __init__(
        self,
        aggregation: Aggregation,
        next_worker: Callable[[Any], Any] | None = None,
        *,
        flush_period_ms: float = 500,
    ) -> None:
        """Do nothing: `__new__` has made the aggregator."""

    def __repr__(self) -> str:
        measures = ", ".join(self.aggregation.measures)
        keys = ", ".join(self.aggregation.keys) or "nothing"
        return f"<Aggregator of {measures} by {keys}: {len(self)} groups>"


def _kind(measure: Measure) -> str:
    return "top_n" if isinstance(measure, TopN) else type(measure).__name__.lower()


def _declared(
    name: str, measure: Measure
) -> tuple[str, str, str | None, str | None, list[float], int]:
    second = None
    if isinstance(measure, First | Last):
        second = measure.by
    elif isinstance(measure, TopN):
        second = measure.label
    quantiles = list(measure.quantiles or ()) if isinstance(measure, Quantiles) else []
    if isinstance(measure, QuantileBuckets):
        quantiles = [measure.accuracy]
    n = measure.n if isinstance(measure, TopN) else 0
    if isinstance(measure, Distinct):
        n = lg_registers(measure.accuracy)
    return name, _kind(measure), measure.column, second, quantiles, n
