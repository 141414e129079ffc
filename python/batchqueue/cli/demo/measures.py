"""What the demo computes: its metrics, and what each flight adds to them.

Workers of a group import this, so it needs neither Spark nor pyarrow.
"""

from typing import NamedTuple

from batchqueue.aggregation import (
    CountMetrics,
    MaxMetrics,
    MeanMetrics,
    Metrics,
    Ranking,
    SumMetrics,
    metric_type,
)

AIRPORTS = ("EWR", "JFK", "LGA")

CARRIERS = tuple("9E AA AS B6 DL EV F9 FL HA MQ OO UA US VX WN YV".split())  # noqa: SIM905

DAY_S = 86_400


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

# Entities come from this table and not from the rows: equal keys then hold the same string object,
# and compare faster.
_BY_CARRIER, _BY_ORIGIN = (
    {code: (code, measures) for code, measures in MEASURES[column].items()}
    for column in ("carrier", "origin")
)


FlightRow = tuple[int, str, str, str, int | None, int | None, int]
"""The start of its hour in seconds since the epoch, UTC, and the other `COLUMNS` of a flight."""


def items_of_flight(flight: FlightRow) -> list[Metrics]:
    """Turn a flight into items: each measure for carrier and airport, and a ranking entry.

    A cancelled flight has items too, with a count of 0 or without a value, so that an hour with
    only cancelled flights has its groups, as in SQL's `GROUP BY`.

    Returns:
        Eleven items.
    """
    hour, flight_id, carrier, origin, dep_time, delay, distance = flight
    departed = 0 if dep_time is None else 1
    items: list[Metrics] = []
    for entity, (departures, mean_delay, max_delay, cancellations, miles) in (
        _BY_CARRIER[carrier],
        _BY_ORIGIN[origin],
    ):
        items += (
            departures(entity, hour, departed),
            mean_delay(entity, hour, delay),
            max_delay(entity, hour, delay),
            cancellations(entity, hour, 1 - departed),
            miles(entity, hour, distance),
        )
    items.append(WORST_DELAYS(NEW_YORK, hour - hour % DAY_S, delay, flight_id))
    return items
