"""Spark reads the directory of a `FileSink` as it is."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batchqueue.pipeline import FileSink


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_spark_sees_the_rows_of_committed_cuts(spark: SparkSession, tmp_path: Path, format: str):
    sink = FileSink(tmp_path / "out", format=format)
    for cut in range(1, 4):
        sink.write([pa.record_batch({"n": pa.array(range(100), pa.int64()), "cut": [cut] * 100})])
        sink.commit(cut, {"orders": {"cut": cut}})
    sink.write([pa.record_batch({"n": pa.array([1], pa.int64()), "cut": [4]})])
    frame = spark.read.option("header", True).format(format).load(str(tmp_path / "out"))
    assert frame.columns == ["n", "cut"]
    assert frame.groupBy("cut").count().count() == 3
    assert frame.count() == 300
