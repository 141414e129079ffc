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
from batchqueue.outputs.rows import ARROW_TYPES, typed_array
from batchqueue.outputs.values import shown
from batchqueue.spark.errors import SinkError
from batchqueue.spark.task.columns import ColumnPartials

_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")

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
        self.columns: list[tuple[int, ColumnPartials]] = []
        """Partials that are columns already, with the position of their metric."""

    def encode(self, layout: Layout) -> bytes:
        batches = [_batch_of(position, partials, layout) for position, partials in self.columns]
        if self.metrics:
            batches.append(self._batch_of_lists(layout))
        table = pa.Table.from_batches(batches).combine_chunks()
        table = table.set_column(1, "entity", table.column(1).dictionary_encode())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=_WRITE_OPTIONS) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    def _batch_of_lists(self, layout: Layout) -> pa.RecordBatch:
        values = list(zip(*self.rows, strict=True)) or [()] * len(layout)
        rows = pa.StructArray.from_arrays(
            [
                typed_array(column, ARROW_TYPES[kind])
                for column, (_, kind) in zip(values, layout, strict=True)
            ],
            names=[name for name, _ in layout],
        )
        return _batch(
            pa.array(self.metrics, pa.int32()),
            pa.array(self.entities, pa.string()),
            typed_array(self.time_buckets, pa.int64()),
            pa.ListArray.from_arrays(pa.array(self.ends, pa.int32()), rows),
        )


def _batch_of(position: int, partials: ColumnPartials, layout: Layout) -> pa.RecordBatch:
    rows = pa.StructArray.from_arrays(partials.values, names=[name for name, _ in layout])
    return _batch(
        pa.repeat(pa.scalar(position, pa.int32()), len(partials.entities)),
        partials.entities,
        partials.time_buckets,
        pa.ListArray.from_arrays(partials.ends, rows),
    )


def _batch(
    metrics: pa.Array, entities: pa.Array, time_buckets: pa.Array, rows: pa.Array
) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "metric": metrics,
            "entity": _not_null("entity", entities),
            "time_bucket": _not_null("time_bucket", time_buckets),
            "rows": rows,
        }
    )


def encode(
    partials: Iterable[Metrics],
    metrics: Sequence[type[Metrics]],
    columns: Iterable[ColumnPartials] = (),
) -> tuple[bytes, ...]:
    """Encode partials; those of the same key are not merged.

    Args:
        partials: Of the types in `metrics`.
        metrics: The metric types of the job, in its order.
        columns: Other partials of these types, as columns.

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
    for of_metric in columns:
        position = positions[of_metric.metric]
        groups.setdefault(layouts[position], _Columns()).columns.append((position, of_metric))
    return tuple(_encode_checked(layout, found, metrics) for layout, found in groups.items())


def decode(streams: Iterable[bytes], metrics: Sequence[type[Metrics]]) -> Iterator[Metrics]:
    """Decode what `encode` returned.

    Args:
        streams: What `encode` returned.
        metrics: The same metric types in the same order.
    """
    for stream in streams:
        batch = pa.ipc.open_stream(stream).read_next_batch()
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
        positions = {*columns.metrics, *(position for position, _ in columns.columns)}
        names = ", ".join(sorted(metrics[position].name for position in positions)[:5])
        declared = ", ".join(f"{name} {shown(kind)}" for name, kind in layout)
        raise SinkError(
            f"a value does not fit its column ({declared}) in one of {names}: {error}; "
            "declare the column with another type, or measure in another unit"
        ) from error
