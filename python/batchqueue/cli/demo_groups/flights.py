"""Flights as records of a stream: a record for each flight, with its carrier as the key.

Workers import this, so it needs no pyarrow, which would make their starts slower.
"""

from typing import Any

from batchqueue import _core
from batchqueue.aggregation import Metrics
from batchqueue.cli.demo_job import CARRIERS, COLUMNS, items_of_flight

STREAM = "flights"
GROUP = "demo"
SINK_ID = "flights"
CODEC = "json"
PARTITIONS = 8

Flight = dict[str, Any]
"""`COLUMNS` of a flight; the hour is in seconds since the epoch, UTC."""

_OTHERS = tuple(name for name in COLUMNS if name != "time_hour")


def carrier_of(flight: Flight) -> str:
    """Return the key of a record."""
    carrier: str = flight["carrier"]
    return carrier


def metrics_of(flight: Flight) -> list[Metrics]:
    """Return what a flight adds to the metrics, as in the demo on Spark."""
    row: Any = (flight["time_hour"], *(flight[name] for name in _OTHERS))
    return items_of_flight(row)


def carriers_of_partitions() -> dict[int, list[str]]:
    """Return the carriers of each partition; some have an empty list."""
    found: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
    for carrier in CARRIERS:
        found[_core.partition_of_key(carrier, PARTITIONS)].append(carrier)
    return found
