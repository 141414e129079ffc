"""Quantiles and distinct counts that an `ArrowAggregation` declares, against Spark SQL."""

from collections.abc import Iterator
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Count,
    Distinct,
    DistinctMetrics,
    Measure,
    Metrics,
    QuantileMetrics,
    Quantiles,
    Window,
    metric_type,
)
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter, SinkError
from spark_support.orders import orders_of
from spark_support.pyspark_version import VERSION

DAY = 86_400
LATENCY = metric_type("latency", QuantileMetrics, accuracy=0.002)


def job(store: Any, step: ArrowAggregation) -> AggregationJob:
    return AggregationJob(name="orders", arrow=[step], store=store)


@pytest.fixture(scope="module")
def orders(spark: SparkSession) -> DataFrame:
    return orders_of(spark)


SKETCHES = ArrowAggregation(
    keys=["city"],
    time=Window("at", DAY),
    metrics={LATENCY: Quantiles("weight"), "prices": Quantiles("price"), "orders": Count()},
)


def test_quantiles_of_all_writes_can_be_read(orders: DataFrame, any_store: Any) -> None:
    """As accurate as declared, from partials of several tasks and of two writes."""
    writer = MetricsWriter(job(any_store, SKETCHES))
    for part in orders.randomSplit([1.0, 2.0], seed=7):
        writer.write_batch(part)
    days = F.expr(f"unix_seconds(at) - unix_seconds(at) % {DAY}").alias("day")
    ranks = (0.0, 0.5, 0.99, 1.0)
    for metric, column, accuracy in (
        (LATENCY, "weight", 0.002),
        (SKETCHES.types["prices"], "price", 0.01),
    ):
        read = {item.key: item for item in any_store.read(metric, "orders")}
        collected = orders.groupBy("city", days).agg(F.sort_array(F.collect_list(column))).collect()
        assert read.keys() == {(row.city, row.day) for row in collected}
        for city, day, values in collected:
            item = read[city, day]
            assert item.count == len(values)
            for rank in ranks:
                wanted = float(values[int(rank * (len(values) - 1))])
                assert item.quantile(rank) == pytest.approx(wanted, rel=1.001 * accuracy)


def test_quantiles_are_in_shards_and_in_the_format(
    spark: SparkSession, orders: DataFrame, parquet: ParquetStore
) -> None:
    writer = MetricsWriter(job(parquet, SKETCHES), shards=2)
    writer.write_batch(orders)
    counts = [item.count for sink in writer.sink_ids for item in parquet.read(LATENCY, sink)]
    assert sum(counts) == orders.agg(F.count("weight")).collect()[0][0]


def test_spark_sql_refuses_quantiles(store: SqliteStore) -> None:
    with pytest.raises(ConfigError, match=r"a QuantileBuckets.*l1='tasks'"):
        MetricsWriter(job(store, SKETCHES), l1="spark")


def test_other_accuracy_is_a_changed_job(orders: DataFrame, store: SqliteStore) -> None:
    MetricsWriter(job(store, SKETCHES)).write_batch(orders)
    coarse = metric_type("latency", QuantileMetrics, accuracy=0.1)
    changed = ArrowAggregation(
        keys=["city"], time=Window("at", DAY), metrics={coarse: Quantiles("weight")}
    )
    with pytest.raises(SinkError, match=r"accuracy 0.002.*accuracy 0.1"):
        MetricsWriter(job(store, changed), onJobChange="accept").write_batch(orders)


VISITORS = metric_type("visitors", DistinctMetrics, accuracy=0.01)
VISITS: dict[Any, Measure] = {
    VISITORS: Distinct("name"),
    "numbers": Distinct("number"),
    "days": Distinct("day"),
    "seconds": Distinct("at"),
    "small": Distinct("small"),
    "flags": Distinct("late"),
}


