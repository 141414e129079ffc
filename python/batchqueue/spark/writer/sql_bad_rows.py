"""Bad rows in Spark SQL: which they are, and how their groups become counts and dead letters.

The conditions are those of `task/unstorable.py` and of the tags. Each bad row has a text in another
column, by which the first step groups, so that there is no second pass over the rows.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import types as T

from batchqueue.outputs import BadRows
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.bad_rows import DeadLetters
from batchqueue.spark.job.steps import ArrowAggregation
from batchqueue.spark.task.bad_rows import LARGE, UnknownTag
from batchqueue.spark.task.message import AttemptSummary
from batchqueue.spark.task.null_keys import ROWS
from batchqueue.spark.task.unstorable import (
    FIRST_DAY,
    HAS_NUL,
    IS_NULL,
    LAST_DAY,
    NO_DATE,
    NOT_UTF8,
    TextLimits,
    UnstorableRow,
    entity_columns,
    grouping_columns,
    must_not_be_null,
    stored_text_columns,
    too_long,
    wrong,
)
from batchqueue.spark.writer.sql_buckets import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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

    Of columns with one name, which the job cannot read, the last keeps it, as in a dead letter of a
    task.
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
        if isinstance(kind, T.StringType) or (name in entities and _is_text(kind)):
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
    return isinstance(kind, T.StringType | T.BinaryType)


def _bytes_in_entity(column: str, *, is_alone: bool) -> str:
    column = f"CAST({column} AS string)"
    length = f"coalesce(octet_length({column}), 0)"
    if is_alone:
        return length
    # The separator and the escape have another character before them.
    plain = f"coalesce(octet_length(translate({column}, concat('|', char(92)), '')), 0)"
    return f"2 * {length} - {plain}"


def _literal(text: str) -> str:
    return "decode(X'" + text.encode().hex() + "', 'UTF-8')"


@dataclass(frozen=True)
class SqlBadRows:
    """The bad rows among the groups of a table.

    Attributes:
        count: How many rows.
        first_error: What was wrong with one of them; None if there is none.
        kept: Those that the job keeps.
    """

    count: int = 0
    first_error: str | None = None
    kept: tuple[BadRows, ...] = ()


def without_bad_rows(table: pa.Table, job: AggregationJob) -> tuple[pa.Table, SqlBadRows]:
    """Return the groups of good rows, and the bad rows.

    Args:
        table: The groups of a step, whole or in pieces.
        job: With the rule for bad rows.

    Raises:
        SinkError: There are more bad rows than the job keeps, or no others of many.
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
        job: With the rule for bad rows.

    Raises:
        SinkError: There are more than the job keeps; or many, and no others, if it drops them.
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
