"""Partials as compressed Arrow IPC, for the way from the tasks to the commit.

Partials whose metrics have the same value columns share one stream, so that a hundred metrics cost
a handful of headers. A metric is sent as its position in the job: the receiver has the job, and so
the types.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from batchqueue.aggregation import Metrics
from batchqueue.outputs.layout import shown
from batchqueue.outputs.rows import ARROW_TYPES, typed_array
from batchqueue.spark.errors import SinkError
from batchqueue.spark.task.ipc import read_batch, written

Layout = tuple[tuple[str, type], ...]


class _Columns:
    """The partials of one layout, column by column.

    The rows of partial `i` are `rows[ends[i]:ends[i + 1]]`.
    """

    def __init__(self) -> None:
        self.metrics: list[int] = []
        self.entities: list[str] = []
        self.time_buckets: list[int] = []
        self.ends: list[int] = [0]
        self.rows: list[tuple[Any, ...]] = []

    def encode(self, layout: Layout) -> bytes:
        values = list(zip(*self.rows, strict=True)) or [()] * len(layout)
        rows = pa.StructArray.from_arrays(
            [
                typed_array(column, ARROW_TYPES[kind])
                for column, (_, kind) in zip(values, layout, strict=True)
            ],
            names=[name for name, _ in layout],
        )
        entities = _not_null("entity", pa.array(self.entities, pa.string()))
        time_buckets = _not_null("time_bucket", typed_array(self.time_buckets, pa.int64()))
        batch = pa.RecordBatch.from_pydict(
            {
                "metric": pa.array(self.metrics, pa.int32()),
                "entity": entities.dictionary_encode(),
                "time_bucket": time_buckets,
                "rows": pa.ListArray.from_arrays(pa.array(self.ends, pa.int32()), rows),
            }
        )
        return written(batch)


def encode(partials: Iterable[Metrics], metrics: Sequence[type[Metrics]]) -> tuple[bytes, ...]:
    """Encode partials; those of the same key are not merged.

    Args:
        partials: Of the types in `metrics`.
        metrics: The metric types of the job, in its order.

    Returns:
        One Arrow IPC stream per layout of value columns.

    Raises:
        SinkError: A partial has another type, or a value does not fit its column.
    """
    positions = {metric_type: position for position, metric_type in enumerate(metrics)}
    layouts = [tuple(metric_type.columns.items()) for metric_type in metrics]
    groups: dict[Layout, _Columns] = {}
    for partial in partials:
        position = positions.get(type(partial))
        if position is None:
            raise SinkError(
                f"a partial of {type(partial).__name__} cannot be stored: add it to the metrics of "
                "the job"
            )
        of_layout = groups.setdefault(layouts[position], _Columns())
        of_layout.metrics.append(position)
        of_layout.entities.append(partial.entity)
        of_layout.time_buckets.append(partial.time_bucket)
        of_layout.rows.extend(partial.to_rows())
        of_layout.ends.append(len(of_layout.rows))
    return tuple(_encode_checked(layout, found, metrics) for layout, found in groups.items())


def decode(streams: Iterable[bytes], metrics: Sequence[type[Metrics]]) -> Iterator[Metrics]:
    """Decode what `encode` returned.

    Args:
        streams: What `encode` returned.
        metrics: The same metric types in the same order.
    """
    for stream in streams:
        batch = read_batch(stream)
        positions, time_buckets = (batch.column(index).to_pylist() for index in (0, 2))
        # `to_pylist` of the dictionary column itself would take a microsecond per value.
        names = batch.column(1).dictionary.to_pylist()
        entities = [names[index] for index in batch.column(1).indices.to_pylist()]
        lists = batch.column(3)
        rows = list(zip(*(column.to_pylist() for column in lists.values.flatten()), strict=True))
        bounds = pairwise(lists.offsets.to_pylist())
        for position, entity, time_bucket, (start, end) in zip(
            positions, entities, time_buckets, bounds, strict=True
        ):
            yield metrics[position].from_rows(entity, time_bucket, rows[start:end])


def _not_null(name: str, array: pa.Array) -> pa.Array:
    if array.null_count:
        raise pa.ArrowInvalid(
            f"{name} is None; leave such rows out in `items`, or by "
            "ArrowAggregation(null_keys='skip')"
        )
    return array


def _encode_checked(layout: Layout, columns: _Columns, metrics: Sequence[type[Metrics]]) -> bytes:
    try:
        return columns.encode(layout)
    except (pa.ArrowException, OverflowError) as error:
        names = ", ".join(sorted(metrics[position].name for position in set(columns.metrics))[:5])
        declared = ", ".join(f"{name} {shown(kind)}" for name, kind in layout)
        raise SinkError(
            f"a value does not fit its column ({declared}) in one of {names}: {error}; "
            "declare the column with another type, or measure in another unit"
        ) from error
