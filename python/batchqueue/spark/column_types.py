"""The column types that a job accepts for each use, in one table for every place of L1.

The driver checks the Spark schema before anything runs. A task checks the first rows that `prepare`
returns, whose types are known only there.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from batchqueue.aggregation import Aggregation, Max, Mean, Metrics, Min, Sum
from batchqueue.base.words import with_article
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.layout import shown
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.steps import ArrowAggregation

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_NUMBERS = ("integer", "float", "decimal")
_ORDERED = (*_NUMBERS, "boolean", "text", "binary", "date", "timestamp", "time", "duration")
_TIMES = ("integer", "date", "timestamp")

ACCEPTED: Mapping[str, tuple[str, ...]] = {
    "a key": _ORDERED,
    "a key declared as str": _ORDERED,
    "a key declared as int": ("integer",),
    "a key declared as bool": ("boolean",),
    "a key declared as date": ("date",),
    "a Window or Watermark": _TIMES,
    "type_column": ("text", "integer"),
    "Count": (*_ORDERED, "array", "map", "struct"),
    "Sum": _NUMBERS,
    "Mean": _NUMBERS,
    "Min": _ORDERED,
    "Max": _ORDERED,
    "First": _ORDERED,
    "Last": _ORDERED,
    "TopN": _ORDERED,
    "Quantiles": _NUMBERS,
    "QuantileBuckets": _NUMBERS,
    "Distinct": ("integer", "boolean", "text", "binary", "date", "timestamp"),
    "DistinctSketch": ("integer", "boolean", "text", "binary", "date", "timestamp"),
}
"""The kinds of values that each use of a column accepts."""

STORED: Mapping[type, tuple[str, ...]] = {
    int: ("integer", "float"),
    float: ("integer", "float"),
    Decimal: ("integer", "decimal"),
    str: ("text",),
    bool: ("boolean",),
}
"""The kinds of values whose sum or extreme a metric's column of each type stores."""

_KEY_USES: Mapping[type, str] = {
    str: "a key declared as str",
    int: "a key declared as int",
    bool: "a key declared as bool",
    date: "a key declared as date",
}

_IN_SPARK = {
    **dict.fromkeys(("byte", "short", "integer", "long"), "integer"),
    **dict.fromkeys(("float", "double"), "float"),
    **dict.fromkeys(("string", "char", "varchar"), "text"),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), "timestamp"),
    **{
        name: name
        for name in ("decimal", "boolean", "binary", "date", "time", "array", "map", "struct")
    },
}
"""The kind of values of each Spark type, by its name."""

_IN_ARROW = {
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "boolean": pa.types.is_boolean,
    "text": lambda kind: str(kind) in ("string", "large_string", "string_view"),
    "binary": lambda kind: (
        str(kind).partition("[")[0]
        in ("binary", "large_binary", "binary_view", "fixed_size_binary")
    ),
    "date": pa.types.is_date,
    "timestamp": pa.types.is_timestamp,
    "time": pa.types.is_time,
    "duration": pa.types.is_duration,
    "map": pa.types.is_map,
    "struct": pa.types.is_struct,
    "array": pa.types.is_nested,
}
"""The test of an Arrow type for each kind of values; the first that matches counts."""


class Column(NamedTuple):
    """A column of the rows.

    Attributes:
        name: Its name.
        kind: The kind of its values, or the same as `shown` if no use accepts it.
        shown: Its type, as Spark or Arrow writes it.
    """

    name: str
    kind: str
    shown: str


class _Use(NamedTuple):
    """A use that a job makes of a column.

    Attributes:
        column: The name of the column.
        use: The use, a key of `ACCEPTED`.
        what: The use, as messages name it.
    """

    column: str
    use: str
    what: str


def spark_columns(schema: "StructType") -> list[Column]:
    """Return the columns of rows in Spark."""
    return [_in_spark(field.name, field.dataType) for field in schema.fields]


def arrow_columns(schema: pa.Schema) -> list[Column]:
    """Return the columns of rows in a task."""
    return [Column(field.name, kind_in_arrow(field.type), str(field.type)) for field in schema]


def kind_in_arrow(kind: pa.DataType) -> str:
    """Return the kind of an Arrow type's values, or the type's name if no use accepts it."""
    if pa.types.is_dictionary(kind):
        return kind_in_arrow(kind.value_type)
    return next((name for name, has in _IN_ARROW.items() if has(kind)), str(kind))


def _in_spark(name: str, kind: "DataType") -> Column:
    text = kind.simpleString()
    if getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY":  # since Spark 4.0
        return Column(name, _COLLATED, text)
    if type(kind).__name__ == "DayTimeIntervalType":
        return Column(name, "duration", text)
    return Column(name, _IN_SPARK.get(kind.typeName(), text), text)


_COLLATED = "collated text"


