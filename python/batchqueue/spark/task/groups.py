"""Groups of declared metrics as aggregators left them: tasks send them, the commit merges them.

An `Aggregator` merges a group across all tasks before it becomes a metric object, so there is one
object per distinct key and metric, however many tasks there are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import reduce
from itertools import chain, pairwise
from operator import or_
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.compute as pc

from batchqueue.aggregation import (
    Aggregation,
    Aggregator,
    Count,
    CountMetrics,
    MaxMetrics,
    MeanMetrics,
    Metrics,
    MinMetrics,
    Sum,
    SumMetrics,
    Window,
    bucket_start,
)
from batchqueue.aggregation.aggregator import MAX_GROUPS
from batchqueue.aggregation.metrics import ESCAPE, SEPARATOR, Row, key_values
from batchqueue.base.exact_cast import exact_cast
from batchqueue.base.words import counted
from batchqueue.outputs.base import BadRows
from batchqueue.outputs.layout import arrow_types, described, values_of
from batchqueue.outputs.store import StoreError
from batchqueue.spark.column_types import STORED, kind_in_arrow
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.steps import (
    ROUNDING_OF,
    ArrowAggregation,
    ArrowStep,
    key_types,
    value_columns,
)
from batchqueue.spark.task.arrow import read_batch, written

_compute: Any = pyarrow.compute  # its type hints lack functions


# Partials of declared metrics as columns: no Python object for each group on the way to L2.


EVERYTHING = "all"
"""The entity of a declared metric without keys."""


_STORED_AS_MADE = {CountMetrics, SumMetrics, MeanMetrics, MaxMetrics, MinMetrics}
"""Kinds whose `to_rows` returns what `from_rows` got. Kinds derived from them may change that."""


@dataclass(frozen=True)
class ColumnPartials:
    """Partials of one metric with different keys.

    Attributes:
        metric: The metric type.
        entities: The entity of each partial; string.
        time_buckets: The time bucket of each partial; int64.
        values: The value columns in order, with the types of the stores.
        ends: Offsets of the rows of the partials, from the start of the first; int32.
    """

    metric: type[Metrics]
    entities: pa.Array
    time_buckets: pa.Array
    values: tuple[pa.Array, ...]
    ends: pa.Array

    def __len__(self) -> int:
        return len(self.entities)

    @property
    def are_rows(self) -> bool:
        """Whether each partial is one row, stored as it is."""
        kind = next(cls for cls in self.metric.__mro__ if "made_by" not in vars(cls))
        has_nulls = self.entities.null_count or self.time_buckets.null_count
        return kind in _STORED_AS_MADE and not has_nulls

    def rows(self) -> list[Row]:
        """Return the rows of partials that `are_rows`, with the columns of `read_table`.

        Raises:
            StoreError: An entity does not stand for values of the key columns.
        """
        entities, columns = self.entities.to_pylist(), self.metric.key_columns
        keys: Iterable[Any] = ()
        if columns:
            try:
                keys = zip(*(key_values(columns, entity) for entity in entities), strict=True)
            except ValueError as error:
                raise StoreError(f"metric {self.metric.name}: {error}") from error
        values = map(values_of, self.values)
        return list(zip(entities, self.time_buckets.to_pylist(), *keys, *values, strict=True))

    def __iter__(self) -> Iterator[Metrics]:
        """Make the partials."""
        make = self.metric.from_rows
        rows = list(zip(*(column.to_pylist() for column in self.values), strict=True))
        keys = zip(self.entities.to_pylist(), self.time_buckets.to_pylist(), strict=True)
        for (entity, time_bucket), (begin, end) in zip(
            keys, pairwise(self.ends.to_pylist()), strict=True
        ):
            yield make(entity, time_bucket, rows[begin:end])


def declared_partials(step: ArrowAggregation, groups: pa.RecordBatch) -> list[ColumnPartials]:
    """Return the partials of the declared metrics of a step.

    Args:
        step: A step with declared metrics.
        groups: The result of its aggregation.

    Raises:
        SinkError: Values do not fit the column of their metric.
    """
    entities = _entities(step, groups)
    time_buckets = _time_buckets(step.aggregation.window, groups)
    return [
        ColumnPartials(
            metric, entities, time_buckets, tuple(_fitting(metric, groups)), _ends(metric, groups)
        )
        for metric in step.types.values()
    ]


def _ends(metric: type[Metrics], groups: pa.RecordBatch) -> pa.Array:
    if metric.multi_row:
        ends: pa.Array = groups.column(metric.name).offsets
        return ends
    return pa.array(range(groups.num_rows + 1), pa.int32())


def _entities(step: ArrowAggregation, groups: pa.RecordBatch) -> pa.Array:
    if not step.aggregation.keys:
        return pa.repeat(pa.scalar(EVERYTHING), groups.num_rows)
    key_columns = key_types(step.keys)
    if not key_columns:
        (key,) = step.aggregation.keys
        return groups.column(key).cast(pa.string())
    texts = [_key_texts(key, kind, groups.column(key)) for key, kind in key_columns.items()]
    return _compute.binary_join_element_wise(*texts, SEPARATOR)


def _key_texts(key: str, kind: type, values: pa.Array) -> pa.Array:
    """Return the values of a key column as they appear in the text of an entity."""
    try:
        if kind is int:
            values = exact_cast(values, pa.int64())
        texts = values.cast(pa.string())
    except pa.ArrowException as error:
        raise SinkError(
            f"the key column {key!r}, declared as {kind.__name__}, has a value of type "
            f"{values.type} that does not fit: {error}; cast it, or leave such rows out"
        ) from error
    if kind is date and not _are_dates(values):
        raise SinkError(
            f"the key column {key!r} has a date before the year 1 or after 9999, which Python does "
            "not have: leave such rows out"
        )
    if kind is str:
        for special in (ESCAPE, SEPARATOR):
            texts = _compute.replace_substring(texts, special, ESCAPE + special)
    return texts


def _are_dates(values: pa.Array) -> bool:
    days = _compute.min_max(values.cast(pa.date32()).cast(pa.int32())).as_py()
    first, last = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
    return days["min"] is None or (first <= days["min"] and days["max"] <= last)


def _time_buckets(window: Window | None, groups: pa.RecordBatch) -> pa.Array:
    """Return the starts of buckets in whole seconds since the epoch, UTC."""
    if window is None:
        return pa.repeat(pa.scalar(0, pa.int64()), groups.num_rows)
    starts = groups.column(window.output)
    if pa.types.is_timestamp(starts.type):
        # Exact: the buckets start at whole seconds.
        return starts.cast(pa.timestamp("s", starts.type.tz)).cast(pa.int64())
    if pa.types.is_date(starts.type):
        midnights = starts.dictionary_encode()
        seconds = [_midnight(day, window) for day in midnights.dictionary.to_pylist()]
        return pa.array(seconds, pa.int64()).take(midnights.indices)
    return starts.cast(pa.int64())


def _midnight(day: date, window: Window) -> int:
    width, offset = int(window.seconds), int(window.offset_seconds)
    return bucket_start(day, width, zone=window.zone, offset_seconds=offset)


def _fitting(metric: type[Metrics], groups: pa.RecordBatch) -> Iterable[pa.Array]:
    columns = value_columns(groups, metric)
    rows = len(columns[0])
    for (name, kind), values in zip(metric.columns.items(), columns, strict=True):
        wanted = arrow_types()[kind]
        if isinstance(values, int | float):
            yield pa.repeat(pa.scalar(values, wanted), rows)
            continue
        try:
            if kind_in_arrow(values.type) not in STORED[kind]:  # a cast would parse or print them
                raise pa.ArrowTypeError(f"it takes {', '.join(STORED[kind])}")
            yield exact_cast(values, wanted)
        except pa.ArrowException as error:
            raise SinkError(
                f"metric {metric.name!r} has a value of type {values.type} that does not fit its "
                f"column {name} of type {described(kind)}: {error}; declare the metric by its "
                f"type, metric_type({metric.name!r}, ..., columns={{{name!r}: ...}}), or measure "
                "in another unit"
            ) from error


class TaskGroups(NamedTuple):
    """The groups that one task made for a step with declared metrics."""

    step: int
    """Position of the step in `AggregationJob.arrow`."""
    partials: int
    """The number of partials, one for each group and metric."""
    stream: bytes
    """The partials of the aggregator, without null keys, as an Arrow IPC stream."""


def task_groups(position: int, step: ArrowAggregation, partials: pa.RecordBatch) -> TaskGroups:
    """Encode the partials of a step's aggregator.

    Args:
        position: Position of the step in `AggregationJob.arrow`.
        step: The step.
        partials: What `Aggregator.partials` returned, after `without_null_keys`.

    Raises:
        SinkError: A key is null.
    """
    check_not_null(partials, step)
    return TaskGroups(position, partials.num_rows * len(step.types), written(partials))


@dataclass(frozen=True)
class MergedGroups:
    """The groups of many tasks.

    Attributes:
        merged: Partials that are merged across all tasks.
        unmerged: Partials that do not merge in columns; L2 combines them.
    """

    merged: list[ColumnPartials] = field(default_factory=list)
    unmerged: list[ColumnPartials] = field(default_factory=list)

    def __iter__(self) -> Iterator[Metrics]:
        """Make the partials."""
        return chain.from_iterable(chain(self.merged, self.unmerged))


def merged_groups(groups: Iterable[TaskGroups], steps: Sequence[ArrowStep]) -> MergedGroups:
    """Merge the groups of many tasks.

    Args:
        groups: The groups of each task and step.
        steps: `AggregationJob.arrow`.

    Raises:
        SinkError: A value does not fit the column of its metric.
    """
    # `prepare` may give a column another type in another task.
    alike: dict[tuple[int, pa.Schema], _Merge] = {}
    for of_task in groups:
        partials = read_batch(of_task.stream)
        key = (of_task.step, partials.schema)
        if key not in alike:
            step = steps[of_task.step]
            assert isinstance(step, ArrowAggregation)
            alike[key] = _Merge(step)
        alike[key].add(partials, of_task.stream)
    schemas = Counter(position for position, _ in alike)
    found = MergedGroups()
    for (position, _), merge in alike.items():
        merge.finish(found, is_alone=schemas[position] == 1)
    return found


class _Merge:
    """The groups of one step, of the tasks whose columns have the same types."""

    def __init__(self, step: ArrowAggregation) -> None:
        self._step = step
        self._streams: list[bytes] = []
        self._aggregator = _aggregator(step)
        # A kind with its own way to combine is combined in that way across tasks, too.
        self._is_built_in = _is_built_in(step)

    def add(self, partials: pa.RecordBatch, stream: bytes) -> None:
        self._streams.append(stream)
        if self._is_built_in:
            self._aggregator.update(partials)

    def finish(self, found: MergedGroups, *, is_alone: bool) -> None:
        """Add the merged partials, or those of each task if they do not merge."""
        if self._is_built_in:
            try:
                merged = _columns_of(self._step, self._aggregator)
            except (OverflowError, SinkError):
                pass  # a sum is too large; those of the tasks may fit
            else:
                (found.merged if is_alone else found.unmerged).extend(merged)
                return
        for stream in self._streams:
            aggregator = _aggregator(self._step)
            aggregator.update(read_batch(stream))
            try:
                found.unmerged.extend(_columns_of(self._step, aggregator))
            except OverflowError as error:
                raise overflow(error) from error


def has_only_built_in_metrics(steps: Sequence[ArrowStep]) -> bool:
    """Return whether all steps declare their metrics, and no kind has its own way to combine."""
    return all(
        isinstance(step, ArrowAggregation) and not callable(step.metrics) and _is_built_in(step)
        for step in steps
    )


def _is_built_in(step: ArrowAggregation) -> bool:
    return all(kind.combine.__module__.startswith("batchqueue.") for kind in step.types.values())


def _aggregator(step: ArrowAggregation) -> Aggregator:
    # Each task had at most `max_groups`.
    return Aggregator(replace(counting_rows(step), max_groups=MAX_GROUPS))


def _columns_of(step: ArrowAggregation, aggregator: Aggregator) -> list[ColumnPartials]:
    groups = record_batches(without_rows(_result(aggregator)))
    return [partials for batch in groups for partials in declared_partials(step, batch)]


def overflow(error: OverflowError) -> SinkError:
    """Return the error of a sum in one task that does not fit, given the aggregator's error."""
    what = str(error).partition("; ")[0]
    return SinkError(
        f"measure {what}, in a group of one task, so nothing of this epoch is committed: measure "
        "in a larger unit, or as double"
    )


