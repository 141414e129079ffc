"""An RDD job that counts rows on its own queue, in the executors that also run the sink's tasks."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy
from spark_support.task_faults import executor


class Carrier(str):
    __slots__ = ()


def count(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield [carrier, rows, process id of the executor] for each carrier of a partition."""
    counts: Counter[str] = Counter()
    config: BatchQueueConfig[Carrier] = BatchQueueConfig(threads=ThreadPolicy.fixed(1))
    with BatchQueue[Carrier]("carriers", config) as queue:
        queue.add_handler(Carrier, counts.update)
        queue.produce_many(Carrier(row.carrier) for row in rows)
    for carrier, number in counts.items():
        yield [str(carrier), number, executor()]
