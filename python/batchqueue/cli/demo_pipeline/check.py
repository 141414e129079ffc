"""The proof: every aggregate of the pipeline is compared with Spark SQL over the same files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from batchqueue.aggregation import Metrics
from batchqueue.cli.demo_job import SCHEMA_DDL, FlightFiles
from batchqueue.cli.demo_pipeline.flow import DELAY, DEPARTURES, LONGEST_DELAY, METRICS, MILES
from batchqueue.cli.demo_report import Comparison, combined, compared, value_of
from batchqueue.outputs import SqliteStore

_SQL = """
    SELECT carrier, unix_seconds(time_hour) AS hour, count(*) AS departures,
           sum(dep_delay) AS delay, max(dep_delay) AS longest_delay, sum(distance) AS miles
    FROM flights WHERE dep_time IS NOT NULL GROUP BY carrier, hour
"""
_COLUMNS = {
    DEPARTURES: "departures",
    DELAY: "delay",
    LONGEST_DELAY: "longest_delay",
    MILES: "miles",
}

Values = Mapping[type[Metrics], Mapping[tuple[str, int], Any]]
"""The value of each metric, by carrier and hour."""


def expected_values(spark: SparkSession, files: FlightFiles) -> Values:
    """Return the values that Spark SQL computes.

    Args:
        spark: A session whose time zone is UTC.
        files: The flights.
    """
    spark.read.schema(SCHEMA_DDL).parquet(str(files.directory)).createOrReplaceTempView("flights")
    rows = spark.sql(_SQL).toArrow().to_pylist()
    return {
        metric: {(row["carrier"], row["hour"]): row[column] for row in rows}
        for metric, column in _COLUMNS.items()
    }


def stored_values(database: Path, sink_id: str = "default") -> Values:
    """Return the values that a pipeline has stored."""
    store = SqliteStore(database)
    return {
        metric: {found.key: value_of(found) for found in store.read(metric, sink_id)}
        for metric in METRICS
    }


def compare(stored: Values, expected: Values) -> Comparison:
    """Compare all values, also those that only one side has."""
    return combined(compared(metric, stored[metric], expected[metric]) for metric in METRICS)
