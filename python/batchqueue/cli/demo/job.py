"""What the demo computes: its metrics, and how flights become items."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Max,
    MaxMetrics,
    MeanMetrics,
    Measure,
    Metrics,
    Ranking,
    Sum,
    SumMetrics,
    TopN,
    TopNWorker,
    Window,
    metric_type,
)
from batchqueue.cli.demo.data import AIRPORTS
from batchqueue.outputs import MetricsStore
from batchqueue.spark import AggregationJob, ArrowAggregation

CARRIERS = tuple("9E AA AS B6 DL EV F9 FL HA MQ OO UA US VX WN YV".split())  # noqa: SIM905

_DAY_S = 86_400


class Measures(NamedTuple):
    """The metric types of a carrier or airport; the entity is its code, the bucket the hour.

    Attributes:
        departures: Number of flights that left.
        mean_delay: Mean minutes from scheduled to actual departure, of flights that left.
        max_delay: The most minutes from scheduled to actual departure, of flights that left.
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
    "carrier": {carrier: _measures(f"carrier.{carrier}") for carrier in CARRIERS},
    "origin": {airport: _measures(f"origin.{airport}") for airport in AIRPORTS},
}
"""By column of the files, then by value of the column."""

WORST_DELAYS = metric_type("worst_delays", Ranking, columns={"score": int}, limit=10)
"""The ten longest delays of each day (UTC); the entity is `NEW_YORK`, the bucket the day."""

NEW_YORK = "New York"

METRICS: tuple[type[Metrics], ...] = (
    *(
        measure
        for groups in MEASURES.values()
        for measures in groups.values()
        for measure in measures
    ),
    WORST_DELAYS,
)

COLUMNS = ("flight_id", "time_hour", "carrier", "origin", "dep_time", "dep_delay", "distance")


def flight_items(flights: pa.RecordBatch) -> Iterator[Metrics]:
    """Turn flights into items: each measure for the carrier and the airport, and a ranking entry.

    A cancelled flight yields items too, with a count of 0 or without a value, so that an hour with
    only cancelled flights has its groups, as in SQL's `GROUP BY`.

    Args:
        flights: Rows with `COLUMNS`.

    Yields:
        Eleven items per flight.
    """
    # Entities come from this table and not from the rows: equal keys then hold the same string
    # object, and compare faster.
    by_carrier, by_origin = (
        {code: (code, measures) for code, measures in MEASURES[column].items()}
        for column in ("carrier", "origin")
    )
    hours = pc.cast(pc.cast(flights["time_hour"], pa.timestamp("s", "UTC")), pa.int64()).to_pylist()
    columns = (flights[name].to_pylist() for name in COLUMNS if name != "time_hour")
    for hour, flight_id, carrier, origin, dep_time, delay, distance in zip(
        hours, *columns, strict=True
    ):
        departed = 0 if dep_time is None else 1
        for entity, (departures, mean_delay, max_delay, cancellations, miles) in (
            by_carrier[carrier],
            by_origin[origin],
        ):
            yield departures(entity, hour, departed)
            yield mean_delay(entity, hour, delay)
            yield max_delay(entity, hour, delay)
            yield cancellations(entity, hour, 1 - departed)
            yield miles(entity, hour, distance)
        yield WORST_DELAYS(NEW_YORK, hour - hour % _DAY_S, delay, flight_id)


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
            yield WORST_DELAYS.from_rows(NEW_YORK, hour - hour % _DAY_S, worst)


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
