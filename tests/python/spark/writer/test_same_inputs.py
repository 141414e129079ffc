"""Tasks, Spark SQL, the format and handlers take the same columns, and refuse the same ones."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Count,
    Distinct,
    First,
    Last,
    Max,
    MaxMetrics,
    Mean,
    Metrics,
    Min,
    Sum,
    Window,
    metric_type,
)
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import (
    AggregationJob,
    ArrowAggregation,
    MetricsWriter,
    for_each_partition,
    foreach_batch,
    register,
)
from batchqueue.spark.column_types import ACCEPTED, spark_columns
from spark_support.pyspark_version import needs_batch_sink, needs_collations

Write = Callable[[DataFrame, AggregationJob], Any]
TEXT = metric_type("text", MaxMetrics, columns={"value": str})

WAYS: dict[str, Write] = {
    "tasks": lambda df, job: MetricsWriter(job, l1="tasks").write_batch(df),
    "Spark SQL": lambda df, job: MetricsWriter(job, l1="spark").write_batch(df),
    "shards": lambda df, job: MetricsWriter(job, shards=2, l1="tasks").write_batch(df),
    "shards of Spark SQL": lambda df, job: MetricsWriter(job, shards=2, l1="spark").write_batch(df),
    "format": lambda df, job: df.write.format(register(df.sparkSession, job)).mode("append").save(),
}
ways = pytest.mark.parametrize(
    "way", [pytest.param(way, marks=needs_batch_sink if way == "format" else ()) for way in WAYS]
)

COLUMNS = {
    "boolean": "id % 2 = 0",
    "byte": "CAST(id AS tinyint)",
    "short": "CAST(id AS smallint)",
    "int": "CAST(id AS int)",
    "long": "id",
    "float": "CAST(id AS float) / 2",
    "double": "CAST(id AS double) / 2",
    "decimal": "CAST(id AS decimal(10, 2)) / 2",
    "string": "CAST(id % 3 AS string)",
    "binary": "CAST(CAST(id % 3 AS string) AS binary)",
    "date": "date_add(DATE'2026-01-31', CAST(id AS int))",
    "timestamp": "TIMESTAMP'2026-01-31 01:02:03' + make_interval(0, 0, 0, CAST(id AS int))",
    "ntz": "TIMESTAMP_NTZ'2026-01-31 01:02:03' + make_interval(0, 0, 0, CAST(id AS int))",
    "duration": "make_dt_interval(CAST(id AS int))",
}
NESTED = {
    "array": "array(id)",
    "map": "map(id, id)",
    "struct": "named_struct('a', id)",
}


@pytest.fixture(scope="module")
def every(spark: SparkSession) -> DataFrame:
    columns = {**COLUMNS, **NESTED}
    made = spark.range(7).selectExpr(*(f"{sql} AS `{name}`" for name, sql in columns.items()))
    return made.coalesce(1)  # the texts of two tasks would not add up


def taken(df: DataFrame, use: str) -> list[str]:
    return [column.name for column in spark_columns(df.schema) if column.kind in ACCEPTED[use]]


def shown(groups: pa.RecordBatch) -> Iterator[Metrics]:
    """Turns groups without keys into texts, also those of types that no store has."""
    for row in groups.to_pylist():
        for name, value in row.items():
            yield TEXT(name, 0, f"{value!r}")


@pytest.mark.parametrize("use", [Count, Sum, Mean, Min, Max, First, Last])
def test_measures_of_accepted_types_are_equal_in_both_ways(
    every: DataFrame, store: SqliteStore, use: Any
) -> None:
    names = taken(every, use.__name__)
    assert len(names) >= 6
    by = {"by": "long"} if use in (First, Last) else {}
    measures = {name: use(name, **by) for name in names}
    if by:
        measures |= {f"by {name}": use("long", by=name) for name in names if name != "boolean"}
    declared = ArrowAggregation(aggregation=Aggregation(keys=[], measures=measures), metrics=shown)
    found = {}
    for way in ("tasks", "Spark SQL"):
        job = AggregationJob(name=way[:5], arrow=[declared], metrics=[TEXT], store=store)
        WAYS[way](every, job)
        found[way] = {item.entity: item.value for item in store.read(TEXT, way[:5])}
    assert found["tasks"].keys() == measures.keys()
    differ = {
        name: (found["tasks"][name], found["Spark SQL"][name])
        for name in measures
        if found["tasks"][name] != found["Spark SQL"][name] and not (by and name in TIES)
    }
    assert differ == {}


TIES = {"by string", "by binary"}
"""Rows with equal `by` are ranked in another way in tasks."""


def test_distinct_counts_of_accepted_types_are_equal_in_both_ways(
    every: DataFrame, store: SqliteStore
) -> None:
    step = ArrowAggregation(metrics={name: Distinct(name) for name in taken(every, "Distinct")})
    found = []
    for way in ("tasks", "Spark SQL"):
        WAYS[way](every, AggregationJob(name=way[:5], arrow=[step], store=store))
        read: list[Any] = [
            item for kind in step.types.values() for item in store.read(kind, way[:5])
        ]
        found.append({item.name: round(item.estimate) for item in read})
    assert found[0] == found[1]
    assert found[0].keys() == set(taken(every, "Distinct"))


def test_keys_and_windows_of_accepted_types_are_equal_in_both_ways(
    every: DataFrame, store: SqliteStore
) -> None:
    keys = [
        ArrowAggregation(keys=[name], metrics={f"key {name}": Count()})
        for name in taken(every, "a key")
    ]
    windows = [
        ArrowAggregation(time=Window(name, 86_400), metrics={f"time {name}": Count()})
        for name in taken(every, "a Window or Watermark")
    ]
    tags = [
        ArrowAggregation(
            type_column=name, tags=[str(tag) for tag in range(7)], metrics={f"tag {name}": Count()}
        )
        for name in ("string", "int")
    ]
    found = {}
    for way in ("tasks", "Spark SQL"):
        for part, steps in (("k", keys), ("w", windows), ("s", tags[:1]), ("i", tags[1:])):
            name = f"{way[:5]}_{part}"
            WAYS[way](every, AggregationJob(name=name, arrow=steps, store=store))
            found[way, part] = sorted(
                (metric, item.key, item.count)
                for step in steps
                for metric, kind in step.types.items()
                for item in store.read(kind, name)  # type: ignore[attr-defined]
            )
    for part in "kwsi":
        assert found["tasks", part] == found["Spark SQL", part]
        assert found["tasks", part]


def job(step: ArrowAggregation, path: Path) -> AggregationJob:
    return AggregationJob(name="same", arrow=[step], store=ParquetStore(path / "store"))


REFUSED: dict[str, tuple[list[str], ArrowAggregation, str]] = {
    "text in Sum": (
        ["'1' AS x"],
        ArrowAggregation(metrics={"m": Sum("x")}),
        "column 'x' is a string, and the job reads it as Sum for 'm', which takes integer, float",
    ),
    "a time in Sum": (
        ["current_timestamp() AS x"],
        ArrowAggregation(metrics={"m": Sum("x")}),
        "is a timestamp, and the job reads it as Sum",
    ),
    "another case": (
        ["'1' AS X"],
        ArrowAggregation(keys=["x"], metrics={"m": Count()}),
        "needs column x, but the rows have X",
    ),
    "two columns of one name": (
        ["'1' AS x", "'2' AS x"],
        ArrowAggregation(keys=["x"], metrics={"m": Count()}),
        "2 columns named 'x'",
    ),
    "months": (
        ["INTERVAL '1' YEAR AS x"],
        ArrowAggregation(keys=["x"], metrics={"m": Count()}),
        "column 'x' is an interval year",
    ),
    "an array": (
        ["array(1) AS x"],
        ArrowAggregation(keys=["x"], metrics={"m": Count()}),
        "is an array<int>, and the job reads it as a key, which takes",
    ),
    "a struct": (
        ["struct(1) AS x"],
        ArrowAggregation(keys=["x"], metrics={"m": Count()}),
        "is a struct<col1:int>, and the job reads it as a key, which takes",
    ),
    "binary tags": (
        ["X'61' AS x"],
        ArrowAggregation(type_column="x", tags=["a"], metrics={"m": Count()}),
        "is a binary, and the job reads it as type_column, which takes text or integer",
    ),
    "a decimal in a float": (
        ["1.5 AS x"],
        ArrowAggregation(metrics={"m": Min("x")}),
        "in its column value of type float, which takes integer or float",
    ),
}
COLLATED = {
    "key": ArrowAggregation(keys=["x"], metrics={"m": Count()}),
    "tag": ArrowAggregation(type_column="x", tags=["a", "A", "a "], metrics={"m": Count()}),
    "least": ArrowAggregation(
        metrics={metric_type("m", MaxMetrics, columns={"value": str}): Max("x")}
    ),
}


@ways
@pytest.mark.parametrize("name", REFUSED)
def test_every_way_refuses_the_same_before_tasks_run(
    spark: SparkSession, tmp_path: Path, way: str, name: str
) -> None:
    columns, step, message = REFUSED[name]
    rows = spark.range(1).where("raise_error('a task ran') IS NULL").selectExpr(*columns)
    with pytest.raises(Exception) as refused:  # noqa: PT011 - Spark wraps that of a format
        WAYS[way](rows, job(step, tmp_path))
    assert message in str(refused.value)
    if way != "format":
        assert isinstance(refused.value, ConfigError)


@needs_collations
@ways
@pytest.mark.parametrize("name", COLLATED)
@pytest.mark.parametrize("collation", ["UNICODE_CI", "UTF8_LCASE", "UTF8_BINARY_RTRIM"])
def test_collated_columns_are_refused_before_tasks_run(
    spark: SparkSession, tmp_path: Path, way: str, name: str, collation: str
) -> None:
    rows = spark.range(1).selectExpr(f"raise_error('a task ran') COLLATE {collation} AS x")
    with pytest.raises(Exception, match=rf"{collation}.*COLLATE UTF8_BINARY"):
        WAYS[way](rows, job(COLLATED[name], tmp_path))


@needs_collations
@ways
def test_remedies_for_a_collation_group_as_group_by_does(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    texts = spark.createDataFrame([("a",), ("A",), ("b",)], "x string").coalesce(1)
    collated = texts.selectExpr("x COLLATE UTF8_LCASE AS x")
    made = job(COLLATED["key"], tmp_path)
    WAYS[way](collated.selectExpr("lower(x) COLLATE UTF8_BINARY AS x"), made)
    (kind,) = made.arrow[0].types.values()  # type: ignore[union-attr]
    sinks = ["same/0", "same/1"] if "shards" in way else ["same"]
    store: Any = made.store
    found = sorted((item.entity, item.count) for sink in sinks for item in store.read(kind, sink))
    by_spark = collated.groupBy("x").count().collect()
    assert found == sorted((row["x"].lower(), row["count"]) for row in by_spark)


@needs_collations
def test_handlers_by_a_collated_column_are_refused(spark: SparkSession) -> None:
    rows = spark.range(1).selectExpr("raise_error('a task ran') COLLATE UNICODE_CI AS kind")
    with pytest.raises(ConfigError, match=r"UNICODE_CI.*COLLATE UTF8_BINARY"):
        for_each_partition(rows, lambda task: {}, type_column="kind")
    with pytest.raises(ConfigError, match=r"UNICODE_CI.*COLLATE UTF8_BINARY"):
        foreach_batch(lambda task: {}, type_column="kind")(rows, 0)


def test_handlers_refuse_what_tasks_cannot_get(spark: SparkSession) -> None:
    months = spark.range(1).selectExpr("'a' AS kind", "INTERVAL '1' MONTH AS x")
    with pytest.raises(ConfigError, match="is an interval month, which Spark cannot hand to hand"):
        for_each_partition(months, lambda task: {}, type_column="kind")
    twice = spark.range(1).selectExpr("'a' AS kind", "'b' AS kind")
    with pytest.raises(ConfigError, match="2 columns named 'kind'"):
        for_each_partition(twice, lambda task: {}, type_column="kind")
    dates = spark.range(1).selectExpr("DATE'2026-01-31' AS kind")
    with pytest.raises(ConfigError, match="is a date, and the job reads it as type_column"):
        for_each_partition(dates, lambda task: {}, type_column="kind")
