"""L1 pushed down: Spark SQL groups the rows in the JVM, and only the groups reach Python."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import types as T

from batchqueue.aggregation import (
    Aggregation,
    Count,
    DistinctSketch,
    First,
    Last,
    Max,
    Mean,
    Measure,
    Metrics,
    Min,
    Sum,
    Window,
)
from batchqueue.aggregation.kinds import lg_registers
from batchqueue.base.words import a_type, counted, with_article
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import BadRows
from batchqueue.spark.job import AggregationJob, DeadLetters, Watermark
from batchqueue.spark.options import L1Choice
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.steps import ArrowAggregation
from batchqueue.spark.task.arrow import to_arrow
from batchqueue.spark.task.bad_rows import (
    FIRST_DAY,
    HAS_NUL,
    IS_NULL,
    LARGE,
    LAST_DAY,
    NO_DATE,
    NOT_UTF8,
    TextLimits,
    UnknownTag,
    UnstorableRow,
    check_groups,
    entity_columns,
    grouping_columns,
    must_not_be_null,
    refused_rows,
    stored_text_columns,
    too_long,
    wrong,
)
from batchqueue.spark.task.contents import contents_of_groups
from batchqueue.spark.task.groups import (
    ROWS,
    ColumnPartials,
    TaskGroups,
    declared_partials,
    has_only_built_in_metrics,
    record_batches,
    without_null_keys,
)
from batchqueue.spark.task.message import AttemptSummary, EpochId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


_NEWEST = "batchqueue newest"
"""Column with the latest time of each group, for the watermark."""

_UNKNOWN_TAGS, _VALUES = "batchqueue unknown tags", "batchqueue values of "
"""Columns beside the measures: rows with an unknown tag, and the number of values of each sum."""

_NOT_UTF8 = "batchqueue not UTF-8 in "
"""Prefix of columns that count rows whose text is not UTF-8, which tasks refuse to read."""


@dataclass(frozen=True)
class SqlPartials:
    """The partials that Spark SQL made of one batch, in place of the messages of its tasks.

    Attributes:
        epoch: The micro-batch; None in a batch write.
        tables: The groups of each step of the job, as `Aggregator.result` would return them.
        summary: Counts; no queue was involved.
        dead_letters: The bad rows that the job keeps.
        groups: Empty: Spark SQL has merged them.
    """

    epoch: EpochId | None
    tables: Sequence[pa.Table]
    summary: AttemptSummary
    dead_letters: tuple[BadRows, ...] = ()
    groups: tuple[TaskGroups, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the tables."""
        return sum(table.nbytes for table in self.tables)

    def columns(self, job: AggregationJob) -> list[ColumnPartials]:
        """Turn groups of declared metrics into partials."""
        return self.columns_of(pushdown_steps(job))

    def objects(self, job: AggregationJob) -> Iterator[Metrics]:
        """Turn other groups into partials."""
        return self.objects_of(pushdown_steps(job))

    def columns_of(self, steps: Sequence[ArrowAggregation]) -> list[ColumnPartials]:
        """Turn groups of declared metrics into partials; `steps` are those of `tables`."""
        return [
            of_metric
            for step, batch in self._batches(steps)
            if not callable(step.metrics)
            for of_metric in declared_partials(step, batch)
        ]

    def objects_of(self, steps: Sequence[ArrowAggregation]) -> Iterator[Metrics]:
        """Turn other groups, and bad rows, into partials; `steps` are those of `tables`."""
        yield from self.dead_letters
        for step, batch in self._batches(steps):
            if callable(step.metrics):
                yield from step.metrics(batch)

    def _batches(
        self, steps: Sequence[ArrowAggregation]
    ) -> Iterator[tuple[ArrowAggregation, pa.RecordBatch]]:
        for step, table in zip(steps, self.tables, strict=True):
            for batch in record_batches(table):
                yield step, batch


def pushdown_steps(job: AggregationJob) -> list[ArrowAggregation]:
    """Return the steps of a job that Spark SQL can run completely.

    Raises:
        ConfigError: The job has something that Spark SQL cannot run: functions, handlers,
            quantiles or rankings.
    """
    if job.items is not None:
        raise ConfigError(
            f"l1='spark' cannot run the function `items` of job {job.name!r}: declare its metrics "
            "with ArrowAggregation, or use l1='tasks'"
        )
    if job.prepare is not None:
        raise ConfigError(
            f"l1='spark' cannot run the function `prepare` of job {job.name!r}: do the same with "
            "the DataFrame before the write, or use l1='tasks'"
        )
    steps = []
    for step in job.arrow:
        if not isinstance(step, ArrowAggregation):
            raise ConfigError(
                f"l1='spark' cannot run the handler of an ArrowHandler of job {job.name!r}: "
                "declare its metrics with ArrowAggregation, or use l1='tasks'"
            )
        for name, measure in step.aggregation.measures.items():
            if type(measure) not in _SQL and not isinstance(measure, DistinctSketch):
                raise ConfigError(
                    f"measure {name!r} of job {job.name!r} is {a_type(measure)}, which "
                    "Spark SQL does not have in the same form: use l1='tasks'"
                )
        steps.append(step)
    return steps


