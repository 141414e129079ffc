"""A small job over made-up flights, its results by Spark SQL, and the results in a store."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Max,
    MaxMetrics,
    MeanMetrics,
    Metrics,
    Min,
    MinMetrics,
    Ranking,
    Sum,
    SumMetrics,
    TopN,
    metric_type,
)
from batchqueue.outputs.store import MetricsStore
from batchqueue.spark import AggregationJob, ArrowAggregation, MetricsWriter, register

DEPARTURES = metric_type("departures", CountMetrics)
DISTANCE = metric_type("distance", SumMetrics, columns={"total": int})
MEAN_DELAY = metric_type("delay.mean", MeanMetrics)
MAX_DELAY = metric_type("delay.max", MaxMetrics)
MIN_DELAY = metric_type("delay.min", MinMetrics)
WORST = metric_type("delay.worst", Ranking, limit=3)
METRICS = (DEPARTURES, DISTANCE, MEAN_DELAY, MAX_DELAY, MIN_DELAY, WORST)

SCHEMA = "id string, carrier string, hour long, delay double, distance long"
FILES = 4
ROWS_PER_FILE = 500

Results = dict[str, dict[tuple[str, int], Any]]


def write_flights(directory: Path) -> Path:
    """Write the flights as parquet files. Some delays are unknown, those of one carrier always."""
    directory.mkdir(parents=True)
    numbers = random.Random(3)
    for file in range(FILES):
        rows = [
            {
                "id": f"flight-{file}-{row}",
                "carrier": (carrier := numbers.choice("AAAABBC")),
                "hour": 3600 * numbers.randrange(48),
                # Few values, so that there are ties.
                "delay": None
                if carrier == "C" or numbers.random() < 0.2
                else numbers.randrange(-20, 200) / 3,
                "distance": numbers.randrange(100, 5_000),
            }
            for row in range(ROWS_PER_FILE)
        ]
        pq.write_table(pa.Table.from_pylist(rows), directory / f"part-{file}.parquet")
    return directory


def items(batch: pa.RecordBatch) -> Iterator[Metrics]:
    for row in batch.to_pylist():
        carrier, hour, delay = row["carrier"], row["hour"], row["delay"]
        yield DEPARTURES(carrier, hour)
        yield DISTANCE(carrier, hour, row["distance"])
        yield MEAN_DELAY(carrier, hour, delay)
        yield MAX_DELAY(carrier, hour, delay)
        yield MIN_DELAY(carrier, hour, delay)
        if delay is not None:
            yield WORST(carrier, hour - hour % 86_400, delay, row["id"])


def partials(groups: pa.RecordBatch) -> Iterator[Metrics]:
    for row in groups.to_pylist():
        carrier, hour = row["carrier"], row["hour"]
        yield DEPARTURES(carrier, hour, row["flights"])
        yield DISTANCE(carrier, hour, row["distance"])
        yield MEAN_DELAY(carrier, hour, row["delay"], row["delays"])
        yield MAX_DELAY(carrier, hour, row["longest"])
        yield MIN_DELAY(carrier, hour, row["shortest"])
        if row["worst"]:
            worst = [(entry["value"], entry["label"], "") for entry in row["worst"]]
            yield WORST.from_rows(carrier, hour - hour % 86_400, worst)


ARROW = ArrowAggregation(
    type_column="carrier",
    tags=["A", "B", "C"],
    aggregation=Aggregation(
        keys=["carrier", "hour"],
        measures={
            "flights": Count(),
            "distance": Sum("distance"),
            "delay": Sum("delay"),
            "delays": Count("delay"),
            "longest": Max("delay"),
            "shortest": Min("delay"),
            "worst": TopN("delay", 3, "id"),
        },
    ),
    metrics=partials,
)
"""The same results as `items`, without items."""


def partials_without_ranking(groups: pa.RecordBatch) -> Iterator[Metrics]:
    rows = groups.to_pylist()
    yield from ARROW.metrics(pa.RecordBatch.from_pylist([{**row, "worst": None} for row in rows]))


DECLARED = replace(
    ARROW,
    aggregation=replace(
        ARROW.aggregation,
        measures={
            name: measure for name, measure in ARROW.aggregation.measures.items() if name != "worst"
        },
    ),
    metrics=partials_without_ranking,
)
"""All measures but the ranking, which Spark SQL does not have in this form."""

NO_RANKING = METRICS[:-1]


def flight_job(store: MetricsStore, **changes: Any) -> AggregationJob:
    columns = ("id", "carrier", "hour", "delay", "distance")
    job = AggregationJob(name="flights", items=items, metrics=METRICS, store=store, columns=columns)
    return replace(job, **changes)


def files_one_by_one(spark: SparkSession, directory: Path) -> DataFrame:
    """Read the files as a stream, one per epoch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(directory))


