"""The steps of L1 on rows as they are: aggregations and handlers that take Arrow batches."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, cast

import pyarrow as pa

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Distinct,
    DistinctMetrics,
    DistinctSketch,
    Max,
    MaxMetrics,
    Mean,
    MeanMetrics,
    Measure,
    Metrics,
    Min,
    MinMetrics,
    QuantileBuckets,
    QuantileMetrics,
    Quantiles,
    Sum,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.queues.handlers import SupportsConsume

# Declared metrics: what an `ArrowAggregation` computes and stores, without a function of yours.


Declared = Mapping[Any, Measure]
"""The measure that each metric stores, by the metric's name or type."""

KINDS: dict[type, type[Metrics]] = {
    Count: CountMetrics,
    Sum: SumMetrics,
    Mean: MeanMetrics,
    Min: MinMetrics,
    Max: MaxMetrics,
    Quantiles: QuantileMetrics,
    QuantileBuckets: QuantileMetrics,
    Distinct: DistinctMetrics,
    DistinctSketch: DistinctMetrics,
}

_VALUES_OF = "batchqueue count of "
"""Prefix of the column with the number of a mean's values, beside that with its sum."""

ROUNDING_OF = "batchqueue rounding of "
"""Prefix of the column with the exact sum of floats less the rounded one, if known."""


def key_types(keys: Sequence[str] | Mapping[str, type]) -> dict[str, type]:
    """Return the key columns of declared metrics with their types; empty for a single text.

    Raises:
        ConfigError: `keys` is neither a list of names nor a mapping to types.
    """
    if isinstance(keys, Mapping):
        return dict(keys)
    if isinstance(keys, str | set | frozenset):
        raise ConfigError(f"keys is {keys!r}; give a list of column names")
    return dict.fromkeys(keys, str) if len(keys) > 1 else {}


def stored_types(declared: Declared, keys: Mapping[str, type]) -> dict[str, type[Metrics]]:
    """Return the metric types of declared metrics, by their names.

    Args:
        declared: The metrics.
        keys: What `key_types` returned.

    Raises:
        ConfigError: A measure cannot be stored, or a metric type is of another kind.
    """
    types: dict[str, type[Metrics]] = {}
    for given, measure in declared.items():
        kind = KINDS.get(type(measure))
        if kind is None:
            names = ", ".join(measure.__name__ for measure in KINDS)
            raise ConfigError(
                f"metric {_name(given)!r} is declared as {measure!r}, {a_type(measure)}, and of "
                f"that no partial is stored that could be combined: declare a {names}, or give "
                "`aggregation` and a function as `metrics`"
            )
        if isinstance(measure, Quantiles) and measure.quantiles is not None:
            raise ConfigError(
                f"metric {_name(given)!r} is declared as {measure!r}: leave out the quantiles, all "
                "of which can be read from what is stored"
            )
        accuracy = _accuracy(measure)
        if isinstance(given, str):
            made: type[Metrics] = metric_type(given, kind, keys=keys or None, accuracy=accuracy)
        elif _stores(given, kind):
            made = given
        else:
            raise ConfigError(
                f"metric {_name(given)!r} is declared as {measure!r}: give a name, or a metric "
                f"type made with metric_type(name, {kind.__name__})"
            )
        if tuple(made.key_columns.items()) != tuple(keys.items()):
            raise ConfigError(
                f"metric {made.name!r} has the key columns {_shown(made.key_columns)}, and the "
                f"step {_shown(keys)}: give both the same, with keys= of metric_type and of the "
                "step"
            )
        if accuracy not in (None, getattr(made, "accuracy", None)):
            raise ConfigError(
                f"metric {made.name!r} has another accuracy than {measure!r}: give both the same, "
                "or leave it out of the measure"
            )
        if made.name in types:
            raise ConfigError(f"metric {made.name!r} is declared twice: rename one")
        types[made.name] = made
    return types


def aggregation_of(declared: Declared, keys: Iterable[str], time: Window | None) -> Aggregation:
    """Return the aggregation that computes declared metrics.

    Raises:
        ConfigError: It is invalid; or a bucket has a part of a second, which no store could keep.
    """
    if time is not None and (time.seconds % 1 or time.offset_seconds % 1):
        raise ConfigError(
            f"time has buckets of {time.seconds} s after {time.offset_seconds} s, and a stored "
            "time bucket counts whole seconds: give whole seconds"
        )
    measures: dict[str, Measure] = {}
    for given, measure in declared.items():
        accuracy = getattr(given, "accuracy", getattr(measure, "accuracy", None))
        if isinstance(measure, Quantiles | QuantileBuckets):
            measures[_name(given)] = QuantileBuckets(
                measure.column, accuracy or QuantileMetrics.accuracy
            )
        elif isinstance(measure, Distinct):
            measures[_name(given)] = DistinctSketch(
                measure.column, accuracy or DistinctMetrics.accuracy
            )
        elif isinstance(measure, Mean):
            measures[_name(given)] = Sum(measure.column)
            measures[_VALUES_OF + _name(given)] = Count(measure.column)
        else:
            measures[_name(given)] = measure
    return Aggregation(keys=list(keys), window=time, measures=measures)


