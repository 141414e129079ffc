"""Partials of declared metrics as columns: no Python object for each group on the way to L2."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute

from batchqueue._exact_cast import exact_cast
from batchqueue.aggregation import (
    CountMetrics,
    MaxMetrics,
    MeanMetrics,
    Metrics,
    MinMetrics,
    SumMetrics,
    Window,
    bucket_start,
)
from batchqueue.aggregation.metrics import ESCAPE, SEPARATOR, Row, key_values
from batchqueue.outputs import StoreError
from batchqueue.outputs.layout import described
from batchqueue.outputs.rows import ARROW_TYPES, values_of
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.column_types import STORED, kind_in_arrow
from batchqueue.spark.job.declared import key_types, value_columns
from batchqueue.spark.job.steps import ArrowAggregation

_compute: Any = pyarrow.compute  # its type hints lack functions

EVERYTHING = "all"
"""The entity of a declared metric without keys."""


_STORED_AS_MADE = {CountMetrics, SumMetrics, MeanMetrics, MaxMetrics, MinMetrics}
"""Kinds whose `to_rows` returns what `from_rows` got. Kinds derived from them may change that."""


@dataclass(frozen=True)
class ColumnPartials:
    """Partials of one metric with different keys.

    Attributes:
        metric: Their type.
        entities: Of each partial; string.
        time_buckets: Of each partial; int64.
        values: The value columns in their order, of the types that the stores have.
        ends: Of each partial, and before the first one, the row at which its rows end; int32.
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
        step: One with declared metrics.
        groups: What its aggregation has computed.

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
    """Return the values of a key column as they are in the text of an entity."""
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
        wanted = ARROW_TYPES[kind]
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
