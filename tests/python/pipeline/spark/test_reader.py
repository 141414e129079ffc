"""How Spark uses a reader, on which the size of epochs, pauses and trimming are built."""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import FunctionSink, IterableSource, MetricsSink, Pipeline
from batchqueue.pipeline.spark.control import DriverControl
from batchqueue.pipeline.spark.epoch_size import EpochGoal
from batchqueue.pipeline.spark.epochs import EpochSettings
from batchqueue.pipeline.spark.pipeline import SparkRun
from batchqueue.pipeline.spark.source import PickledSource
from batchqueue.pipeline.spark.stages import spark_schema
from spark_support.numbered_rows import (
    BY_CITY,
    ORDERS,
    REVENUE,
    NumberedRows,
    oracle,
    revenue,
    stored,
)
from spark_support.pyspark_version import VERSION
from spark_support.retried import retried, started
from spark_support.waits import is_alive, wait_until

pytestmark = pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "metrics.db")


@pytest.fixture
def source(tmp_path: Path) -> NumberedRows:
    (tmp_path / "notes").mkdir()
    return NumberedRows(6000, notes=tmp_path / "notes")


@pytest.fixture
def flow(tmp_path: Path, source: NumberedRows, store: SqliteStore) -> Pipeline:
    flow = Pipeline("revenue", checkpoint=str(tmp_path / "state"))
    sink = MetricsSink(store, revenue, sink_id="shop", metrics=[ORDERS, REVENUE])
    flow.source(source).aggregate(BY_CITY).to(sink)
    return flow


def test_value_that_spark_has_no_room_for_names_its_column(spark: SparkSession) -> None:
    flow = Pipeline("moments")
    moments = pa.record_batch({"at": pa.array([1_000, 1_001], pa.timestamp("ns"))})
    flow.source(IterableSource(lambda: [moments], name="clock")).to(FunctionSink(len))
    named = r"source 'clock': column 'at' is timestamp\[ns\], and Spark has timestamp\[us\]"
    with pytest.raises(PySparkException, match=named):
        flow.on_spark(spark).run_batch()


def test_one_object_in_one_process_plans_a_query_and_commits_one_epoch_late(
    spark: SparkSession, flow: Pipeline, source: NumberedRows, store: SqliteStore
):
    retried(flow.on_spark(spark, first_epoch_rows=1500).run)
    assert stored(store, "shop") == oracle(6000)
    calls = [source.noted(word) for word in ("initial", "plan", "commit")]
    assert len({tuple(call[:2]) for call in itertools.chain(*calls)}) == 1
    planner = int(calls[1][0][0])
    assert planner != os.getpid()
    assert planner not in {int(call[0]) for call in source.noted("read")}
    ends = list(itertools.accumulate(e.summary["rows"] for e in store.summaries("shop")))
    committed = [int(call[2]) for call in source.noted("commit")]
    # Spark may plan once more behind the last epoch, and would then commit that one as well.
    assert committed in (ends[:-1], ends)
    assert len(ends) > 1
    assert source.noted("between") == []


@pytest.fixture
def noting_format(spark: SparkSession, source: NumberedRows, tmp_path: Path) -> str:
    """A format whose reader notes what Spark asks it for."""
    from batchqueue.pipeline.spark.reader import (
        PipelineDataSource,
        ReaderSettings,
        SourceStreamReader,
    )

    class Noting(SourceStreamReader):
        def getDefaultReadLimit(self):
            source.note("limit")
            return super().getDefaultReadLimit()

        def latestOffset(self, start, limit):
            source.note("offset", type(limit).__name__, time.monotonic())
            return super().latestOffset(start, limit)

    class NotingSource(PipelineDataSource):
        format = "noting"
        settings = ReaderSettings(
            source=PickledSource.of(source, "numbers"),
            struct=spark_schema(source.schema(), "source"),
            epochs=EpochSettings(
                query="q",
                goal=EpochGoal(first_rows=1000),
                max_bytes=1 << 30,
                max_tasks=2,
                commits=True,
            ),
            control=DriverControl(tmp_path),
        )

        def streamReader(self, schema):
            return Noting(self.settings)

    spark.dataSource.register(NotingSource)
    return "noting"


