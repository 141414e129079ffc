"""Writes under one epoch: a replay is skipped, and a second write is refused and named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import MetricsWriter, SinkError
from batchqueue.spark.driver import metrics_writer as epochs
from batchqueue.spark.task.message import EpochId
from spark_support.flight_job import (
    DEPARTURES,
    FILES,
    METRICS,
    ROWS_PER_FILE,
    difference,
    expected,
    flight_job,
    stored,
)

Stream = Callable[..., None]


def departures(store: Any, *sink_ids: str) -> int:
    return sum(item.count for sink_id in sink_ids for item in store.read(DEPARTURES, sink_id))


@pytest.mark.parametrize("shards", [None, 2])
def test_second_write_in_an_epoch_is_refused(
    parquet: ParquetStore, stream: Stream, shards: int | None
) -> None:
    """Its rows would be dropped as a replay, whatever their number."""
    writer = MetricsWriter(flight_job(parquet), shards=shards)

    def write_halves(df: DataFrame, batch_id: int) -> None:
        writer.write_epoch(df.where("carrier = 'A'"), batch_id)
        writer.write_epoch(df.where("carrier <> 'A'"), batch_id)

    with pytest.raises(
        StreamingQueryException,
        match=r"epoch 0 of query \S+ was written into sink 'flights' by job 'flights' in this run, "
        r"and now by job 'flights': .*unionByName",
    ):
        stream(write_halves)
    assert {
        epoch.batch_id for sink_id in writer.sink_ids for epoch in parquet.summaries(sink_id)
    } == {0}


def test_two_jobs_under_one_sink_are_refused_and_named(store: SqliteStore, stream: Stream) -> None:
    writers = [
        MetricsWriter(flight_job(store, name=name, metrics=metrics), sinkId="both")
        for name, metrics in (("all", METRICS), ("more", METRICS))
    ]

    def write_both(df: DataFrame, batch_id: int) -> None:
        for writer in writers:
            writer.write_epoch(df, batch_id)

    with pytest.raises(
        StreamingQueryException,
        match="into sink 'both' by job 'all' in this run, and now by job",
    ):
        stream(write_both)
    assert departures(store, "both") == ROWS_PER_FILE


def test_writers_with_their_own_sinks_write_one_epoch(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream
) -> None:
    writers = [MetricsWriter(flight_job(store), sinkId=name) for name in ("one", "other")]

    def write_both(df: DataFrame, batch_id: int) -> None:
        for writer in writers:
            writer.write_epoch(df, batch_id)

    stream(write_both)
    stream(write_both)
    for name in ("one", "other"):
        assert difference(stored(store, name), expected(spark, flights)) == []


def test_write_that_failed_may_be_repeated_by_the_function(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream
) -> None:
    writer = MetricsWriter(flight_job(store))
    too_small = MetricsWriter(flight_job(store), maxCommitBytes=1)

    def write(df: DataFrame, batch_id: int) -> None:
        with pytest.raises(Exception, match="more than maxCommitBytes=1"):
            too_small.write_epoch(df, batch_id)
        writer.write_epoch(df, batch_id)

    stream(write)
    assert difference(stored(store), expected(spark, flights)) == []


def test_epoch_is_replayed_in_another_run_even_if_the_function_sets_a_job_group(
    spark: SparkSession, flights: Path, store: SqliteStore, stream: Stream, tmp_path: Path
) -> None:
    writer = MetricsWriter(flight_job(store))

    def write(df: DataFrame, batch_id: int) -> None:
        df.sparkSession.sparkContext.setJobGroup("mine", "always the same")
        writer.write_epoch(df, batch_id)

    stream(write)
    for name in (f"{FILES - 1}", f".{FILES - 1}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    stream(write)
    assert difference(stored(store), expected(spark, flights)) == []


def test_function_that_leaves_out_epochs_without_rows_is_named(
    store: SqliteStore, stream: Stream
) -> None:
    writer = MetricsWriter(flight_job(store))

    def write_some(df: DataFrame, batch_id: int) -> None:
        some = df if batch_id != 1 else df.where("false")
        if not some.isEmpty():
            writer.write_epoch(some, batch_id)

    with pytest.raises(
        StreamingQueryException,
        match=r"epoch 2 of query .* has the epochs up to 0 under sink 'flights', the last one from "
        r"this run: .*if not df.isEmpty\(\).*Call it for every epoch.*onMissingEpochs=accept",
    ):
        stream(write_some)
    accepting = MetricsWriter(flight_job(store), onMissingEpochs="accept")
    stream(accepting)
    assert [epoch.batch_id for epoch in store.summaries("flights")] == [0, 2, 3]


def test_epoch_outside_of_foreach_batch_is_refused_again_and_again(
    table: DataFrame, store: SqliteStore
) -> None:
    writer = MetricsWriter(flight_job(store))
    for _ in range(2):
        with pytest.raises(SinkError, match="did not say which query"):
            writer.write_epoch(table, 0)


def test_program_that_begins_many_queries_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "_last", {})
    monkeypatch.setattr(epochs, "_MOST_WRITES", 100)
    place = epochs.EpochPlace("store", "sink")
    for number in range(1_000):
        with epochs.written_once(place, EpochId(f"query {number}", 0), "run", "job"):
            assert len(epochs._last) <= 100
    with (
        pytest.raises(SinkError, match="epoch 0 of query query 999 was written into sink 'sink'"),
        epochs.written_once(place, EpochId("query 999", 0), "run", "job"),
    ):
        pytest.fail("it was claimed twice")
    with epochs.written_once(place, EpochId("query 0", 0), "run", "job") as before:
        assert before is None
