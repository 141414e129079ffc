"""The proof: every stored aggregate is compared with Spark SQL over the same files."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from batchqueue.aggregation import (
    CountMetrics,
    MaxMetrics,
    MeanMetrics,
    Metrics,
    Ranking,
    SumMetrics,
)
from batchqueue.cli.demo.data import SCHEMA_DDL, FlightFiles
from batchqueue.cli.demo.measures import MEASURES, NEW_YORK, WORST_DELAYS, Measures
from batchqueue.cli.demo.results import Results

FLOAT_TOLERANCE = 1e-9
"""Relative; ints and strings must be equal."""

_MEASURES_SQL = """
    SELECT {column} AS entity, unix_seconds(time_hour) AS bucket,
           count(dep_time) AS departures, avg(dep_delay) AS mean_delay, max(dep_delay) AS max_delay,
           count_if(dep_time IS NULL) AS cancellations, sum(distance) AS distance
    FROM flights GROUP BY entity, bucket
"""
_WORST_SQL = """
    SELECT bucket, dep_delay, flight_id FROM (
        SELECT *, row_number() OVER (PARTITION BY bucket ORDER BY dep_delay DESC, flight_id) AS rank
        FROM (
            SELECT *, unix_seconds(date_trunc('DAY', time_hour)) AS bucket FROM flights
            WHERE dep_delay IS NOT NULL))
    WHERE rank <= {limit} ORDER BY bucket, rank
"""

Key = tuple[str, int]


@dataclass(frozen=True)
class Difference:
    """An aggregate that differs from Spark SQL's.

    Attributes:
        metric: Name of the metric.
        entity: Its entity.
        bucket: Start of its bucket, in seconds since the epoch, UTC.
        stored: The value in the database; None also if the database lacks the group.
        expected: The value that Spark SQL computed; None also if Spark SQL lacks the group.
    """

    metric: str
    entity: str
    bucket: int
    stored: Any
    expected: Any

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.bucket, UTC).strftime("%Y-%m-%d %H:%M")
        values = f"stored {self.stored}, Spark SQL {self.expected}"
        return f"{self.metric} of {self.entity} at {when}: {values}"


@dataclass(frozen=True)
class Comparison:
    """Outcome of a check.

    Attributes:
        compared: Number of aggregates compared.
        differences: The aggregates that differ.
    """

    compared: int
    differences: tuple[Difference, ...]


def compare_with_spark_sql(spark: SparkSession, files: FlightFiles, results: Results) -> Comparison:
    """Compute every aggregate with Spark SQL and compare it with the stored value.

    Args:
        spark: A session whose time zone is UTC.
        files: The flights.
        results: The stored metrics.

    Returns:
        The number compared and the differences, among them groups that only one side has.
    """
    spark.read.schema(SCHEMA_DDL).parquet(str(files.directory)).createOrReplaceTempView("flights")
    return combined(
        compared(
            metric_type,
            {metrics.key: value_of(metrics) for metrics in results.of(metric_type)},
            expected,
        )
        for metric_type, expected in _expected(spark)
    )


def compared(
    metric_type: type[Metrics], stored: Mapping[Key, Any], expected: Mapping[Key, Any]
) -> Comparison:
    """Compare the values of a metric by key, also those that only one side has."""
    keys = sorted(stored.keys() | expected.keys())
    differences = tuple(
        Difference(metric_type.name, *key, stored.get(key), expected.get(key))
        for key in keys
        if key not in stored or key not in expected or not _equal(stored[key], expected[key])
    )
    return Comparison(len(keys), differences)


def combined(comparisons: Iterable[Comparison]) -> Comparison:
    """Return several comparisons as one."""
    total = 0
    differences: list[Difference] = []
    for each in comparisons:
        total += each.compared
        differences += each.differences
    return Comparison(total, tuple(differences))


def _expected(spark: SparkSession) -> Iterator[tuple[type[Metrics], Mapping[Key, Any]]]:
    """Yield each metric type with Spark's values by key."""
    for column, groups in MEASURES.items():
        rows = spark.sql(_MEASURES_SQL.format(column=column)).toArrow().to_pylist()
        by_entity: dict[str, list[dict[str, Any]]] = {entity: [] for entity in groups}
        for row in rows:
            by_entity[row["entity"]].append(row)
        for entity, measures in groups.items():
            for measure, metric_type in zip(Measures._fields, measures, strict=True):
                yield (
                    metric_type,
                    {(entity, row["bucket"]): row[measure] for row in by_entity[entity]},
                )
    worst: dict[Key, list[tuple[int, str]]] = {}
    for row in spark.sql(_WORST_SQL.format(limit=WORST_DELAYS.limit)).toArrow().to_pylist():
        worst.setdefault((NEW_YORK, row["bucket"]), []).append((row["dep_delay"], row["flight_id"]))
    yield WORST_DELAYS, worst


def value_of(metrics: Metrics) -> Any:
    """Return the stored value to compare."""
    match metrics:
        case CountMetrics():
            return metrics.count
        case MaxMetrics() | MeanMetrics():
            return metrics.value
        case SumMetrics():
            return metrics.total
        case Ranking():
            return [(entry.score, entry.id) for entry in metrics.entries]
    raise TypeError(f"the check cannot compare {type(metrics).__name__}")


def _equal(stored: Any, expected: Any) -> bool:
    if isinstance(stored, float) and isinstance(expected, float):
        return math.isclose(stored, expected, rel_tol=FLOAT_TOLERANCE)
    return type(stored) is type(expected) and bool(stored == expected)
