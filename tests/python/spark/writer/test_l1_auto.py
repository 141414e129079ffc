"""`l1="auto"`: Spark SQL where it has the results of the tasks, else the tasks; it says which."""

from collections.abc import Iterator
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Distinct,
    Max,
    Mean,
    Metrics,
    Min,
    Quantiles,
    Sum,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, DeadLetters, MetricsWriter, register
from spark_support.orders import orders_of
from spark_support.pyspark_version import needs_batch_sink

HOUR = 3_600
CENTS = metric_type("cents", SumMetrics, columns={"total": int})
MEASURES: dict[Any, Any] = {
    "orders": Count(),
    CENTS: Sum("cents"),
    "mean": Mean("cents"),
    "heaviest": Max("weight"),
    "lightest": Min("weight"),
    "amounts": Distinct("cents"),
    "names": Distinct("name"),
}
STEP = ArrowAggregation(keys=["city"], time=Window("at", HOUR), metrics=MEASURES)
BY_CITY = Aggregation(keys=["city"], measures={"n": Count()})
WITHOUT_SUMS = ArrowAggregation(
    keys=["city"],
    time=Window("at", HOUR),
    metrics={"orders": Count(), "heaviest": Max("weight"), "amounts": Distinct("cents")},
)
IN_SPARK = "L1 runs in Spark SQL: Spark SQL has all measures of the job, with the same results"


class Doubling(CountMetrics):
    """A kind that combines in its own way."""

    __slots__ = ()

    def combine(self, other: Self) -> None:
        super().combine(other)


def step(measure: Any, **changes: Any) -> ArrowAggregation:
    return ArrowAggregation(**{"keys": ["city"], "metrics": {"m": measure}, **changes})


def no_metrics(_: pa.RecordBatch) -> Iterator[Metrics]:
    return iter(())


def job(store: Any, **changes: Any) -> AggregationJob:
    return AggregationJob(**{"name": "orders", "arrow": [STEP], "store": store, **changes})


@pytest.fixture(scope="module")
def orders(spark: SparkSession) -> DataFrame:
    return orders_of(spark).selectExpr("*", "date(at) AS day")


def contents(store: Any, sinks: list[str], step: ArrowAggregation = STEP) -> list[Any]:
    """Returns all results; of a sketch its estimate, because its bytes may come in any order."""
    return sorted(
        (name, *item.key, getattr(item, "estimate", None) or item.to_rows())
        for name, kind in step.types.items()
        for sink in sinks
        for item in store.read(kind, sink)
    )


def test_spark_sql_is_taken_where_it_has_the_same_results(
    orders: DataFrame, any_store: Any
) -> None:
    found = []
    for l1 in ("auto", "tasks", "spark"):
        writer = MetricsWriter(job(any_store), sinkId=l1, l1=l1)  # type: ignore[arg-type]
        summary = writer.write_batch(orders)
        found.append(contents(any_store, [l1]))
        assert writer.explain(orders).endswith(f": {summary['l1_why']}")
        assert summary["l1_place"] == ("tasks" if l1 == "tasks" else "spark")
        (epoch,) = any_store.summaries(l1)
        assert epoch.summary["l1_why"] == summary["l1_why"]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 50
    assert MetricsWriter(job(any_store), l1="auto").explain(orders) == IN_SPARK


def test_shards_have_the_same_results(orders: DataFrame, parquet: ParquetStore) -> None:
    found = []
    for l1 in ("auto", "tasks"):
        counting = job(parquet, arrow=[WITHOUT_SUMS])
        writer = MetricsWriter(counting, sinkId=l1, shards=2, l1=l1)  # type: ignore[arg-type]
        summary = writer.write_batch(orders)
        places = {shard["l1_place"] for shard in summary["shards"]}
        assert places == {"spark" if l1 == "auto" else "tasks"}
        found.append(contents(parquet, writer.sink_ids, WITHOUT_SUMS))
    assert found[0] == found[1]


