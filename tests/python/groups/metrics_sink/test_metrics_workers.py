"""Workers that write metrics into a store, while they crash, stall and are full: exact totals."""

import random
import threading
from collections import Counter
from contextlib import contextmanager

import pytest

from batchqueue import RetryPolicy
from batchqueue.groups import Codec, MemoryStreams, MetricsSink, StaleTokenError, Worker
from batchqueue.outputs import SqliteStore, sqlite_store
from core_support.waits import WAIT_S, eventually
from groups_support.backends import committed
from groups_support.databases import batch
from groups_support.metrics import LENGTHS, HookedStore, tallied, tally, tally_and_length
from groups_support.workers import LEASE_MS, Blocker, owns, running, send, worker_of

QUICK = RetryPolicy(attempts=2, backoff_ms=1, max_backoff_ms=5)
STORM_PARTITIONS, STORM_RECORDS = 4, 800


def numbers(count, prefix=""):
    """Returns the values that `send` sends, each once."""
    return Counter(f"{prefix}{number}" for number in range(count))


def all_committed(streams, count, partitions):
    def total():
        return sum(committed(streams, number) for number in range(partitions))

    eventually(lambda: total() == count, "all records are committed")


def test_records_that_were_stored_and_not_committed_count_once(store):
    """The worker dies between the commit of the store and its own."""
    streams, sink, again = MemoryStreams("orders", partitions=2), MetricsSink(store, tally), []
    died = set()

    def stores_and_dies(item):
        sink.consume(item)
        died.update(item.values)
        streams.crash("first")

    def stores(item):
        again.extend(item.values)
        sink.consume(item)

    send(streams, 50)
    with running(worker_of(streams, stores_and_dies, name="first")):
        eventually(lambda: died, "the first worker has stored something")
        with running(worker_of(streams, stores, name="second")):
            send(streams, 50, prefix="later ")
            all_committed(streams, 100, 2)
    assert died <= set(again)
    assert tallied(store) == numbers(50) + numbers(50, "later ")


def test_former_owner_that_wakes_in_its_handler_stores_nothing(store):
    streams, sink, blocker, refused = (
        MemoryStreams("orders"),
        MetricsSink(store, tally),
        Blocker(),
        [],
    )

    def stores_late(item):
        blocker()
        try:
            sink.consume(item)
        except StaleTokenError as error:
            refused.append((error.token, error.seen))
            raise

    first = worker_of(streams, stores_late, name="first")
    second = worker_of(streams, sink, name="second")
    send(streams, 20)
    with running(first):
        assert blocker.entered.wait(WAIT_S)
        streams.stall("first")
        with running(second):
            all_committed(streams, 20, 1)
            streams.wake("first")
            blocker.release()
            eventually(lambda: refused, "the sink refuses the former owner")
            assert tallied(store) == numbers(20)
            send(streams, 20, prefix="later ")
            all_committed(streams, 40, 1)
            [(token, seen)] = refused
            assert token < seen
            assert first.metrics().lost == 1
    assert tallied(store) == numbers(20) + numbers(20, "later ")


def test_worker_that_is_refused_gets_a_newer_token_and_stores(store):
    """It does not know yet that it lost the partition: only the sink has seen the newer token."""
    streams, sink = MemoryStreams("orders"), MetricsSink(store, tally)
    worker = worker_of(streams, sink, name="first")
    with running(worker):
        owns(worker, 1)
        newer = worker.assigned()[0].token + 1
        sink.consume(batch(-5, -1, token=newer, group="g", partition=0))
        send(streams, 20)
        all_committed(streams, 20, 1)
        assert worker.assigned()[0].token > newer
        assert worker.metrics().fenced == 1
    assert tallied(store) == numbers(20) + Counter(f"value {number}" for number in range(-5, 0))


class Storm:
    """Workers that fail at times, cut batches differently, and finish late when they stall."""

    def __init__(self, store):
        self.chance = random.Random(7)
        self.streams = MemoryStreams("orders", partitions=STORM_PARTITIONS)
        self.sink = MetricsSink(HookedStore(store, self.fail, self.fail), tally_and_length)
        self.producer = self.streams.producer(codec="utf8")
        self.sent, self.workers = Counter(), []
        self.gates, self.held, self.refused = {}, set(), []

    def fail(self, *_):
        if self.chance.random() < 0.1:
            raise ConnectionError("flaky")

    def join(self):
        name = f"w{len(self.workers)}"
        gate = self.gates[name] = threading.Event()
        gate.set()

        def handler(item):
            if not gate.is_set():
                self.held.add(name)
                gate.wait(WAIT_S)
            try:
                self.sink.consume(item)
            except StaleTokenError:
                self.refused.append(name)
                raise

        cut = self.chance.randrange(3, 20)
        settings = {"codec": "utf8", "lease_ms": 500, "retry": QUICK, "max_batch_items": cut}
        worker = Worker("g", self.streams, name=name, **settings)
        worker.handler_factory(lambda assignment: handler)
        self.workers.append(worker)
        worker.start()
        eventually(worker.assigned, "the new worker owns something")

    def send(self, count):
        for _ in range(count):
            value = f"city {self.chance.randrange(40)}"
            self.producer.send(value, partition=self.chance.randrange(STORM_PARTITIONS))
            self.sent[value] += 1

    def all_is_done(self):
        all_committed(self.streams, sum(self.sent.values()), STORM_PARTITIONS)


