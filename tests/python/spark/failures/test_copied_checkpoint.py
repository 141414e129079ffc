"""A copy of a checkpoint that is continued: the same epochs are skipped, other ones refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.spark import MetricsWriter
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
    with pytest.raises(StreamingQueryException, match=r"in sink 'flights/0' with .* comes again"):
        start_stream(in_one, writer, copy).awaitTermination()
    assert [len(parquet.summaries(sink_id)) for sink_id in writer.sink_ids] == [FILES, FILES]
