"""The proof, every stored aggregate compared with Spark SQL; what the demo prints and draws."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar
from zoneinfo import ZoneInfo

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from pyspark.sql import SparkSession
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
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

# The stored metrics, read once for the check, the report and the image.


M = TypeVar("M", bound=Metrics)


class Results:
    """All metrics of the demo in a store."""

    def __init__(self, store: SqliteStore, sink_id: str) -> None:
        """Load the metrics.

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
        """Return the mean delay of all flights in minutes, by the start of the hour.

        The hour is in seconds since the epoch, UTC; the delay is None if all flights of the hour
        were cancelled.
        """
        hours: dict[int, list[MeanMetrics]] = {}
        for measures in MEASURES["origin"].values():
            for mean in self.of(measures.mean_delay):
                hours.setdefault(mean.time_bucket, []).append(mean)
        return {hour: _combined(means).value for hour, means in hours.items()}


def _combined(metrics: Sequence[M]) -> M:
    """Combine metrics, regardless of their entities and buckets."""
    combined = metrics[0].copy()
    for partial in metrics[1:]:
        combined.combine(partial)
    return combined


FLOAT_TOLERANCE = 1e-9
"""The relative tolerance for floats; ints and strings must be equal."""

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
    compared, differences = 0, []
    for metric_type, expected in _expected(spark):
        stored = {metrics.key: _value(metrics) for metrics in results.of(metric_type)}
        keys = sorted(stored.keys() | expected.keys())
        compared += len(keys)
        differences += [
            Difference(metric_type.name, *key, stored.get(key), expected.get(key))
            for key in keys
            if key not in stored or key not in expected or not _equal(stored[key], expected[key])
        ]
    return Comparison(compared, tuple(differences))


def _expected(spark: SparkSession) -> Iterator[tuple[type[Metrics], Mapping[Key, Any]]]:
    """Yield each metric type with Spark's values by key."""
    for column, groups in MEASURES.items():
        rows: dict[str, dict[Key, Any]] = {entity: {} for entity in groups}
        for row in spark.sql(_MEASURES_SQL.format(column=column)).toArrow().to_pylist():
            rows[row["entity"]][row["entity"], row["bucket"]] = row
        for entity, measures in groups.items():
            for measure, metric_type in zip(Measures._fields, measures, strict=True):
                yield metric_type, {key: row[measure] for key, row in rows[entity].items()}
    worst: dict[Key, list[tuple[int, str]]] = {}
    for row in spark.sql(_WORST_SQL.format(limit=WORST_DELAYS.limit)).toArrow().to_pylist():
        worst.setdefault((NEW_YORK, row["bucket"]), []).append((row["dep_delay"], row["flight_id"]))
    yield WORST_DELAYS, worst


