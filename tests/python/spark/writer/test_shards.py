"""L2 by Spark's shuffle: the same results, each shard exactly once, whatever its tasks do."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from batchqueue import ConfigError
from batchqueue.outputs import ParquetStore, SqliteStore, StoreTransaction
from batchqueue.spark import AggregationJob, MetricsWriter, SinkError
from batchqueue.spark.driver.shards import shard_of
from spark_support.flight_job import (
    ARROW,
    DECLARED,
    FILES,
    METRICS,
    NO_RANKING,
    Results,
    difference,
    expected,
    files_one_by_one,
    flight_job,
    start_stream,
    stored_in_shards,
    write_flights,
)

SHARDS = 3
AGGREGATORS: dict[str, Any] = {"items": None, "arrow": [ARROW]}
# Each step groups its own rows; all rows count once.
IN_SPARK: dict[str, Any] = {
    "items": None,
    "arrow": [replace(DECLARED, tags=["A"]), replace(DECLARED, tags=["B", "C"])],
}


@pytest.fixture(params=["parquet", "postgres"])
def shared(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def wanted(spark: SparkSession, flights: Path, way: dict[str, Any], times: int = 1) -> Results:
    results = expected(spark, flights, times)
    return (
        results
        if way is not IN_SPARK
        else {metric.name: results[metric.name] for metric in NO_RANKING}
    )


def place(way: dict[str, Any]) -> Any:
    return "spark" if way is IN_SPARK else "tasks"


@pytest.mark.parametrize(
    "way", [{}, AGGREGATORS, IN_SPARK], ids=["objects", "aggregators", "spark"]
)
def test_batch_in_shards_is_equal_to_spark_sql(
    spark: SparkSession, flights: Path, table: DataFrame, shared: Any, way: dict[str, Any]
) -> None:
    writer = MetricsWriter(flight_job(shared, **way), l1=place(way), shards=SHARDS)
    summary = writer.write_batch(table.repartition(4), txn_id="a")
    assert (summary["applied"], summary["guarantee"], summary["rows"]) == (
        True,
        "exactly-once",
        table.count(),
    )
    assert [shard["applied"] for shard in summary["shards"]] == [True] * SHARDS
    assert all(shard["partials"] > 0 for shard in summary["shards"])
    again = writer.write_batch(table, txn_id="a")
    assert (again["applied"], again["rows"]) == (False, summary["rows"])
    assert difference(stored_in_shards(shared, writer.sink_ids), wanted(spark, flights, way)) == []
    assert writer.sink_ids == ["flights/0", "flights/1", "flights/2"]


Stream = Callable[..., None]


@pytest.mark.parametrize("way", [{}, IN_SPARK], ids=["objects", "spark"])
def test_stream_in_shards_is_equal_to_spark_sql_even_if_an_epoch_is_replayed(
    spark: SparkSession, parquet: ParquetStore, tmp_path: Path, way: dict[str, Any]
) -> None:
    """With fewer partials per epoch than shards: those that get nothing commit nevertheless."""
    flights, checkpoint = write_flights(tmp_path / "flights"), tmp_path / "checkpoint"
    for file in flights.iterdir():
        pq.write_table(pq.read_table(file).slice(0, 3), file)
    writer = MetricsWriter(flight_job(parquet, **way), l1=place(way), shards=20)
    start_stream(files_one_by_one(spark, flights), writer, checkpoint).awaitTermination()
    for name in (f"{FILES - 1}", f".{FILES - 1}.crc"):
        (checkpoint / "commits" / name).unlink()
    start_stream(files_one_by_one(spark, flights), writer, checkpoint).awaitTermination()
    assert difference(stored_in_shards(parquet, writer.sink_ids), wanted(spark, flights, way)) == []
    epochs = [parquet.summaries(sink_id) for sink_id in writer.sink_ids]
    assert all([epoch.batch_id for epoch in shard] == list(range(FILES)) for shard in epochs)
    partials = {epoch.summary["partials"] for shard in epochs for epoch in shard}
    assert min(partials) == 0 < max(partials)


class DyingStore(ParquetStore):
    """A store that kills one shard's worker in the first attempt, before or after the commit."""

    place = "before"

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        with super().transaction(sink_id) as transaction:
            yield transaction
            self._end("before", sink_id)
        self._end("after", sink_id)

    def _end(self, place: str, sink_id: str) -> None:
        context = TaskContext.get()
        if (
            place == self.place
            and sink_id.endswith("/1")
            and context
            and context.attemptNumber() == 0
        ):
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("place", ["before", "after"])
def test_worker_killed_in_the_commit_of_a_shard_counts_once(
    spark: SparkSession, flights: Path, table: DataFrame, tmp_path: Path, place: str
) -> None:
    store = DyingStore(tmp_path / "metrics")
    store.place = place
    writer = MetricsWriter(flight_job(store), shards=SHARDS)
    summary = writer.write_batch(table, txn_id="a")
    # After the commit the second attempt finds the shard applied.
    assert [shard["applied"] for shard in summary["shards"]] == [True, place == "before", True]
    assert difference(stored_in_shards(store, writer.sink_ids), expected(spark, flights)) == []


