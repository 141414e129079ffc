"""A driver that obeys a test: it answers each line of its standard input, an order in JSON."""

import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

import spark_support
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, MetricsWriter, register
from spark_support import flight_job, notes, rdd_job, task_faults


class Driver:
    """The orders that the tests may give. All paths are strings."""

    def __init__(self) -> None:
        # Otherwise the settings of the first session would be the defaults of all later ones.
        SparkContext._ensure_initialized()
        self._spark: SparkSession | None = None

    def session(self, conf: dict[str, str], py_files: bool = False) -> None:
        """Stop the present session, if there is one, and start another.

        Args:
            conf: Its settings.
            py_files: Whether `spark_support` goes to the workers by `addPyFile`; else by value.
        """
        self.stop()
        builder = SparkSession.builder.appName("cluster tests")
        for key, value in conf.items():
            builder = builder.config(key, value)
        self._spark = builder.getOrCreate()
        if py_files:
            support = Path(__file__).parent
            archive = shutil.make_archive("spark_support", "zip", support, "spark_support")
            self._spark.sparkContext.addPyFile(archive)
        else:
            cloudpickle.register_pickle_by_value(spark_support)

    def stream(self, fault: str, **places: str) -> None:
        """Run the flight job until there is nothing new; raise what the query raises."""
        self._start(fault, **places).awaitTermination()

    def stream_and_rdd(self, **places: str) -> dict[str, Any]:
        """Run the flight job, and an RDD job during and after it; return what that counted."""
        query = self._start("NoFault", **places)
        meanwhile = self._rdd(places["flights"])
        query.awaitTermination()
        return {"meanwhile": meanwhile, "after": self._rdd(places["flights"])}

    def write_in_shards(self, flights: str, directory: str, notes_folder: str) -> None:
        """Write all flights in two shards, of which two attempts commit one."""
        assert self._spark is not None
        store = task_faults.BothAttemptsCommit(directory, notes.Notes(Path(notes_folder)))
        table = self._spark.read.schema(flight_job.SCHEMA).parquet(flights)
        MetricsWriter(flight_job.flight_job(store), shards=2).write_batch(table, txn_id="load-1")

    def py_file(self, path: str) -> None:
        """Send a file to the workers."""
        assert self._spark is not None
        self._spark.sparkContext.addPyFile(path)

    def stop(self) -> None:
        """Stop the session, if there is one."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def _start(
        self, fault: str, flights: str, checkpoint: str, database: str, notes_folder: str
    ) -> StreamingQuery:
        """Start the flight job: two epochs, each with two tasks."""
        assert self._spark is not None
        task_fault = task_faults.FAULTS[fault](notes.Notes(Path(notes_folder)))
        job = flight_job.flight_job(SqliteStore(database), items=task_fault.items)
        source = self._spark.readStream.schema(flight_job.SCHEMA).option("maxFilesPerTrigger", 2)
        writer = source.parquet(flights).writeStream.format(
            register_faulty(self._spark, job, task_fault)
        )
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def _rdd(self, flights: str) -> list[Any]:
        assert self._spark is not None
        rows = self._spark.read.schema(flight_job.SCHEMA).parquet(flights).select("carrier")
        return rows.rdd.mapPartitions(rdd_job.count).collect()


def register_faulty(spark: SparkSession, job: AggregationJob, fault: task_faults.NoFault) -> str:
    """Register a job as `register` does, with a fault around the writer that it makes."""
    sources: list[Any] = []
    session: Any = SimpleNamespace(
        dataSource=SimpleNamespace(register=sources.append),
        conf=spark.conf,
        sparkContext=spark.sparkContext,
    )
    register(session, job)
    (source,) = sources

    class Faulty(source):  # type: ignore[misc]
        def streamWriter(self, schema: StructType, overwrite: bool) -> task_faults.FaultyWriter:
            return task_faults.FaultyWriter(super().streamWriter(schema, overwrite), fault)

    spark.dataSource.register(Faulty)
    return str(Faulty.name())


def obey(driver: Driver, order: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": getattr(driver, order.pop("do"))(**order)}
    except Exception:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    # The JVM inherits standard output, and may print; answers have a stream that it does not have.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        driver = Driver()
        for line in sys.stdin:
            print(json.dumps(obey(driver, json.loads(line))), file=answers)
        driver.stop()
