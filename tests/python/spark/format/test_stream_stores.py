"""The sink on the other stores: equal to Spark SQL, each epoch once, and readable by Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from batchqueue.outputs import ParquetStore
from batchqueue.spark import register
from spark_support.flight_job import DISTANCE, FILES, difference, expected, flight_job, stored
from spark_support.pyspark_version import needs_batch_sink

pytestmark = needs_batch_sink

Stream = Callable[..., None]


@pytest.mark.parametrize("name", ["postgres", "parquet"])
def test_stream_and_batch_are_equal_to_spark_sql(
    spark: SparkSession, flights: Path, stream: Stream, name: str, request: pytest.FixtureRequest
) -> None:
    store: Any = request.getfixturevalue(name)
    stream(flight_job(store))
    stream(flight_job(store))  # there is nothing new
    assert difference(stored(store), expected(spark, flights)) == []
    assert [epoch.batch_id for epoch in store.summaries("flights")] == list(range(FILES))

    table = spark.read.parquet(str(flights))
    for _ in range(2):
        batch = (
            table.write.format(register(spark, flight_job(store)))
            .mode("append")
            .option("sinkId", "nightly")
        )
        batch.option("txnId", "monday").save()
    assert difference(stored(store, "nightly"), expected(spark, flights)) == []


def test_spark_reads_the_files_of_a_parquet_store(
    spark: SparkSession, parquet: ParquetStore, stream: Stream
) -> None:
    stream(flight_job(parquet))
    files = [str(path) for path in parquet.files(DISTANCE, "flights")]
    totals = spark.read.parquet(*files).groupBy("metric").sum("total").collect()
    distances = sum(item.total for item in parquet.read(DISTANCE, "flights"))
    assert [tuple(row) for row in totals] == [("distance", distances)]
