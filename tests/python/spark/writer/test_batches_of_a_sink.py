"""Batch writes and what their sink has already: a stream, another number of shards, this write."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from batchqueue.aggregation import CountMetrics, Metrics, metric_type
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import AggregationJob, MetricsWriter, SinkError, register
from batchqueue.spark.commit.commit import EpochCommit
from spark_support.attempts import OPTIONS
from spark_support.flight_job import (
    DEPARTURES,
    METRICS,
    difference,
    expected,
    files_one_by_one,
    flight_job,
    into,
    items,
    start_stream,
    stored,
    stored_in_shards,
    write_flights,
)
from spark_support.pyspark_version import needs_batch_sink, needs_stream_sink

Stream = Callable[..., None]
Write = Callable[..., None]
WAYS = [pytest.param("format", marks=needs_batch_sink), "writer"]
LANDINGS = metric_type("landings", CountMetrics)


@pytest.fixture
def write(spark: SparkSession, table: DataFrame) -> Write:
    """Write the flights as a batch, by the format or by a writer."""

    def write(
        way: str, job: AggregationJob, sink_id: str | None = None, mode: str = "append", **how: Any
    ) -> None:
        if way == "writer":
            writer = MetricsWriter(job, sinkId=sink_id)
            writer.write_batch(table, overwrite=mode == "overwrite", txn_id=how.get("txnId"))
        else:
            options = {"sinkId": sink_id, **how} if sink_id is not None else how
            table.write.format(register(spark, job)).mode(mode).options(**options).save()

    return write


def departures(store: Any, sink_id: str = "flights") -> int:
    return sum(item.count for item in store.read(DEPARTURES, sink_id))


def items_of_no_task(batch: pa.RecordBatch) -> Iterator[Metrics]:
    raise AssertionError("a task ran, though its results cannot be stored")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("way", WAYS)
def test_batch_without_a_sink_id_leaves_the_results_of_the_stream_alone(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    stream: Stream,
    write: Write,
    way: str,
    mode: str,
) -> None:
    stream(MetricsWriter(flight_job(store)))
    with pytest.raises(
        (SinkError, PySparkException),
        match=r"sink 'flights' has the results of stream .*has no sinkId.*: its own, or this one",
    ) as refused:
        write(way, flight_job(store, items=items_of_no_task), mode=mode)
    assert "a task ran" not in str(refused.value)
    assert difference(stored(store), expected(spark, flights)) == []
    write(way, flight_job(store), "nightly", mode)
    assert difference(stored(store, "nightly"), expected(spark, flights)) == []
    write(way, flight_job(store), "flights", mode)
    times = 1 if mode == "overwrite" else 2
    assert difference(stored(store), expected(spark, flights, times)) == []


@pytest.mark.parametrize("way", WAYS)
def test_repeated_batch_runs_no_l1_and_a_changed_job_is_refused_before_it(
    store: SqliteStore, table: DataFrame, write: Write, way: str
) -> None:
    write(way, flight_job(store), txnId="load-1")
    write(way, flight_job(store, items=items_of_no_task), txnId="load-1")
    assert departures(store) == table.count()
    changed = flight_job(store, items=items_of_no_task, metrics=[*METRICS, LANDINGS])
    with pytest.raises((SinkError, PySparkException), match="metric 'landings' is new") as refused:
        write(way, changed, txnId="load-2")
    assert "a task ran" not in str(refused.value)


@needs_batch_sink
def test_repeated_batch_is_not_applied_without_its_rows_after_an_overwrite(
    store: SqliteStore,
) -> None:
    """The overwrite comes between the plan, which leaves out the rows, and the commit."""
    from batchqueue.spark.driver.format import BatchSinkWriter

    job, options = flight_job(store), replace(OPTIONS, txn_id="load-1")
    EpochCommit(job, options, []).apply_batch(overwrite=False)
    writer = BatchSinkWriter(job, options, overwrite=False)
    message = writer.write(iter([]))
    with store.transaction("flights") as transaction:
        transaction.clear()
    writer.commit([message])
    assert store.summaries("flights") == []


@pytest.mark.parametrize("way", [pytest.param("format", marks=needs_stream_sink), "writer"])
def test_changed_job_of_a_stream_is_refused_before_its_tasks(
    spark: SparkSession, store: SqliteStore, tmp_path: Path, way: str
) -> None:
    flights = write_flights(tmp_path / "flights")

    def stream(job: AggregationJob) -> None:
        source = files_one_by_one(spark, flights)
        start_stream(source, into(way, job), tmp_path / "checkpoint").awaitTermination()

    stream(flight_job(store))
    pq.write_table(pq.read_table(flights / "part-0.parquet"), flights / "more.parquet")
    with pytest.raises(StreamingQueryException, match="metric 'landings' is new") as refused:
        stream(flight_job(store, items=items_of_no_task, metrics=[*METRICS, LANDINGS]))
    assert "a task ran" not in str(refused.value)
    stream(flight_job(store))
    assert difference(stored(store), expected(spark, flights)) == []


@pytest.fixture(params=["parquet", "postgres"])
def shared(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("overwrite", [False, True])
def test_batch_in_shards_is_refused_where_one_without_them_was(
    spark: SparkSession, flights: Path, table: DataFrame, shared: Any, overwrite: bool
) -> None:
    MetricsWriter(flight_job(shared)).write_batch(table)
    with pytest.raises(SinkError, match="'flights' was written with shards=None, not 2"):
        MetricsWriter(flight_job(shared, items=items_of_no_task), shards=2).write_batch(
            table, overwrite=overwrite
        )
    assert difference(stored(shared), expected(spark, flights)) == []
    assert shared.summaries("flights/0") == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_batch_without_shards_is_refused_where_one_in_shards_was(
    spark: SparkSession, flights: Path, table: DataFrame, shared: Any, overwrite: bool
) -> None:
    writer = MetricsWriter(flight_job(shared), shards=2)
    writer.write_batch(table)
    with pytest.raises(
        SinkError,
        match=r"'flights' was written with shards=\.\.\., as sink 'flights/0' shows, not N",
    ):
        MetricsWriter(flight_job(shared, items=items_of_no_task)).write_batch(
            table, overwrite=overwrite
        )
    assert difference(stored_in_shards(shared, writer.sink_ids), expected(spark, flights)) == []
    assert shared.summaries("flights") == []


@pytest.mark.parametrize("first", [None, 2])
@pytest.mark.parametrize("checkpoint", ["same", "another"])
def test_stream_that_changes_to_or_from_shards_is_refused_and_the_reason_named(
    spark: SparkSession, parquet: ParquetStore, tmp_path: Path, checkpoint: str, first: int | None
) -> None:
    flights = write_flights(tmp_path / "flights")

    def stream(shards: int | None, checkpoint: str) -> None:
        job = flight_job(parquet, items=items if shards == first else items_of_no_task)
        writer = MetricsWriter(job, shards=shards, onNewQuery="append")
        source = files_one_by_one(spark, flights)
        start_stream(source, writer, tmp_path / checkpoint).awaitTermination()

    stream(first, "same")
    pq.write_table(pq.read_table(flights / "part-0.parquet"), flights / "more.parquet")
    with pytest.raises(StreamingQueryException, match="'flights' was written with shards="):
        stream(None if first else 2, checkpoint)
    stream(first, "same")


def test_repeated_batch_in_shards_runs_no_l1(table: DataFrame, parquet: ParquetStore) -> None:
    first = MetricsWriter(flight_job(parquet), shards=2).write_batch(table, txn_id="load-1")
    again = MetricsWriter(flight_job(parquet, items=items_of_no_task), shards=2).write_batch(
        table, txn_id="load-1"
    )
    assert (again["applied"], again["rows"]) == (False, first["rows"])
    assert [shard["applied"] for shard in again["shards"]] == [False, False]