def choose_l1(df: "DataFrame", job: AggregationJob, *, in_shards: bool) -> L1Choice:
    """Choose Spark SQL if it has the same results as the tasks, whatever the rows are.

    Args:
        df: The rows, with instants in place of times without a zone.
        job: What to do with them.
        in_shards: Whether tasks commit. Then what Spark SQL refuses cannot fall back to the tasks.
    """
    for why in _reasons_for_tasks(df, job, in_shards=in_shards):
        return L1Choice("tasks", why)
    return L1Choice("spark", "Spark SQL has all measures of the job, with the same results")


def _reasons_for_tasks(df: "DataFrame", job: AggregationJob, *, in_shards: bool) -> Iterator[str]:
    """Yield what Spark SQL lacks, or might compute with other results."""
    try:
        steps = pushdown_steps(job)
        for window in (step.aggregation.window for step in steps):
            if window is not None:
                bucket_in_sql(window, df.schema)
    except ConfigError as error:
        yield str(error).partition(": ")[0]
        return
    if len(steps) > 1:
        yield f"Spark SQL would read the rows {len(steps)} times, once for each step"
    if job.on_bad_row != "fail":
        yield "on_bad_row limits and shows the bad rows of a task"
    if job.l1.dead_letter is not None:
        yield "the queue of l1 has a dead_letter"
    for step in steps:
        if callable(step.metrics):
            yield "a function makes metrics of the groups of a task"
        elif not has_only_built_in_metrics([step]):
            yield "a metric has its own way to combine the groups of two tasks"
        if step.aggregation.window is not None and step.aggregation.window.zone is not None:
            yield "Spark SQL would take the rules of the window's zone from Java"
        for name, measure in step.aggregation.measures.items():
            why = _why_differs(measure, df, in_shards=in_shards)
            if why is not None:
                yield f"{name!r} {why}"


def _why_differs(measure: Measure, df: "DataFrame", *, in_shards: bool) -> str | None:
    """Return how Spark SQL might give another result for a measure; None if it does not."""
    if isinstance(measure, Sum | Mean) and _type_name(df, measure.column) in _FLOATS:
        return "is a sum of floats, which Spark SQL does not compensate"
    if isinstance(measure, Sum | Mean) and in_shards:
        return "is a sum, which may fit in the parts of tasks but not as a whole"
    return None


_FLOATS = ("float", "double")


def collect_partials(
    df: "DataFrame",
    job: AggregationJob,
    sink_id: str,
    epoch: EpochId | None = None,
    *,
    names_overflow: bool = False,
) -> SqlPartials:
    """Run the aggregations of a job in Spark SQL, and collect the groups.

    Args:
        df: The rows.
        job: What to do with them.
        sink_id: The sink.
        epoch: The micro-batch; None in a batch write.
        names_overflow: See `plan_groups`.

    Raises:
        ConfigError: See `pushdown_steps`.
        SinkError: A row has a tag that its step does not name, or a key that the store cannot hold,
            and the job's rule is to fail; or a sum does not fit 64 bits.
        ArithmeticException: A sum does not fit 64 bits, Spark is in ANSI mode, and `names_overflow`
            is not set; with pyspark 3.5 a Py4JJavaError.
    """
    steps = pushdown_steps(job)
    plans = plan_groups(df, job, sink_id, names_overflow=names_overflow)
    tables = [to_arrow(groups) for groups in plans]
    found = checked_partials(tables, steps, job, sink_id, epoch)
    check_bad_rows([found.summary], job)
    return found


