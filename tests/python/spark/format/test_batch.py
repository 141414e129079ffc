"""`df.write`: idempotent with a txnId, at-least-once without."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from batchqueue.aggregation import Aggregation, Metrics, Sum
from batchqueue.outputs import SqliteStore
from batchqueue.spark import SinkError, register
from spark_support.flight_job import (
    ARROW,
    DEPARTURES,
    SCHEMA,
    difference,
    expected,
    flight_job,
    stored,
)
from spark_support.pyspark_version import VERSION, needs_batch_sink

pytestmark = needs_batch_sink

REFUSED = r"needs pyspark 4\.1 or later, and here is .*: give MetricsWriter\(job\)\.write_epoch to"


def write(table: DataFrame, format_name: str, mode: str = "append", **options: Any) -> None:
    table.write.format(format_name).mode(mode).options(**options).save()


def total(store: SqliteStore, sink_id: str = "flights") -> int:
    return sum(stored(store, sink_id)["departures"].values())


@pytest.mark.parametrize("l1", [{}, {"items": None, "arrow": [ARROW]}], ids=["items", "arrow"])
def test_batch_is_equal_to_spark_sql(
    spark: SparkSession, flights: Path, store: SqliteStore, table: DataFrame, l1: dict[str, Any]
) -> None:
    write(table.repartition(3), register(spark, flight_job(store, **l1)))
    assert difference(stored(store), expected(spark, flights)) == []


def test_txn_id_makes_a_batch_idempotent_and_overwrite_replaces(
    spark: SparkSession, store: SqliteStore, table: DataFrame
) -> None:
    format_name = register(spark, flight_job(store))
    rows = table.count()
    for options, times in (
        ({"txnId": "a"}, 1),
        ({"txnId": "a"}, 1),
        ({"txnId": "b"}, 2),
        ({}, 3),
        ({}, 4),
    ):
        write(table, format_name, **options)
        assert total(store) == times * rows
    write(table, format_name, sinkId="other")
    write(table, format_name, mode="overwrite")
    assert (total(store), total(store, "other")) == (rows, rows)


def items_with_an_unknown_type(batch: pa.RecordBatch) -> Iterator[Metrics | str]:
    yield DEPARTURES("A", 0)
    yield "no metric"


def test_batch_that_fails_names_the_reason_and_commits_nothing(
    spark: SparkSession, store: SqliteStore, table: DataFrame
) -> None:
    format_name = register(spark, flight_job(store, items=items_with_an_unknown_type))
    with pytest.raises(
        PySparkException, match=r"lost \d+ of \d+ items .*every type that `items` makes must be in"
    ):
        write(table, format_name)
    assert total(store) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tags": ["A", "B"]}, r"lost \d+ of \d+ items .*every tag in one of `arrow`"),
        (
            {"type_column": "delay"},
            "column 'delay' is a double, and the job reads it as type_column, which takes text or",
        ),
    ],
)
def test_arrow_step_that_fails_names_the_reason_and_commits_nothing(
    spark: SparkSession, store: SqliteStore, table: DataFrame, changes: dict[str, Any], message: str
) -> None:
    job = flight_job(store, items=None, arrow=[replace(ARROW, **changes)])
    with pytest.raises(PySparkException, match=message):
        write(table, register(spark, job))
    assert not store.path.exists() or total(store) == 0


def test_missing_column_fails_the_batch_immediately(
    spark: SparkSession, store: SqliteStore, table: DataFrame
) -> None:
    with pytest.raises(PySparkException, match="needs column carrier, but the rows have id, hour"):
        write(table.drop("carrier"), register(spark, flight_job(store)))
    late = Aggregation(keys=["carrier"], measures={"late": Sum("late")})
    job = flight_job(store, items=None, arrow=[replace(ARROW, aggregation=late)])
    with pytest.raises(PySparkException, match="needs column late, but the rows have id, carrier"):
        write(table, register(spark, job))
    assert not store.path.exists()


@pytest.mark.skipif(VERSION >= (4, 1), reason="this pyspark has what a stream needs")
def test_stream_into_the_format_is_refused_and_the_writer_named(
    spark: SparkSession, flights: Path, store: SqliteStore, tmp_path: Path
) -> None:
    source = spark.readStream.schema(SCHEMA).parquet(str(flights))
    writer = source.writeStream.format(register(spark, flight_job(store))).trigger(
        availableNow=True
    )
    with pytest.raises(StreamingQueryException, match=REFUSED):
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert not store.path.exists()


def test_missing_arrow_for_streams_is_detected_by_class(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions that have it are made to look as if they had not."""
    from pyspark.sql import datasource

    from batchqueue.spark.driver.format import data_source

    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter", raising=False)
    source = data_source(flight_job(store))({})
    with pytest.raises(SinkError, match=REFUSED):
        source.streamWriter(SCHEMA, overwrite=False)
