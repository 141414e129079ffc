"""What `ArrowAggregation.null_keys` says of groups with a null key: left out, or renamed."""

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchqueue._words import counted
from batchqueue.aggregation import Aggregation, Count
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.steps import ArrowAggregation

ROWS = "batchqueue rows"
"""Column with the rows of each group, beside its measures."""


def needs_rows(step: ArrowAggregation) -> bool:
    """Return whether no measure of a step counts, as the contents of an epoch need it."""
    return not any(isinstance(measure, Count) for measure in step.aggregation.measures.values())


def counting_rows(step: ArrowAggregation) -> Aggregation:
    """Return what to aggregate for a step.

    It has also the rows of each group, if some may be left out, or no measure counts.
    """
    if step.null_keys != "skip" and not needs_rows(step):
        return step.aggregation
    measures = {**step.aggregation.measures, ROWS: Count()}
    return replace(step.aggregation, measures=measures)


def without_null_keys(groups: pa.Table, step: ArrowAggregation) -> tuple[pa.Table, int]:
    """Return the groups that a step makes results of, and the number of rows left out.

    Args:
        groups: What the aggregator of `counting_rows`, or Spark SQL in its place, has left.
        step: The step.

    Raises:
        SinkError: A value that stands for null is not one of the key's type.
    """
    skipped = 0
    if step.null_keys == "skip":
        is_null = reduce(or_, (pc.field(key).is_null() for key in step.key_columns))
        rows = groups.filter(is_null).column(ROWS)
        if pa.types.is_struct(rows.type):
            (rows,) = rows.flatten()  # of partials
        skipped = sum(rows.to_pylist())
        groups = groups.filter(~is_null)
    elif step.null_keys is not None:
        for key, value in step.null_keys.items():
            groups = _renamed(groups, key, value)
    return groups, skipped


def check_not_null(groups: pa.RecordBatch, step: ArrowAggregation) -> None:
    """Check that no key or time bucket of groups of declared metrics is null.

    Raises:
        SinkError: One is.
    """
    for key in step.key_columns:
        nulls = groups.column(key).null_count
        if nulls:
            raise SinkError(
                f"the key column {key!r} of the metrics {', '.join(step.types)} is null in "
                f"{counted(nulls, 'group')}, and no store can hold a null key: leave such rows "
                "out, or give ArrowAggregation(null_keys='skip'), or a value that stands for null"
            )


def without_rows(groups: pa.Table) -> pa.Table:
    """Return results without `ROWS`."""
    return groups.drop_columns([ROWS]) if ROWS in groups.column_names else groups


def _renamed(groups: pa.Table, key: str, value: Any) -> pa.Table:
    if not groups.num_rows:
        return groups  # with pyspark 3.5 its columns have no type
    column = groups.column(key)
    try:
        scalar = pa.scalar(value, column.type)
        # Arrow cuts the fraction off a float, and the time off a datetime.
        if scalar.as_py() != value and not pa.types.is_floating(column.type):
            raise ValueError(f"{value!r} would become {scalar.as_py()!r}")
        filled = pc.fill_null(column, scalar)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SinkError(
            f"null_keys has {value!r} for key {key!r}, which is of type {column.type}: give a "
            "value of that type"
        ) from error
    return groups.set_column(groups.column_names.index(key), key, filled)


def record_batches(groups: pa.Table) -> list[pa.RecordBatch]:
    """Return groups as one record batch, or none if there are no groups."""
    return groups.combine_chunks().to_batches() if groups.num_rows else []
