"""`spark.read` of a registered job: what its sink has stored, as a DataFrame."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from batchqueue import ConfigError
from batchqueue.aggregation import CountMetrics, metric_type
from batchqueue.outputs import ParquetStore, SqliteStore, StoreTransaction
from batchqueue.spark import AggregationJob, MetricsWriter, register
from spark_support.flight_job import (
    METRICS,
    WORST,
    expected,
    flight_job,
    stored,
)
from spark_support.pyspark_version import needs_batch_sink

pytestmark = needs_batch_sink

HOUR, DAY = 3_600, 86_400


def filled(store: Any, table: DataFrame) -> AggregationJob:
    job = flight_job(store)
    MetricsWriter(job).write_batch(table, txn_id="all")
    return job


def load(spark: SparkSession, job: AggregationJob, **options: Any) -> DataFrame:
    return spark.read.format(register(spark, job)).options(**options).load()


def counts(rows: DataFrame) -> dict[tuple[str, int], int]:
    return {(row.entity, row.time_bucket): row["count"] for row in rows.collect()}


def test_every_metric_is_read_as_the_store_reads_it(
    spark: SparkSession, flights: Path, table: DataFrame, any_store: Any
) -> None:
    job = filled(any_store, table)
    format_name = register(spark, job)
    for metric in METRICS:
        found = spark.read.format(format_name).option("metric", metric.name).load()
        rows = found.orderBy("entity", "time_bucket", *["rank"] * metric.multi_row).collect()
        assert [row.asDict() for row in rows] == any_store.read_table(metric, job.name).to_pylist()
    by_sql = expected(spark, flights)
    departures = spark.read.format(format_name).option("metric", "departures").load()
    assert counts(departures) == by_sql["departures"]
    worst = spark.read.format(format_name).option("metric", WORST.name).load()
    assert worst.where("rank = 1").count() == len(by_sql["delay.worst"])


def test_lists_of_changed_keys_are_read_like_a_metric(
    spark: SparkSession, table: DataFrame, any_store: Any
) -> None:
    job = replace(flight_job(any_store), changed_keys=True)
    MetricsWriter(job).write_batch(table)
    lists = load(spark, job, metric="changed_keys").where("entity = 'departures'")
    found = {(row.changed_entity, row.changed_bucket) for row in lists.collect()}
    assert found == set(stored(any_store)["departures"])


def test_result_can_be_joined_and_aggregated_like_any_dataframe(
    spark: SparkSession, table: DataFrame, parquet: ParquetStore
) -> None:
    departures = load(spark, filled(parquet, table), metric="departures")
    by_carrier = departures.groupBy("entity").agg(F.sum("count").alias("n"))
    wanted = table.groupBy("carrier").count()
    assert sorted(map(tuple, by_carrier.collect())) == sorted(map(tuple, wanted.collect()))


def test_limits_are_options(spark: SparkSession, table: DataFrame, any_store: Any) -> None:
    job = filled(any_store, table)
    every = stored(any_store)["departures"]
    for since, before in ((10 * HOUR, 20 * HOUR), ("1970-01-01T10:00Z", "1970-01-01T21:00+01:00")):
        found = load(spark, job, metric="departures", since=since, before=before)
        assert counts(found) == {
            key: count for key, count in every.items() if 10 * HOUR <= key[1] < 20 * HOUR
        }


def test_dataframe_can_be_filtered_in_two_ways(
    spark: SparkSession, table: DataFrame, any_store: Any
) -> None:
    every = load(spark, filled(any_store, table), metric="departures")
    for name in ("A", "B"):
        found = every.where(f"entity = '{name}' and time_bucket >= {DAY}")
        assert {row.entity for row in found.collect()} == {name}
    both = every.where("entity = 'A'").union(every.where("entity = 'B'"))
    assert {row.entity for row in both.collect()} == {"A", "B"}
    assert counts(every) == stored(any_store)["departures"]


def test_entities_are_an_option(spark: SparkSession, table: DataFrame, any_store: Any) -> None:
    job = filled(any_store, table)
    found = load(spark, job, metric="departures", entities=json.dumps(["A", "absent"]))
    assert {row.entity for row in found.collect()} == {"A"}


def test_files_of_the_wanted_days_are_read_in_several_tasks(
    table: DataFrame, parquet: ParquetStore
) -> None:
    from batchqueue.spark.driver.format import data_source

    source = data_source(filled(parquet, table))
    every = source({"metric": "departures"}).reader(StructType())
    assert len(every.partitions()) == 2
    (partition,) = (
        source({"metric": "departures", "since": str(DAY), "before": str(DAY + HOUR)})
        .reader(StructType())
        .partitions()
    )
    (part,) = pickle.loads(pickle.dumps([partition]))
    rows = [row for batch in every.read(part) for row in batch.to_pylist()]
    assert {row["time_bucket"] for row in rows} == {DAY}


def test_shards_are_read_together(
    spark: SparkSession, table: DataFrame, parquet: ParquetStore
) -> None:
    job = flight_job(parquet)
    MetricsWriter(job, shards=3).write_batch(table, txn_id="all")
    found = load(spark, job, metric="departures", shards=3)
    assert sum(counts(found).values()) == table.count()
    assert found.count() == table.select("carrier", "hour").distinct().count()
    for options, words in (
        ({"shards": 2}, "is one of 3 shards, and not of 2: give option shards=3"),
        ({}, "was written in shards, .* give option shards, their number"),
    ):
        with pytest.raises(PySparkException, match=words):
            load(spark, job, metric="departures", **options).collect()


def test_sink_that_wrote_nothing_gives_no_rows(
    spark: SparkSession, table: DataFrame, parquet: ParquetStore
) -> None:
    found = load(spark, filled(parquet, table), metric="departures", sinkId="absent")
    assert (found.columns, found.collect()) == (["entity", "time_bucket", "count"], [])


def test_only_metric_of_a_job_need_not_be_named(spark: SparkSession, store: SqliteStore) -> None:
    only = metric_type("only", CountMetrics)
    with store.transaction("single") as transaction:
        transaction.merge([only("a", 0)])
    job = AggregationJob(name="single", items=list, metrics=[only], store=store)
    assert counts(load(spark, job)) == {("a", 0): 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["'flights' needs option metric", "give one of delay.max, "]),
        ({"metric": "departure"}, ["has no metric 'departure'", "departures"]),
        ({"metrics": "departures"}, ["option 'metrics' is not known", "did you mean metric?"]),
        ({"metric": "departures", "sink_id": "x"}, ["did you mean sinkId?"]),
        ({"metric": "departures", "entity": "A"}, ["option 'entity' is not known", "entities?"]),
        ({"metric": "departures", "until": "7"}, ["option 'until' is not known", "use metric, "]),
        ({"metric": "departures", "path": "/x"}, ["option 'path' is not known"]),
        ({"metric": "departures", "sinkId": " "}, ["option sinkId is blank"]),
        ({"metric": "departures", "entities": "A"}, ["entities='A'", "a JSON list of texts"]),
        ({"metric": "departures", "entities": "[7]"}, ["entities='[7]'"]),
        ({"metric": "departures", "shards": "0"}, ["option shards='0'", "the number of shards"]),
        ({"metric": "departures", "since": "yesterday"}, ["since='yesterday'", "with a zone"]),
        ({"metric": "departures", "before": "2026-01-01"}, ["before='2026-01-01'", "with a zone"]),
    ],
)
def test_wrong_options_are_refused_before_any_task(
    spark: SparkSession, store: SqliteStore, options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(PySparkException) as refused:
        load(spark, flight_job(store), **options)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_store_that_is_missing_is_named(spark: SparkSession, store: SqliteStore) -> None:
    found = load(spark, flight_job(store), metric="departures")
    with pytest.raises(PySparkException, match=r"cannot read the store .*metrics\.db"):
        found.collect()


class UnreadableStore:
    """A store of a user, with the least that the sink needs."""

    def prepare(self) -> None:
        pass

    def transaction(self, sink_id: str = "default") -> StoreTransaction:
        raise NotImplementedError


def test_store_without_batches_is_refused_with_the_remedy() -> None:
    from batchqueue.spark.driver.format import data_source

    job: Any = flight_job(UnreadableStore())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="derive it from batchqueue"):
        data_source(job)({"metric": "departures"}).schema()
