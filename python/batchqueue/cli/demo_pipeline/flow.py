"""The pipeline of the demo: the same graph in this process and on Spark."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Max,
    MaxMetrics,
    Metrics,
    Sum,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.cli.demo_job import FlightFiles
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import FileSource, FunctionSink, MetricsSink, Pipeline

DEPARTURES = metric_type("carrier_departures", CountMetrics)
DELAY = metric_type("carrier_delay_minutes", SumMetrics, columns={"total": int})
LONGEST_DELAY = metric_type("carrier_longest_delay_minutes", MaxMetrics, columns={"value": int})
MILES = metric_type("carrier_miles", SumMetrics, columns={"total": int})
METRICS: tuple[type[Metrics], ...] = (DEPARTURES, DELAY, LONGEST_DELAY, MILES)
"""The metrics of each carrier and hour."""

SOURCE, BOARD = "flights", "board"

_BY_CARRIER_AND_HOUR = Aggregation(
    keys=["carrier"],
    window=Window("time_hour", 3_600, "hour"),
    measures={
        "departures": Count(),
        "delay": Sum("dep_delay"),
        "longest_delay": Max("dep_delay"),
        "miles": Sum("distance"),
    },
)


def metrics_of(groups: pa.RecordBatch) -> Iterator[Metrics]:
    """Yield the metrics of carriers and hours."""
    hours = pc.cast(pc.cast(groups["hour"], pa.timestamp("s", "UTC")), pa.int64()).to_pylist()
    for hour, group in zip(hours, groups.to_pylist(), strict=True):
        carrier = group["carrier"]
        yield DEPARTURES(carrier, hour, group["departures"])
        yield DELAY(carrier, hour, group["delay"])
        yield LONGEST_DELAY(carrier, hour, group["longest_delay"])
        yield MILES(carrier, hour, group["miles"])


def flights_flow(
    files: FlightFiles, database: Path, checkpoint: Path, show: Callable[[list[Any]], object]
) -> Pipeline:
    """Return the pipeline.

    Args:
        files: The flights.
        database: The file of the aggregates.
        checkpoint: The folder of the cuts.
        show: The function of the slow sink.
    """
    flow = Pipeline("flights", checkpoint=str(checkpoint))
    source = FileSource(
        f"{files.directory}/*.parquet",
        columns=["time_hour", "carrier", "dep_time", "dep_delay", "distance"],
    )
    departed = flow.source(source, name=SOURCE).filter(pc.field("dep_time").is_valid())
    by_carrier = departed.key_by("carrier", partitions=2).aggregate(_BY_CARRIER_AND_HOUR)
    sink = MetricsSink(SqliteStore(database), metrics_of, metrics=METRICS)
    by_carrier.to(sink, name="store")
    departed.to(FunctionSink(show), name=BOARD)
    return flow
