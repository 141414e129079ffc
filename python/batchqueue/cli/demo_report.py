"""The proof: every stored aggregate is compared with Spark SQL over the same files."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from pyspark.sql import SparkSession
from rich import box
from rich.console import Console
from rich.table import Table

from batchqueue.aggregation import (
    CountMetrics,
    MaxMetrics,
    MeanMetrics,
    Metrics,
    Ranking,
    SumMetrics,
)
from batchqueue.cli.demo_job import (
    MEASURES,
    METRICS,
    NEW_YORK,
    SCHEMA_DDL,
    WORST_DELAYS,
    FlightFiles,
    L1Speeds,
    Measures,
)
from batchqueue.outputs import SqliteStore

# The stored metrics, read once for the check, the report and the picture.


M = TypeVar("M", bound=Metrics)


class Results:
    """All metrics of the demo in a store."""

    def __init__(self, store: SqliteStore, sink_id: str) -> None:
        """Read the metrics.

        Args:
            store: The database of the demo.
            sink_id: The sink that wrote them.
        """
        self._metrics: Mapping[type[Metrics], list[Metrics]] = {
            metric_type: store.read(metric_type, sink_id) for metric_type in METRICS
        }

    def of(self, metric_type: type[M]) -> list[M]:
        """Return the metrics of a type, ordered by entity and time bucket."""
        # The key of each list is the type of its values.
        return self._metrics[metric_type]  # type: ignore[return-value]

    def over_time(self, metric_type: type[M]) -> M:
        """Return all metrics of a type combined; there must be at least one."""
        return _combined(self.of(metric_type))

    def hourly_delay(self) -> dict[int, float | None]:
        """Return the mean delay in minutes of all flights, by the start of the hour.

        The hour is in seconds since the epoch, UTC; the delay is None if all flights of the hour
        were cancelled.
        """
        hours: dict[int, list[MeanMetrics]] = {}
        for measures in MEASURES["origin"].values():
            for mean in self.of(measures.mean_delay):
                hours.setdefault(mean.time_bucket, []).append(mean)
        return {hour: _combined(means).value for hour, means in hours.items()}


def _combined(metrics: Sequence[M]) -> M:
    """Combine metrics, whatever their entities and buckets are."""
    combined = metrics[0].copy()
    for partial in metrics[1:]:
        combined.combine(partial)
    return combined


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


# The sums of the ledger's summaries over micro-batches.


OUTCOMES = ("produced", "consumed", "failed", "refused", "unhandled", "abandoned")
"""The outcomes by which a stage counts its items."""

EpochSummary = dict[str, Any]
"""The summary of an epoch; `batchqueue.spark` defines its fields."""


def read_epochs(store: SqliteStore, sink_id: str) -> list[EpochSummary]:
    """Return the summaries of all applied epochs, the oldest first."""
    return [epoch.summary for epoch in store.summaries(sink_id)]


@dataclass(frozen=True)
class EpochTotals:
    """Sums over epochs.

    Attributes:
        rows: Number of rows read.
        items: Number of items made of them.
        refused: Number of items that any stage refused.
        stages: Number of items by outcome, for each stage.
        peak_used_percent: Peak use of the fullest partition, 0 to 100, for each stage.
        drain_cpu_s: CPU seconds of drain threads, with their handlers.
        rest_cpu_s: CPU seconds of the Python workers without drain threads.
    """

    rows: int
    items: int
    refused: int
    stages: dict[str, Counter[str]]
    peak_used_percent: dict[str, float]
    drain_cpu_s: float
    rest_cpu_s: float

    @classmethod
    def of(cls, epochs: Sequence[EpochSummary]) -> Self:
        """Return the sums over `epochs`; all are 0 without epochs."""
        stages: dict[str, Counter[str]] = {}
        peaks: dict[str, float] = {}
        for epoch in epochs:
            for stage, counts in epoch["stages"].items():
                stages.setdefault(stage, Counter()).update(
                    {name: counts[name] for name in OUTCOMES}
                )
                peaks[stage] = max(peaks.get(stage, 0.0), counts["peak_used_percent"])
        return cls(
            rows=sum(epoch["rows"] for epoch in epochs),
            items=sum(epoch["items"] for epoch in epochs),
            refused=sum(counts["refused"] for counts in stages.values()),
            stages=stages,
            peak_used_percent=peaks,
            drain_cpu_s=sum(epoch["drain_cpu_s"] + epoch["commit_drain_cpu_s"] for epoch in epochs),
            rest_cpu_s=sum(epoch["rest_cpu_s"] + epoch["commit_rest_cpu_s"] for epoch in epochs),
        )


# The report that the demo prints after the stream.


_WORST_SHOWN = 3
_DIFFERENCES_SHOWN = 10


def print_results(console: Console, results: Results) -> None:
    """Print a line per carrier and airport, and the longest delays of the whole period."""
    table = Table(box=box.SIMPLE_HEAD, title="Flights from New York", title_justify="left")
    table.add_column("")
    for heading in ("departures", "mean delay", "max delay", "cancelled", "miles"):
        table.add_column(heading, justify="right")
    for groups in MEASURES.values():
        for entity, measures in groups.items():
            if results.of(measures.departures):
                table.add_row(entity, *_cells(results, measures))
        table.add_section()
    console.print(table)
    ranked = [entry for day in results.of(WORST_DELAYS) for entry in day.entries]
    for entry in sorted(ranked, key=lambda entry: (-entry.score, entry.id))[:_WORST_SHOWN]:
        console.print(f"{entry.score:>6,} min  {entry.id}")


def _cells(results: Results, measures: Measures) -> list[str]:
    """Return the cells of a carrier or airport."""
    departures = results.over_time(measures.departures)
    mean_delay = results.over_time(measures.mean_delay)
    max_delay = results.over_time(measures.max_delay)
    cancellations = results.over_time(measures.cancellations)
    distance = results.over_time(measures.distance)
    return [
        f"{departures.count:,}",
        "-" if mean_delay.value is None else f"{mean_delay.value:.1f} min",
        "-" if max_delay.value is None else f"{max_delay.value:,} min",
        f"{cancellations.count:,}",
        f"{distance.total:,}",
    ]


def print_stages(console: Console, totals: EpochTotals) -> None:
    """Print the outcomes of the items of each stage, and the CPU time of the drain threads."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, title="Items by stage", title_justify="left")
    table.add_column("")
    for outcome in OUTCOMES:
        table.add_column(outcome, justify="right")
    table.add_column("queue use", justify="right")
    for stage, counts in totals.stages.items():
        cells = [f"{counts[outcome]:,}" for outcome in OUTCOMES]
        table.add_row(stage, *cells, f"{totals.peak_used_percent[stage]:.0f} %")
    console.print(table)
    console.print(
        f"CPU of the Python workers: drain threads with handlers {totals.drain_cpu_s:.1f} s, "
        f"the rest {totals.rest_cpu_s:.1f} s"
    )


