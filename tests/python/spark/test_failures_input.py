"""Input of unusual size: no rows, no partitions, an early stop, many rows."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from flight_job import (
    ARROW,
    DEPARTURES,
    DISTANCE,
    SCHEMA,
    difference,
    expected,
    flight_job,
    stored,
    write_flights,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_
from versions import needs_batch_sink

from batchqueue.aggregation import Aggregation, Count, Sum
from batchqueue.outputs import SqliteStore
from batchqueue.spark import ArrowAggregation, register

L1 = pytest.mark.parametrize("l1", [{}, {"items": None, "arrow": [ARROW]}], ids=["items", "arrow"])

pytestmark = needs_batch_sink


def write(table: DataFrame, store: SqliteStore, **changes: Any) -> None:
    job = flight_job(store, **changes)
    table.write.format(register(table.sparkSession, job)).mode("append").save()


def run(source: DataFrame, store: SqliteStore, checkpoint: Path, **changes: Any) -> None:
    writer = source.writeStream.format(register(source.sparkSession, flight_job(store, **changes)))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


@L1
def test_epochs_without_rows_and_partitions_without_rows_change_nothing_and_stop_nothing(
    spark: SparkSession, store: SqliteStore, tmp_path: Path, l1: dict[str, Any]
) -> None:
    """A file without rows, a filter that lets nothing pass, and more partitions than rows."""
    flights = write_flights(tmp_path / "flights")
    first = pq.read_table(flights / "part-0.parquet")
    pq.write_table(first.slice(0, 0), flights / "part-1.parquet")
    pq.write_table(first.slice(0, 3), flights / "part-2.parquet")
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(flights))
    run(source.where("distance > 0").repartition(8), store, tmp_path / "checkpoint", **l1)
    assert difference(stored(store), expected(spark, flights)) == []
    rows = [epoch.summary["rows"] for epoch in store.summaries("flights")]
    assert sorted(rows) == [0, 3, 500, 500]
    assert [epoch.batch_id for epoch in store.summaries("flights")] == [0, 1, 2, 3]


@L1
def test_epoch_without_partitions_has_a_ledger_entry_so_that_the_next_one_follows(
    spark: SparkSession, flights: Path, store: SqliteStore, tmp_path: Path, l1: dict[str, Any]
) -> None:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(flights))
    run(source.where("1 = 0"), store, tmp_path / "checkpoint", **l1)
    assert [epoch.summary["rows"] for epoch in store.summaries("flights")] == [0, 0, 0, 0]
    assert stored(store)["departures"] == {}


@L1
def test_batch_without_rows_is_noted_in_the_ledger(
    spark: SparkSession, store: SqliteStore, l1: dict[str, Any]
) -> None:
    write(spark.createDataFrame([], SCHEMA), store, **l1)
    assert [epoch.summary["rows"] for epoch in store.summaries("flights")] == [0]
    assert stored(store)["departures"] == {}


@L1
def test_limit_that_stops_python_early_counts_what_passes(
    spark: SparkSession, flights: Path, store: SqliteStore, l1: dict[str, Any]
) -> None:
    """The worker that makes the rows is dropped in mid-stream, and the one that writes is not."""
    table = spark.read.schema(SCHEMA).parquet(str(flights))
    some = table.mapInArrow(lambda batches: batches, SCHEMA).limit(700)
    write(some, store, **l1)
    assert sum(stored(store)["departures"].values()) == 700


DIGITS = [str(digit) for digit in range(10)]


def test_ten_million_rows_of_few_keys_are_equal_to_spark_sql(spark: SparkSession, store: SqliteStore) -> None:
    numbers = spark.range(10_000_000, numPartitions=4).selectExpr("string(id % 10) digit", "id")
    by_digit = ArrowAggregation(
        type_column="digit",
        tags=DIGITS,
        aggregation=Aggregation(keys=["digit"], measures={"rows": Count(), "total": Sum("id")}),
        metrics=lambda groups: [
            metric
            for row in groups.to_pylist()
            for metric in (DEPARTURES(row["digit"], 0, row["rows"]), DISTANCE(row["digit"], 0, row["total"]))
        ],
    )
    write(
        numbers, store, items=None, arrow=[by_digit], metrics=[DEPARTURES, DISTANCE], columns=["digit", "id"]
    )
    wanted = {
        row.digit: (row["count"], row.total)
        for row in numbers.groupBy("digit")
        .agg(count("*").alias("count"), sum_("id").alias("total"))
        .collect()
    }
    totals = {one.entity: one.total for one in store.read(DISTANCE, "flights")}
    assert {
        one.entity: (one.count, totals[one.entity]) for one in store.read(DEPARTURES, "flights")
    } == wanted
