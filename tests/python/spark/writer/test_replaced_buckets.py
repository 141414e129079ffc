"""`write_batch(replace=...)`: a day that is computed again replaces what it was, and no other."""

import os
import random
import shutil
import signal
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batchqueue import ConfigError
from batchqueue.aggregation import Aggregation, Count, Window
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter, SinkError
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from spark_support.attempts import OPTIONS, attempts, batches
from spark_support.flight_job import (
    DECLARED,
    DEPARTURES,
    FILES,
    METRICS,
    NO_RANKING,
    Results,
    difference,
    expected,
    files_one_by_one,
    flight_job,
    start_stream,
    stored,
    stored_in_shards,
    write_flights,
)
from spark_support.pyspark_version import needs_stream_sink

HOUR, DAY = 3_600, 86_400
DAYS = (datetime(1970, 1, 2, tzinfo=UTC), datetime(1970, 1, 3, tzinfo=UTC))
"""The second of the two days that the flights are of."""

WAYS = {
    "tasks": {"metrics": METRICS},
    "spark": {"items": None, "arrow": [DECLARED], "metrics": NO_RANKING},
}


@pytest.fixture
def repaired(spark: SparkSession, table: DataFrame, tmp_path: Path) -> Path:
    """All flights, and those of the second day as they should have been."""
    is_late = F.col("hour") >= DAY
    right = table.withColumn(
        "distance", F.when(is_late, F.col("distance") * 2).otherwise(F.col("distance"))
    ).where(~is_late | (F.col("carrier") != "B"))
    right.write.parquet(str(tmp_path / "repaired"))
    return tmp_path / "repaired"


def second_day(spark: SparkSession, directory: Path) -> DataFrame:
    return spark.read.parquet(str(directory)).where(f"hour >= {DAY}")


def only(results: Results, metrics: Any) -> Results:
    return {metric.name: results[metric.name] for metric in metrics}


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_day_that_is_computed_again_replaces_what_it_was(
    spark: SparkSession, repaired: Path, table: DataFrame, any_store: Any, way: Any
) -> None:
    writer = MetricsWriter(flight_job(any_store, **WAYS[way]), l1=way)
    writer.write_batch(table, txn_id="all")
    for applied in (True, False):
        rows = second_day(spark, repaired)
        summary = writer.write_batch(rows, txn_id="again", replace=DAYS)
        assert summary["applied"] is applied
        wanted = only(expected(spark, repaired), WAYS[way]["metrics"])
        assert difference(only(stored(any_store), WAYS[way]["metrics"]), wanted) == []


def test_repeated_write_without_a_txn_id_replaces_itself(
    spark: SparkSession, repaired: Path, table: DataFrame, store: SqliteStore
) -> None:
    writer = MetricsWriter(flight_job(store))
    writer.write_batch(table)
    for _ in range(2):
        writer.write_batch(second_day(spark, repaired), replace=(DAY, 2 * DAY))
    assert difference(stored(store), expected(spark, repaired)) == []


@pytest.mark.parametrize("way", ["tasks", "spark"])
def test_day_is_replaced_in_every_shard(
    spark: SparkSession, repaired: Path, table: DataFrame, parquet: Any, way: Any
) -> None:
    writer = MetricsWriter(flight_job(parquet, **WAYS[way]), l1=way, shards=3)
    writer.write_batch(table, txn_id="all")
    writer.write_batch(second_day(spark, repaired), txn_id="again", replace=DAYS)
    metrics = WAYS[way]["metrics"]
    found = only(stored_in_shards(parquet, writer.sink_ids), metrics)
    assert difference(found, only(expected(spark, repaired), metrics)) == []


@pytest.mark.parametrize("shards", [None, 3])
def test_result_outside_is_refused_and_nothing_changes(
    spark: SparkSession, table: DataFrame, parquet: Any, shards: int | None
) -> None:
    writer = MetricsWriter(flight_job(parquet), shards=shards)
    writer.write_batch(table, txn_id="all")
    before = stored_in_shards(parquet, writer.sink_ids)
    with pytest.raises((SinkError, PySparkException), match=r"time bucket \d+, and `replace` is"):
        writer.write_batch(table, txn_id="again", replace=(HOUR, 3 * HOUR))
    assert stored_in_shards(parquet, writer.sink_ids) == before
    rows = table.where(f"hour >= {HOUR} and hour < {3 * HOUR}").where("delay is null")
    writer.write_batch(rows, txn_id="again", replace=(HOUR, 3 * HOUR))
    assert stored_in_shards(parquet, writer.sink_ids) != before


def test_interval_without_rows_is_emptied(table: DataFrame, any_store: Any) -> None:
    writer = MetricsWriter(flight_job(any_store))
    writer.write_batch(table, txn_id="all")
    writer.write_batch(table.where("false"), txn_id="none", replace=DAYS)
    assert {bucket for _, bucket in stored(any_store)["departures"]} == set(range(0, DAY, HOUR))