def print_rate(console: Console, this_run: EpochTotals, seconds: float) -> None:
    """Print the speed of the stream of this run."""
    if this_run.rows:
        console.print(
            f"stream: {this_run.rows:,} rows in {seconds:.1f} s, "
            f"{this_run.rows / seconds:,.0f} rows/s, {this_run.items / seconds:,.0f} items/s"
        )
    else:
        console.print("stream: all files were read by an earlier run, nothing is new")


def print_speeds(console: Console, speeds: L1Speeds) -> None:
    """Print the speeds of L1 in Python and in Rust."""
    console.print(
        f"L1 alone, {speeds.rows:,} rows in one process: "
        f"Python handlers {speeds.python:,.0f} rows/s, "
        f"Rust aggregators {speeds.rust:,.0f} rows/s, {speeds.rust / speeds.python:.0f} x"
    )
    if not speeds.are_equal:
        console.print("their partials differ", style="red")


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the verdict, and the first differences."""
    differences = comparison.differences
    if not differences:
        console.print(f"{comparison.compared:,} aggregates: equal to Spark SQL", style="green")
        return
    metrics = sorted({difference.metric for difference in differences})
    console.print(
        f"{len(differences):,} of {comparison.compared:,} aggregates differ from Spark SQL, "
        f"in {', '.join(metrics)}:",
        style="red",
    )
    for difference in differences[:_DIFFERENCES_SHOWN]:
        console.print(f"  {difference}")
