"""A job that declares its aggregations reads their columns, and Spark scans no others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Count,
    First,
    Sum,
    SumMetrics,
    TopN,
    Window,
    metric_type,
)
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, ArrowHandler, MetricsWriter
from batchqueue.spark.driver.metrics_writer import with_columns_read
from batchqueue.spark.driver.pushdown import plan_groups

TOTAL = metric_type("total", SumMetrics, columns={"total": int})


def totals(groups: pa.RecordBatch) -> Iterator[SumMetrics]:
    for row in groups.to_pylist():
        yield TOTAL(str(row.get("key")), 0, row["total"])


def step(aggregation: Aggregation, **how: Any) -> ArrowAggregation:
    return ArrowAggregation(aggregation=aggregation, metrics=totals, **how)


def job(store: SqliteStore, *steps: Any, **how: Any) -> AggregationJob:
    return AggregationJob(name="totals", metrics=[TOTAL], store=store, arrow=steps, **how)


BY_KEY = Aggregation(keys=["key"], measures={"total": Sum("n")})
EVERYTHING = Aggregation(
    keys=["a"],
    window=Window("b", 60, "minute"),
    measures={"c": First("c", "d"), "e": TopN("e", 3, label="f"), "n": Count(), "g": Count("g")},
)


@pytest.fixture
def wide(spark: SparkSession, tmp_path: Path):
    columns: dict[str, Any] = {f"other {number}": [number] * 6 for number in range(5)}
    columns |= {"key": ["x", "y", "x", "y", "x", "y"], "n": [1, 2, 3, 4, 5, 6], "tag": ["t"] * 6}
    pq.write_table(pa.table(columns), tmp_path / "wide.parquet")
    return spark.read.parquet(str(tmp_path / "wide.parquet"))


def scanned(df) -> list[str]:
    plan = df._jdf.queryExecution().executedPlan().toString()
    schema = plan.partition("ReadSchema: struct<")[2].partition(">")[0]
    return [field.rpartition(":")[0] for field in schema.split(",")]


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_column_in_another_case_is_another_column(wide, store: SqliteStore, l1: Any) -> None:
    other_case = wide.withColumnRenamed("key", "KEY")
    writer = MetricsWriter(job(store, step(BY_KEY)), l1=l1)
    with pytest.raises(ConfigError, match=r"needs column key, but the rows have .*case matters"):
        writer.write_batch(other_case)
    numbered = wide.toDF(*(f"c{place}" for place in range(len(wide.columns))))
    both = numbered.selectExpr("c6 AS n", "c5 AS key", "'z' AS KEY", "c6 AS N")
    assert writer.write_batch(both)["rows"] == 6
    assert [item.entity for item in store.read(TOTAL, "totals")] == ["x", "y"]


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_only_columns_of_the_aggregations_are_scanned(wide, store: SqliteStore, l1: Any) -> None:
    declared = job(store, step(BY_KEY, type_column="tag", tags=["t"]))
    assert scanned(with_columns_read(wide, declared)) == ["key", "n", "tag"]
    MetricsWriter(declared, l1=l1).write_batch(wide)
    assert {found.entity: found.total for found in store.read(TOTAL, "totals")} == {"x": 9, "y": 12}


def test_groups_in_spark_sql_scan_no_other_columns(wide, store: SqliteStore) -> None:
    declared = job(store, step(BY_KEY, type_column="tag", tags=["t"]))
    (groups,) = plan_groups(wide, declared, declared.name)
    assert scanned(groups) == ["key", "n", "tag"]


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_rows_without_a_value_are_counted(spark: SparkSession, store: SqliteStore, l1: Any) -> None:
    rows = spark.range(10).selectExpr("CASE WHEN id % 3 > 0 THEN id END n", "'x' key")
    assert MetricsWriter(job(store, step(BY_KEY)), l1=l1).write_batch(rows)["rows"] == 10
    assert [found.total for found in store.read(TOTAL, "totals")] == [1 + 2 + 4 + 5 + 7 + 8]


def test_rows_are_counted_where_no_column_is_read(wide, store: SqliteStore) -> None:
    counting = job(store, step(Aggregation(keys=[], measures={"total": Count()})))
    assert len(scanned(with_columns_read(wide, counting))) == 1
    summary = MetricsWriter(counting).write_batch(wide)
    assert summary["rows"] == 6
    assert [found.total for found in store.read(TOTAL, "totals")] == [6]


def test_every_place_of_a_column_counts(store: SqliteStore) -> None:
    assert sorted(job(store, step(EVERYTHING)).columns_read()) == list("abcdefg")
    both = job(store, step(EVERYTHING), step(BY_KEY))
    assert sorted(both.columns_read()) == [*"abcdefg", "key", "n"]


def test_functions_may_read_any_column(wide, store: SqliteStore) -> None:
    free = [
        job(store, step(BY_KEY), prepare=iter),
        job(store, items=lambda rows: (), columns=["key"]),
        job(store, step(BY_KEY), ArrowHandler(make=lambda emit: None, type_column="t", tags=["x"])),
    ]
    for each in free:
        assert with_columns_read(wide, each) is wide


def test_missing_column_is_reported_before_any_task(wide, store: SqliteStore) -> None:
    wrong = job(store, step(Aggregation(keys=["city"], measures={"total": Sum("n")})))
    with pytest.raises(ConfigError, match="needs column city, but the rows have"):
        MetricsWriter(wrong).write_batch(wide)
