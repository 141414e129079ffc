"""Writes all flights in a driver that may die by SIGKILL, or wait to be interrupted.

Arguments: "stream" and "batch" for the registered format, "writer" for a stream through
`MetricsWriter`; the place where it dies, "waiting" or "meeting"; directory of the flights;
checkpoint, for a batch the txnId; a file that has the store as a pickle. Notes are left beside that
file.
"""

import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext, cloudpickle

import spark_support
from batchqueue.aggregation import Metrics
from batchqueue.spark import local_session, register
from spark_support import faulty_store, flight_job, waits

KIND, PLACE, FLIGHTS, NAME = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]
PICKLED = Path(sys.argv[5])
STORE: faulty_store.Store = pickle.loads(PICKLED.read_bytes())
IN_EPOCH = 0 if KIND == "batch" else 1
DRIVER = os.getpid()
WAITING = "waiting"
MEETING = "meeting"


def kill_driver() -> None:
    """Kill the process that started Spark, its JVM, and this worker if it is one.

    The JVM is two levels up from every worker.
    """
    in_driver = os.getpid() == DRIVER
    java = SparkContext._gateway.proc.pid if in_driver else waits.parent(os.getppid())
    for process in (java, os.getpid()) if in_driver else (DRIVER, java, os.getpid()):
        os.kill(process, signal.SIGKILL)


def items(batch: pa.RecordBatch) -> Iterator[Metrics]:
    yield from flight_job.items(batch)
    if len(STORE.summaries("flights")) != IN_EPOCH:
        return
    if PLACE == faulty_store.IN_A_TASK:
        kill_driver()
    if PLACE == WAITING:
        PICKLED.with_name(WAITING).touch()
        threading.Event().wait()


if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(spark_support)
    spark = local_session("driver", "local[2,4]")
    if PLACE == MEETING:
        meeting = waits.Meeting(PICKLED.with_name(MEETING), 2)
        store = faulty_store.FaultyStore(STORE, faulty_store.BEFORE_THE_COMMIT, IN_EPOCH, meeting)
    else:
        store = faulty_store.FaultyStore(STORE, PLACE, IN_EPOCH, kill_driver)
    job = flight_job.flight_job(store, items=items)
    if KIND == "batch":
        table = spark.read.schema(flight_job.SCHEMA).parquet(FLIGHTS)
        table.write.format(register(spark, job)).mode("append").option("txnId", NAME).save()
    else:
        source = flight_job.files_one_by_one(spark, Path(FLIGHTS))
        to = flight_job.into(KIND, job)
        flight_job.start_stream(source, to, Path(NAME)).awaitTermination()