class BrokenStore(ParquetStore):
    """A store that cannot commit one of the shards."""

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        with super().transaction(sink_id) as transaction:
            yield transaction
            if sink_id.endswith("/2"):
                raise OSError("the disk of shard 2 is gone")


def test_epoch_of_which_some_shards_failed_is_completed_by_the_next_run(
    spark: SparkSession, flights: Path, tmp_path: Path, stream: Stream
) -> None:
    broken = MetricsWriter(flight_job(BrokenStore(tmp_path / "metrics")), shards=SHARDS)
    with pytest.raises(StreamingQueryException, match="the disk of shard 2 is gone"):
        stream(broken)
    store = ParquetStore(tmp_path / "metrics")
    mended = MetricsWriter(flight_job(store), shards=SHARDS)
    assert sorted(len(store.summaries(sink_id)) for sink_id in mended.sink_ids)[0] == 0
    stream(mended)
    assert difference(stored_in_shards(store, mended.sink_ids), expected(spark, flights)) == []


@pytest.mark.parametrize("shards", [1, 4])
def test_changed_number_of_shards_is_refused(
    table: DataFrame, parquet: ParquetStore, shards: int
) -> None:
    job = flight_job(parquet)
    MetricsWriter(job, shards=2).write_batch(table)
    before = sorted(parquet.directory.rglob("*"))
    for overwrite in (False, True):  # an overwrite would leave the other shards as they are
        with pytest.raises(
            SinkError, match=f"was written with shards=2, not {shards}, and each key has its shard"
        ):
            MetricsWriter(job, shards=shards, onJobChange="accept").write_batch(
                table, overwrite=overwrite
            )
    assert sorted(parquet.directory.rglob("*")) == before


class NotingStore(ParquetStore):
    """A store that notes which task commits a shard."""

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        if context := TaskContext.get():
            (self.directory / f"{sink_id.replace('/', '-')}.task").write_text(
                f"{context.partitionId()}"
            )
        with super().transaction(sink_id) as transaction:
            yield transaction


@pytest.mark.parametrize("shards", [2, 8, 40])
def test_each_shard_is_committed_by_its_own_task(
    table: DataFrame, tmp_path: Path, shards: int
) -> None:
    MetricsWriter(flight_job(NotingStore(tmp_path / "metrics")), shards=shards).write_batch(table)
    tasks = {file.name: file.read_text() for file in (tmp_path / "metrics").glob("*.task")}
    assert len(tasks) == len(set(tasks.values())) == shards


@pytest.mark.parametrize("shards", [0, -1, 1.5, True, "4", 10_001])
def test_number_of_shards_is_checked(parquet: ParquetStore, shards: Any) -> None:
    with pytest.raises(ConfigError, match=r"shards=.*: give 1 to 10_000, or None"):
        MetricsWriter(flight_job(parquet), shards=shards)


def test_store_on_one_machine_is_rejected(store: SqliteStore) -> None:
    with pytest.raises(ConfigError, match=r"shards=2 with a SqliteStore.*PostgresStore"):
        MetricsWriter(flight_job(store), shards=2)


def test_partials_of_an_attempt_larger_than_max_commit_bytes_are_refused(
    table: DataFrame, parquet: ParquetStore
) -> None:
    writer = MetricsWriter(flight_job(parquet), shards=2, maxCommitBytes=100)
    with pytest.raises(PySparkException, match="more than maxCommitBytes=100"):
        writer.write_batch(table)
    for sink_id in writer.sink_ids:
        assert parquet.summaries(sink_id) == []


def test_epoch_without_rows_is_an_epoch_of_every_shard(
    spark: SparkSession, table: DataFrame, parquet: ParquetStore
) -> None:
    for l1, way in (("tasks", {}), ("spark", IN_SPARK)):
        job: AggregationJob = replace(flight_job(parquet, **way), name=f"flights-{l1}")
        writer = MetricsWriter(job, l1=l1, shards=2)  # type: ignore[arg-type]
        summary = writer.write_batch(table.where("false"), txn_id="empty")
        assert (summary["rows"], len(summary["shards"])) == (0, 2)
        assert [len(parquet.summaries(sink_id)) for sink_id in writer.sink_ids] == [1, 1]


def test_shard_depends_only_on_the_key_and_all_shards_are_used() -> None:
    keys = [(f"entity-{number}", 60 * number) for number in range(1_000)]
    shards = [shard_of(METRICS[0](*key), 7) for key in keys]
    assert shards == [shard_of(METRICS[0](*key, 5), 7) for key in keys]
    counts = [shards.count(shard) for shard in range(7)]
    assert min(counts) > 100, counts
    # Never another shard, in no version: the stored data lies there.
    assert shard_of(METRICS[0]("e0", 3_600), 100) == 42
