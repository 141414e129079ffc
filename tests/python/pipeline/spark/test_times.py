"""Times without a zone in pipelines on Spark: what the graph says is what operators get."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from batchqueue.aggregation import CountMetrics, Metrics, bucket_start, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import FileSource, MetricsSink, Pipeline, SparkSource
from spark_support.pyspark_version import VERSION

HITS = metric_type("hits", CountMetrics)
NEW_YORK = "America/New_York"
CLOCK = [datetime(2024, 3, 10, 0, 30), datetime(2024, 3, 10, 1, 30), datetime(2024, 3, 10, 3, 30)]


@pytest.fixture(autouse=True)
def _far_apart(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The session is in New York, its workers are in Tokyo."""
    monkeypatch.setitem(spark.sparkContext.environment, "TZ", "Asia/Tokyo")
    spark.conf.set("spark.sql.session.timeZone", NEW_YORK)
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def hours(rows: pa.RecordBatch) -> list[Metrics]:
    """Metrics of instants, or of what a clock in UTC showed."""
    times = rows["at"].to_pylist()
    zone = None if times[0].tzinfo else "UTC"
    return [HITS("all", bucket_start(at, 3_600, zone=zone)) for at in times]


def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


@pytest.mark.parametrize("mapped", [False, True])
def test_spark_source_reads_them_in_the_zone_of_the_session(
    spark: SparkSession, tmp_path: Path, mapped: bool
) -> None:
    texts = ", ".join(f"timestamp_ntz'{at}'" for at in CLOCK)
    source = SparkSource(spark.sql(f"SELECT explode(array({texts})) at"))
    assert source.schema().field("at").type.tz is not None
    found = counts(spark, source, tmp_path, mapped)
    instants = [int(at.replace(tzinfo=ZoneInfo(NEW_YORK)).timestamp()) for at in CLOCK]
    assert found == {second - second % 3_600: 1 for second in instants}


@pytest.mark.skipif(VERSION < (4, 2), reason="sources on Spark need pyspark 4.2")
@pytest.mark.parametrize("mapped", [False, True])
def test_other_sources_leave_them_as_they_are(
    spark: SparkSession, tmp_path: Path, mapped: bool
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    pq.write_table(pa.table({"at": pa.array(CLOCK, pa.timestamp("us"))}), files / "1.parquet")
    found = counts(spark, FileSource(f"{files}/*.parquet"), tmp_path, mapped)
    clock = [int(at.replace(tzinfo=UTC).timestamp()) for at in CLOCK]
    assert found == {second - second % 3_600: 1 for second in clock}


def counts(spark: SparkSession, source: Any, directory: Path, mapped: bool) -> dict[int, int]:
    store = SqliteStore(directory / "metrics.db")
    pipeline = Pipeline("times", checkpoint=str(directory / "state"))
    step: Any = pipeline.source(source)
    if mapped:
        step = step.map(same)
    step.to(MetricsSink(store, hours, sink_id="times", metrics=[HITS]))
    pipeline.on_spark(spark).run_batch("once")
    return {item.time_bucket: item.count for item in store.read(HITS, "times")}
