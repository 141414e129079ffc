"""Count and sum by key, 1,000 groups: an `Aggregator` on filled queues, pyarrow's `group_by`."""

import functools
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa

from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy
from batchqueue.aggregation import Aggregation, Aggregator, Count, Sum

ROWS = 65_536
TIMES = 8
"""Repetitions of the batches, because a thread that shares its core may start 4 ms late."""

GROUPS = 1_000
KINDS = ("int64", "string")
TAGS = tuple("abcdefgh")
DESCRIPTION = Aggregation(keys=["key"], measures={"n": Count("value"), "total": Sum("value")})


@functools.cache
def batches(kind: str, count: int) -> list[pa.RecordBatch]:
    """Return batches with a tag each, in turn; no two share memory."""
    random = np.random.default_rng(7)
    names = pa.array([f"group-{number}" for number in range(GROUPS)])

    def batch(number: int) -> pa.RecordBatch:
        numbers = pa.array(random.integers(0, GROUPS, ROWS))
        tags = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(ROWS, "int8")), [TAGS[number % len(TAGS)]]
        )
        key = numbers if kind == "int64" else names.take(numbers)
        return pa.record_batch({"tag": tags, "key": key, "value": random.random(ROWS)})

    return [batch(number) for number in range(count)]


def rows_per_second(kind: str, threads: int, count: int) -> float:
    """Measure from the moment when the drain threads may begin to the end of the flush."""
    data = batches(kind, count)
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(threads),
        partitions=PartitionPolicy.fixed(threads + len(TAGS)),
        # The threads are held until all is put, and must keep their partitions meanwhile.
        takeover_after_ms=60_000,
        buffer_size=count * TIMES * ROWS,
    )
    inside, begin = threading.Barrier(threads + 1), threading.Event()

    def hold(_: list[Any]) -> None:
        inside.wait()
        begin.wait()

    with BatchQueue("bench", config) as queue:
        for number in range(threads):
            # Each gets one of the first partitions, and with it another drain thread.
            queue.add_handler(f"hold {number}", functools.partial(hold))
        aggregators = {tag: Aggregator(DESCRIPTION) for tag in TAGS}
        for tag, aggregator in aggregators.items():
            queue.add_handler(tag, aggregator)
        for number in range(threads):
            queue.produce_arrow(pa.table({"tag": [f"hold {number}"]}), type_column="tag")
        inside.wait()
        for batch in data * TIMES:
            queue.produce_arrow(batch, type_column="tag")
        began = time.perf_counter()
        begin.set()
        queue.flush()
        seconds = time.perf_counter() - began
    rows = sum(
        pa.compute.sum(aggregator.result()["n"]).as_py() for aggregator in aggregators.values()
    )
    assert rows == count * TIMES * ROWS
    return rows / seconds


def pyarrow_rows_per_second(kind: str, count: int) -> float:
    """Measure the same rows in one table, on one thread."""
    table = pa.Table.from_batches(batches(kind, count) * TIMES).select(["key", "value"])
    began = time.perf_counter()
    result = table.group_by("key", use_threads=False).aggregate(
        [("value", "count"), ("value", "sum")]
    )
    seconds = time.perf_counter() - began
    assert result.num_rows == GROUPS
    return table.num_rows / seconds