def value_columns(groups: pa.RecordBatch, metric: type[Metrics]) -> list[Any]:
    """Return the value columns of a metric.

    Args:
        groups: The result of the aggregation, a row for each group; at least one. It may have
            `ROUNDING_OF` columns.
        metric: A type that `stored_types` returned.

    Returns:
        For each of `metric.columns`, a `pyarrow.Array` of the type that the aggregation returns, or
        a number that all rows share. If a metric has several rows per group, the rows of all
        groups.
    """
    of = groups.column(metric.name)
    if issubclass(metric, QuantileMetrics):
        return [*of.flatten().flatten(), metric.accuracy]
    if issubclass(metric, DistinctMetrics):
        rows = [metric.row_of(sketch) for sketch in of.to_pylist()]
        return [pa.array(column) for column in zip(*rows, strict=True)]
    if not issubclass(metric, SumMetrics):
        return [of]
    rounding: Any = 0
    # Added to an int or a decimal, the rounding would make the total a float.
    if metric.columns["total"] is float and ROUNDING_OF + metric.name in groups.schema.names:
        rounding = groups.column(ROUNDING_OF + metric.name)
    if issubclass(metric, MeanMetrics):
        return [of, rounding, groups.column(_VALUES_OF + metric.name)]
    return [of, rounding]


def _stores(given: object, kind: type[Metrics]) -> TypeGuard[type[Metrics]]:
    """Return whether a metric type is of a kind; a mean derives from a sum, but is not one."""
    return (
        isinstance(given, type)
        and issubclass(given, kind)
        and issubclass(given, MeanMetrics) == issubclass(kind, MeanMetrics)
    )


def _accuracy(measure: Measure) -> float | None:
    """Return the accuracy that a measure sets for its metric; None if it keeps the default."""
    kind = KINDS.get(type(measure))
    given: float | None = getattr(measure, "accuracy", None)
    return None if given == getattr(kind, "accuracy", None) else given


def _shown(columns: Mapping[str, type]) -> str:
    return ", ".join(f"{name} {kind.__name__}" for name, kind in columns.items()) or "(none)"


def _name(given: object) -> str:
    return str(getattr(given, "name", given))


Emit = Callable[[list[Metrics]], None]
"""The callable to which an L1 handler passes its partials, at the latest in `on_close`."""

HandlerFactory = Callable[[Emit], SupportsConsume[Any]]
"""The function that makes the L1 handler of one attempt."""


_DECLARED = cast(Aggregation, None)
"""Placeholder for the aggregation of declared metrics until it is made."""


@dataclass(frozen=True, kw_only=True)
class ArrowStep:
    """The rows that one handler of an attempt takes: all of them, or those with certain tags.

    Attributes:
        type_column: The column whose values, the tags, split the rows. Default: None, all rows.
        tags: All values of that column that occur in this job. A row with another value fails the
            epoch.
    """

    type_column: str | None = None
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.tags, str):
            raise ConfigError(
                f"tags is {self.tags!r}; give a list of the values of {self.type_column!r}"
            )
        object.__setattr__(self, "tags", tuple(self.tags))
        if self.type_column is None and self.tags:
            raise ConfigError(
                f"tags {', '.join(self.tags)} without type_column: name the column that has them, "
                "or leave them out"
            )
        if self.type_column is not None and not self.tags:
            raise ConfigError(
                f"the step by {self.type_column!r} has no tags: give the values of that column, or "
                "leave out type_column to take all rows"
            )


