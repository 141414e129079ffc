"""A copy of a checkpoint that is continued: the same epochs are skipped, other ones refused."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from batchqueue.aggregation import Count, Metrics
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.outputs.parquet.manifest import sink_folder
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter
from spark_support.flight_job import (
    FILES,
    ROWS_PER_FILE,
    SCHEMA,
    difference,
    expected,
    files_one_by_one,
    flight_job,
    into,
    start_stream,
    stored,
)
from spark_support.pyspark_version import needs_stream_sink

Run = Callable[..., None]


@pytest.fixture
def checkpoint(spark: SparkSession, flights: Path, tmp_path: Path) -> Callable[[Any], Path]:
    """Run a query to its end; return a copy of its checkpoint as it was after the first epoch."""

    def run(to: Any) -> Path:
        original, copy = tmp_path / "checkpoint", tmp_path / "copy"
        start_stream(files_one_by_one(spark, flights), to, original).awaitTermination()
        shutil.copytree(original, copy)
        for path in [*copy.glob("commits/*"), *copy.glob("offsets/*"), *copy.glob("sources/0/*")]:
            if path.name.strip(".").partition(".")[0] in map(str, range(1, FILES)):
                path.unlink()
        return copy

    return run


@pytest.mark.parametrize("sink", [pytest.param("format", marks=needs_stream_sink), "writer"])
def test_copy_whose_epochs_have_other_rows_is_refused_unless_the_user_decides(
    spark: SparkSession,
    flights: Path,
    store: SqliteStore,
    checkpoint: Callable[[Any], Path],
    sink: str,
) -> None:
    copy = checkpoint(into(sink, flight_job(store)))
    in_one = spark.readStream.schema(SCHEMA).parquet(str(flights))
    with pytest.raises(
        StreamingQueryException,
        match=rf"epoch 1 of query .* is in sink 'flights' with {ROWS_PER_FILE:,} rows, and comes "
        rf"again with {(FILES - 1) * ROWS_PER_FILE:,}, so it is not a replay: "
        r".*onChangedEpoch=skip",
    ):
        start_stream(in_one, into(sink, flight_job(store)), copy).awaitTermination()
    assert difference(stored(store), expected(spark, flights)) == []
    if sink == "writer":
        skipping = MetricsWriter(flight_job(store), onChangedEpoch="skip")
        start_stream(in_one, skipping, copy).awaitTermination()
    else:
        start_stream(in_one, flight_job(store), copy, onChangedEpoch="skip").awaitTermination()
    assert difference(stored(store), expected(spark, flights)) == []


def test_copy_whose_epochs_have_the_same_rows_is_skipped(
    spark: SparkSession, flights: Path, store: SqliteStore, checkpoint: Callable[[Any], Path]
) -> None:
    writer = MetricsWriter(flight_job(store))
    copy = checkpoint(writer)
    start_stream(files_one_by_one(spark, flights), writer, copy).awaitTermination()
    assert difference(stored(store), expected(spark, flights)) == []
    assert len(store.summaries("flights")) == FILES


def test_copy_is_refused_by_the_shards_of_a_sink(
    spark: SparkSession, flights: Path, parquet: ParquetStore, checkpoint: Callable[[Any], Path]
) -> None:
    writer = MetricsWriter(flight_job(parquet), shards=2)
    copy = checkpoint(writer)
    in_one = spark.readStream.schema(SCHEMA).parquet(str(flights))
    with pytest.raises(StreamingQueryException, match=r"in sink 'flights/[01]'.* comes again"):
        start_stream(in_one, writer, copy).awaitTermination()
    assert [len(parquet.summaries(sink_id)) for sink_id in writer.sink_ids] == [FILES, FILES]


HITS = ArrowAggregation(keys=["word"], metrics={"hits": Count()})


def words(batch: pa.RecordBatch) -> Iterator[Metrics]:
    for word in batch["word"].to_pylist():
        yield HITS.types["hits"](word, 0)


def word_job(store: Any, way: str) -> AggregationJob:
    of_items: dict[str, Any] = {"items": words, "metrics": list(HITS.types.values())}
    return AggregationJob(
        name="words", store=store, **(of_items if way == "items" else {"arrow": [HITS]})
    )


@pytest.mark.parametrize("way", ["shards", "shards in spark"])
def test_shard_that_has_an_epoch_refuses_other_rows_though_the_first_shard_has_not(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    store, checkpoint = ParquetStore(tmp_path / "metrics"), tmp_path / "checkpoint"
    files = tmp_path / "files"
    files.mkdir()
    place: Any = "spark" if way.endswith("spark") else "tasks"
    writer = MetricsWriter(word_job(store, way), l1=place, shards=2)
    source = spark.readStream.schema("word string").text(str(files))

    def run(word: str) -> None:
        (files / "words").write_text(f"{word}\n" * 10)
        os.utime(files / "words", (2_000_000_000,) * 2)
        start_stream(source, writer, checkpoint).awaitTermination()
        for record in checkpoint.glob("commits/*0*"):
            record.unlink()

    run("first")
    shutil.rmtree(sink_folder(store.directory, writer.sink_ids[0]))
    with pytest.raises(StreamingQueryException, match="/1', and comes again with others"):
        run("other")


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("format", marks=needs_stream_sink),
        *("items", "tasks", "spark", "shards", "shards in spark"),
    ],
)
def test_older_checkpoint_is_refused_where_its_epochs_have_as_many_other_rows(
    spark: SparkSession, tmp_path: Path, parquet: ParquetStore, way: str
) -> None:
    files, original, copy = (tmp_path / name for name in ("files", "checkpoint", "copy"))
    files.mkdir()

    def add(name: str, age: int) -> None:
        path = files / name
        path.write_text("".join(f"{name}-{row % 3}\n" for row in range(10)))
        os.utime(path, (2_000_000_000 - age,) * 2)

    job = word_job(parquet, way)
    settings: dict[str, Any] = {"l1": "spark"} if way.endswith("spark") else {}
    settings |= {"shards": 2} if way.startswith("shards") else {}
    to = job if way == "format" else MetricsWriter(job, **settings)

    def run(checkpoint: Path) -> None:
        source = spark.readStream.schema("word string").option("maxFilesPerTrigger", 1)
        start_stream(source.text(str(files)), to, checkpoint).awaitTermination()

    add("first", age=30)
    run(original)
    shutil.copytree(original, copy)
    add("second", age=20)
    add("third", age=10)
    run(original)
    again = tmp_path / "again"
    shutil.copytree(copy, again)
    run(again)  # the same files in the same epochs are a replay
    add("between", age=25)
    with pytest.raises(StreamingQueryException, match=r"comes again with (as many )?others"):
        run(copy)  # the shard that fails first may not know the number of rows
    sinks = [f"words/{shard}" for shard in range(2)] if way.startswith("shards") else ["words"]
    kept = [item for sink in sinks for item in parquet.read(HITS.types["hits"], sink)]
    assert sum(item.count for item in kept) == 30
    assert {item.entity.partition("-")[0] for item in kept} == {"first", "second", "third"}
