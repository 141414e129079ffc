"""Arrow data from `produce_arrow` to handlers that count rows: 65,536 rows per batch, 5 columns."""

import time
from typing import Any

import numpy as np
import pyarrow as pa

from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy

ROWS = 65_536
TAGS = (16, 128)
KINDS = ("integer", "dictionary", "string")


def batch(kind: str, tags: int) -> tuple[pa.RecordBatch, list[str]]:
    """Return rows with tags in random order, and the tags."""
    random = np.random.default_rng(7)
    numbers = random.integers(0, tags, ROWS)
    names = [str(number) if kind == "integer" else f"type_{number}" for number in range(tags)]
    column = (
        pa.array(numbers) if kind == "integer" else pa.array([names[number] for number in numbers])
    )
    if kind == "dictionary":
        column = column.dictionary_encode()
    columns = {
        "tag": column,
        "key": pa.array(random.integers(0, 1_000, ROWS)),
        "value": pa.array(random.random(ROWS)),
        "weight": pa.array(random.random(ROWS)),
        "count": pa.array(random.integers(0, 100, ROWS).astype("int32")),
    }
    return pa.record_batch(columns), names


def rows_per_cpu_second(kind: str, tags: int, batches: int) -> float:
    """Return rows split, delivered and counted per second of processor time of all threads."""
    data, names = batch(kind, tags)
    counted = 0

    def count(parts: list[Any]) -> None:
        nonlocal counted
        for part in parts:
            counted += part.num_rows

    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1),
        partitions=PartitionPolicy.adaptive(tags),
        buffer_size=200_000,
    )
    with BatchQueue("bench", config) as queue:
        for name in names:
            queue.add_handler(name, count)
        began = time.process_time()
        for _ in range(batches):
            queue.produce_arrow(data, type_column="tag")
        queue.flush()
        seconds = time.process_time() - began
    assert counted == batches * ROWS
    return counted / seconds