def check_rows(job: AggregationJob, columns: list[Column], *, in_task: bool = False) -> None:
    """Check that the rows have the columns that a job reads, each once and of an accepted type.

    Args:
        job: The job.
        columns: The columns of the rows.
        in_task: Whether the rows have passed `prepare`. Default: False; if the job has a `prepare`,
            only its `columns` can then be checked.

    Raises:
        ConfigError: A column is missing, duplicated, or of another type; the message names it.
    """
    read: list[str] = []
    if not in_task:
        job.check_columns([column.name for column in columns])
        read += job.columns
    uses = list(_uses(job)) if in_task or job.prepare is None else []
    check_once(columns, [*read, *(use.column for use in uses)])
    _check_cases(uses)
    by_name = {column.name: column for column in columns}
    for name, use, what in uses:
        if name in by_name:
            _check(by_name[name], use, what)
    for metric, measure in _measured(job) if uses else ():
        column = by_name.get(measure.column)
        name, kind = next(iter(metric.columns.items()))
        if column is not None and column.kind not in STORED[kind]:
            raise ConfigError(
                f"metric {metric.name!r} stores {type(measure).__name__} of column "
                f"{column.name!r}, {with_article(column.shown)}, in its column {name} of type "
                f"{shown(kind)}, which takes {_listed(STORED[kind])}: "
                f"{_remedy_for_store(column, name)}"
            )


def check_reaches_python(columns: list[Column], whose: str) -> None:
    """Check that Spark can hand the rows to Python; some types fail in the tasks, or worse.

    Args:
        columns: All columns of the rows.
        whose: The receiver of the rows, for the message.

    Raises:
        ConfigError: Spark cannot hand over a column.
    """
    for column in columns:
        # Spark's tasks would fail with a `KeyError` of the type's number.
        if column.shown.startswith(("interval year", "interval month")):
            raise ConfigError(
                f"column {column.name!r} is {with_article(column.shown)}, which Spark cannot hand "
                f"to {whose}: cast it to an int of months, or leave it out before the write"
            )


def check_tags(column: Column) -> None:
    """Check that the values of a column can be tags.

    Raises:
        ConfigError: They cannot.
    """
    _check(column, "type_column", "type_column")


def check_once(columns: list[Column], read: Iterable[str]) -> None:
    """Check that no column that is read is duplicated.

    Raises:
        ConfigError: A column is duplicated.
    """
    names = [column.name for column in columns]
    for name in read:
        if names.count(name) > 1:
            raise ConfigError(
                f"the rows have {names.count(name)} columns named {name!r}, and which of them is "
                "meant is not known: rename or drop the others before the write"
            )


def _check_cases(uses: list[_Use]) -> None:
    """Check that the columns read differ by more than the case of their names, for Spark SQL."""
    found: dict[str, str] = {}
    for name, _, _ in uses:
        other = found.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(
                f"the job reads columns {other!r} and {name!r}, which Spark SQL does not "
                "distinguish: rename one before the write"
            )


def _check(column: Column, use: str, what: str) -> None:
    if column.kind == _COLLATED and "text" in ACCEPTED[use]:
        if use == "Count":
            return
        raise ConfigError(
            f"column {column.name!r} is {with_article(column.shown)}, and the job reads it as "
            f"{what}, where texts are equal and ordered by their bytes in tasks and in the store, "
            "and by the collation in Spark SQL: give the column "
            f"`{column.name} COLLATE UTF8_BINARY`, or lower({column.name}) COLLATE UTF8_BINARY if "
            "case does not matter"
        )
    if column.kind not in ACCEPTED[use]:
        raise ConfigError(
            f"column {column.name!r} is {with_article(column.shown)}, and the job reads it as "
            f"{what}, which takes {_listed(ACCEPTED[use])}: cast it before the write, or read "
            "another column"
        )


def _uses(job: AggregationJob) -> Iterator[_Use]:
    if job.watermark is not None:
        yield _Use(job.watermark.time.column, "a Window or Watermark", "the time of the watermark")
    for step in job.arrow:
        if step.type_column is not None:
            yield _Use(step.type_column, "type_column", "type_column")
        if isinstance(step, ArrowAggregation):
            declared = step.keys if isinstance(step.keys, Mapping) else {}
            yield from _uses_of(step.aggregation, declared)


def _uses_of(aggregation: Aggregation, declared: Mapping[str, type]) -> Iterator[_Use]:
    for key in aggregation.keys:
        use = _KEY_USES[declared[key]] if key in declared else "a key"
        yield _Use(key, use, use)
    if aggregation.window is not None:
        yield _Use(aggregation.window.column, "a Window or Watermark", "the time of a window")
    for name, measure in aggregation.measures.items():
        use = type(measure).__name__
        for place in ("column", "by", "label"):
            column = getattr(measure, place, None)
            if column is not None:
                what = use if place == "column" else f"{place} of {use}"
                yield _Use(column, use, f"{what} for {name!r}")


def _measured(job: AggregationJob) -> Iterator[tuple[type[Metrics], Sum | Mean | Min | Max]]:
    """Yield each declared metric that stores values of a column, or their sum, with its measure."""
    for step in job.arrow:
        if isinstance(step, ArrowAggregation) and isinstance(step.metrics, Mapping):
            for metric, measure in zip(step.types.values(), step.metrics.values(), strict=True):
                if isinstance(measure, Sum | Mean | Min | Max):
                    yield metric, measure


def _remedy_for_store(column: Column, name: str) -> str:
    kinds = [kind.__name__ for kind, kinds in STORED.items() if column.kind in kinds]
    if not kinds:
        return "give a number, such as seconds, or a text"
    columns = f"columns={{{name!r}: {kinds[-1]}}}"
    return f"declare the metric by its type, with {columns}, or cast the column"


def _listed(kinds: tuple[str, ...]) -> str:
    *most, last = kinds
    return f"{', '.join(most)} or {last}" if most else last
