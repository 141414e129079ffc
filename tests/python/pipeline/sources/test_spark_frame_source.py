"""DataFrames of Spark are read partition by partition, each computed alone."""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchqueue import ConfigError
from batchqueue.pipeline.contract import (
    Limit,
    PositionError,
    SourceChangedError,
    SourceDataError,
    SourcePickleError,
)
from batchqueue.pipeline.sources.spark_frame import SparkFrameSource
from pipeline_support.tables import ALL, LIMITS, read_on, rows_of

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark import SparkContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batchqueue.spark import local_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    running = SparkContext._active_spark_context
    session = local_session("tests", "local[2,4]")
    yield session
    if running is None:  # else other tests of this process use it
        session.stop()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """2,000 rows in 8 partitions, with names that Spark's SQL would misread."""
    return spark.range(0, 2_000, 1, 8).select(
        "id",
        F.concat(F.lit("row "), "id").alias("a.b"),
        F.timestamp_seconds("id").alias("at `time`"),
        F.array("id", F.lit(None)).alias("list"),
    )


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


# Each row once, in order


@pytest.mark.parametrize("limit", LIMITS)
def test_rows_are_those_of_the_frame_with_any_limit(frame: DataFrame, limit: Limit):
    source = SparkFrameSource(frame)
    rows, _ = read_on(source, source.initial(), (limit,))
    assert ids(rows) == list(range(2_000))
    assert rows[7]["a.b"] == "row 7"
    assert rows[7]["at `time`"].timestamp() == 7
    assert rows[7]["list"] == [7, None]


def test_batches_have_the_schema_and_each_reading_gives_the_same(frame: DataFrame):
    source = SparkFrameSource(frame)
    for split in source.plan(source.initial(), ALL).splits:
        batches = list(source.read(split))
        assert {batch.schema for batch in batches} == {source.schema()}
        assert batches == list(source.read(split))
    assert source.schema().field("at `time`").type == pa.timestamp("us", "UTC")


def test_a_new_source_continues_before_every_partition(frame: DataFrame):
    at = SparkFrameSource(frame).initial()
    rows = []
    for _ in range(8):
        source = SparkFrameSource(frame)
        (split,) = source.plan(at, ALL).splits
        rows += rows_of(source, split)
        at = split.end
    assert ids(rows) == list(range(2_000))
    assert source.plan(at, ALL).splits == ()
    assert source.lag(at)["frame"] == (0, 0.0)
    between = SparkFrameSource(frame).between(source.initial(), at)
    assert [split.what for split in between] == list(range(8))
    source.commit(at)


def test_rows_that_were_shuffled_and_sorted_are_read_each_once(frame: DataFrame):
    shuffled = frame.repartition(5, "id").sortWithinPartitions("id")
    source = SparkFrameSource(shuffled)
    rows, _ = read_on(source, source.initial())
    again, _ = read_on(SparkFrameSource(shuffled), source.initial())
    assert rows == again
    assert sorted(ids(rows)) == list(range(2_000))


def test_empty_frames_and_partitions_have_no_rows(spark: SparkSession):
    nothing = spark.createDataFrame([], "id bigint, name string")
    source = SparkFrameSource(nothing)
    assert source.schema() == pa.schema({"id": pa.int64(), "name": pa.string()})
    assert read_on(source, source.initial())[0] == []
    source = SparkFrameSource(spark.range(0, 3, 1, 8))
    assert ids(read_on(source, source.initial())[0]) == [0, 1, 2]


# A partition alone


def test_only_the_partition_that_is_read_is_computed(frame: DataFrame, tmp_path: Path):
    folder = str(tmp_path)

    def traced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        Path(folder, str(TaskContext.get().partitionId())).touch()  # type: ignore[union-attr]
        yield from batches

    source = SparkFrameSource(frame.select("id").mapInArrow(traced, "id bigint"))
    source.schema()
    at = source.initial()
    assert list(tmp_path.iterdir()) == []
    splits = source.between(at, {**at, "partition": 8})
    assert ids(rows_of(source, splits[3])) == list(range(750, 1_000))
    assert [file.name for file in tmp_path.iterdir()] == ["3"]


# Errors


def test_frame_with_other_partitions_or_columns_is_a_change(frame: DataFrame):
    at = SparkFrameSource(frame).initial()
    for other in (frame.coalesce(3), frame.drop("list"), frame.withColumn("id", F.lit("x"))):
        with pytest.raises(SourceChangedError, match="build it in the same way"):
            SparkFrameSource(other).plan(at, ALL)
    for wrong in ({}, {"partition": 1}, {**at, "partition": 9}, {**at, "partition": -1}):
        with pytest.raises(PositionError, match="checkpoint"):
            SparkFrameSource(frame).plan(wrong, ALL)


def test_partition_that_fails_is_named(frame: DataFrame):
    source = SparkFrameSource(frame.select(F.expr("assert_true(id < 300)").alias("checked")))
    splits = source.between(source.initial(), {**source.initial(), "partition": 8})
    assert len(rows_of(source, splits[0])) == 250
    with pytest.raises(SourceDataError, match="partition 1 of the DataFrame cannot be computed"):
        rows_of(source, splits[1])


def test_it_does_not_pickle_and_says_what_to_use(frame: DataFrame):
    with pytest.raises(SourcePickleError, match=r"session of this one; .* FileSource"):
        pickle.dumps(SparkFrameSource(frame))


def test_frames_that_cannot_be_replayed_are_refused(spark: SparkSession, frame: DataFrame):
    random = F.udf(lambda: 4, "int").asNondeterministic()
    for column in (F.rand(), F.expr("uuid()"), random()):
        with pytest.raises(ConfigError, match="write it to files first"):
            SparkFrameSource(frame.select(column).filter("true"))
    with pytest.raises(ConfigError, match="df is a stream"):
        SparkFrameSource(spark.readStream.format("rate").load())
    with pytest.raises(ConfigError, match="df is 5"):
        SparkFrameSource(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name is ''"):
        SparkFrameSource(frame, name="")


def test_frames_of_connect_are_refused(tmp_path: Path):
    pytest.importorskip("grpc", reason="pyspark[connect] is not installed")
    # That of pyspark.sql would make all sessions of this process remote ones.
    from pyspark.sql.connect.session import SparkSession as RemoteSparkSession

    from spark_support.connect_server import connect_server

    with connect_server(tmp_path) as address:
        remote = RemoteSparkSession.builder.remote(address).create()
        with pytest.raises(ConfigError, match="Spark Connect, which cannot compute a single"):
            SparkFrameSource(remote.range(5))
        remote.stop()
