"""Metrics that an `ArrowAggregation` declares: in tasks, shards and Spark SQL, by Spark SQL."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Last,
    Max,
    MaxMetrics,
    Mean,
    MeanMetrics,
    Measure,
    Metrics,
    Min,
    MinMetrics,
    QuantileBuckets,
    QuantileMetrics,
    Quantiles,
    Sum,
    SumMetrics,
    TopN,
    Window,
    metric_type,
)
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import (
    AggregationJob,
    ArrowAggregation,
    MetricsWriter,
    SinkError,
    dry_run,
    register,
)
from spark_support.orders import orders_of
from spark_support.pyspark_version import needs_batch_sink

CENTS = metric_type("cents", SumMetrics, columns={"total": int})
PRICE = metric_type("price", SumMetrics, columns={"total": Decimal})
FIRST_NAME = metric_type("first name", MinMetrics, columns={"value": str})
MEAN = metric_type("mean", MeanMetrics)
LATENCY = metric_type("latency", QuantileMetrics, accuracy=0.002)
ANY_LATE = metric_type("any late", MaxMetrics, columns={"value": bool})

HOUR = 3_600
DECLARED: dict[Any, Measure] = {
    "orders": Count(),
    "priced": Count("price"),
    "weight": Sum("weight"),
    "mean weight": Mean("weight"),
    "heaviest": Max("weight"),
    CENTS: Sum("cents"),
    PRICE: Sum("price"),
    FIRST_NAME: Min("name"),
    ANY_LATE: Max("late"),
}
STEP = ArrowAggregation(keys=["city"], time=Window("at", HOUR), metrics=DECLARED)


def job(store: Any, step: ArrowAggregation = STEP, **changes: Any) -> AggregationJob:
    return AggregationJob(name="orders", arrow=[step], store=store, **changes)


@pytest.fixture(scope="module")
def orders(spark: SparkSession) -> DataFrame:
    return orders_of(spark)


def by_spark_sql(orders: DataFrame) -> dict[tuple[str, int], tuple[Any, ...]]:
    hour = F.expr(f"unix_seconds(at) - unix_seconds(at) % {HOUR}").alias("hour")
    found = orders.groupBy("city", hour).agg(
        F.count("*"),
        F.count("price"),
        F.sum("weight"),
        F.avg("weight"),
        F.max("weight"),
        F.sum("cents"),
        F.sum("price"),
        F.min("name"),
        F.max("late"),
    )
    return {(row.city, row.hour): tuple(row[2:]) for row in found.collect()}


VALUES = {
    "orders": "count",
    "priced": "count",
    "weight": "total",
    "mean weight": "value",
    "heaviest": "value",
    "cents": "total",
    "price": "total",
    "first name": "value",
    "any late": "value",
}


def stored(store: Any, *sink_ids: str) -> dict[tuple[str, int], tuple[Any, ...]]:
    read = {
        name: {
            item.key: getattr(item, VALUES[name])
            for sink_id in sink_ids
            for item in store.read(metric, sink_id)
        }
        for name, metric in STEP.types.items()
    }
    return {key: tuple(read[name][key] for name in VALUES) for key in read["orders"]}


def assert_equal(found: dict[Any, tuple[Any, ...]], expected: dict[Any, tuple[Any, ...]]) -> None:
    assert found.keys() == expected.keys()
    for key, values in found.items():
        for value, wanted in zip(values, expected[key], strict=True):
            if isinstance(value, float):  # Spark adds floats in another order
                assert value == pytest.approx(wanted, rel=1e-12)
            else:
                assert (value, value is None) == (wanted, wanted is None)


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_declared_metrics_are_equal_to_spark_sql(
    orders: DataFrame, any_store: Any, l1: Any
) -> None:
    writer = MetricsWriter(job(any_store), l1=l1)
    writer.write_batch(orders)
    assert_equal(stored(any_store, "orders"), by_spark_sql(orders))
    writer.write_batch(orders)
    assert_equal(stored(any_store, "orders"), by_spark_sql(orders.unionAll(orders)))


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_shards_have_them_too(orders: DataFrame, parquet: ParquetStore, l1: Any) -> None:
    writer = MetricsWriter(job(parquet), l1=l1, shards=3)
    writer.write_batch(orders)
    assert_equal(stored(parquet, *writer.sink_ids), by_spark_sql(orders))


@needs_batch_sink
def test_format_stores_them_and_reads_them(
    spark: SparkSession, orders: DataFrame, store: SqliteStore
) -> None:
    name = register(spark, job(store))
    orders.write.format(name).mode("append").save()
    assert_equal(stored(store, "orders"), by_spark_sql(orders))
    read = spark.read.format(name).option("metric", "price").load()
    total = read.agg(F.sum("total")).collect()[0][0]
    assert total == orders.agg(F.sum("price")).collect()[0][0]


ORDERS = metric_type("orders", CountMetrics)


def by_function(groups: pa.RecordBatch) -> Iterator[Metrics]:
    for row in groups.to_pylist():
        yield ORDERS(row["city"], int(row["at"].timestamp()), row["orders"])


def test_declared_metrics_and_those_of_a_function_share_a_job(
    orders: DataFrame, store: SqliteStore
) -> None:
    """And a job may change from one to the other: they mean the same."""
    orders_only = ArrowAggregation(
        keys=["city"], time=Window("at", HOUR), metrics={"orders": Count()}
    )
    count = ArrowAggregation(aggregation=orders_only.aggregation, metrics=by_function)
    MetricsWriter(job(store, orders_only)).write_batch(orders)
    MetricsWriter(job(store, count, metrics=[ORDERS])).write_batch(orders)
    both = AggregationJob(name="both", arrow=[STEP, count], metrics=[ORDERS], store=store)
    MetricsWriter(both).write_batch(orders)
    for sink_id in ("orders", "both"):
        assert sum(item.count for item in store.read(ORDERS, sink_id)) == 1_800


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def counts(step: ArrowAggregation, batch: pa.RecordBatch) -> dict[tuple[str, int], int]:
    found = dry_run(job(SqliteStore("metrics.db"), step), [batch])
    return {item.key: item.count for item in found}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "entity"),
    [
        (pa.array([7]), "7"),
        (pa.array([True]), "true"),
        (pa.array([date(2024, 3, 10)]), "2024-03-10"),
        (pa.array(["ä"]).dictionary_encode(), "ä"),
        (pa.array([Decimal("1.50")]), "1.50"),
    ],
)
def test_entity_is_the_text_of_the_key(values: pa.Array, entity: str) -> None:
    step = ArrowAggregation(keys=["key"], metrics={"rows": Count()})
    assert counts(step, rows(key=values)) == {(entity, 0): 1}


def test_without_keys_the_entity_is_all() -> None:
    step = ArrowAggregation(time=Window("at", 10), metrics={"rows": Count()})
    assert counts(step, rows(at=[3, 17, 12])) == {("all", 0): 1, ("all", 10): 2}


@pytest.mark.parametrize("zone", [None, "America/New_York"])
@pytest.mark.parametrize(
    "kind", [pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), pa.date32()]
)
def test_time_bucket_is_the_start_in_seconds(zone: str | None, kind: pa.DataType) -> None:
    at = datetime(2024, 3, 10, 20, tzinfo=UTC)
    step = ArrowAggregation(time=Window("at", 86_400, zone=zone), metrics={"rows": Count()})
    midnight = datetime(2024, 3, 10, tzinfo=ZoneInfo(zone or "UTC"))
    value = at.date() if kind == pa.date32() else at
    found = counts(step, rows(at=pa.array([value], kind)))
    assert found == {("all", int(midnight.timestamp())): 1}


@pytest.mark.parametrize("null_keys", ["skip", {"city": "unknown"}])
def test_null_keys_are_treated_as_in_any_aggregation(null_keys: Any) -> None:
    step = ArrowAggregation(keys=["city"], metrics={"rows": Count()}, null_keys=null_keys)
    found = counts(step, rows(city=["a", None, "a"]))
    assert found == {("a", 0): 2} | ({} if null_keys == "skip" else {("unknown", 0): 1})
    with pytest.raises(
        SinkError, match=r"key column 'city' .* is null in 1 group.*null_keys='skip'"
    ):
        counts(replace(step, null_keys=None), rows(city=["a", None]))


@pytest.mark.parametrize(
    ("metric", "values", "words"),
    [
        (
            {"total": Sum("x")},
            [2**60 + 1],
            "'total' has a value of type int64.*total of type float",
        ),
        ({CENTS: Sum("x")}, [0.5], "'cents' has a value of type double.*total of type int"),
        (
            {PRICE: Sum("x")},
            [Decimal(6 * 10**19)] * 2,
            "'price'.*decimal of up to 20 digits before the point and 18 after it",
        ),
    ],
)
def test_values_that_do_not_fit_are_named_with_the_remedy(
    metric: Any, values: list[Any], words: str
) -> None:
    step = ArrowAggregation(metrics=metric)
    with pytest.raises(SinkError, match=rf"{words}.*declare the metric by its type|{words}"):
        counts(step, rows(x=values))


@pytest.mark.parametrize(
    ("metric", "values", "words"),
    [
        ({CENTS: Sum("x")}, [Decimal("0.5")], r"total of type int, which .*\{'total': Decimal\}"),
        ({PRICE: Sum("x")}, [0.1], r"type decimal, which takes .*\{'total': float\}"),
        ({"best": Max("x")}, ["text"], r"value of type float, which takes .*\{'value': str\}"),
        ({"best": Max("x")}, [True], r"value of type float, which takes .*\{'value': bool\}"),
        ({"best": Max("x")}, [datetime(2024, 1, 1)], "give a number, such as seconds, or a text"),
        ({FIRST_NAME: Min("x")}, [1], "value of type str, which takes text"),
    ],
)
def test_columns_that_do_not_fit_are_named_with_the_remedy(
    metric: Any, values: list[Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=rf"stores .* of column 'x', .*{words}"):
        counts(ArrowAggregation(metrics=metric), rows(x=values))


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        (pa.array([2**62] * 4), "int64"),
        (pa.array([Decimal(9 * 10**37)] * 3, pa.decimal128(38, 0)), r"decimal128\(38, 0\)"),
    ],
)
def test_sum_that_is_too_large_is_named_with_the_remedy(values: pa.Array, limit: str) -> None:
    step = ArrowAggregation(metrics={PRICE: Sum("x")})
    words = rf"measure \"price\" is \d+, which does not fit into {limit}, in a group of one task"
    with pytest.raises(SinkError, match=rf"{words}.*measure in a larger unit, or as double"):
        counts(step, rows(x=values))


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_missing_column_of_a_declaration_is_named_before_any_task(
    orders: DataFrame, store: SqliteStore, l1: Any
) -> None:
    for step, missing in (
        (replace(STEP, type_column="kind", tags=["a"]), "kind"),
        (ArrowAggregation(keys=["town"], metrics={"n": Count()}), "town"),
        (ArrowAggregation(time=Window("then", 10), metrics={"n": Sum("grams")}), "grams, then"),
    ):
        found = "|".join([missing, ", ".join(reversed(missing.split(", ")))])
        with pytest.raises(ConfigError, match=rf"needs column ({found}), but the rows have city"):
            MetricsWriter(job(store, step), l1=l1).write_batch(orders)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metrics": {}}, "at least one"),
        ({"metrics": {LATENCY: QuantileBuckets("x", 0.1)}}, "'latency' has another accuracy than"),
        ({"metrics": {"x": Last("x", by="at")}}, "declare a Count, Sum, Mean, Min, Max"),
        ({"metrics": {"x": TopN("x", 3)}}, "give `aggregation` and a function"),
        ({"metrics": {"x": "count"}}, "'x' is declared as 'count', a str"),
        ({"metrics": {CENTS: Count()}}, "'cents' is declared as Count.*metric_type.name, CountM"),
        ({"metrics": {7: Count()}}, "'7' is declared.*give a name"),
        ({"metrics": {MEAN: Sum("x")}}, "'mean' is declared as Sum.*metric_type.name, SumMetrics"),
        ({"metrics": {CENTS: Mean("x")}}, "'cents' is declared as Mean.*metric_type.name, MeanM"),
        ({"metrics": {"p": Quantiles("x", [0.5])}}, "'p' is declared as.*leave out the quantiles"),
        ({"metrics": {"cents": Sum("x"), CENTS: Sum("x")}}, "'cents' is declared twice"),
        ({"metrics": {"n": Count()}, "keys": "city"}, "list of column names"),
        ({"metrics": {"n": Count()}, "time": Window("at", 0.5)}, "whole seconds"),
        ({"metrics": by_function}, "aggregation is None: give the Aggregation"),
        ({"metrics": by_function, "aggregation": STEP.aggregation, "keys": ["a"]}, "for declared"),
        ({"metrics": {"n": Count()}, "aggregation": STEP.aggregation}, "leave out the aggregation"),
        ({"metrics": ["n"]}, "metrics is .'n'.: give metrics with their measures"),
    ],
)
def test_declarations_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ArrowAggregation(**settings)


def test_job_knows_the_metrics_of_its_steps(store: SqliteStore) -> None:
    assert [metric.name for metric in job(store).metrics] == list(STEP.types)
    assert STEP.types["orders"] is ORDERS
    with pytest.raises(ConfigError, match="has two metrics named 'orders'"):
        job(store, metrics=[metric_type("orders", SumMetrics)])
    with pytest.raises(ConfigError, match="has no metrics"):
        AggregationJob(name="none", items=list, store=store)
    assert job(store).columns_read() == ["city", "at", "price", "weight", "cents", "name", "late"]
    twin = replace(STEP, null_keys="skip")
    assert (twin.aggregation, twin.types) == (STEP.aggregation, STEP.types)


def test_steps_that_would_add_up_for_one_metric_are_refused(store: SqliteStore) -> None:
    by_hour = ArrowAggregation(time=Window("at", HOUR), metrics={ORDERS: Count()})
    by_day = ArrowAggregation(time=Window("at", 24 * HOUR), metrics={ORDERS: Count()})
    for steps in ([by_hour, by_day], [by_hour, by_hour]):
        with pytest.raises(ConfigError, match=r"'orders' in two steps.*added up: rename one"):
            AggregationJob(name="orders", arrow=steps, store=store)
    of: Any = {"type_column": "city", "keys": ["city"]}
    oslo = ArrowAggregation(tags=["Oslo"], metrics={ORDERS: Count()}, **of)
    rome = ArrowAggregation(tags=["Rome"], metrics={ORDERS: Count()}, **of)
    both = AggregationJob(name="orders", arrow=[oslo, rome], store=store)
    found: Iterator[Any] = dry_run(both, [rows(city=["Oslo", "Rome", "Rome"])])
    assert {item.entity: item.count for item in found} == {"Oslo": 1, "Rome": 2}
    priced = ArrowAggregation(tags=["Rome"], metrics={ORDERS: Count("price")}, **of)
    with pytest.raises(ConfigError, match=r"the same keys, time and measure"):
        AggregationJob(name="orders", arrow=[oslo, priced], store=store)


def test_declaration_is_a_copy() -> None:
    declared: dict[Any, Measure] = {"rows": Count()}
    step = ArrowAggregation(keys=["city"], metrics=declared)
    declared["more"] = Count("city")
    assert list(step.types) == ["rows"]
    assert counts(step, rows(city=["a"])) == {("a", 0): 1}


def test_sum_that_does_not_fit_names_the_metric(orders: DataFrame, store: SqliteStore) -> None:
    step = ArrowAggregation(metrics={CENTS: Sum("huge")})
    huge = orders.selectExpr("9000000000000000000 AS huge")
    for l1 in ("tasks", "auto"):
        with pytest.raises((PySparkException, SinkError), match=r"cents"):
            MetricsWriter(job(store, step), l1=l1).write_batch(huge)  # type: ignore[arg-type]
    assert Aggregation(keys=[], measures={"cents": Sum("huge")}) == step.aggregation
