"""Buckets in local time: Spark SQL, tasks, and `zoneinfo` minute by minute agree."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from aggregation_zones import DAY, MONDAY, WIDTHS, ZONES, minutes, starts
from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Metrics,
    Window,
    bucket_start,
    metric_type,
)
from batchqueue.outputs import MetricsStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter
from batchqueue.spark.driver.pushdown import bucket_in_sql
from batchqueue.spark.task.arrow import to_arrow

HITS = metric_type("hits", CountMetrics)
NEW_YORK = "America/New_York"


@pytest.fixture(params=["UTC", "Asia/Tokyo"])
def session_zone(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("zone", ZONES)
def test_spark_sql_makes_the_buckets_that_zoneinfo_says(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    times, offsets = minutes(zone)
    changes = np.flatnonzero(np.diff(offsets))
    # Minutes around a change, and every third hour: the change may be weeks ago.
    distance = np.abs(np.arange(len(times))[:, None] - changes[None, :]).min(axis=1, initial=9_999)
    chosen = (distance < 200) | (np.arange(len(times)) % 180 == 0)
    wanted = [starts(times, offsets, width, offset) for width, offset in WIDTHS]
    complete = chosen & (np.min(wanted, axis=0) > times[0])
    pq.write_table(
        pa.table({"second": times[complete], "no": pa.nulls(complete.sum(), pa.int64())}),
        tmp_path / "times.parquet",
    )
    rows = spark.read.parquet(str(tmp_path / "times.parquet"))
    rows = rows.withColumn("at", fn.timestamp_seconds("second"))
    columns = []
    for number, (width, offset) in enumerate(WIDTHS):
        column = ("second", "at")[number % 2]
        window = Window(column, width, zone=zone, offset_seconds=offset)
        start = fn.expr(bucket_in_sql(window, rows.schema))
        columns.append((start if column == "second" else fn.unix_seconds(start)).alias(str(number)))
    none = fn.expr(bucket_in_sql(Window("no", DAY, zone=zone), rows.schema))
    found = to_arrow(rows.select(*columns, none.alias("none")))
    for number, case in enumerate(WIDTHS):
        start = found.column(str(number)).to_numpy()
        assert np.array_equal(start, wanted[number][complete]), case
    assert found.column("none").null_count == complete.sum()


WINDOWS = {
    "hour": {"seconds": 3_600},
    "day": {"seconds": DAY},
    "gas day": {"seconds": DAY, "offset_seconds": 6 * 3_600},
    "week": {"seconds": 7 * DAY, "offset_seconds": MONDAY},
}


def items(rows: pa.RecordBatch) -> Iterator[Metrics]:
    for at, second in zip(rows["at"].to_pylist(), rows["second"].to_pylist(), strict=True):
        for name, window in WINDOWS.items():
            for column, time in (("at", at), ("second", second)):
                start = -1 if time is None else bucket_start(time, zone=NEW_YORK, **window)
                yield HITS(f"{name} of {column}", start)


def counting(name: str, column: str) -> ArrowAggregation:
    def hits(groups: pa.RecordBatch) -> Iterator[Metrics]:
        for row in groups.to_pylist():
            start = row["start"]
            if isinstance(start, datetime):
                start = int(start.timestamp())
            yield HITS(f"{name} of {column}", -1 if start is None else start, row["rows"])

    window = Window(column, name="start", zone=NEW_YORK, **WINDOWS[name])
    aggregation = Aggregation(keys=[], window=window, measures={"rows": Count()})
    return ArrowAggregation(aggregation=aggregation, metrics=hits)


DECLARED = [counting(name, column) for name in WINDOWS for column in ("at", "second")]


def clocks_changes(spark: SparkSession) -> DataFrame:
    """Every tenth minute of the weeks in which New York's clock was changed in 2024."""
    seconds = [
        int(datetime(2024, *day, tzinfo=UTC).timestamp()) + 600 * step
        for day in ((3, 5), (10, 30))
        for step in range(8 * 144)
    ]
    rows = ", ".join(f"({second})" for second in seconds)
    frame = spark.sql(f"SELECT * FROM VALUES {rows}, (CAST(NULL AS bigint)) AS t(second)")
    return frame.withColumn("at", fn.timestamp_seconds("second")).repartition(2)


@pytest.mark.parametrize("kind", ["store", "parquet", "postgres"])
def test_items_tasks_and_spark_sql_count_the_same_over_both_changes_of_the_clock(
    spark: SparkSession, session_zone: str, request: pytest.FixtureRequest, kind: str
) -> None:
    if kind != "store" and session_zone != "UTC":
        pytest.skip("the zone of the session reaches no store")
    store: MetricsStore = request.getfixturevalue(kind)
    rows = clocks_changes(spark).cache()

    def count(sink: str, l1: Any, **way: Any) -> dict[tuple[str, int], int]:
        job = AggregationJob(name="hits", metrics=[HITS], store=store, **way)
        MetricsWriter(job, l1=l1, sinkId=sink).write_batch(rows, txn_id="once")
        return {item.key: item.count for item in store.read(HITS, sink)}

    by_items = count("items", "tasks", items=items)
    assert count("tasks", "tasks", arrow=DECLARED) == by_items
    assert count("spark", "spark", arrow=DECLARED) == by_items
    rows.unpersist()
    of_days = {key[1]: rows for key, rows in by_items.items() if key[0] == "day of at"}
    for day, hours in (((3, 10), 23), ((11, 3), 25), ((11, 4), 24)):
        midnight = bucket_start(datetime(2024, *day), DAY, zone=NEW_YORK)
        assert of_days[midnight] == 6 * hours
    of_hours = {key[1]: rows for key, rows in by_items.items() if key[0] == "hour of at"}
    twice = bucket_start(datetime(2024, 11, 3, 1), 3_600, zone=NEW_YORK)
    assert (of_hours[twice], of_hours[twice + 3_600], of_hours[-1]) == (6, 6, 1)