def test_storm_of_crashes_stalls_and_failures(open_sqlite):
    """The totals are those of a dict, whatever happens to the workers."""
    store = open_sqlite()
    storm = Storm(store)
    storm.join()
    for fault in ("stall", "crash", "stall", "leave"):
        victim = storm.workers[-1]
        if fault == "stall":
            storm.gates[victim.name].clear()
        storm.send(STORM_RECORDS // 4)
        if fault == "stall":
            eventually(lambda name=victim.name: name in storm.held, "it has records in hand")
        if fault == "leave":
            victim.leave(5)
        else:
            getattr(storm.streams, fault)(victim.name)
        storm.join()
        storm.all_is_done()
        if fault == "stall":
            storm.streams.wake(victim.name)
            storm.gates[victim.name].set()
            eventually(lambda name=victim.name: name in storm.refused, "it finishes too late")
    for worker in storm.workers:
        worker.leave(5)
    assert tallied(store) == storm.sent
    total = sum(len(value) * count for value, count in storm.sent.items())
    assert store.read(LENGTHS)[0].total == total


class Sale(str):
    """A value with its class."""


class Refund(str):
    """Another one."""


def test_handlers_by_class_keep_their_own_marks(store):
    """One is ahead of the other in the same partition, and what is behind counts as well."""
    streams, blocker = MemoryStreams("orders"), Blocker()
    decode = {b"s": Sale, b"r": Refund}
    codec = Codec(str.encode, lambda data: decode[data[:1]](data.decode()))

    def refunds(value):
        blocker()
        return tally(value)

    worker = Worker("g", streams, codec=codec, name="first", lease_ms=LEASE_MS)
    worker.add_handler(Sale, MetricsSink(store, tally))
    worker.add_handler(Refund, MetricsSink(store, refunds))
    with running(worker):
        send(streams, 5, prefix="r")
        assert blocker.entered.wait(WAIT_S)
        send(streams, 30, prefix="s")
        eventually(lambda: tallied(store) == numbers(30, "s"), "the sales are ahead")
        blocker.release()
        all_committed(streams, 35, 1)
    assert tallied(store) == numbers(30, "s") + numbers(5, "r")


@pytest.mark.parametrize("way", ["one for all", "one per partition", "by tag"])
def test_each_way_to_register_it_works(open_sqlite, way):
    store, streams = open_sqlite(), MemoryStreams("orders", partitions=3)
    worker = Worker("g", streams, codec="utf8", lease_ms=LEASE_MS)
    if way == "one for all":
        worker.handler(MetricsSink(store, tally))
    elif way == "one per partition":
        worker.handler_factory(lambda assignment: MetricsSink(store, tally))
    else:
        sink = MetricsSink(store, tally)
        worker.add_handler("sale", sink)
        worker.add_handler("refund", sink)
    send(streams, 60, prefix="s", type=b"sale")
    send(streams, 60, prefix="r", type=b"refund")
    assert worker.run(until_idle=0.05).handled == 120
    assert tallied(store) == numbers(60, "s") + numbers(60, "r")


@pytest.fixture
def is_full(monkeypatch):
    """While it is set, files of SQLite cannot grow: SQLite reports a full disk."""
    is_full = threading.Event()

    @contextmanager
    def connected(path, busy_timeout_s):
        with real_connected(path, busy_timeout_s) as connection:
            if is_full.is_set():
                connection.execute("PRAGMA max_page_count = 1")  # as many as it has
            yield connection

    real_connected = sqlite_store.connected
    monkeypatch.setattr(sqlite_store, "connected", connected)
    return is_full


def test_partition_waits_while_the_disk_is_full_and_loses_nothing(tmp_path, is_full):
    streams, store = MemoryStreams("orders", partitions=2), SqliteStore(tmp_path / "metrics.db")
    long = "x" * 1_000  # so that no page has room for another value
    worker = worker_of(streams, MetricsSink(store, tally), retry=QUICK)
    with running(worker):
        send(streams, 10)
        all_committed(streams, 10, 2)
        is_full.set()
        send(streams, 100, prefix=long)
        eventually(lambda: worker.metrics().blocked_partitions == (0, 1), "both partitions wait")
        assert tallied(store) == numbers(10)
        is_full.clear()
        all_committed(streams, 110, 2)
        assert worker.metrics().blocked_partitions == ()
    assert tallied(store) == numbers(10) + numbers(100, long)
