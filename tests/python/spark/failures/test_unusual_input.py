"""Input of unusual size: no rows, no partitions, an early stop, many rows."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_

from batchqueue.aggregation import Aggregation, Count, Sum
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter, register
from spark_support.flight_job import (
    ARROW,
    DECLARED,
    DEPARTURES,
    DISTANCE,
    FILES,
    NO_RANKING,
    SCHEMA,
    Results,
    difference,
    expected,
    files_one_by_one,
    flight_job,
    start_stream,
    stored,
    write_flights,
)
from spark_support.pyspark_version import needs_batch_sink

Sink = Callable[[SqliteStore], AggregationJob | MetricsWriter]

SINKS: dict[str, Sink] = {
    "format, items": flight_job,
    "format, arrow": lambda store: flight_job(store, items=None, arrow=[ARROW]),
    "writer": lambda store: MetricsWriter(flight_job(store)),
    "writer, L1 in Spark SQL": lambda store: MetricsWriter(
        flight_job(store, items=None, arrow=[DECLARED]), l1="spark"
    ),
}


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest, store: SqliteStore) -> AggregationJob | MetricsWriter:
    return SINKS[request.param](store)


pytestmark = needs_batch_sink


def write(table: DataFrame, sink: AggregationJob | MetricsWriter) -> None:
    if isinstance(sink, MetricsWriter):
        sink.write_batch(table)
    else:
        table.write.format(register(table.sparkSession, sink)).mode("append").save()


def without_ranking(results: Results) -> Results:
    """The metrics that all sinks have."""
    return {metric.name: results[metric.name] for metric in NO_RANKING}


def test_epochs_and_partitions_without_rows_change_nothing_and_stop_nothing(
    spark: SparkSession, store: SqliteStore, tmp_path: Path, sink: AggregationJob | MetricsWriter
) -> None:
    """A file without rows, a filter that passes nothing, and more partitions than rows."""
    flights = write_flights(tmp_path / "flights")
    first = pq.read_table(flights / "part-0.parquet")
    pq.write_table(first.slice(0, 0), flights / "part-1.parquet")
    pq.write_table(first.slice(0, 3), flights / "part-2.parquet")
    source = files_one_by_one(spark, flights).where("distance > 0").repartition(8)
    start_stream(source, sink, tmp_path / "checkpoint").awaitTermination()
    assert (
        difference(without_ranking(stored(store)), without_ranking(expected(spark, flights))) == []
    )
    rows = [epoch.summary["rows"] for epoch in store.summaries("flights")]
    assert sorted(rows) == [0, 3, 500, 500]
    assert [epoch.batch_id for epoch in store.summaries("flights")] == [0, 1, 2, 3]


def test_epoch_without_partitions_has_a_ledger_entry_so_that_the_next_one_follows(
    spark: SparkSession, tmp_path: Path, store: SqliteStore, sink: AggregationJob | MetricsWriter
) -> None:
    """A file without bytes makes no partition."""
    flights = write_flights(tmp_path / "files")
    as_csv = tmp_path / "flights"
    as_csv.mkdir()
    for number in range(FILES):
        rows = spark.read.schema(SCHEMA).parquet(str(flights / f"part-{number}.parquet")).toPandas()
        text = "" if number == 1 else rows.to_csv(index=False, header=False)
        (as_csv / f"{number}.csv").write_text(text)
    (flights / "part-1.parquet").unlink()
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).csv(str(as_csv))
    start_stream(source, sink, tmp_path / "checkpoint").awaitTermination()
    assert sorted(epoch.summary["rows"] for epoch in store.summaries("flights")) == [
        0,
        500,
        500,
        500,
    ]
    assert (
        difference(without_ranking(stored(store)), without_ranking(expected(spark, flights))) == []
    )


def test_batch_without_rows_is_recorded_in_the_ledger(
    spark: SparkSession, store: SqliteStore, sink: AggregationJob | MetricsWriter
) -> None:
    write(spark.createDataFrame([], SCHEMA), sink)
    assert [epoch.summary["rows"] for epoch in store.summaries("flights")] == [0]
    assert stored(store)["departures"] == {}


def test_limit_that_stops_python_early_counts_what_passes(
    spark: SparkSession, flights: Path, store: SqliteStore, sink: AggregationJob | MetricsWriter
) -> None:
    """The worker that makes the rows is dropped in mid-stream; the worker that writes is not."""
    table = spark.read.schema(SCHEMA).parquet(str(flights))
    some = table.mapInArrow(lambda batches: batches, SCHEMA).limit(700)
    write(some, sink)
    assert sum(stored(store)["departures"].values()) == 700


DIGITS = [str(digit) for digit in range(10)]


def test_ten_million_rows_of_few_keys_are_equal_to_spark_sql(
    spark: SparkSession, store: SqliteStore
) -> None:
    numbers = spark.range(10_000_000, numPartitions=4).selectExpr("string(id % 10) digit", "id")
    by_digit = ArrowAggregation(
        type_column="digit",
        tags=DIGITS,
        aggregation=Aggregation(keys=["digit"], measures={"rows": Count(), "total": Sum("id")}),
        metrics=lambda groups: [
            metric
            for row in groups.to_pylist()
            for metric in (
                DEPARTURES(row["digit"], 0, row["rows"]),
                DISTANCE(row["digit"], 0, row["total"]),
            )
        ],
    )
    changes = {
        "items": None,
        "arrow": [by_digit],
        "metrics": [DEPARTURES, DISTANCE],
        "columns": ["digit", "id"],
    }
    write(numbers, flight_job(store, **changes))
    wanted = {
        row.digit: (row["count"], row.total)
        for row in numbers.groupBy("digit")
        .agg(count("*").alias("count"), sum_("id").alias("total"))
        .collect()
    }
    totals = {item.entity: item.total for item in store.read(DISTANCE, "flights")}
    assert {
        item.entity: (item.count, totals[item.entity]) for item in store.read(DEPARTURES, "flights")
    } == wanted
