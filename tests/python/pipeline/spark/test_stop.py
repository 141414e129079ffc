"""`stop` of a pipeline on Spark: no more epochs begin, and those at work end, in time or not."""

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline import FunctionSink, Pipeline, SparkSource
from batchqueue.pipeline.spark.run import SparkRun
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

    def release_later() -> None:
        time.sleep(1)
        sink.until.touch()

    releasing = threading.Thread(target=release_later)
    releasing.start()
    run.stop()
    releasing.join()
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
    timeout: float, spark: SparkSession, flow: Pipeline, sink: SlowSink, tmp_path: Path
):
    flow.source(NumberedRows(ROWS)).to(FunctionSink(sink.write, batch_rows=ROWS))
    run = running(flow, spark, sink)
    run.stop(timeout=timeout)
    assert not run.isActive
    assert committed(tmp_path) == 0
    sink.until.touch()
    retried(flow.on_spark(spark).run)
    assert set(sink.ids()) == set(range(ROWS))


def test_an_interrupted_stop_stops_the_queries(
    spark: SparkSession, flow: Pipeline, sink: SlowSink, monkeypatch: pytest.MonkeyPatch
):
    flow.source(NumberedRows(ROWS)).to(FunctionSink(sink.write, batch_rows=ROWS))
    run = running(flow, spark, sink)

    def interrupt(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("batchqueue.pipeline.spark.run._is_writing", interrupt)
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
