"""The flights of the demo through a topic: what workers store is what Spark SQL computes."""

import signal
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from batchqueue.cli.demo import ALL_FLIGHTS
from batchqueue.cli.demo_job import DAY_S, read_source
from batchqueue.outputs import SqliteStore
from batchqueue.spark import local_session
from core_support.waits import HANG_S, eventually
from groups_support.chaos import KafkaGroup, once_there
from groups_support.flights import by_spark, counted, stored

pytestmark = [pytest.mark.timeout(4 * HANG_S), pytest.mark.matrix(24, name="many workers on Kafka")]

ROWS_PER_RECORD = 20

SLOW = pytest.mark.slow, pytest.mark.matrix(1, name="slow on Kafka")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", "local[2]")
    yield session
    session.stop()


class FlightsGroup(KafkaGroup):
    """A group whose records are flights, or Arrow batches of them."""

    sink = "flights"

    def __init__(self, broker, folder, *, codec, **settings):
        super().__init__(broker, folder, partitions=8, handler_s=0.1, **settings)
        self.codec = codec
        self._settings["worker"] = {"codec": codec}
        self.producer.close()
        key = None if codec == "arrow" else lambda flight: flight["dest"]
        self.producer = self.source.producer(codec=codec, key=key)

    def make_database(self):
        self.store = SqliteStore(self.database)
        self.store.prepare()

    def send_flights(self, flights):
        if self.codec == "arrow":
            self.producer.send_many(flights.to_batches(max_chunksize=ROWS_PER_RECORD))
        else:
            self.producer.send_many(flights.to_pylist())
        self.sent += len(flights)

    def count(self):
        return counted(self.store)

    def is_done(self):
        is_stored = once_there(lambda: self.count() >= self.sent)
        eventually(is_stored, "all flights are stored", limit_s=2 * HANG_S)
        is_committed = once_there(lambda: self.monitor.metrics().lag == 0)
        eventually(is_committed, "all records are committed")


def read_flights(rows):
    """Returns the first flights of the year, and the first second of the day of each."""
    flights = read_source().slice(0, rows)
    seconds = pc.cast(pc.cast(flights["time_hour"], pa.timestamp("s", "UTC")), pa.int64())
    day = pc.multiply(pc.divide(seconds, DAY_S), DAY_S)
    columns = ["flight_id", "dest", "dep_delay", "distance"]
    return flights.select(columns).append_column("day", day).combine_chunks()


@pytest.mark.parametrize(
    "rows", [12_000, pytest.param(ALL_FLIGHTS, marks=SLOW)], ids=["some", "all"]
)
@pytest.mark.parametrize("codec", ["json", "arrow"])
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_flights_of_a_killed_worker_and_a_new_one_are_those_of_spark_sql(
    tmp_path, new_kafka_broker, spark, protocol, codec, rows
):
    flights = read_flights(rows)
    pq.write_table(flights, tmp_path / "flights.parquet")
    group = FlightsGroup(new_kafka_broker, tmp_path, protocol=protocol, codec=codec)
    try:
        group.start("a", "b", "c")
        killed = group.processes["a"]
        killed.order(f"after {signal.SIGKILL}")  # a batch is stored, and its offset is not
        group.send_flights(flights.slice(0, rows // 2))
        eventually(lambda: killed.process.poll() == -signal.SIGKILL, "it has killed itself")
        del group.processes["a"]
        killed.kill()
        group.send_flights(flights.slice(rows // 2))
        group.start("d")
        group.is_done()
        for summary in group.end_all():
            assert summary["unfinished"] == {}
    finally:
        group.close()
    assert stored(group.store) == by_spark(spark, tmp_path / "flights.parquet")