def checked_partials(
    tables: Sequence[pa.Table],
    of_steps: Sequence[ArrowAggregation],
    job: AggregationJob,
    sink_id: str,
    epoch: EpochId | None,
) -> SqlPartials:
    """Check the groups that Spark SQL made.

    Args:
        tables: Results of `plan_groups`, whole or in pieces.
        of_steps: The step of each table.
        job: The job.
        sink_id: The sink, or one of its shards.
        epoch: The micro-batch; None in a batch write.

    Raises:
        SinkError: See `collect_partials`.
    """
    counting = _counting_rows(pushdown_steps(job))
    pairs = list(zip(tables, of_steps, strict=True))
    rows = sum(sum(table.column(ROWS).to_pylist()) for table, step in pairs if id(step) in counting)
    limits = TextLimits.of(job, sink_id)
    split = [without_bad_rows(table, job) for table in tables]
    (bad,) = [bad for _, bad in split if bad.count] or [SqlBadRows()]
    good = [table for table, _ in split]
    newest = None if job.watermark is None else _newest(good, job.watermark)
    checked = [_checked(table, step, limits) for table, step in zip(good, of_steps, strict=True)]
    skipped = sum(skipped for _, skipped in checked)
    batches = [
        (step, batch)
        for step, table in zip(of_steps, good, strict=True)
        for batch in record_batches(table)
    ]
    contents = contents_of_groups(batches, job)
    return SqlPartials(
        epoch,
        [groups for groups, _ in checked],
        AttemptSummary(
            rows,
            skipped=skipped,
            newest=newest,
            bad_rows=bad.count,
            bad_row_error=bad.first_error,
            contents=contents,
        ),
        bad.kept,
    )


def _newest(tables: Sequence[pa.Table], watermark: Watermark) -> int | None:
    """Return the latest time in the rows of groups."""
    # On Spark 3.5 a table without rows does not know the types of its columns.
    found = [watermark.newest(table.column(_NEWEST)) for table in tables if table.num_rows]
    return max((time for time in found if time is not None), default=None)


def plan_groups(
    df: "DataFrame", job: AggregationJob, sink_id: str, *, names_overflow: bool = False
) -> list["DataFrame"]:
    """Plan each step as a `groupBy` with its keys, window, measures, and columns for the checks.

    Unless bad rows fail, the first step also has them, as groups without keys.

    Args:
        df: The rows.
        job: What to do with them.
        sink_id: The sink.
        names_overflow: Whether the error of a sum that does not fit 64 bits names the sum even in
            ANSI mode, which costs time for each row. Default: False, the error is Spark's.
    """
    steps = pushdown_steps(job)
    sets_apart = job.on_bad_row != "fail"
    if sets_apart:
        df = with_errors(df, _functions_for(df), job, steps, sink_id)
    return [
        _plan(
            df,
            step,
            _tags_beside(step, steps),
            job.watermark,
            bad_rows=("with" if step is steps[0] else "without") if sets_apart else None,
            names_overflow=names_overflow,
        )
        for step in steps
    ]


def _tags_beside(step: ArrowAggregation, steps: Sequence[ArrowAggregation]) -> list[str]:
    """Return the tags that other steps by the same column take."""
    return [
        tag
        for other in steps
        if other.type_column == step.type_column and other is not step
        for tag in other.tags
    ]


def _counting_rows(steps: Sequence[ArrowAggregation]) -> set[int]:
    """Return the ids of steps that together see each row exactly once."""
    first = steps[0]
    return {id(first)} | {
        id(step) for step in steps if first.tags and step.type_column == first.type_column
    }


def _plan(
    df: "DataFrame",
    step: ArrowAggregation,
    tags_beside: Sequence[str],
    watermark: Watermark | None,
    bad_rows: Literal["with", "without"] | None,
    *,
    names_overflow: bool,
) -> "DataFrame":
    fn, aggregation = _functions_for(df), step.aggregation
    if bad_rows == "without":
        df = df.where(fn.col(quoted(ERROR)).isNull())
    if step.type_column is not None and tags_beside:
        # Rows with an unknown tag, or null, stay in, so that the check finds them.
        of_others = _has_tag(fn, df, step.type_column, tags_beside)
        if bad_rows == "with":
            of_others = of_others & fn.col(quoted(ERROR)).isNull()
        df = df.where(~of_others)
    sql = _SQL
    is_ansi = df.sparkSession.conf.get("spark.sql.ansi.enabled") == "true"
    if bad_rows or names_overflow or not is_ansi:
        # `sum` would wrap above 64 bits; `try_sum` is null instead, and costs more. In ANSI mode
        # Spark raises, which the sum of bad rows must not.
        sql = {**_SQL, Sum: lambda fn, measure: fn.try_sum(quoted(measure.column))}
    keys = [fn.col(quoted(key)).alias(key) for key in aggregation.keys]
    if aggregation.window is not None:
        start = fn.expr(bucket_in_sql(aggregation.window, df.schema))
        keys.append(start.alias(aggregation.window.output))
    if bad_rows == "with":
        names = [*step.key_columns]
        keys = [of_good_rows(fn, key).alias(name) for key, name in zip(keys, names, strict=True)]
        keys += [fn.col(quoted(name)) for name in (ERROR, ROW) if name in df.columns]
    measures = [
        _in_sql(fn, measure, df, sql).alias(name) for name, measure in aggregation.measures.items()
    ]
    for name, measure in aggregation.measures.items():
        if isinstance(measure, Sum | Mean):
            measures.append(fn.count(quoted(measure.column)).alias(_VALUES + name))
    if step.type_column is not None:
        known = _has_tag(fn, df, step.type_column, step.tags)
        measures.append(fn.count_if(~known).alias(_UNKNOWN_TAGS))
    for name in _distinct_texts(df, aggregation):
        is_wrong = f"NOT {_is_utf8(df, quoted(name))}"
        measures.append(fn.count_if(fn.expr(is_wrong)).alias(_NOT_UTF8 + name))
    if watermark is not None:
        measures.append(_newest_in_sql(fn, watermark, df).alias(_NEWEST))
    return df.groupBy(*keys).agg(_count_of_rows(fn, aggregation).alias(ROWS), *measures)


