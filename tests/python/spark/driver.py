"""Streams all flights in a driver of its own, which dies by SIGKILL in the second epoch.

Arguments: the place where it dies, directory of the flights, checkpoint, database.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import flight_job
import pyarrow as pa
from pyspark import cloudpickle

from batchqueue.aggregation import Metrics
from batchqueue.outputs import SqliteStore, StoreTransaction
from batchqueue.spark import local_session, register

PLACE, FLIGHTS, CHECKPOINT, DATABASE = sys.argv[1], *map(Path, sys.argv[2:])
DRIVER = os.getpid()
IN_TASK, IN_TRANSACTION, AFTER_COMMIT = "in a task", "in the transaction", "after the commit"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_driver() -> None:
    """Kill the process that started Spark, its JVM (two levels up from every worker), and this worker."""
    for process in (DRIVER, parent(os.getppid()), os.getpid()):
        os.kill(process, signal.SIGKILL)


def has_epoch() -> bool:
    with SqliteStore(DATABASE).transaction("flights") as transaction:
        return bool(transaction.summaries())


class DyingStore(SqliteStore):
    """A store whose second epoch kills the driver."""

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        with super().transaction(sink_id) as transaction:
            before = len(transaction.summaries())
            yield transaction
            now = len(transaction.summaries())
            if PLACE == IN_TRANSACTION and (before, now) == (1, 2):
                kill_driver()
        if PLACE == AFTER_COMMIT and (before, now) == (1, 2):
            kill_driver()


def items(batch: pa.RecordBatch) -> Iterator[Metrics]:
    yield from flight_job.items(batch)
    if PLACE == IN_TASK and has_epoch():
        kill_driver()


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(flight_job)
    spark = local_session("killed", "local[2,4]")
    source = spark.readStream.schema(flight_job.SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(FLIGHTS))
    job = flight_job.flight_job(DyingStore(DATABASE), items=items)
    writer = source.writeStream.format(register(spark, job)).option("checkpointLocation", str(CHECKPOINT))
    writer.trigger(availableNow=True).start().awaitTermination()