def start_stream(
    source: DataFrame,
    to: AggregationJob | MetricsWriter | str | Callable[[DataFrame, int], None],
    checkpoint: Path,
    **options: Any,
) -> StreamingQuery:
    """Start a query that ends when there is nothing new, into a format or by foreachBatch."""
    writer = source.writeStream.option("checkpointLocation", str(checkpoint)).trigger(
        availableNow=True
    )
    if isinstance(to, AggregationJob):
        to = register(source.sparkSession, to)
    if isinstance(to, str):
        return writer.format(to).options(**options).start()
    return writer.foreachBatch(to.write_epoch if isinstance(to, MetricsWriter) else to).start()


def into(sink: str, job: AggregationJob) -> AggregationJob | MetricsWriter:
    """Return what `start_stream` takes for a named sink: for "writer" a `MetricsWriter`."""
    return MetricsWriter(job) if sink == "writer" else job


_answers: dict[tuple[object, ...], Results] = {}


def expected(spark: SparkSession, directory: Path, times: int = 1) -> Results:
    """Aggregate the files by Spark SQL, once for the same files.

    Args:
        spark: The session.
        directory: The flights.
        times: How often they were added to the store.
    """
    files = {path: path.stat().st_mtime_ns for path in directory.glob("*.parquet")}
    key = (*sorted(files.items()), times)
    if key not in _answers:
        _answers[key] = _aggregated(spark, directory, times)
    return copy.deepcopy(_answers[key])


def _aggregated(spark: SparkSession, directory: Path, times: int) -> Results:
    files = spark.read.schema(SCHEMA).parquet(*[str(directory)] * times)
    files.createOrReplaceTempView("flights")
    measures = spark.sql(
        "SELECT carrier, hour, count(*) departures, sum(distance) distance, avg(delay) mean,"
        " max(delay) max, min(delay) min FROM flights GROUP BY carrier, hour"
    ).collect()
    worst = spark.sql(
        "SELECT * FROM (SELECT carrier, hour - hour % 86400 day, delay, id, row_number() OVER"
        " (PARTITION BY carrier, hour - hour % 86400 ORDER BY delay DESC, id) rank FROM flights"
        " WHERE delay IS NOT NULL) WHERE rank <= 3 ORDER BY rank"
    ).collect()
    rankings: dict[tuple[str, int], list[tuple[float, str]]] = {}
    for row in worst:
        rankings.setdefault((row.carrier, row.day), []).append((row.delay, row.id))
    return {
        "departures": {(row.carrier, row.hour): row.departures for row in measures},
        "distance": {(row.carrier, row.hour): row.distance for row in measures},
        "delay.mean": {(row.carrier, row.hour): row["mean"] for row in measures},
        "delay.max": {(row.carrier, row.hour): row["max"] for row in measures},
        "delay.min": {(row.carrier, row.hour): row["min"] for row in measures},
        "delay.worst": rankings,
    }


def stored(store: Any, sink_id: str = "flights") -> Results:
    """Read the same results from the store."""
    return {
        "departures": {item.key: item.count for item in store.read(DEPARTURES, sink_id)},
        "distance": {item.key: item.total for item in store.read(DISTANCE, sink_id)},
        "delay.mean": {item.key: item.value for item in store.read(MEAN_DELAY, sink_id)},
        "delay.max": {item.key: item.value for item in store.read(MAX_DELAY, sink_id)},
        "delay.min": {item.key: item.value for item in store.read(MIN_DELAY, sink_id)},
        "delay.worst": {
            item.key: [(entry.score, entry.id) for entry in item.entries]
            for item in store.read(WORST, sink_id)
        },
    }


def stored_in_shards(store: Any, sink_ids: Iterable[str]) -> Results:
    """Read the results of all shards together; no key is in two of them."""
    together: Results = {metric.name: {} for metric in METRICS}
    for sink_id in sink_ids:
        for name, values in stored(store, sink_id).items():
            assert not together[name].keys() & values.keys()
            together[name].update(values)
    return together


def difference(found: Results, wanted: Results) -> list[str]:
    """Name what differs: integers and strings exactly, means to 1e-9 relative."""
    lines = []
    for name in wanted:
        for key in wanted[name].keys() | found[name].keys():
            mine, theirs = found[name].get(key, "missing"), wanted[name].get(key, "missing")
            close = (
                isinstance(mine, float)
                and isinstance(theirs, float)
                and abs(mine - theirs) <= 1e-9 * abs(theirs)
            )
            if mine != theirs and not close:
                lines.append(f"{name} {key}: {mine}, not {theirs}")
    return lines