def _distinct_texts(df: "DataFrame", aggregation: Aggregation) -> list[str]:
    """Return the columns of texts that are hashed, so that no group shows what is in them."""
    measures = aggregation.measures.values()
    columns = {each.column for each in measures if isinstance(each, DistinctSketch)}
    return sorted(column for column in columns if _type_name(df, column) == "string")


def _has_tag(fn: Any, df: "DataFrame", column: str, tags: Sequence[str]) -> "Column":
    """Return whether the value of a column is a tag, as text; null is not."""
    values = fn.col(quoted(column))
    if _type_name(df, column) != "string":
        values = values.cast("string")  # else Spark would cast the tags
    found: Column = fn.coalesce(values.isin(*tags), fn.lit(False))
    return found


def _count_of_rows(fn: Any, aggregation: Aggregation) -> "Column":
    """Count rows as the values of a sum plus its nulls: another count would cost time per row.

    `count_if` would cost as much, since it adds a 0 for the others.
    """
    measures = aggregation.measures.values()
    columns = [each.column for each in measures if isinstance(each, Sum | Mean)]
    sql = "count(1)"
    if columns and not any(isinstance(each, Count) and each.column is None for each in measures):
        column = quoted(columns[0])
        sql = f"count({column}) + count(CASE WHEN {column} IS NULL THEN 1 END)"
    rows: Column = fn.expr(sql)
    return rows


def _newest_in_sql(fn: Any, watermark: Watermark, df: "DataFrame") -> "Column":
    column, limit = quoted(watermark.time.column), watermark.latest_that_counts()
    limits = {
        "timestamp": f"timestamp_seconds({limit})",
        "date": f"date_from_unix_date({limit // 86_400})",
    }
    most = limits.get(_type_name(df, watermark.time.column) or "", str(limit))
    newest: Column = fn.max(fn.expr(f"IF({column} <= {most}, {column}, NULL)"))
    return newest


def _functions_for(df: "DataFrame") -> Any:
    """Return Spark's functions for the session of a DataFrame, which is classic or Connect."""
    if type(df).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect import functions as connect_functions

        return connect_functions
    from pyspark.sql import functions

    return functions


def _count(fn: Any, measure: Count) -> "Column":
    counted: Column = fn.count(
        fn.lit(1) if measure.column is None else fn.col(quoted(measure.column))
    )
    return counted


def _in_sql(fn: Any, measure: Measure, df: "DataFrame", sql: Mapping[type, Any]) -> "Column":
    if isinstance(measure, DistinctSketch):
        return _distinct(fn, measure, df)
    if isinstance(measure, Mean) and _type_name(df, measure.column) == "decimal":
        return _mean_of_decimals(fn, measure, sql)
    column: Column = sql[type(measure)](fn, measure)
    return column


def _distinct(fn: Any, measure: DistinctSketch, df: "DataFrame") -> "Column":
    """Return a sketch of DataSketches, of values converted to what Spark's function takes."""
    column = fn.col(quoted(measure.column))
    sql = _COUNTED.get(_type_name(df, measure.column) or "")
    values = column if sql is None else fn.expr(sql.format(quoted(measure.column)))
    sketch: Column = fn.hll_sketch_agg(values, fn.lit(lg_registers(measure.accuracy)))
    return sketch


_EMPTY_TEXT = "batchqueue empty text 078194685"
"""Stands for the empty text, which Spark's function leaves out: their hashes set the same bits."""

