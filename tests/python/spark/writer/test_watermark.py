"""Final buckets of a real stream, in each way of L1, against a model of a few lines."""

import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from batchqueue.aggregation import Count, CountMetrics, Window, metric_type
from batchqueue.outputs import ParquetStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter, Watermark, register
from spark_support.pyspark_version import needs_stream_sink

HITS = metric_type("hits", CountMetrics, keys={"city": str, "kind": int})
HOUR = Window("at", 3_600)
STEP = ArrowAggregation(
    keys={"city": str, "kind": int}, time=HOUR, metrics={HITS: Count()}, null_keys="skip"
)
START = datetime(2024, 3, 10, tzinfo=UTC)
FILES = 6

Row = tuple[str, int, datetime | None]


def rows_of(file: int) -> list[Row]:
    """Return rows over two hours and a half, the later the file, and some that are hours late."""
    late = [timedelta(0), timedelta(minutes=40), timedelta(hours=3)]
    rows: list[Row] = [
        (
            f"city {number % 3}",
            number % 2,
            START + file * timedelta(hours=2) + number * timedelta(minutes=3) - late[number % 3],
        )
        for number in range(50)
    ]
    return [*rows, ("no time", 0, None)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hits")
    for file in range(FILES):
        cities, kinds, times = zip(*rows_of(file), strict=True)
        table = pa.table(
            {
                "city": pa.array(cities),
                "kind": pa.array(kinds, pa.int32()),
                "at": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )
        path = folder / f"{file}.parquet"
        pq.write_table(table, path)
        os.utime(path, (file, file))
    return folder


Counts = Counter[tuple[str, int, int]]


def model(delay_s: int) -> tuple[Counts, list[int]]:
    """Return what is kept of all files, and the mark behind each."""
    kept: Counts = Counter()
    marks: list[int] = []
    newest = 0.0
    for file in range(FILES):
        times = [(city, kind, at.timestamp()) for city, kind, at in rows_of(file) if at]
        for city, kind, at in times:
            bucket = int(at // 3_600 * 3_600)
            if not marks or bucket >= marks[-1]:
                kept[city, kind, bucket] += 1
        newest = max([newest, *(at for _, _, at in times)])
        marks.append(int((newest - delay_s) // 3_600 * 3_600))
    return kept, marks


class Exporter:
    """Takes each final bucket once."""

    def __init__(self, store: Any, sink_ids: list[str]) -> None:
        self.store, self.sink_ids = store, sink_ids
        self.taken: Counts = Counter()
        self.marks: dict[str, list[int]] = {sink_id: [] for sink_id in sink_ids}

    def run(self) -> None:
        for sink_id, marks in self.marks.items():
            final = self.store.final_before(sink_id)
            since = marks[-1] if marks else None
            for hits in self.store.read(HITS, sink_id, since=since, before=final):
                key = (*hits.key_values, hits.time_bucket)
                assert key not in self.taken
                self.taken[key] = hits.count
            marks.append(final)


def counts(store: Any, sink_ids: list[str], **limits: Any) -> Counts:
    return Counter(
        {
            (*hits.key_values, hits.time_bucket): hits.count
            for sink_id in sink_ids
            for hits in store.read(HITS, sink_id, **limits)
        }
    )


def job(store: Any, delay_s: int = 1_800) -> AggregationJob:
    return AggregationJob(
        name="hits", arrow=[STEP], store=store, watermark=Watermark(HOUR, delay_s)
    )


def stream_of(spark: SparkSession, files: Path) -> Any:
    schema = "city string, kind int, at timestamp"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(files))


def run(
    spark: SparkSession, files: Path, checkpoint: Path, write: Callable[[DataFrame, int], Any]
) -> None:
    stream = stream_of(spark, files).writeStream.foreachBatch(write)
    stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    stream.start().awaitTermination()


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_exporter_takes_each_bucket_once_and_late_rows_change_none(
    spark: SparkSession, files: Path, tmp_path: Path, any_store: Any, l1: Any
) -> None:
    writer = MetricsWriter(job(any_store), l1=l1)
    exporter = Exporter(any_store, ["hits"])

    def write(df: DataFrame, batch_id: int) -> None:
        writer.write_epoch(df, batch_id)
        exporter.run()

    run(spark, files, tmp_path / "checkpoint", write)
    kept, marks = model(1_800)
    assert len(set(marks)) == FILES
    assert exporter.marks == {"hits": marks}
    assert counts(any_store, ["hits"]) == kept
    assert exporter.taken == counts(any_store, ["hits"], before=marks[-1])
    late = sum(epoch.summary["late"] for epoch in any_store.summaries("hits"))
    assert late > 0 < sum(kept.values()) < FILES * 50


@pytest.mark.parametrize("l1", ["tasks", "spark"])
def test_shards_have_one_mark(
    spark: SparkSession, files: Path, tmp_path: Path, parquet: ParquetStore, l1: Any
) -> None:
    """A shard that no late or new row belongs to learns the times of all rows."""
    writer = MetricsWriter(job(parquet), l1=l1, shards=5)
    exporter = Exporter(parquet, list(writer.sink_ids))

    def write(df: DataFrame, batch_id: int) -> None:
        writer.write_epoch(df, batch_id)
        exporter.run()

    run(spark, files, tmp_path / "checkpoint", write)
    kept, marks = model(1_800)
    assert exporter.marks == dict.fromkeys(writer.sink_ids, marks)
    assert counts(parquet, list(writer.sink_ids)) == kept


@needs_stream_sink
def test_format_marks_buckets_as_final(
    spark: SparkSession, files: Path, tmp_path: Path, any_store: Any
) -> None:
    stream = stream_of(spark, files).writeStream.format(register(spark, job(any_store, 0)))
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()
    kept, marks = model(0)
    assert counts(any_store, ["hits"]) == kept
    assert [epoch.summary["final_before"] for epoch in any_store.summaries("hits")] == marks
