"""Columns of decimals and bools through each way of L1 into each store, against Spark SQL."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batchqueue.aggregation import (
    Aggregation,
    Count,
    Max,
    MaxMetrics,
    Mean,
    MeanMetrics,
    Metrics,
    Min,
    MinMetrics,
    Sum,
    SumMetrics,
    metric_type,
)
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter, SinkError, register
from spark_support.pyspark_version import needs_batch_sink

TOTAL = metric_type("total", SumMetrics, columns={"total": Decimal})
MEAN = metric_type("mean", MeanMetrics, columns={"total": Decimal})
LEAST = metric_type("least", MinMetrics, columns={"value": Decimal})
PAID = metric_type("all paid", MinMetrics, columns={"value": bool})
LATE = metric_type("any late", MaxMetrics, columns={"value": bool})
METRICS = [TOTAL, MEAN, LEAST, PAID, LATE]


def items(orders: pa.RecordBatch) -> Iterator[Metrics]:
    for row in orders.to_pylist():
        shop = row["shop"]
        yield TOTAL(shop, 0, row["amount"])
        yield MEAN(shop, 0, row["amount"])
        yield LEAST(shop, 0, row["amount"])
        yield PAID(shop, 0, row["paid"])
        yield LATE(shop, 0, row["late"])


def partials(shops: pa.RecordBatch) -> Iterator[Metrics]:
    for row in shops.to_pylist():
        shop = row["shop"]
        yield TOTAL(shop, 0, row["total"])
        yield MEAN(shop, 0, row["total"], row["values"])
        yield LEAST(shop, 0, row["least"])
        yield PAID(shop, 0, row["paid"])
        yield LATE(shop, 0, row["late"])


DECLARED = ArrowAggregation(
    aggregation=Aggregation(
        keys=["shop"],
        measures={
            "total": Sum("amount"),
            "values": Count("amount"),
            "mean": Mean("amount"),
            "least": Min("amount"),
            "paid": Min("paid"),
            "late": Max("late"),
        },
    ),
    metrics=partials,
)

WAYS: dict[str, dict[str, Any]] = {
    "items": {"items": items},
    "tasks": {"arrow": [DECLARED]},
    "spark": {"arrow": [DECLARED]},
}


def job(store: Any, way: str) -> AggregationJob:
    return AggregationJob(name="shops", metrics=METRICS, store=store, **WAYS[way])


def orders_of(spark: SparkSession, kind: str) -> DataFrame:
    """Amounts of which floats would lose cents; some are null."""
    rows = spark.range(600).selectExpr(
        "concat('shop ', id % 7) AS shop",
        f"CAST(IF(id % 5 = 0, NULL, 90000000.01 - id * 300000.07) AS {kind}) AS amount",
        "IF(id % 3 = 0, NULL, id % 7 > 2) AS paid",
        "id % 7 = 4 AND id > 500 AS late",
    )
    return rows.repartition(3)


def stored(store: Any) -> dict[str, tuple[Any, ...]]:
    read = {
        metric: {item.entity: item for item in store.read(metric, "shops")} for metric in METRICS
    }
    return {
        shop: (
            read[TOTAL][shop].total,
            read[MEAN][shop].total,
            read[MEAN][shop].count,
            *(read[metric][shop].value for metric in (LEAST, PAID, LATE)),
        )
        for shop in read[TOTAL]
    }


def by_spark_sql(orders: DataFrame) -> dict[str, tuple[Any, ...]]:
    total = F.sum("amount")
    found = orders.groupBy("shop").agg(
        total,
        total.alias("again"),
        F.count("amount"),
        F.min("amount"),
        F.min("paid"),
        F.max("late"),
    )
    return {row[0]: tuple(row[1:]) for row in found.collect()}


@pytest.mark.parametrize("kind", ["decimal(12, 2)", "decimal(27, 15)"])
@pytest.mark.parametrize("way", WAYS)
def test_results_are_equal_to_spark_sql(
    spark: SparkSession, any_store: Any, way: str, kind: str
) -> None:
    orders = orders_of(spark, kind)
    writer = MetricsWriter(job(any_store, way), l1="spark" if way == "spark" else "tasks")
    writer.write_batch(orders)
    assert stored(any_store) == by_spark_sql(orders)
    writer.write_batch(orders)
    assert stored(any_store) == by_spark_sql(orders.unionAll(orders))


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_means_are_doubles_in_each_place(spark: SparkSession, store: SqliteStore, way: Any) -> None:
    def kept(shops: pa.RecordBatch) -> Iterator[Metrics]:
        for row in shops.to_pylist():
            values = row["values"]
            assert row["mean"] == (float(row["total"]) / values if values else None)
            yield MEAN(row["shop"], 0, row["total"], values)

    orders = orders_of(spark, "decimal(12, 2)")
    step = ArrowAggregation(aggregation=DECLARED.aggregation, metrics=kept)
    means = AggregationJob(name="shops", arrow=[step], metrics=[MEAN], store=store)
    MetricsWriter(means, l1=way).write_batch(orders)
    found = {item.entity: item.value for item in store.read(MEAN, "shops")}
    of_sql = orders.groupBy("shop").agg(F.sum("amount"), F.count("amount")).collect()
    assert found == {shop: float(total) / values for shop, total, values in of_sql}


def test_shards_hold_decimals_as_well(spark: SparkSession, parquet: ParquetStore) -> None:
    orders = orders_of(spark, "decimal(12, 2)")
    writer = MetricsWriter(job(parquet, "tasks"), shards=3)
    writer.write_batch(orders)
    found = {
        item.entity: item.total for sink in writer.sink_ids for item in parquet.read(TOTAL, sink)
    }
    assert found == {shop: row[0] for shop, row in by_spark_sql(orders).items()}


@needs_batch_sink
def test_format_writes_and_reads_decimals(spark: SparkSession, any_store: Any) -> None:
    orders = orders_of(spark, "decimal(12, 2)")
    name = register(spark, job(any_store, "tasks"))
    orders.write.format(name).mode("append").save()
    read = spark.read.format(name).option("metric", "total").load()
    assert read.schema["total"].dataType.simpleString() == "decimal(38,18)"
    expected = {shop: row[0] for shop, row in by_spark_sql(orders).items()}
    assert {row.entity: row.total for row in read.collect()} == expected
    late = spark.read.format(name).option("metric", "any late").load()
    assert {row.entity for row in late.where("value").collect()} == {"shop 4"}


def test_sum_of_more_digits_than_a_store_holds_is_refused(
    spark: SparkSession, store: SqliteStore
) -> None:
    orders = spark.sql(
        "SELECT 'a' AS shop, CAST(6e19 AS decimal(38, 0)) AS amount, true AS paid, true AS late "
        "FROM range(2)"
    )
    with pytest.raises((SinkError, PySparkException), match=r"total"):
        MetricsWriter(job(store, "tasks")).write_batch(orders)
    assert store.read(TOTAL, "shops") == []


@pytest.mark.parametrize("measure", [Sum("amount"), Mean("amount")])
def test_sum_of_more_digits_than_a_decimal_has_is_refused_by_spark_sql(
    spark: SparkSession, store: SqliteStore, measure: Any
) -> None:
    """Without ANSI mode, Spark makes null of it."""
    orders = spark.sql("SELECT 'a' AS shop, CAST(9e37 AS decimal(38, 0)) AS amount FROM range(3)")
    step = ArrowAggregation(
        aggregation=Aggregation(keys=["shop"], measures={"sum": measure}),
        metrics=lambda groups: iter(()),
    )
    job = AggregationJob(name="shops", arrow=[step], metrics=[MEAN], store=store)
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(
            SinkError,
            match=r"the sum .*'sum' of column 'amount' does not fit a decimal of 38 digits",
        ):
            MetricsWriter(job, l1="spark").write_batch(orders)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", ansi or "true")