@pytest.fixture
def write(spark: SparkSession, tmp_path: Path, noting_format: str) -> Callable[..., Any]:
    """Start a query that counts the rows of each epoch."""

    def start(rows: list[int], **trigger: Any) -> SparkRun:
        writer = spark.readStream.format(noting_format).load().writeStream
        writer = writer.foreachBatch(lambda df, number: rows.append(df.count()))
        writer = writer.option("checkpointLocation", str(tmp_path / "noting"))
        return SparkRun([writer.trigger(**trigger).start()], lambda: None)

    return start


def test_default_read_limit_is_asked_once_for_all_epochs(
    source: NumberedRows, write: Callable[..., SparkRun]
):
    rows: list[int] = []
    run = started(lambda: write(rows, availableNow=True), lambda: source.noted("offset"))
    run.awaitTermination()
    assert sum(rows) == 6000
    assert len(rows) > 1
    assert len(source.noted("limit")) == 1
    assert len(source.noted("offset")) >= len(rows)
    assert {call[2] for call in source.noted("offset")} == {"ReadMaxRows"}


def test_paused_stream_is_asked_a_few_times_a_second_and_plans_nothing(
    source: NumberedRows, write: Callable[..., SparkRun], tmp_path: Path
):
    DriverControl(tmp_path).pause("night")
    rows: list[int] = []
    run = started(lambda: write(rows, processingTime="0 seconds"), lambda: source.noted("offset"))
    wait_until(lambda: len(source.noted("offset")) > 5 or not run.isActive)
    assert run.isActive, run.exception()
    polls = [float(call[3]) for call in source.noted("offset")]
    # Spark itself asks again after 10 ms.
    assert polls[5] - polls[0] > 5 * 0.15
    assert source.noted("plan") == []
    DriverControl(tmp_path).resume()
    wait_until(lambda: sum(rows) == 6000 or not run.isActive)
    assert run.isActive, run.exception()
    run.stop()


def test_pauses_under_available_now_neither_end_the_query_nor_lose_a_row(
    spark: SparkSession, flow: Pipeline, source: NumberedRows, store: SqliteStore
):
    on_spark = flow.on_spark(spark, first_epoch_rows=500)
    on_spark.pause("before the start")
    run = started(lambda: on_spark.start(available_now=True), lambda: source.noted("initial"))
    assert source.noted("plan") == []
    on_spark.resume()
    wait_until(lambda: source.noted("plan") or not run.isActive)
    on_spark.pause("between epochs")
    wait_until(lambda: is_waiting(run) or not run.isActive)
    assert run.isActive
    assert stored(store, "shop") != oracle(6000)
    on_spark.resume()
    assert run.awaitTermination(timeout=200)
    assert stored(store, "shop") == oracle(6000)


def test_stop_in_a_pause_does_not_wait_and_the_next_run_is_exact(
    spark: SparkSession, flow: Pipeline, source: NumberedRows, store: SqliteStore
):
    on_spark = flow.on_spark(spark, first_epoch_rows=500)
    run = started(lambda: on_spark.start(available_now=True), lambda: source.noted("plan"))
    on_spark.pause("night")
    wait_until(lambda: is_waiting(run) or not run.isActive)
    planner = int(source.noted("plan")[0][0])
    run.stop()
    assert not run.isActive
    wait_until(lambda: not is_alive(planner), "the end of the reader")
    assert stored(store, "shop") != oracle(6000)
    on_spark.resume()
    retried(on_spark.run)
    assert stored(store, "shop") == oracle(6000)


def is_waiting(run) -> bool:
    """Whether Spark has asked for an offset and got none yet."""
    return "Getting offsets" in run.queries[0].status["message"]
