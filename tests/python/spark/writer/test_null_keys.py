"""`ArrowAggregation(null_keys=...)`: rows with a null key are left out and counted, or renamed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Metrics,
    Sum,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter, SinkError, register
from batchqueue.spark.task.groups import without_null_keys
from spark_support.pyspark_version import needs_batch_sink

HITS = metric_type("hits", CountMetrics)
BYTES = metric_type("bytes", SumMetrics, columns={"total": int})

Stored = dict[tuple[str, int], tuple[int, int | None]]


def partials(groups: pa.RecordBatch) -> Iterator[Metrics]:
    for row in groups.to_pylist():
        assert set(row) == {"page", "at", "hits", "bytes"}
        yield HITS(row["page"], row["at"], row["hits"])
        yield BYTES(row["page"], row["at"], row["bytes"])


STEP = ArrowAggregation(
    aggregation=Aggregation(
        keys=["page"],
        window=Window("at", 10),
        measures={"hits": Count(), "bytes": Sum("bytes")},
    ),
    metrics=partials,
)


def job(store: Any, null_keys: Any, **changes: Any) -> AggregationJob:
    step = replace(STEP, null_keys=null_keys, **changes)
    return AggregationJob(name="pages", arrow=[step], metrics=[HITS, BYTES], store=store)


@pytest.fixture(scope="module")
def pages(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [
            (name, at, size)
            for at in (None, 3, 8, 12, 25)
            for name in ("a", None, "b", "unknown", None)
            for size in (1, None, 5)
        ],
        "page string, at long, bytes long",
    ).repartition(3)


def by_spark_sql(rows: DataFrame) -> Stored:
    grouped = rows.selectExpr("page", "at - at % 10 AS at", "bytes").groupBy("page", "at")
    found = grouped.agg({"*": "count", "bytes": "sum"}).collect()
    return {(row.page, row.at): (row["count(1)"], row["sum(bytes)"]) for row in found}


def stored(store: Any, sink_ids: Any = ("pages",)) -> Stored:
    hits = {item.key: item.count for sink in sink_ids for item in store.read(HITS, sink)}
    sizes = {item.key: item.total for sink in sink_ids for item in store.read(BYTES, sink)}
    return {key: (count, sizes[key]) for key, count in hits.items()}


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_rows_with_a_null_key_are_left_out_and_counted(
    pages: DataFrame, any_store: Any, l1: Any
) -> None:
    writer = MetricsWriter(job(any_store, "skip"), l1=l1)
    known = pages.na.drop(subset=["page", "at"])
    for times in (1, 2):
        summary = writer.write_batch(pages)
        assert summary["rows"] == pages.count()
        assert summary["skipped"] == pages.count() - known.count() > 0
        assert summary["totals"]["skipped"] == times * summary["skipped"]
    assert stored(any_store) == by_spark_sql(known.unionAll(known))


@pytest.mark.parametrize("l1", ["tasks", "spark"])
@pytest.mark.parametrize("rule", [{"page": "unknown", "at": 0}, {"at": -10, "page": ""}])
def test_value_stands_for_null(pages: DataFrame, store: SqliteStore, l1: Any, rule: Any) -> None:
    summary = MetricsWriter(job(store, rule), l1=l1).write_batch(pages)
    assert summary["skipped"] == 0
    assert stored(store) == by_spark_sql(pages.na.fill(rule))


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_rows_are_left_out_of_shards(pages: DataFrame, parquet: Any, l1: Any) -> None:
    writer = MetricsWriter(job(parquet, "skip"), l1=l1, shards=3)
    summary = writer.write_batch(pages)
    known = pages.na.drop(subset=["page", "at"])
    assert stored(parquet, writer.sink_ids) == by_spark_sql(known)
    skipped = sum(shard["skipped"] for shard in summary["shards"])
    assert skipped == pages.count() - known.count()


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_only_rows_with_nulls_leave_nothing(pages: DataFrame, store: SqliteStore, l1: Any) -> None:
    nulls = pages.where("page is null")
    summary = MetricsWriter(job(store, "skip"), l1=l1).write_batch(nulls)
    assert (summary["skipped"], summary["partials"]) == (nulls.count(), 0)
    assert stored(store) == {}


@needs_batch_sink
def test_format_leaves_them_out_as_well(
    spark: SparkSession, pages: DataFrame, store: SqliteStore
) -> None:
    pages.write.format(register(spark, job(store, "skip"))).mode("append").save()
    known = pages.na.drop(subset=["page", "at"])
    assert stored(store) == by_spark_sql(known)
    ((_, _, summary),) = store.summaries("pages")
    assert summary["skipped"] == pages.count() - known.count()


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_without_a_rule_the_write_fails_and_the_message_names_the_rule(
    pages: DataFrame, store: SqliteStore, l1: Any
) -> None:
    with pytest.raises((SinkError, PySparkException), match=r"None.*null_keys='skip'"):
        MetricsWriter(job(store, None), l1=l1).write_batch(pages)
    assert stored(store) == {}


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_value_of_another_type_is_named(pages: DataFrame, store: SqliteStore, l1: Any) -> None:
    message = r"null_keys has 'noon' for key 'at'.* int64: give"
    with pytest.raises((SinkError, PySparkException), match=message):
        MetricsWriter(job(store, {"at": "noon"}), l1=l1).write_batch(pages)


def test_groups_without_rows_may_have_columns_without_a_type(store: SqliteStore) -> None:
    """As pyspark 3.5 makes them."""
    step = job(store, {"page": "unknown", "at": 0}).arrow[0]
    assert isinstance(step, ArrowAggregation)
    groups = pa.table({"page": pa.nulls(0), "at": pa.nulls(0)})
    assert without_null_keys(groups, step) == (groups, 0)


def test_other_rule_is_a_changed_job(pages: DataFrame, store: SqliteStore) -> None:
    MetricsWriter(job(store, "skip")).write_batch(pages)
    with pytest.raises(SinkError, match=r"an aggregation was .* with null_keys skip and is"):
        MetricsWriter(job(store, {"page": "", "at": 0})).write_batch(pages)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("fail", ["null_keys='fail'", "give 'skip', or a value for null by key", "'page'"]),
        ({}, ["null_keys={}", "give 'skip'"]),
        (["page"], ["null_keys=['page']"]),
        ({"pages": ""}, ["'pages'", "a key of the aggregation: page, at"]),
        ({"page": None}, ["a value other than None"]),
    ],
)
def test_wrong_rules_are_refused(rule: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        replace(STEP, null_keys=rule)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_rule_without_keys_is_refused() -> None:
    without_keys = Aggregation(keys=[], measures={"hits": Count()})
    with pytest.raises(ConfigError, match="has no keys and no window: leave it out"):
        replace(STEP, aggregation=without_keys, null_keys="skip")