_COUNTED = {
    "byte": "CAST({} AS bigint)",
    "short": "CAST({} AS bigint)",
    "integer": "CAST({} AS bigint)",
    "boolean": "CAST({} AS bigint)",
    "date": "CAST(unix_date({}) AS bigint)",
    "timestamp": "unix_micros({})",
    # A comparison with '' would ignore the spaces at the end of a char column.
    "string": f"IF(octet_length({{0}}) = 0, '{_EMPTY_TEXT}', {{0}})",
    "binary": f"IF(octet_length({{0}}) = 0, CAST('{_EMPTY_TEXT}' AS binary), {{0}})",
}
"""How a value of a type is counted as an `Aggregator` counts it: most as an integer."""


_TEXTS = (T.StringType, T.CharType, T.VarcharType)


def _type_name(df: "DataFrame", column: str) -> str | None:
    # Not `df.schema[column]`: Spark names a column that is missing, and the others.
    for field in df.schema.fields:
        if field.name.lower() == column.lower():
            return "string" if isinstance(field.dataType, _TEXTS) else field.dataType.typeName()
    return None


def _mean_of_decimals(fn: Any, measure: Mean, sql: Mapping[type, Any]) -> "Column":
    """Return the mean as a double, of an exact sum, as an `Aggregator` does."""
    total, values = sql[Sum](fn, measure), fn.count(quoted(measure.column))
    mean: Column = fn.when(values > 0, total.cast("double") / values)
    return mean


def _pair(fn: Any, column: str, by: str) -> "Column":
    """Return a struct that sorts by `by`; null if either column is null."""
    value, order = fn.col(quoted(column)), fn.col(quoted(by))
    pair: Column = fn.when(
        value.isNotNull() & order.isNotNull(), fn.struct(order.alias("by"), value.alias("value"))
    )
    return pair


_SQL: dict[type, Callable[[Any, Any], "Column"]] = {
    Count: _count,
    Sum: lambda fn, measure: fn.sum(quoted(measure.column)),
    Mean: lambda fn, measure: fn.avg(quoted(measure.column)),
    Min: lambda fn, measure: fn.min(quoted(measure.column)),
    Max: lambda fn, measure: fn.max(quoted(measure.column)),
    # For equal `by`, the smallest and the largest value: across many tasks no row "came first".
    First: lambda fn, measure: fn.min(_pair(fn, measure.column, measure.by)).getField("value"),
    Last: lambda fn, measure: fn.max(_pair(fn, measure.column, measure.by)).getField("value"),
}


def _checked(table: pa.Table, step: ArrowAggregation, limits: TextLimits) -> tuple[pa.Table, int]:
    """Reject what tasks would reject; return groups as tasks would, and the rows left out."""
    unknown_tags = (
        sum(table.column(_UNKNOWN_TAGS).to_pylist()) if _UNKNOWN_TAGS in table.column_names else 0
    )
    if unknown_tags:
        has = "has" if unknown_tags == 1 else "have"
        raise SinkError(
            f"{counted(unknown_tags, 'row')} {has} a value of {step.type_column!r} that is not in "
            "the step's tags, so nothing of this epoch is committed; every tag must be in one of "
            "`arrow`"
        )
    for name in table.column_names:
        if name.startswith(_NOT_UTF8) and any(table.column(name).to_pylist()):
            raise refused_rows(wrong(name.removeprefix(_NOT_UTF8), NOT_UTF8, step))
    for name, measure in step.aggregation.measures.items():
        if isinstance(measure, Sum | Mean) and table.column(name).null_count:
            values: Any = table.column(_VALUES + name).filter(table.column(name).is_null())
            if any(values.to_pylist()):
                what = "sum" if isinstance(measure, Sum) else "sum behind the mean"
                integers = pa.types.is_integer(table.column(name).type)
                limit = "64 bits" if integers else "a decimal of 38 digits"
                raise SinkError(
                    f"the {what} {name!r} of column {measure.column!r} does not fit {limit} in a "
                    "group, so nothing of this epoch is committed: measure in a larger unit, or "
                    "as double"
                )
    if not step.key_columns and not any(table.column(ROWS).to_pylist()):
        table = table.slice(0, 0)  # without keys, SQL makes one group even of no rows
    groups, skipped = without_null_keys(table, step)
    if not callable(step.metrics):
        for batch in record_batches(groups):
            check_groups(batch, step, limits)
    return groups.select([*step.key_columns, *step.aggregation.measures]), skipped


# Time buckets in Spark SQL, equal to those of an `Aggregator`.
#
# A zone's UTC offset at an instant is what `from_utc_timestamp` adds to it, whatever the session's
# zone is. Spark has no function for when the offset changed, so that is searched for, in the few
# rows whose bucket may have begun before a change.