def _value(metrics: Metrics) -> Any:
    """Return the stored value to compare."""
    match metrics:
        case Ranking():
            return [(entry.score, entry.id) for entry in metrics.entries]
        case CountMetrics():
            return metrics.count
        case MaxMetrics() | MeanMetrics():  # a mean is a sum as well
            return metrics.value
        case SumMetrics():
            return metrics.total
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
        stages: Number of items by outcome, for each stage.
        peak_used_percent: Peak use of the fullest partition, 0 to 100, for each stage.
        drain_cpu_s: CPU seconds of drain threads, with their handlers.
        rest_cpu_s: CPU seconds of the Python workers without drain threads.
    """

    rows: int
    items: int
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
                outcomes = {name: counts[name] for name in OUTCOMES}
                stages.setdefault(stage, Counter()).update(outcomes)
                peaks[stage] = max(peaks.get(stage, 0.0), counts["peak_used_percent"])
        return cls(
            rows=sum(epoch["rows"] for epoch in epochs),
            items=sum(epoch["items"] for epoch in epochs),
            stages=stages,
            peak_used_percent=peaks,
            drain_cpu_s=sum(epoch["drain_cpu_s"] + epoch["commit_drain_cpu_s"] for epoch in epochs),
            rest_cpu_s=sum(epoch["rest_cpu_s"] + epoch["commit_rest_cpu_s"] for epoch in epochs),
        )


# The report that the demo prints after the stream.


_WORST_SHOWN = 3
_DIFFERENCES_SHOWN = 10


def _table(title: str, *headings: str, **options: Any) -> Table:
    table = Table("", box=box.SIMPLE_HEAD, title=title, title_justify="left", **options)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def print_results(console: Console, results: Results) -> None:
    """Print a line per carrier and airport, and the longest delays of the whole period."""
    headings = ("departures", "mean delay", "max delay", "cancelled", "miles")
    table = _table("Flights from New York", *headings)
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
    mean_delay = results.over_time(measures.mean_delay).value
    max_delay = results.over_time(measures.max_delay).value
    return [
        f"{results.over_time(measures.departures).count:,}",
        "-" if mean_delay is None else f"{mean_delay:.1f} min",
        "-" if max_delay is None else f"{max_delay:,} min",
        f"{results.over_time(measures.cancellations).count:,}",
        f"{results.over_time(measures.distance).total:,}",
    ]


def print_stages(console: Console, totals: EpochTotals) -> None:
    """Print the outcomes of the items of each stage, and the CPU time of the drain threads."""
    table = _table("Items by stage", *OUTCOMES, "queue use", padding=0)
    for stage, counts in totals.stages.items():
        cells = [f"{counts[outcome]:,}" for outcome in OUTCOMES]
        table.add_row(stage, *cells, f"{totals.peak_used_percent[stage]:.0f} %")
    console.print(table)
    console.print(
        f"CPU of the Python workers: drain threads with handlers {totals.drain_cpu_s:.1f} s, "
        f"the rest {totals.rest_cpu_s:.1f} s"
    )


def print_rates(console: Console, this_run: EpochTotals, seconds: float, speeds: L1Speeds) -> None:
    """Print the speed of the stream of this run, and those of L1 in Python and in Rust."""
    if this_run.rows:
        console.print(
            f"stream: {this_run.rows:,} rows in {seconds:.1f} s, "
            f"{this_run.rows / seconds:,.0f} rows/s, {this_run.items / seconds:,.0f} items/s"
        )
    else:
        console.print("stream: all files were read by an earlier run, nothing is new")
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


# Progress while a step runs, so that output never stops, even if it is not a terminal.


_LINE_INTERVAL_S = 5.0


@contextmanager
def step(console: Console, title: str) -> Iterator[None]:
    """Show a step while the block runs: a spinner with its time in a terminal, else `lines`."""
    if not console.is_terminal:
        with lines(console, title):
            yield
        return
    columns = (SpinnerColumn(), "{task.description}", TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(title, total=None)
        yield


@contextmanager
def lines(console: Console, title: str) -> Iterator[None]:
    """Print a line when the block begins, and one every five seconds until it ends."""
    ended = threading.Event()
    began = time.monotonic()

    def print_time() -> None:
        while not ended.wait(_LINE_INTERVAL_S):
            console.print(f"{title} ... {time.monotonic() - began:.0f} s")

    console.print(f"{title} ...")
    printer = threading.Thread(target=print_time, name="demo-progress", daemon=True)
    printer.start()
    try:
        yield
    finally:
        ended.set()
        printer.join()


# The image: mean delay of every hour, and items per drain thread.


_NEW_YORK_TIME = ZoneInfo("America/New_York")

_LATE_MINUTES = 60.0
"""The darkest colour; the few longer delays share it, because they would bleach all others."""


def draw(
    path: Path, hourly_delay: Mapping[int, float | None], load: Sequence[Sequence[int]]
) -> None:
    """Write the image as a PNG file.

    Args:
        path: The file to write.
        hourly_delay: Mean departure delay in minutes by hour (its first second since the epoch,
            UTC); None for an hour in which all flights were cancelled. At least one hour.
        load: For each micro-batch, the number of items that drain thread 0, 1, ... handled.
    """
    with matplotlib.rc_context({"date.converter": "concise"}):
        figure = Figure(figsize=(12, 8), layout="constrained")
        delays, threads = figure.subplots(2, 1, height_ratios=[2, 1])
        _draw_delays(delays, hourly_delay)
        _draw_load(threads, load)
        figure.savefig(path, dpi=120)


def delays_by_day(
    hourly_delay: Mapping[int, float | None],
) -> tuple[date, npt.NDArray[np.float64]]:
    """Arrange delays by day and hour in New York time, the time of the schedule.

    Args:
        hourly_delay: As for `draw`.

    Returns:
        The first day, and the delays, of shape (24, days): NaN for an hour without departures.
        When summer time ends, the repeated hour shows the later delay; no flight of the demo
        leaves in it.
    """
    hours = {
        datetime.fromtimestamp(bucket, _NEW_YORK_TIME): delay
        for bucket, delay in sorted(hourly_delay.items())
    }
    first = min(hour.date() for hour in hours)
    days = (max(hour.date() for hour in hours) - first).days + 1
    delays = np.full((24, days), np.nan)
    for hour, delay in hours.items():
        delays[hour.hour, (hour.date() - first).days] = np.nan if delay is None else delay
    return first, delays


def _draw_delays(axes: Axes, hourly_delay: Mapping[int, float | None]) -> None:
    """Draw a column per day and a row per hour, which keeps a year of hours readable."""
    first, delays = delays_by_day(hourly_delay)
    edges: Any = [  # untyped, because matplotlib converts dates
        first + timedelta(days=day) for day in range(delays.shape[1] + 1)
    ]
    mesh = axes.pcolormesh(edges, np.arange(25), delays, cmap="YlOrRd", vmin=0, vmax=_LATE_MINUTES)
    axes.set_yticks(np.arange(0, 24, 3) + 0.5, [f"{hour:02d}:00" for hour in range(0, 24, 3)])
    axes.set_facecolor("0.92")
    axes.set_ylabel("hour of scheduled departure, New York time")
    axes.set_title("Mean departure delay of each hour, flights from New York (grey: no departures)")
    axes.figure.colorbar(mesh, ax=axes, extend="both", label="minutes")


def _draw_load(axes: Axes, load: Sequence[Sequence[int]]) -> None:
    """Draw a group of bars per micro-batch, with one bar per drain thread."""
    threads = max((len(items) for items in load), default=0)
    width = 0.8 / max(threads, 1)
    total = sum(map(sum, load))
    for thread in range(threads):
        items = [counts[thread] if thread < len(counts) else 0 for counts in load]
        offsets = np.arange(len(load)) + (thread - (threads - 1) / 2) * width
        axes.bar(offsets, items, width, label=f"drain thread {thread}: {sum(items) / total:.0%}")
    axes.set_xticks(range(len(load)))
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.set_xlabel("micro-batch")
    axes.set_ylabel("items handled")
    axes.set_title("Load per drain thread (L1, all tasks)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=8, frameon=False)