IN_TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "items": (
        {"items": no_metrics, "metrics": [CENTS]},
        "l1='spark' cannot run the function `items` of job 'orders'",
    ),
    "quantiles": ({"arrow": [step(Quantiles("weight"))]}, "measure 'm' of job 'orders' is a Quan"),
    "two steps": (
        {"arrow": [step(Count()), step(Count(), metrics={"n": Count()})]},
        "Spark SQL would read the rows 2 times",
    ),
    "bad rows": ({"on_bad_row": DeadLetters()}, "on_bad_row limits and shows the bad rows of a ta"),
    "a function of groups": (
        {"arrow": [ArrowAggregation(aggregation=BY_CITY, metrics=no_metrics)], "metrics": [CENTS]},
        "a function makes metrics of the groups of a task",
    ),
    "another combine": (
        {"arrow": [step(Count(), metrics={metric_type("n", Doubling): Count()})]},
        "a metric has its own way to combine",
    ),
    "a zone": (
        {"arrow": [step(Count(), time=Window("at", HOUR, zone="Europe/Rome"))]},
        "Spark SQL would take the rules of the window's zone from Java",
    ),
    "a sum of floats": ({"arrow": [step(Sum("weight"))]}, "'m' is a sum of floats, which Spark SQ"),
    "a mean of floats": ({"arrow": [step(Mean("weight"))]}, "'m' is a sum of floats, which Spark"),
    "hours of a date": (
        {"arrow": [step(Count(), time=Window("day", HOUR))]},
        "l1='spark' cannot make buckets of 3600.0 s of column 'day'",
    ),
}


@pytest.mark.parametrize("name", IN_TASKS)
def test_tasks_are_taken_where_spark_sql_might_differ(
    orders: DataFrame, store: SqliteStore, name: str
) -> None:
    changes, why = IN_TASKS[name]
    found = MetricsWriter(job(store, **changes), l1="auto").explain(orders)
    assert found.startswith(f"L1 runs in the tasks: {why}")


def test_groups_that_are_too_large_for_the_driver_are_left_to_the_tasks(
    orders: DataFrame, store: SqliteStore
) -> None:
    """Those of Spark SQL reach it as they are, and those of tasks compressed."""
    many = orders.selectExpr("concat(city, repeat('x', 1000)) AS city", "at", "cents")
    counting = job(store, arrow=[step(Count(), time=Window("at", HOUR))])
    writer = MetricsWriter(counting, l1="auto", maxCommitBytes=50_000)
    summary = writer.write_batch(many)
    assert summary["l1_place"] == "tasks"
    assert "more than maxCommitBytes" in summary["l1_why"]
    assert summary["rows"] == 900
    assert "more than maxCommitBytes" in writer.explain(many)  # and it does not try again


def test_sum_that_fits_in_the_parts_of_tasks_only_is_left_to_them(
    orders: DataFrame, store: SqliteStore
) -> None:
    of_two_tasks = orders.sparkSession.range(0, 2, numPartitions=2)
    large = of_two_tasks.selectExpr("'Oslo' AS city", f"IF(id = 0, {2**53}, 1) AS cents")
    summing = job(store, arrow=[ArrowAggregation(keys=["city"], metrics={"paid": Sum("cents")})])
    summary = MetricsWriter(summing, l1="auto").write_batch(large)
    assert summary["l1_place"] == "tasks"
    assert "Spark SQL refused an epoch" in summary["l1_why"]
    assert summary["rows"] == 2


def test_keys_of_instants_are_printed_in_the_zone_of_the_session(
    orders: DataFrame, store: SqliteStore
) -> None:
    session = orders.sparkSession
    zone = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "Europe/Rome")
    try:
        by_time = ArrowAggregation(keys=["at"], metrics={"n": Count()})
        counting = job(store, arrow=[by_time])
        for l1 in ("auto", "tasks", "spark"):
            writer = MetricsWriter(counting, sinkId=l1, l1=l1)  # type: ignore[arg-type]
            writer.write_batch(orders.where("at IS NOT NULL"))
        found = [contents(store, [l1], by_time) for l1 in ("auto", "tasks", "spark")]
    finally:
        session.conf.set("spark.sql.session.timeZone", zone)
    assert found[0] == found[1] == found[2]
    assert found[0]


@needs_batch_sink
def test_format_says_that_its_tasks_do_it(orders: DataFrame, store: SqliteStore) -> None:
    name = register(orders.sparkSession, job(store))
    orders.write.format(name).mode("append").save()
    ((*_, summary),) = store.summaries("orders")
    assert (summary["l1_place"], summary["l1_why"]) == (
        "tasks",
        "a format has its rows in the tasks",
    )