_SECOND = 1_000_000
_DAY_S = 86_400
"""No clock was ever changed by more."""

_LAST, _STEP, _CHANGE = "`batchqueue last`", "`batchqueue step`", "`batchqueue change`"
"""Variables of lambdas, which would hide columns of the same name."""


def bucket_in_sql(window: Window, schema: "StructType") -> str:
    """Return the start of a row's time bucket, in the type of the column; a long for integers.

    Args:
        window: The window.
        schema: The schema of the rows.

    Raises:
        ConfigError: Spark SQL cannot cut the column into these buckets.
    """
    column, kind = quoted(window.column), schema[window.column].dataType
    width, offset = timedelta(seconds=window.seconds), timedelta(seconds=window.offset_seconds)
    is_whole = window.seconds.is_integer() and float(window.offset_seconds).is_integer()
    is_micros = all(
        round(seconds * 1e9) % 1_000 == 0 for seconds in (window.seconds, window.offset_seconds)
    )
    if isinstance(kind, T.TimestampType) and is_micros:
        micros = f"unix_micros({column})"
        start = _start(window, micros, round(width / _MICRO), round(offset / _MICRO))
        sql = f"timestamp_micros({start})"
    elif isinstance(kind, T.DateType) and not (width % _DAY or offset % _DAY):
        start = _floor(f"unix_date({column})", width.days, offset.days)
        sql = f"date_from_unix_date({start})"
    elif isinstance(kind, T.ByteType | T.ShortType | T.IntegerType | T.LongType) and is_whole:
        seconds = f"CAST({column} AS bigint)"
        if window.zone is None:
            sql = _floor(seconds, int(window.seconds), int(window.offset_seconds))
        else:
            micros = f"{seconds} * {_SECOND}L"
            start = _start(window, micros, round(width / _MICRO), round(offset / _MICRO))
            sql = f"({start}) DIV {_SECOND}L"
    else:
        after = f" after {window.offset_seconds} s" if window.offset_seconds else ""
        raise ConfigError(
            f"l1='spark' cannot make buckets of {window.seconds} s{after} of column "
            f"{window.column!r}, {with_article(kind.simpleString())}: use a timestamp with whole "
            "microseconds, a date with whole days or an integer with whole seconds, or l1='tasks'"
        )
    return sql


_MICRO, _DAY = timedelta(microseconds=1), timedelta(days=1)


def quoted(column: str) -> str:
    """Return the name of a column as Spark SQL reads it."""
    return f"`{column.replace('`', '``')}`"


def _floor(time: str, width: int, offset: int, ahead: str = "") -> str:
    """Round a time down to a multiple of the width, on a clock that is ahead of it."""
    on_clock = f"({time})" + (f" + {ahead}" if ahead else "") + (f" - {offset}" if offset else "")
    return f"({time}) - pmod({on_clock}, {width})"