def _result(aggregator: Aggregator) -> pa.Table:
    result: Any = pa.Table.from_batches([aggregator.result()])
    sums = [
        name
        for name, measure in aggregator.aggregation.measures.items()
        if isinstance(measure, Sum) and pa.types.is_floating(result.column(name).type)
    ]
    partials: Any = aggregator.partials() if sums else None
    for name in sums:
        rounding = _rounding(result.column(name), partials.column(name))
        result = result.append_column(ROUNDING_OF + name, rounding)
    return result


def _rounding(totals: pa.ChunkedArray, sums: pa.StructArray) -> pa.Array:
    """Return the sum of floats and its error less the total that they were rounded to."""
    total = totals.combine_chunks()
    exactly = _compute.add(_compute.subtract(sums.field("sum"), total), sums.field("error"))
    # Where the total is null, NaN or infinite, the difference is unknown and counts as 0.
    return _compute.if_else(_compute.fill_null(_compute.is_finite(exactly), False), exactly, 0.0)


# What `ArrowAggregation.null_keys` says of groups with a null key: left out, or renamed.


ROWS = "batchqueue rows"
"""Column with the number of rows of each group, beside its measures."""


def needs_rows(step: ArrowAggregation) -> bool:
    """Return whether no measure of a step is a count, which the contents of an epoch need."""
    return not any(isinstance(measure, Count) for measure in step.aggregation.measures.values())


