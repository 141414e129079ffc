"""The rows, and jobs over them: the mean of `value` by key, and by type and key.

A pair of type and key is one column, or three: type, shelf and slot.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchqueue.aggregation import Mean, MeanMetrics, MergeBuffer, Metrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, ArrowHandler

ROWS, TYPES, KEYS = 5_000_000, 30, 1_000
SHELVES = 10
SCHEMA = "id long, type string, key string, pair string, shelf long, slot long, value long"
TYPE_NAMES = [f"type-{number:02d}" for number in range(TYPES)]
METRICS = {
    name: metric_type(f"mean.{name}", MeanMetrics, columns={"total": int}) for name in TYPE_NAMES
}
BY_KEY = metric_type("mean", MeanMetrics, columns={"total": int})
BY_PAIR = metric_type("mean by pair", MeanMetrics, columns={"total": int})
PLACE = {"type": str, "shelf": int, "slot": int}
BY_PLACE = metric_type("mean by place", MeanMetrics, columns={"total": int}, keys=PLACE)


def write_rows(directory: Path, rows: int, files: int) -> Path:
    """Write the same rows each time, as Parquet; return the directory."""
    numbers = np.random.default_rng(1)
    types, keys = np.array(TYPE_NAMES), np.array([f"key-{number:04d}" for number in range(KEYS)])
    directory.mkdir(parents=True)
    for first, end in zip(
        range(0, rows, rows // files), range(rows // files, rows + 1, rows // files), strict=True
    ):
        count = end - first
        of_types = types[numbers.integers(0, TYPES, count)]
        key_numbers = numbers.integers(0, KEYS, count)
        of_keys = keys[key_numbers]
        table = pa.table(
            {
                "id": np.arange(first, end),
                "type": pa.array(of_types),
                "key": pa.array(of_keys),
                "pair": pa.array(np.char.add(np.char.add(of_types, "/"), of_keys)),
                "shelf": key_numbers % SHELVES,
                "slot": key_numbers // SHELVES,
                "value": numbers.integers(0, 1_000, count),
            }
        )
        pq.write_table(table, directory / f"part-{first:08d}.parquet")
    return directory


def items(batch: pa.RecordBatch) -> Iterator[Metrics]:
    """Yield an object for each row."""
    types, keys, values = (batch.column(name).to_pylist() for name in ("type", "key", "value"))
    for kind, key, value in zip(types, keys, values, strict=True):
        yield METRICS[kind](key, 0, value)


def partials(groups: pa.RecordBatch) -> Iterator[Metrics]:
    """Yield a partial for each group of a key."""
    for key, total, count in zip(*(column.to_pylist() for column in groups.columns), strict=True):
        yield BY_KEY(key, 0, total, count)


class GroupingHandler:
    """A Python handler on Arrow; it groups every `most_rows` rows, so that memory stays small."""

    most_rows = 500_000

    def __init__(self, emit: Any) -> None:
        self._emit = emit
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._buffer = MergeBuffer()

    def consume(self, batches: list[pa.RecordBatch]) -> None:
        self._batches += batches
        self._rows += sum(batch.num_rows for batch in batches)
        if self._rows > self.most_rows:
            self._group()

    def on_close(self) -> None:
        if self._rows:
            self._group()
        self._emit(self._buffer.drain())

    def _group(self) -> None:
        table = pa.Table.from_batches(self._batches)
        groups = table.group_by("key").aggregate([("value", "sum"), ("value", "count")])
        self._buffer.accept_all(partials(groups))
        self._batches, self._rows = [], 0


BY_TAG: dict[str, Any] = {"type_column": "type", "tags": TYPE_NAMES}
AGGREGATORS = ArrowAggregation(keys=["key"], metrics={BY_KEY: Mean("value")})
WAYS: dict[str, dict[str, Any]] = {
    "aggregators": {"arrow": [AGGREGATORS], "metrics": [BY_KEY]},
    "arrow": {"arrow": [ArrowHandler(make=GroupingHandler, **BY_TAG)], "metrics": [BY_KEY]},
    "objects": {"items": items, "metrics": list(METRICS.values())},
    "30,000 groups": {
        "arrow": [ArrowAggregation(keys=["pair"], metrics={BY_PAIR: Mean("value")})],
        "metrics": [BY_PAIR],
    },
    "three keys": {
        "arrow": [ArrowAggregation(keys=PLACE, metrics={BY_PLACE: Mean("value")})],
        "metrics": [BY_PLACE],
    },
}


def job(way: str, store: Path) -> AggregationJob:
    """Return the job for a way, into a SQLite file."""
    return AggregationJob(name="bench", store=SqliteStore(store), **WAYS[way])


def handle_rows(rows: Iterable[Any]) -> None:
    """Aggregate rows of `foreachPartition` by hand, by type and with the same merge buffers."""
    buffers = {kind: MergeBuffer() for kind in METRICS}
    waiting: dict[str, list[Metrics]] = {kind: [] for kind in METRICS}
    for row in rows:
        batch = waiting[row.type]
        batch.append(METRICS[row.type](row.key, 0, row.value))
        if len(batch) == 1_000:
            buffers[row.type].accept_all(batch)
            waiting[row.type] = []
    for kind, batch in waiting.items():
        buffers[kind].accept_all(batch)
