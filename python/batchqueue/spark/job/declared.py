"""Declared metrics: what an `ArrowAggregation` computes and stores, without a function of yours."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import pyarrow as pa

from batchqueue import ConfigError
from batchqueue._words import a_type
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

Declared = Mapping[Any, Measure]
"""By the name of a metric, or by its type, the measure that it stores."""

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
"""Before the name of a mean: its number of values, a column beside its sum."""

ROUNDING_OF = "batchqueue rounding of "
"""Before the name of a sum of floats: what it lacks of the exact sum, if that is known."""


def key_types(keys: Sequence[str] | Mapping[str, type]) -> dict[str, type]:
    """Return the key columns of declared metrics with their types; empty for a single text.

    Raises:
        ConfigError: It is neither a list of names nor a mapping to types.
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
        For each of `metric.columns` a `pyarrow.Array` of the type that the aggregation gives, or a
        number that all rows have. Of a type with several rows, those of all groups.
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
    # Beside an int or a decimal it would make the total a float.
    if metric.columns["total"] is float and ROUNDING_OF + metric.name in groups.schema.names:
        rounding = groups.column(ROUNDING_OF + metric.name)
    if issubclass(metric, MeanMetrics):
        return [of, rounding, groups.column(_VALUES_OF + metric.name)]
    return [of, rounding]


def _stores(given: object, kind: type[Metrics]) -> TypeGuard[type[Metrics]]:
    """Return whether a metric type is one of a kind: a mean is a sum in its class only."""
    return (
        isinstance(given, type)
        and issubclass(given, kind)
        and issubclass(given, MeanMetrics) == issubclass(kind, MeanMetrics)
    )


def _accuracy(measure: Measure) -> float | None:
    """Return the accuracy that a measure gives to its metric; None if it gives none."""
    kind = KINDS.get(type(measure))
    given: float | None = getattr(measure, "accuracy", None)
    return None if given == getattr(kind, "accuracy", None) else given


def _shown(columns: Mapping[str, type]) -> str:
    return ", ".join(f"{name} {kind.__name__}" for name, kind in columns.items()) or "(none)"


def _name(given: object) -> str:
    return str(getattr(given, "name", given))