@needs_stream_sink
def test_stream_continues_after_its_day_was_replaced(
    spark: SparkSession, table: DataFrame, store: SqliteStore, tmp_path: Path
) -> None:
    job, files = flight_job(store), write_flights(tmp_path / "flights")

    def stream() -> None:
        source = files_one_by_one(spark, files)
        start_stream(source, job, tmp_path / "checkpoint").awaitTermination()

    stream()
    MetricsWriter(job, sinkId="flights").write_batch(
        table.where(f"hour >= {DAY}"), txn_id="again", replace=DAYS
    )
    assert difference(stored(store), expected(spark, files)) == []
    shutil.copy(files / "part-0.parquet", files / "later.parquet")
    stream()
    assert difference(stored(store), expected(spark, files)) == []
    assert len(store.summaries("flights")) == FILES + 2


def test_same_txn_id_with_another_interval_is_refused(table: DataFrame, store: SqliteStore) -> None:
    writer = MetricsWriter(flight_job(store))
    day = table.where(f"hour >= {DAY}")
    summary = writer.write_batch(day, txn_id="again", replace=DAYS)
    assert summary["replaced"] == [DAY, 2 * DAY]
    for interval in ((DAY, 3 * DAY), None):
        with pytest.raises(SinkError, match=r"replaced \[86400, 172800\], and comes again to"):
            writer.write_batch(day, txn_id="again", replace=interval)
    assert writer.write_batch(day, txn_id="again", replace=DAYS)["applied"] is False


def test_limit_inside_of_a_declared_bucket_is_refused(store: SqliteStore) -> None:
    window = Window("at", 86_400, zone="America/New_York")
    step = ArrowAggregation(
        aggregation=Aggregation(keys=["carrier"], window=window, measures={"n": Count()}),
        metrics=lambda groups: [],
    )
    job = AggregationJob(name="days", arrow=[step], metrics=[DEPARTURES], store=store)
    writer = MetricsWriter(job)
    with pytest.raises(ConfigError, match=r"limit 86400, inside of a bucket of 86400 s of 'at'"):
        writer.write_batch(None, replace=(DAY, 2 * DAY))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["replace", "overwrite"])
def test_what_belongs_to_write_batch_is_refused_elsewhere(
    spark: SparkSession, table: DataFrame, store: SqliteStore, name: str
) -> None:
    refused = rf"{name}=.* is for MetricsWriter\.write_batch\({name}="
    with pytest.raises(ConfigError, match=refused):
        MetricsWriter(flight_job(store), **{name: True})
    with pytest.raises(ConfigError, match="shrads=3 is not an argument of MetricsWriter"):
        MetricsWriter(flight_job(store), shrads=3)
    with pytest.raises(ConfigError, match=refused):
        SinkOptions.parse({name: "true"}, flight_job(store), stream=False)


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (DAYS[0], ["replace=datetime", "as a tuple"]),
        ((1, 2, 3), ["replace=(1, 2, 3)", "the one after the last"]),
        ((DAY, DAY), ["no time bucket", "give the earlier time first"]),
        ((DAYS[1], DAYS[0]), ["from 172800 on and before 86400"]),
        (("1970-01-02", "1970-01-03"), ["replace='1970-01-02'", "a datetime with a zone"]),
        ((datetime(1970, 1, 2), DAYS[1]), ["a datetime with a zone"]),
    ],
)
def test_wrong_intervals_are_refused(
    table: DataFrame, store: SqliteStore, interval: Any, words: list[str]
) -> None:
    writer = MetricsWriter(flight_job(store))
    with pytest.raises(ConfigError) as refused:
        writer.write_batch(table, replace=interval)
    assert all(word in str(refused.value) for word in words), str(refused.value)
    with pytest.raises(ConfigError, match="beside overwrite=True"):
        writer.write_batch(table, replace=DAYS, overwrite=True)


def test_killed_writer_leaves_the_old_day_or_the_new_one(flights: Path, any_store: Any) -> None:
    """The writer, a child, is killed at any moment of its commit."""
    chance = random.Random(7)
    messages = attempts(flights, any_store, None)
    once = sum(batch.num_rows for file in range(FILES) for batch in batches(flights, file))

    def write(txn_id: str, replaced: range | None) -> None:
        options = replace(OPTIONS, txn_id=txn_id, replaced=replaced)
        EpochCommit(flight_job(any_store), options, messages).apply_batch(overwrite=False)

    write("first", None)
    for attempt in range(12):
        if departures(any_store) == once:
            write(f"added-{attempt}", None)
        assert departures(any_store) == 2 * once
        delay_s = chance.uniform(0.001, 0.3)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            write(f"again-{attempt}", range(2 * DAY))
            os._exit(0)
        os.waitpid(child, 0)
        assert departures(any_store) in (once, 2 * once)
        write(f"again-{attempt}", range(2 * DAY))
        assert departures(any_store) == once


def departures(store: Any) -> int:
    return sum(item.count for item in store.read(DEPARTURES, "flights"))
