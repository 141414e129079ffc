"""A queue that writes to PostgreSQL, as the guides say: the server crashes, and no row is lost."""

import collections
import itertools
import sqlite3
import threading

import pytest

from batchqueue import BatchQueue, HandlerConsumer, PartitionPolicy, RetryPolicy
from core_support.queues import assert_conserved, config
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually

psycopg = pytest.importorskip("psycopg")

BATCH = 50
TABLE = "SELECT number FROM visits"


class Copy(HandlerConsumer):
    """The handler of the guide, which also notes how many of its attempts failed."""

    def __init__(self, conninfo, conflict="ON CONFLICT DO NOTHING"):
        self.conninfo, self.conflict, self.failures = conninfo, conflict, 0

    def on_open(self):
        self.connection = psycopg.connect(self.conninfo, connect_timeout=5)

    def consume(self, batch):
        try:
            self.store(batch)
        except psycopg.OperationalError:
            self.failures += 1
            raise

    def store(self, batch):
        if self.connection.closed:
            self.on_open()
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE batch (number bigint) ON COMMIT DROP")
            with cursor.copy("COPY batch FROM STDIN") as copy:
                for row in batch:
                    copy.write_row(row)
            cursor.execute(f"INSERT INTO visits SELECT * FROM batch {self.conflict}")

    def on_close(self):
        self.connection.close()


class DeadFile(HandlerConsumer):
    """Keeps dead letters in a database that is not the one that is down."""

    def __init__(self, path):
        self.path = path

    def on_open(self):
        self.database = sqlite3.connect(self.path, check_same_thread=False)
        self.database.execute("CREATE TABLE dead (number INTEGER)")

    def consume(self, letters):
        with self.database:
            self.database.executemany("INSERT INTO dead VALUES (?)", [x.item for x in letters])

    def on_close(self):
        self.database.close()


@pytest.fixture
def server(postgres_server):
    yield postgres_server
    if not postgres_server.running():
        postgres_server.start()


def make_table(server, key):
    with psycopg.connect(server.conninfo(), autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS visits")
        database.execute(f"CREATE TABLE visits (number bigint {key})")


def rows(server):
    with psycopg.connect(server.conninfo()) as database:
        return [number for (number,) in database.execute(TABLE)]


def service(dead, **settings):
    """The queue of the guide, with shorter waits."""
    retry = RetryPolicy(
        attempts=None,
        backoff_ms=50,
        max_backoff_ms=500,
        jitter=0.5,
        retry_on=(psycopg.OperationalError,),
    )
    return BatchQueue(
        "service",
        config(
            threads=2,
            partitions=PartitionPolicy.fixed(1),
            max_batch_items=BATCH,
            max_delay_ms=20,
            buffer_size=1_000,
            retry=retry,
            dead_letter=DeadFile(dead),
            **settings,
        ),
    )


class Load:
    """Threads that produce numbers until they are to stop."""

    def __init__(self, queue):
        self.queue, self.numbers, self.accepted = queue, itertools.count(), []
        self.ends = threading.Event()
        self.threads = [in_background(self.produce)[0] for _ in range(3)]

    def produce(self):
        while not self.ends.is_set():
            number = next(self.numbers)
            if self.queue.produce((number,)):
                self.accepted.append(number)

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            join(thread)


def wait_for_rows(queue, count):
    """Waits until so many more rows are stored."""
    stored = queue.stats().consumed
    eventually(lambda: queue.stats().consumed > stored + count, "rows")


def wait_for_failures(copy):
    """Waits for a few more attempts that fail."""
    failures = copy.failures
    eventually(lambda: copy.failures > failures + 2, "attempts that fail")


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["keyed", "plain"])
def test_server_that_crashes_twice_under_load_costs_no_row(server, tmp_path, key):
    """With a key no row comes twice; without one only batches whose commit was not confirmed."""
    make_table(server, key)
    copy = Copy(server.conninfo(), "ON CONFLICT DO NOTHING" if key else "")
    with service(tmp_path / "dead.db") as queue:
        queue.add_handler(tuple, copy)
        load = Load(queue)
        for _ in range(2):
            wait_for_rows(queue, 10 * BATCH)
            server.stop("immediate")
            wait_for_failures(copy)
            server.start()
        wait_for_rows(queue, BATCH)
        load.stop()
    stats = queue.stats()
    assert (stats.failed, stats.abandoned, stats.dead_lettered) == (0, 0, 0)
    assert_conserved(stats)
    found = collections.Counter(rows(server))
    assert sorted(found) == sorted(load.accepted)
    twice = [number for number, times in found.items() if times > 1]
    assert len(twice) <= (0 if key else 2 * BATCH)


def test_what_a_shutdown_cannot_deliver_is_kept_elsewhere(server, tmp_path):
    make_table(server, "PRIMARY KEY")
    copy, dead = Copy(server.conninfo()), tmp_path / "dead.db"
    with service(dead) as queue:
        queue.add_handler(tuple, copy)
        load = Load(queue)
        wait_for_rows(queue, 10 * BATCH)
        server.stop("immediate")
        wait_for_failures(copy)
        eventually(lambda: queue.stats().total_used >= 1_000, "producers that wait")
        abandoned = queue.shutdown(8)
        load.stop()
    stats = queue.stats()
    assert (abandoned, stats.failed) == (0, 0)
    assert stats.dead_lettered >= 1_000
    assert_conserved(stats)
    server.start()
    with sqlite3.connect(dead) as database:
        kept = [number for (number,) in database.execute("SELECT number FROM dead")]
    stored = rows(server)
    assert sorted(kept) == sorted(set(kept))
    assert set(kept) | set(stored) == set(load.accepted)
    # A row can be in both: its commit was not confirmed before the crash.
    assert len(set(kept) & set(stored)) <= BATCH


def test_server_that_comes_back_during_a_shutdown_gets_all_rows(server, tmp_path):
    make_table(server, "PRIMARY KEY")
    copy = Copy(server.conninfo())
    with service(tmp_path / "dead.db") as queue:
        queue.add_handler(tuple, copy)
        queue.produce((-1,))
        assert queue.flush(WAIT_S)
        server.stop("immediate")
        assert queue.produce_many((number,) for number in range(900)) == 900
        closing, abandoned = in_background(lambda: queue.shutdown(WAIT_S))
        eventually(lambda: not queue.running, "the close")
        wait_for_failures(copy)
        server.start()
        join(closing)
    assert abandoned == [0]
    assert (queue.stats().consumed, queue.stats().dead_lettered) == (901, 0)
    assert sorted(rows(server)) == list(range(-1, 900))