def _start(window: Window, micros: str, width: int, offset: int) -> str:
    """Return the start of the bucket of an instant, all in microseconds since the epoch."""
    if window.zone is None:
        return _floor(micros, width, offset)
    zone = window.zone

    def ahead(time: str) -> str:
        local = f"from_utc_timestamp(timestamp_micros({time}), '{zone}')"
        return f"unix_micros({local}) - ({time})"

    now = ahead(micros)
    regular = _floor(micros, width, offset, now)
    long_before = f"({regular}) - {_DAY_S * _SECOND}L"
    # The last second with another offset, by bisection.
    steps = ", ".join(
        f"{2**step}L" for step in reversed(range((width // _SECOND + _DAY_S).bit_length()))
    )
    later = f"({_LAST} + {_STEP}) * {_SECOND}L"
    last_before = (
        f"aggregate(array({steps}), ({long_before}) DIV {_SECOND}L, ({_LAST}, {_STEP}) -> "
        f"IF({later} <= {micros} AND {ahead(later)} <> {now}, {_LAST} + {_STEP}, {_LAST}))"
    )
    # A lambda is how SQL gives a value a name.
    change = f"({last_before} + 1L) * {_SECOND}L"
    before = ahead(f"{_CHANGE} - 1L")
    set_back = f"({before} - ({now}))"
    multiple = f"{_CHANGE} - pmod({_CHANGE} + ({now}) - {offset}L, {width}L) + ({now})"
    earlier_start = _floor(f"{_CHANGE} - 1L", width, offset, before)
    multiple_before = f"{earlier_start} + {before}"
    around_a_change = (
        f"transform(array({change}), {_CHANGE} -> CASE "
        f"WHEN {set_back} % {width}L = 0 THEN {regular} "
        # What the clock showed before it was set back has had its start.
        f"WHEN {regular} >= {_CHANGE} + greatest({set_back}, 0L) THEN {regular} "
        # It jumped past a start.
        f"WHEN {multiple} > {multiple_before} THEN {_CHANGE} "
        f"ELSE {earlier_start} END)[0]"
    )
    return f"IF({ahead(long_before)} = {now}, {regular}, {around_a_change})"


# Bad rows in Spark SQL: how they are found, and their groups become counts and dead letters.
#
# The conditions are those of `task/bad_rows.py` and of the tags. Each bad row has its error in an
# extra column, by which the first step groups, so there is no second pass over the rows.


_compute: Any = pyarrow.compute  # its type hints lack functions

ERROR, ROW = "batchqueue bad row", "batchqueue row"
"""Columns of the first step: what is wrong with a row, or null; and the row, if it is kept."""


def with_errors(
    df: "DataFrame", fn: Any, job: AggregationJob, steps: Sequence[ArrowAggregation], sink_id: str
) -> "DataFrame":
    """Return rows with `ERROR`, and with `ROW` if the job keeps them."""
    limits = TextLimits.of(job, sink_id)
    conditions = [*_unknown_tags(job), *_unstorable(df, steps, limits)]
    error = fn.lit(None).cast("string")
    for condition, text in reversed(conditions):
        error = fn.when(fn.expr(condition), fn.lit(text)).otherwise(error)
    if not isinstance(job.on_bad_row, DeadLetters):
        return df.withColumn(ERROR, error)
    df, columns = _distinct_columns(df)
    df = df.withColumn(ERROR, error)
    if columns:
        row = fn.to_json(
            fn.struct(*(fn.col(quoted(name)) for name in columns)), {"ignoreNullFields": "false"}
        )
        df = df.withColumn(ROW, fn.when(fn.col(quoted(ERROR)).isNotNull(), row))
    return df


def _distinct_columns(df: "DataFrame") -> tuple["DataFrame", list[str]]:
    """Return rows whose column names differ, and the names that they had before.

    Of columns that share a name, which the job cannot read, the last keeps it, as in a dead letter
    of a task.
    """
    is_exact = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    last = {name if is_exact else name.lower(): place for place, name in enumerate(df.columns)}
    kept = set(last.values())
    if len(kept) < len(df.columns):
        names = [
            name if place in kept else f"batchqueue unread {place}"
            for place, name in enumerate(df.columns)
        ]
        return df.toDF(*names), [df.columns[place] for place in sorted(kept)]
    return df, df.columns


def of_good_rows(fn: Any, key: "Column") -> "Column":
    """Return a key that is null in bad rows, so that they make one group."""
    column: Column = fn.when(fn.col(quoted(ERROR)).isNull(), key)
    return column


def _unknown_tags(job: AggregationJob) -> Iterator[tuple[str, str]]:
    for column, tags in job.tags_by_column().items():
        text = (
            f"column {column!r} has a value which is not a tag of a step: {', '.join(sorted(tags))}"
        )
        known = f"CAST({quoted(column)} AS string) IN ({', '.join(map(_literal, sorted(tags)))})"
        yield f"NOT coalesce({known}, false)", f"{UnknownTag.__name__}: {text}"


def _unstorable(
    df: "DataFrame", steps: Sequence[ArrowAggregation], limits: TextLimits
) -> Iterator[tuple[str, str]]:
    for step in steps:
        of_step = ""
        if step.type_column is not None:
            tags = ", ".join(map(_literal, step.tags))
            of_step = f"CAST({quoted(step.type_column)} AS string) IN ({tags}) AND "
        for condition, text in _unstorable_in(df, step, limits):
            yield f"{of_step}({condition})", f"{UnstorableRow.__name__}: {text}"


def _unstorable_in(
    df: "DataFrame", step: ArrowAggregation, limits: TextLimits
) -> Iterator[tuple[str, str]]:
    keys, stored_texts = grouping_columns(step), stored_text_columns(step)
    entities = entity_columns(step)
    kinds = {field.name.lower(): field.dataType for field in df.schema.fields}
    for name in step.aggregation.columns:
        column, kind = quoted(name), kinds.get(name.lower())
        if name in keys and must_not_be_null(step, name):
            yield f"{column} IS NULL", wrong(name, IS_NULL, step)
        if name in keys and isinstance(kind, T.DateType):
            days = f"unix_date({column})"
            yield f"{days} < {FIRST_DAY} OR {days} > {LAST_DAY}", wrong(name, NO_DATE, step)
        if isinstance(kind, _TEXTS) or (name in entities and _is_text(kind)):
            text = f"CAST({column} AS string)"
            yield f"NOT {_is_utf8(df, text)}", wrong(name, NOT_UTF8, step)
            if not limits.holds_nul and name in stored_texts:
                yield f"instr({text}, char(0)) > 0", wrong(name, HAS_NUL, step)
    most = limits.most_entity_bytes(step)
    keys_in_order = step.aggregation.keys
    if most is not None and any(_is_text(kinds.get(key.lower())) for key in keys_in_order):
        separators = len(keys_in_order) - 1
        lengths = [_bytes_in_entity(quoted(key), is_alone=not separators) for key in keys_in_order]
        yield f"{' + '.join(lengths)} + {separators} > {most}", too_long(step, most)


def _is_utf8(df: "DataFrame", column: str) -> str:
    if df.sparkSession.version < "4":
        return f"(decode(CAST({column} AS binary), 'UTF-8') <=> {column})"
    return f"coalesce(is_valid_utf8({column}), true)"


def _is_text(kind: T.DataType | None) -> bool:
    return isinstance(kind, (*_TEXTS, T.BinaryType))


def _bytes_in_entity(column: str, *, is_alone: bool) -> str:
    column = f"CAST({column} AS string)"
    length = f"coalesce(octet_length({column}), 0)"
    if is_alone:
        return length
    # The separator and the escape are each preceded by an extra character.
    plain = f"coalesce(octet_length(translate({column}, concat('|', char(92)), '')), 0)"
    return f"2 * {length} - {plain}"


def _literal(text: str) -> str:
    return "decode(X'" + text.encode().hex() + "', 'UTF-8')"


@dataclass(frozen=True)
class SqlBadRows:
    """The bad rows among the groups of a table.

    Attributes:
        count: Number of rows.
        first_error: What was wrong with one of them; None if there is none.
        kept: The bad rows that the job keeps.
    """

    count: int = 0
    first_error: str | None = None
    kept: tuple[BadRows, ...] = ()


def without_bad_rows(table: pa.Table, job: AggregationJob) -> tuple[pa.Table, SqlBadRows]:
    """Return the groups of good rows, and the bad rows.

    Args:
        table: The groups of a step, whole or in pieces.
        job: The job, with its rule for bad rows.

    Raises:
        SinkError: There are more bad rows than the job keeps.
    """
    if ERROR not in table.column_names:
        return table, SqlBadRows()
    is_good = table.column(ERROR).is_null()
    added = [name for name in (ERROR, ROW) if name in table.column_names]
    good = table.filter(is_good).drop_columns(added)
    bad = table.select([*added, ROWS]).filter(_compute.invert(is_good)).to_pylist()
    count, first = sum(row[ROWS] for row in bad), bad[0][ERROR] if bad else None
    if not isinstance(job.on_bad_row, DeadLetters):
        return good, SqlBadRows(count, first)
    _check_limit(count, first, job)
    kept: dict[str, BadRows] = {}
    began_at = int(time.time())
    for row in bad:
        kind = row[ERROR].partition(":")[0]
        for _ in range(row[ROWS]):
            letter = BadRows(kind, began_at, row[ROW], row[ERROR])
            if kind in kept:
                kept[kind].combine(letter)
            else:
                kept[kind] = letter
    return good, SqlBadRows(count, first, tuple(kept.values()))


def check_bad_rows(parts: Iterable[AttemptSummary], job: AggregationJob) -> None:
    """Check the bad rows of an epoch.

    Args:
        parts: The counts of the epoch.
        job: The job, with its rule for bad rows.

    Raises:
        SinkError: There are more than the job keeps; or, if it drops them, many and no good rows.
    """
    rows, bad_rows, first = 0, 0, None
    for part in parts:
        rows, bad_rows, first = (
            rows + part.rows,
            bad_rows + part.bad_rows,
            first or part.bad_row_error,
        )
    _check_limit(bad_rows, first, job)
    if job.on_bad_row == "skip" and rows >= LARGE and bad_rows == rows:
        raise SinkError(
            f"all {rows:,} rows are bad, and on_bad_row='skip' would drop them, so nothing of this "
            "epoch is committed: check the source, or use on_bad_row=DeadLetters(), which keeps "
            f"them; the first error: {first}"
        )


def _check_limit(bad_rows: int, first: str | None, job: AggregationJob) -> None:
    rule = job.on_bad_row
    if isinstance(rule, DeadLetters) and bad_rows > rule.limit:
        raise SinkError(
            f"an epoch has more bad rows than DeadLetters(limit={rule.limit}), so nothing of this "
            f"epoch is committed: check the source, or raise the limit; the first error: {first}"
        )