@dataclass(frozen=True, kw_only=True)
class ArrowAggregation(ArrowStep):
    """An L1 without Python objects: an `Aggregator` takes the rows as they are, without the GIL.

    Spark SQL can do the same work, see `MetricsWriter(l1="spark")`.

    Attributes:
        metrics: The metrics to compute and to store, each by its name or its metric type: a
            `Count`, `Sum`, `Mean`, `Min`, `Max`, `Quantiles` or `Distinct`. Sums, means and
            extremes declared by name are stored as floats; `metric_type("cents", SumMetrics,
            columns={"total": int})` is one of ints. Or, beside `aggregation`, a function that turns
            what one task aggregated, a `pyarrow.RecordBatch` with a row for each group, into
            partials. L2 combines partials of the same key across tasks and epochs, so yield what
            can be combined: a mean as its sum and count, no quantiles.
        keys: The columns whose values are the entities of declared metrics. A list of one: its
            values as text. A list of several: the metrics have these key columns, of text. A dict
            from columns to their types, str, int, bool or `datetime.date`: key columns of these
            types, see `metric_type`. Default: none, and the entity is "all".
        time: The time buckets of declared metrics, of whole seconds. Default: None, and the time
            bucket is 0.
        aggregation: What to aggregate, if `metrics` is a function. One aggregator of an attempt
            takes the rows of all tags. Default: that of the declared metrics.
        null_keys: What becomes of groups whose key or time bucket is null, which no store can hold.
            "skip": they are left out, and their rows are counted as `skipped` in the summary of the
            epoch. A mapping from keys to values, such as `{"carrier": "unknown"}`: the value stands
            for null, and the group is merged with that of the value. Default: None, `metrics` gets
            the groups unchanged.
    """

    metrics: Declared | Callable[[pa.RecordBatch], Iterable[Metrics]]
    keys: Sequence[str] | Mapping[str, type] = ()
    time: Window | None = None
    aggregation: Aggregation = _DECLARED
    null_keys: Literal["skip"] | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._declare()
        self._check_null_keys()

    def _declare(self) -> None:
        """Make the aggregation of declared metrics."""
        given = cast(Aggregation | None, self.aggregation)
        if isinstance(self.metrics, Mapping):
            object.__setattr__(self, "metrics", dict(self.metrics))
            if not isinstance(self.keys, str | Mapping | set | frozenset):
                object.__setattr__(self, "keys", tuple(self.keys))
            keys = key_types(self.keys)
            stored_types(self.metrics, keys)
            declared = aggregation_of(self.metrics, self.keys, self.time)
            if given not in (None, declared):
                raise ConfigError(
                    "there are an aggregation and declared metrics: give a function as `metrics`, "
                    "or leave out the aggregation and give keys and time"
                )
            object.__setattr__(self, "keys", keys or declared.keys)
            object.__setattr__(self, "aggregation", declared)
            return
        if not callable(self.metrics):
            raise ConfigError(
                f"metrics is {self.metrics!r}: give metrics with their measures, for instance "
                '{"orders": Count()}, or a function of a record batch'
            )
        if not isinstance(given, Aggregation):
            raise ConfigError(
                f"aggregation is {given!r}: give the Aggregation whose groups the function "
                "`metrics` gets, or declare the metrics, for instance {'orders': Count()}"
            )
        if self.keys or self.time is not None:
            raise ConfigError(
                "keys and time are for declared metrics: give them to the aggregation"
            )

    @property
    def types(self) -> dict[str, type[Metrics]]:
        """The types of declared metrics by name, for reading them; empty with a function."""
        if not isinstance(self.metrics, Mapping):
            return {}
        return stored_types(self.metrics, key_types(self.keys))

    def _check_null_keys(self) -> None:
        rule, keys = self.null_keys, self.key_columns
        if rule is None:
            return
        if not keys:
            raise ConfigError(
                f"null_keys={rule!r}, and the aggregation has no keys and no window: leave it out"
            )
        if rule != "skip" and not (isinstance(rule, Mapping) and rule):
            raise ConfigError(
                f"null_keys={rule!r}: give 'skip', or a value for null by key, for instance "
                f"{{{keys[0]!r}: 'unknown'}}"
            )
        for key, value in {} if rule == "skip" else rule.items():
            if key not in keys or value is None:
                raise ConfigError(
                    f"null_keys has {value!r} for {key!r}: give a value other than None, for a key "
                    f"of the aggregation: {', '.join(keys)}"
                )

    @property
    def key_columns(self) -> list[str]:
        """The columns of the result that identify a group."""
        window = self.aggregation.window
        return [*self.aggregation.keys, *([] if window is None else [window.output])]


@dataclass(frozen=True, kw_only=True)
class ArrowHandler(ArrowStep):
    """An L1 of your own on Arrow: a Python handler takes lists of `pyarrow.RecordBatch`.

    Attributes:
        make: Makes the handler of one attempt. Its argument is a callable that takes the handler's
            partials (lists of the job's metrics), at the latest in `on_close`. The handler serves
            all tags.
    """

    make: HandlerFactory
