"""`stop` of a pipeline on Spark: no more epochs begin, and those at work end, in time or not."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import window

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline import FunctionSink, Pipeline, SparkSource
from batchqueue.pipeline.spark.control import LiveControl
from batchqueue.pipeline.spark.pipeline import SparkRun
from spark_support.numbered_rows import NumberedRows
from spark_support.pyspark_version import VERSION
from spark_support.retried import retried, started

pytestmark = pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2")

ROWS = 3000


class SlowSink:
    """Notes that a write has begun, and the rows when `until` is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def until(self) -> Path:
        return self._folder / "until"

    def begun(self) -> bool:
        return any(self._folder.glob("begun*"))

    def write(self, chunks: list[pa.RecordBatch]) -> None:
        import uuid

        (self._folder / f"begun-{uuid.uuid4()}").touch()
        while not self.until.exists():
            time.sleep(0.05)
        ids = [number for chunk in chunks for number in chunk["id"].to_pylist()]
        (self._folder / f"rows-{uuid.uuid4()}").write_text("\n".join(map(str, ids)))

    def ids(self) -> list[int]:
        texts = (path.read_text() for path in self._folder.glob("rows-*"))
        return sorted(int(line) for text in texts for line in text.split())


def soon(event: threading.Event) -> None:
    """Sets an event while `stop` waits: it calls this as if to pause the readers."""
    threading.Timer(0.5, event.set).start()


@pytest.fixture
def sink(tmp_path: Path) -> SlowSink:
    (tmp_path / "sink").mkdir()
    return SlowSink(tmp_path / "sink")


@pytest.fixture
def flow(tmp_path: Path) -> Pipeline:
    return Pipeline("slow", checkpoint=str(tmp_path / "state"))


def running(flow: Pipeline, spark: SparkSession, sink: SlowSink) -> SparkRun:
    on_spark = flow.on_spark(spark, first_epoch_rows=500, max_epoch_rows=500)
    return started(on_spark.start, sink.begun)


def released_by_pause(run: SparkRun, sink: SlowSink) -> SparkRun:
    """Release the sink a moment after the stop of a run has paused its readers."""
    pause = run._pause

    def paused() -> None:
        assert pause is not None
        pause()
        threading.Timer(0.5, sink.until.touch).start()

    run._pause = paused
    return run


def committed(tmp_path: Path) -> int:
    return len(list(tmp_path.glob("state/spark/*/commits/[0-9]*")))


@pytest.mark.parametrize("reads_frame", [False, True], ids=["source", "DataFrame"])
def test_stop_finishes_the_epoch_at_work(
    reads_frame: bool, spark: SparkSession, flow: Pipeline, sink: SlowSink, tmp_path: Path
):
    source = NumberedRows(ROWS)
    if reads_frame:
        spark.range(ROWS).write.parquet(str(tmp_path / "rows"))
        frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        source = SparkSource(frame.parquet(str(tmp_path / "rows")))
    flow.source(source).to(FunctionSink(sink.write, batch_rows=ROWS))
    run = running(flow, spark, sink)
    assert committed(tmp_path) == 0

    released_by_pause(run, sink).stop()
    assert not run.isActive
    assert run.exception() is None
    assert committed(tmp_path) >= 1
    if not reads_frame:
        assert committed(tmp_path) == 1
        assert len(sink.ids()) == 500
        retried(flow.on_spark(spark).run)
        assert sink.ids() == list(range(ROWS)), "an epoch that has ended does not come again"


@pytest.mark.parametrize("timeout", [0, 0.5])
def test_stop_does_not_wait_longer_for_a_sink_that_hangs(
    timeout: float,
    spark: SparkSession,
    flow: Pipeline,
    sink: SlowSink,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    flow.source(NumberedRows(ROWS)).to(FunctionSink(sink.write, batch_rows=ROWS))
    run = running(flow, spark, sink)
    with caplog.at_level(logging.WARNING, logger="batchqueue.pipeline"):
        run.stop(timeout=timeout)
    assert not run.isActive
    assert committed(tmp_path) == 0
    warned = [
        line for line in caplog.messages if f"an epoch is at work after {timeout:g} s" in line
    ]
    assert len(warned) == (timeout > 0)
    sink.until.touch()
    retried(flow.on_spark(spark).run)
    assert set(sink.ids()) == set(range(ROWS))


def test_stop_finishes_an_epoch_without_new_rows(spark: SparkSession, tmp_path: Path):
    """It writes the windows that the watermark has closed."""
    rows = tmp_path / "rows"
    for number, instant in enumerate(("2026-01-01 00:00:00", "2026-01-02 00:00:00")):
        event = spark.sql(f"SELECT timestamp'{instant}' AS at")
        event.coalesce(1).write.parquet(str(rows / f"part={number}"))
    begun, released, written = threading.Event(), threading.Event(), []

    def write(df: Any, number: int) -> None:
        found = df.count()
        if found:
            begun.set()
            released.wait(60)
            written.append((number, found))

    frame = spark.readStream.schema("at timestamp, part int").parquet(str(rows))
    closed = frame.withWatermark("at", "1 minute").groupBy(window("at", "1 hour")).count()
    writer = closed.writeStream.outputMode("append").foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path / "state")).start()
    assert begun.wait(60), query.exception()
    assert query.status["message"] == "No new data but cleaning up state"
    SparkRun([query], lambda: None, lambda: soon(released)).stop()
    assert not query.isActive
    ((number, found),) = written
    assert found == 1
    assert (tmp_path / "state" / "commits" / str(number)).exists()


