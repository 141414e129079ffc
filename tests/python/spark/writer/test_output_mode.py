"""A stream whose epochs repeat results of earlier ones is refused, where Spark says so."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batchqueue.aggregation import Count, CountMetrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter
from batchqueue.spark.driver.metrics_writer import check_output_mode

COUNTS = metric_type("counts", CountMetrics)


def streamed(
    spark: SparkSession, tmp_path: Path, store: SqliteStore, mode: str, *, grouped: bool
) -> int:
    """Runs a stream of two epochs into a store, and returns what it has counted there."""
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(2):
        (folder / f"{file}.csv").write_text("a\nb\n")
    rows = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1).csv(str(folder))
    counted = ArrowAggregation(keys=["k"], metrics={COUNTS: Count()})
    writer = MetricsWriter(AggregationJob(name="modes", arrow=[counted], store=store))
    stream = (rows.groupBy("k").count() if grouped else rows).writeStream.outputMode(mode)
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.foreachBatch(writer.write_epoch).trigger(availableNow=True).start().awaitTermination()
    return sum(item.count for item in store.read(COUNTS, "modes"))


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_stream_whose_epochs_repeat_groups_is_refused(
    spark: SparkSession, tmp_path: Path, store: SqliteStore, mode: str
) -> None:
    with pytest.raises(Exception, match=rf"outputMode\('{mode}'\).*use outputMode\('append'\)"):
        streamed(spark, tmp_path, store, mode, grouped=True)


@pytest.mark.parametrize("mode", ["append", "update"])
def test_stream_without_an_aggregation_may_be_in_mode_update(
    spark: SparkSession,
    tmp_path: Path,
    store: SqliteStore,
    mode: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert streamed(spark, tmp_path, store, mode, grouped=False) == 4
    assert "does not say the output mode" not in caplog.text


def test_mode_that_spark_does_not_say_is_warned_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    ended = "00000000-0000-0000-0000-000000000000"
    check_output_mode(spark.range(1), ended, "modes")
    assert f"sink modes: Spark does not say the output mode of query {ended}" in caplog.text
