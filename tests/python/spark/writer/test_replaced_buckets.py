"""`write_batch(replace=...)`: a day that is computed again replaces what it was, and no other."""

import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batchqueue import ConfigError
from batchqueue.outputs import SqliteStore
from batchqueue.spark import MetricsWriter
from batchqueue.spark.commit.commit import Commit
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
    flight_job,
    stored,
    stored_in_shards,
)
from spark_support.pyspark_version import needs_stream_sink

HOUR, DAY = 3_600, 86_400
DAYS = (datetime(1970, 1, 2, tzinfo=UTC), datetime(1970, 1, 3, tzinfo=UTC))
"""The second of the two days that the flights are of."""

WAYS = {
    "tasks": {"metrics": METRICS},
    "spark": {"items": None, "arrow": [DECLARED], "metrics": NO_RANKING},
}


@pytest.fixture(params=["store", "parquet", "postgres"])
def any_store(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def repaired(spark: SparkSession, table: DataFrame, tmp_path: Path) -> Path:
    """All flights, and those of the second day as they should have been."""
    is_late = F.col("hour") >= DAY
    right = table.withColumn(
        "distance", F.when(is_late, F.col("distance") * 2).otherwise("distance")
    )
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
    with pytest.raises(
        Exception, match=r"metric .* in time bucket \d+, and `replace` is from 3600"
    ):
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
    spark: SparkSession,
    flights: Path,
    table: DataFrame,
    store: SqliteStore,
    stream: Callable[..., Any],
) -> None:
    job = flight_job(store)
    stream(job)
    MetricsWriter(job, sinkId="flights").write_batch(
        table.where(f"hour >= {DAY}"), txn_id="again", replace=DAYS
    )
    stream(job)
    assert difference(stored(store), expected(spark, flights)) == []
    assert len(store.summaries("flights")) == FILES + 1


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
        Commit(flight_job(any_store), options, messages).apply_batch(overwrite=False)

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