def test_stop_does_not_wait_for_the_backlog_of_a_dataframe(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    spark.range(ROWS).repartition(3).write.parquet(str(tmp_path / "rows"))
    begun, first, later = (threading.Event() for _ in range(3))

    def write(df: Any, number: int) -> None:
        begun.set()
        (later if number else first).wait(60)

    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    writer = frame.parquet(str(tmp_path / "rows")).writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path / "state")).start()
    assert begun.wait(60), query.exception()
    with caplog.at_level(logging.WARNING, logger="batchqueue.pipeline"):
        SparkRun([query], lambda: None, lambda: soon(first)).stop(timeout=20)
    later.set()
    assert not query.isActive
    assert [path.name for path in (tmp_path / "state" / "commits").glob("[0-9]*")] == ["0"]
    assert "is at work after" not in caplog.text


def test_each_of_two_queries_finishes_its_epoch(
    spark: SparkSession, flow: Pipeline, tmp_path: Path
):
    sinks = []
    rows = flow.source(NumberedRows(ROWS))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        sinks.append(SlowSink(tmp_path / name))
        rows.to(FunctionSink(sinks[-1].write, batch_rows=ROWS), name=name)
    on_spark = flow.on_spark(spark, first_epoch_rows=500, max_epoch_rows=500)
    run = started(on_spark.start, lambda: all(sink.begun() for sink in sinks))
    sinks[0].until.touch()
    released_by_pause(run, sinks[1]).stop()
    assert run.exception() is None
    assert len(sinks[1].ids()) == 500
    retried(flow.on_spark(spark).run)
    assert [sink.ids() for sink in sinks] == [list(range(ROWS))] * 2


def test_a_run_that_stops_pauses_whether_or_not_the_pipeline_resumes(tmp_path: Path):
    live = LiveControl(str(tmp_path))
    stopping, other = live.begin(), live.begin()
    live.pause("night")
    live.stop(stopping)
    live.resume()
    assert (stopping.control.reason(), other.control.reason()) == ("stop", None)
    for run in (stopping, other):
        live.end(run)
    live.stop(stopping)
    assert not list(tmp_path.iterdir())


def test_readers_that_cannot_be_paused_are_logged_and_the_run_stops(
    spark: SparkSession, flow: Pipeline, sink: SlowSink, caplog: pytest.LogCaptureFixture
):
    sink.until.touch()
    flow.source(NumberedRows(ROWS)).to(FunctionSink(sink.write, batch_rows=ROWS))
    run = running(flow, spark, sink)

    def pause() -> None:
        raise OSError("no space left on device")

    run._pause = pause
    with caplog.at_level(logging.WARNING, logger="batchqueue.pipeline"):
        run.stop()
    assert not run.isActive
    assert "no space left on device" in caplog.text


def test_an_interrupted_stop_stops_the_queries(
    spark: SparkSession, flow: Pipeline, sink: SlowSink, monkeypatch: pytest.MonkeyPatch
):
    flow.source(NumberedRows(ROWS)).to(FunctionSink(sink.write, batch_rows=ROWS))
    run = running(flow, spark, sink)

    def interrupt(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("batchqueue.pipeline.spark.pipeline._is_at_work", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.stop()
    assert not run.isActive
    sink.until.touch()


@pytest.mark.parametrize("timeout", [-1, float("inf"), "soon"])
def test_an_invalid_timeout_is_refused_and_stops_nothing(
    timeout: object, spark: SparkSession, flow: Pipeline, sink: SlowSink
):
    sink.until.touch()
    flow.source(NumberedRows(ROWS)).to(FunctionSink(sink.write))
    run = running(flow, spark, sink)
    with pytest.raises(ConfigError, match=r"timeout is .*, or None to wait"):
        run.stop(timeout=timeout)  # type: ignore[arg-type]
    assert run.isActive
    run.stop()
    assert not run.isActive
    run.stop()


def test_stop_of_a_run_that_has_ended_does_nothing(
    spark: SparkSession, flow: Pipeline, sink: SlowSink
):
    sink.until.touch()
    flow.source(NumberedRows(ROWS)).to(FunctionSink(sink.write))
    run = started(lambda: flow.on_spark(spark).start(available_now=True), sink.begun)
    assert run.awaitTermination()
    run.stop()
    assert sink.ids() == list(range(ROWS))