def counting_rows(step: ArrowAggregation) -> Aggregation:
    """Return the aggregation to run for a step.

    It also counts the rows of each group if groups may be left out, or no measure is a count.
    """
    if step.null_keys != "skip" and not needs_rows(step):
        return step.aggregation
    measures = {**step.aggregation.measures, ROWS: Count()}
    return replace(step.aggregation, measures=measures)


def without_null_keys(groups: pa.Table, step: ArrowAggregation) -> tuple[pa.Table, int]:
    """Return the groups that a step makes results of, and the number of rows left out.

    Args:
        groups: The result of `counting_rows` from an aggregator, or from Spark SQL in its place.
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
        SinkError: A key or time bucket is null.
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


# A write that replaces time buckets has results for these only.


def within(metrics: Iterable[Metrics], replaced: range | None) -> Iterable[Metrics]:
    """Pass results on, and check that they are for the time buckets that are replaced, if any.

    Bad rows pass as they are: their time is when their task began.

    Raises:
        SinkError: A result is for another bucket, and would be added to what is stored there.
    """
    if replaced is None:
        return metrics
    return (_checked(item, replaced) for item in metrics)


def are_within(time_buckets: pa.Array, replaced: range | None) -> bool:
    """Return whether all time buckets are among those that are replaced, if any are."""
    if replaced is None or len(time_buckets) == 0:
        return True
    ends = _compute.min_max(time_buckets).as_py()
    return bool(replaced.start <= ends["min"] and ends["max"] < replaced.stop)


def _checked(item: Metrics, replaced: range) -> Metrics:
    # Not `in`: a range is searched step by step for anything that is not exactly an int.
    if not isinstance(item, BadRows) and not replaced.start <= item.time_bucket < replaced.stop:
        raise SinkError(
            f"metric {item.name} has a result for {item.entity!r} in time bucket "
            f"{item.time_bucket}, and `replace` is from {replaced.start} until before "
            f"{replaced.stop}: it would be added to what is stored there, so nothing is written. "
            "Give the rows of these time buckets only, or replace more of them, with all their rows"
        )
    return item
