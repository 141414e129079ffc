"""The job of the demo on Spark: how its metrics are made of rows."""

import functools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from batchqueue.aggregation import (
    Aggregation,
    Count,
    Max,
    Measure,
    Metrics,
    Sum,
    TopN,
    TopNWorker,
    Window,
)
from batchqueue.cli.demo.measures import (
    AIRPORTS,
    CARRIERS,
    COLUMNS,
    DAY_S,
    MEASURES,
    METRICS,
    NEW_YORK,
    WORST_DELAYS,
    items_of_flight,
)
from batchqueue.outputs import MetricsStore
from batchqueue.spark import AggregationJob, ArrowAggregation


def flight_items(flights: pa.RecordBatch) -> Iterator[Metrics]:
    """Turn flights into items; see `items_of_flight`.

    Args:
        flights: Rows with `COLUMNS`.

    Yields:
        Eleven items per flight.
    """
    hours = pc.cast(pc.cast(flights["time_hour"], pa.timestamp("s", "UTC")), pa.int64()).to_pylist()
    columns = (flights[name].to_pylist() for name in COLUMNS if name != "time_hour")
    for flight in zip(hours, *columns, strict=True):
        yield from items_of_flight(flight)


def _by_hour(column: str, **more: Measure) -> Aggregation:
    """Return the aggregation behind `Measures`, by a column and the hour, with further measures."""
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
    """Yield the partials of the groups of `_by_hour`."""
    hours = pc.cast(pc.cast(groups["hour"], pa.timestamp("s", "UTC")), pa.int64()).to_pylist()
    for hour, group in zip(hours, groups.to_pylist(), strict=True):
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


_WORST = TopN("dep_delay", WORST_DELAYS.limit, "flight_id")

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
        aggregation=_by_hour("origin", worst=_WORST),
        metrics=functools.partial(_partials, "origin"),
    ),
)
"""The counterpart of `flight_items` for aggregators."""


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
