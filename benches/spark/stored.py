"""Reading a sink back in Spark, beside Spark's own reader of the same Parquet files."""

import time
from collections.abc import Callable
from pathlib import Path

import workload
from pyspark.sql import DataFrame, SparkSession

from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import ParquetStore
from batchqueue.spark import AggregationJob, register

HITS = metric_type("hits", CountMetrics)
DAYS, HOUR = 20, 3_600
KEYS = range(5 * workload.KEYS)
ROWS = DAYS * 24 * len(KEYS)


class Stored:
    """A `ParquetStore` with a file for each day."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        store = ParquetStore(directory)
        for day in range(DAYS):
            hours = range(24 * day, 24 * (day + 1))
            with store.transaction("stored") as transaction:
                transaction.save(
                    [HITS(str(key), hour * HOUR, key) for hour in hours for key in KEYS]
                )
        self._files = [str(path) for path in store.files(HITS, "stored")]
        job = AggregationJob(name="stored", items=list, metrics=[HITS], store=store)
        self._format = register(spark, job)

    def by_format(self) -> float:
        """Return the seconds of a read by the format of the sink."""
        return self._timed(self._spark.read.format(self._format).load)

    def by_spark(self) -> float:
        """Return the seconds of a read of the same files by Spark."""
        return self._timed(lambda: self._spark.read.parquet(*self._files).drop("metric"))

    def _timed(self, load: Callable[[], DataFrame]) -> float:
        # Untimed first, by all workers: Spark ends those that idle for a minute, as they do here.
        assert load().count() == ROWS
        begin = time.perf_counter()
        load().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - begin