def test_distinct_counts_of_tasks_and_of_spark_sql_are_the_same_values(
    orders: DataFrame, any_store: Any
) -> None:
    """The same rows, written in three ways, count once."""
    rows = orders.selectExpr(
        *("city", "name", "at", "late", "cents AS number", "date(at) AS day"),
        "CAST(cents % 100 AS smallint) AS small",
    )
    step = ArrowAggregation(keys=["city"], metrics=VISITS)
    MetricsWriter(job(any_store, step)).write_batch(rows)
    MetricsWriter(job(any_store, step), l1="spark").write_batch(rows)
    by_items = AggregationJob(
        name="orders", items=visits, metrics=job(any_store, step).metrics, store=any_store
    )
    MetricsWriter(by_items, onJobChange="accept").write_batch(rows)
    columns = ("name", "number", "day", "at", "small", "late")
    exact = rows.groupBy("city").agg(*(F.count_distinct(column) for column in columns))
    for row in exact.collect():
        for metric, wanted in zip(step.types.values(), row[1:], strict=True):
            (found,) = any_store.read(metric, "orders", entities=[row.city])
            assert found.estimate == pytest.approx(wanted, rel=0.05, abs=0.02)


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_empty_text_counts_in_both_ways(spark: SparkSession, store: SqliteStore, kind: str) -> None:
    rows = spark.range(6).selectExpr(
        "id DIV 3 AS city", f"CAST(IF(id > 3, NULL, repeat('x', id % 3)) AS {kind}) AS name"
    )
    step = ArrowAggregation(keys=["city"], metrics={VISITORS: Distinct("name")})
    found = []
    ways: tuple[Any, ...] = ("tasks", "spark")
    for l1 in ways:
        MetricsWriter(job(store, step), l1=l1, sinkId=l1).write_batch(rows)
        found.append([item.estimate for item in store.read(VISITORS, l1)])
    assert found[0] == found[1]
    assert list(map(round, found[0])) == [3, 1]


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_distinct_texts_that_are_not_utf8_fail_the_epoch(
    spark: SparkSession, store: SqliteStore, l1: Any
) -> None:
    rows = spark.range(2).selectExpr("'rome' AS city", "CAST(X'FF' AS string) AS name")
    step = ArrowAggregation(keys=["city"], metrics={VISITORS: Distinct("name")})
    with pytest.raises(Exception, match="not UTF-8"):  # Spark wraps that of a task
        MetricsWriter(job(store, step), l1=l1).write_batch(rows)
    assert store.summaries("orders") == []


@pytest.mark.skipif(VERSION < (4, 1), reason="the setting came with pyspark 4.1")
@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_empty_texts_of_char_and_varchar_are_counted(
    spark: SparkSession, store: SqliteStore, l1: Any
) -> None:
    """Spark's sketch leaves the empty text out, and compares texts of the type char padded."""
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        rows = spark.sql(
            "SELECT CAST(text AS char(4)) padded, CAST(text AS varchar(4)) text "
            "FROM VALUES (''), ('  '), ('a'), (NULL) AS of(text)"
        )
        step = ArrowAggregation(
            keys=[], metrics={"padded": Distinct("padded"), "texts": Distinct("text")}
        )
        MetricsWriter(job(store, step), l1=l1).write_batch(rows)
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")
    found = {name: store.read(kind, "orders")[0].estimate for name, kind in step.types.items()}
    assert found == pytest.approx({"padded": 2, "texts": 3}, abs=0.01)


def visits(rows: pa.RecordBatch) -> Iterator[Metrics]:
    types = ArrowAggregation(keys=["city"], metrics=VISITS).types
    for row in rows.to_pylist():
        second, day = row["at"], row["day"]
        city = row["city"]
        yield VISITORS(city, 0, row["name"])
        yield types["numbers"](city, 0, row["number"])  # type: ignore[call-arg]
        yield types["days"](city, 0, (day - date(1970, 1, 1)).days)  # type: ignore[call-arg]
        micros = int(second.timestamp()) * 1_000_000
        yield types["seconds"](city, 0, micros)  # type: ignore[call-arg]
        yield types["small"](city, 0, row["small"])  # type: ignore[call-arg]
        yield types["flags"](city, 0, row["late"])  # type: ignore[call-arg]
