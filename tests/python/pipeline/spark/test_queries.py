"""Whole pipelines on Spark: every row in every kind of sink, streams and batches."""

import logging
from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import (
    FileSink,
    FileSource,
    FunctionSink,
    MetricsSink,
    NotOnSparkError,
    Pipeline,
    SparkSource,
)
from spark_support.numbered_rows import (
    BY_CITY,
    ORDERS,
    REVENUE,
    NumberedRows,
    oracle,
    revenue,
    rows_of,
    stored,
)
from spark_support.pyspark_version import VERSION
from spark_support.retried import retried

pytestmark = pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2")


def metrics_sink(store: SqliteStore, sink_id: str = "shop") -> MetricsSink:
    return MetricsSink(store, revenue, sink_id=sink_id, metrics=[ORDERS, REVENUE])


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "metrics.db")


@pytest.fixture
def flow(tmp_path: Path) -> Pipeline:
    return Pipeline("revenue", checkpoint=str(tmp_path / "state"))


def folder(path: Path) -> Path:
    path.mkdir()
    return path


class Writing:
    """A sink for the tasks: writes each chunk into a separate file."""

    batch_rows = 1000

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, chunks) -> None:
        import uuid

        for chunk in chunks:
            pq.write_table(pa.Table.from_batches([chunk]), self.folder / f"{uuid.uuid4()}.parquet")

    def rows(self) -> pa.Table:
        return pq.read_table(self.folder)


def test_stream_fills_a_store_and_a_function_and_continues_at_its_checkpoint(
    spark: SparkSession, flow: Pipeline, store: SqliteStore, tmp_path: Path
):
    there = tmp_path / "there"
    there.write_text("3000")
    source = NumberedRows(there, notes=folder(tmp_path / "notes"))
    written = Writing(folder(tmp_path / "written"))
    rows = flow.source(source)
    rows.filter(pc.field("cents") >= 0).aggregate(BY_CITY).to(metrics_sink(store))
    rows.filter(pc.field("city") == "rome").map(lambda chunk: chunk.select(["id"])).to(written)
    on_spark = flow.on_spark(spark)
    retried(on_spark.run)
    assert stored(store, "shop") == oracle(3000)
    there.write_text("5000")
    retried(on_spark.run)
    assert stored(store, "shop") == oracle(5000)
    romans = pc.filter(rows_of(0, 5000)["id"], pc.equal(rows_of(0, 5000)["city"], "rome"))
    assert sorted(written.rows()["id"].to_pylist()) == romans.to_pylist()
    assert source.noted("commit") == [], "two queries read the source, one may be behind"


def test_batch_counts_once_under_its_name(spark: SparkSession, flow: Pipeline, store: SqliteStore):
    flow.source(NumberedRows(3000)).map(
        lambda groups: groups, schema=NumberedRows(1).schema()
    ).aggregate(BY_CITY).filter(pc.field("orders") > 0).to(metrics_sink(store))
    on_spark = flow.on_spark(spark)
    first, second = (retried(lambda: on_spark.run_batch("march")) for _ in range(2))
    assert stored(store, "shop") == oracle(3000)
    assert first["MetricsSink"]["applied"]
    assert not second["MetricsSink"]["applied"]
    assert first["MetricsSink"]["guarantee"] == "exactly-once"


def test_batch_of_files_arrives_in_files_with_groups_counted_once(
    spark: SparkSession, flow: Pipeline, tmp_path: Path
):
    files = folder(tmp_path / "orders")
    for number in range(3):
        rows = pa.Table.from_batches([rows_of(number * 1000, (number + 1) * 1000)])
        pq.write_table(rows, files / f"{number}.parquet", row_group_size=300)
    totals = flow.source(FileSource(f"{files}/*.parquet"))
    totals.aggregate(BY_CITY).to(FileSink(tmp_path / "totals"))
    retried(flow.on_spark(spark).run_batch)
    groups = spark.read.parquet(str(tmp_path / "totals")).collect()
    assert {row.city: (row.orders, row.cents) for row in groups} == oracle(3000)


def test_stream_of_dataframes_arrives_in_files(spark: SparkSession, flow: Pipeline, tmp_path: Path):
    files = folder(tmp_path / "orders")
    pq.write_table(pa.Table.from_batches([rows_of(0, 1000)]), files / "0.parquet")
    frame = spark.readStream.schema("id long, city string, cents long").parquet(str(files))
    flow.source(SparkSource(frame)).filter(pc.field("id") < 700).to(
        FileSink(tmp_path / "out", compression="zstd")
    )
    on_spark = flow.on_spark(spark)
    with pytest.raises(NotOnSparkError, match="cannot pause"):
        on_spark.pause("night")
    with pytest.raises(NotOnSparkError, match="has no end"):
        on_spark.run_batch()
    retried(on_spark.run)
    written = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.id for row in written.collect()) == list(range(700))


class Totals(StatefulProcessor):
    """Counts the rows of each city over all epochs."""

    output_schema = pa.schema([("city", pa.string()), ("rows", pa.int64())])

    def init(self, handle) -> None:
        self._rows = handle.getValueState("rows", "rows long")

    def handleInputRows(self, key, rows, timerValues):
        count = self._rows.get()[0] if self._rows.exists() else 0
        count += sum(len(each) for each in rows)
        self._rows.update((count,))
        yield pd.DataFrame({"city": [key[0]], "rows": [count]})

    def close(self) -> None:
        pass


class InThisProcess:
    def process(self, chunk):
        return chunk


def test_stateful_step_keeps_its_state_over_epochs_and_restarts(
    spark: SparkSession, flow: Pipeline, tmp_path: Path
):
    there = tmp_path / "there"
    there.write_text("1000")
    written = Writing(folder(tmp_path / "written"))
    rows = flow.source(NumberedRows(there)).key_by("city").stateful(InThisProcess, spark=Totals())
    rows.map(lambda chunk: chunk).to(written)
    on_spark = flow.on_spark(spark)
    retried(on_spark.run)
    there.write_text("2000")
    retried(on_spark.run)
    newest: Counter[str] = Counter()
    for row in written.rows().to_pylist():
        newest[row["city"]] = max(newest[row["city"]], row["rows"])
    assert newest == {city: orders for city, (orders, _) in oracle(2000).items()}


def test_failing_sink_ends_the_run_with_its_error(
    spark: SparkSession, flow: Pipeline, store: SqliteStore
):
    def fail(chunks) -> None:
        raise OSError("the service is down")

    rows = flow.source(NumberedRows(1000))
    rows.to(FunctionSink(fail))
    runs = []

    def run() -> None:
        runs.append(flow.on_spark(spark).start())
        runs[-1].awaitTermination()

    with pytest.raises(StreamingQueryException, match="the service is down"):
        retried(run)
    assert not runs[-1].isActive
    assert runs[-1].exception() is not None


def test_once_is_obeyed_in_a_single_epoch_with_a_warning(
    spark: SparkSession, flow: Pipeline, store: SqliteStore, caplog: pytest.LogCaptureFixture
):
    flow.source(NumberedRows(4000)).aggregate(BY_CITY).to(metrics_sink(store))
    on_spark = flow.on_spark(spark, first_epoch_rows=500)
    with caplog.at_level(logging.WARNING, "batchqueue.pipeline"):
        retried(lambda: on_spark.start(once=True).awaitTermination())
    assert "available_now ends as well" in caplog.text
    assert [epoch.summary["rows"] for epoch in store.summaries("shop")] == [4000]
    assert stored(store, "shop") == oracle(4000)
