"""L1, L2, TopN and the SQLite writer on real queues with the presets, against plain dicts."""

import threading
from collections import defaultdict

import pytest

from batchqueue import BatchQueue, BufferStrategy, ThreadPolicy, presets
from batchqueue.aggregation import (
    CountMetrics,
    L1AggregateWorker,
    L2PersistenceWorker,
    MeanMetrics,
    Ranking,
    TopNWorker,
    metric_type,
)
from batchqueue.outputs import CommittingStoreWriter, SqliteStore, StoreWriter

CARRIERS = ("AA", "DL", "UA")
COUNTS = {carrier: metric_type(f"test.count.{carrier}", CountMetrics) for carrier in CARRIERS}
MEANS = {carrier: metric_type(f"test.mean.{carrier}", MeanMetrics) for carrier in CARRIERS}
WORST = metric_type("test.worst", Ranking, limit=5)
GATE_TIMEOUT_S = 60


class Gate:
    """A handler that blocks its drain thread until the test opens it."""

    def __init__(self):
        self.entered = threading.Event()
        self.open = threading.Event()
        self.taken = []

    def consume(self, batch):
        self.entered.set()
        assert self.open.wait(GATE_TIMEOUT_S)
        self.taken += batch


def flights(producer):
    """2,000 flights: (carrier, hour, delay or None, id), skewed to the first carrier."""
    for number in range(2_000):
        delay = (
            None if number % 11 == 0 else (number * 7919 + producer * 31) % 601 - 50 + number / 7
        )
        yield CARRIERS[(number % 7) % 3], number % 4 * 3_600, delay, f"{producer}-{number:05}"


def observations(flight):
    carrier, hour, delay, flight_id = flight
    yield COUNTS[carrier](carrier, hour)
    yield MEANS[carrier](carrier, hour, delay)
    yield WORST("all", hour, delay, flight_id, carrier)


def test_pipeline_stores_what_dicts_give(tmp_path):
    store = SqliteStore(tmp_path / "metrics.db")
    blocking = BufferStrategy.BLOCKING
    types = [*COUNTS.values(), *MEANS.values()]
    with (
        BatchQueue(
            "sql", presets.sql_batch(lambda: CommittingStoreWriter(store), writers=1)
        ) as sql,
        BatchQueue("l2", presets.l2_persistence(buffer_size=50)) as l2,
        BatchQueue("top", presets.top_n(buffer_size=50)) as top,
        BatchQueue(
            "l1", presets.l1_aggregation(threads=ThreadPolicy.fixed(2), strategy=blocking)
        ) as l1,
    ):
        for metrics in (*types, WORST):
            l2.add_handler(metrics, L2PersistenceWorker(sql.produce_many))
        for metrics in types:
            l1.add_handler(metrics, L1AggregateWorker(l2.produce_many, flush_period_ms=1))
        top.add_handler(WORST, TopNWorker(l2.produce_many, flush_period_ms=1))

        def produce(producer):
            for flight in flights(producer):
                for item in observations(flight):
                    assert (top if type(item) is WORST else l1).produce(item)

        producers = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
        for thread in producers:
            thread.start()
        for thread in producers:
            thread.join()

    for queue in (l1, top, l2, sql):
        stats = queue.stats()
        assert stats.produced == stats.consumed > 0
        assert stats.refused == 0
    assert l1.stats().consumed == 3 * 2_000 * 2
    check_against_dicts(store, [flight for producer in range(3) for flight in flights(producer)])


def check_against_dicts(store, rows):
    counts, delays, ranked = defaultdict(int), defaultdict(list), defaultdict(list)
    for carrier, hour, delay, flight_id in rows:
        counts[carrier, hour] += 1
        delays[carrier, hour] += [] if delay is None else [delay]
        ranked[hour] += [] if delay is None else [(-delay, flight_id, carrier)]
    for carrier in CARRIERS:
        assert {item.key: item.count for item in store.read(COUNTS[carrier])} == {
            key: count for key, count in counts.items() if key[0] == carrier
        }
        for mean in store.read(MEANS[carrier]):
            values = delays[mean.key]
            assert mean.count == len(values)
            assert mean.value == pytest.approx(sum(values) / len(values), rel=1e-9)
    assert {
        item.time_bucket: [(-entry.score, entry.id, entry.label) for entry in item.entries]
        for item in store.read(WORST)
    } == {hour: sorted(entries)[:5] for hour, entries in ranked.items()}


def test_open_transaction_holds_what_the_queue_wrote_until_its_owner_commits(tmp_path):
    store = SqliteStore(tmp_path / "metrics.db")
    with store.transaction("sink") as transaction:
        with BatchQueue(
            "sql", presets.sql_batch(lambda: StoreWriter(transaction), writers=1)
        ) as sql:
            sql.produce_many(COUNTS["UA"]("UA", 0) for _ in range(1_000))
        assert sql.stats().failed == 0
        transaction.record("query", 0, {"items": sql.stats().consumed})
        assert store.read(COUNTS["UA"], "sink") == []
    assert store.read(COUNTS["UA"], "sink") == [COUNTS["UA"]("UA", 0, 1_000)]
    assert store.summaries("sink")[0].summary == {"items": 1_000}


def test_store_that_cannot_be_written_fails_the_batches_with_the_reason(tmp_path):
    errors = []
    store = SqliteStore(tmp_path / "absent" / "metrics.db")
    with (
        BatchQueue(
            "sql", presets.sql_batch(lambda: RecordingWriter(store, errors), writers=1)
        ) as sql,
        BatchQueue("l2", presets.l2_persistence()) as l2,
    ):
        l2.add_handler(COUNTS["UA"], L2PersistenceWorker(sql.produce_many))
        l2.produce_many(COUNTS["UA"](str(number), 0) for number in range(100))
    assert (l2.stats().consumed, l2.stats().failed) == (100, 0)
    assert (sql.stats().consumed, sql.stats().failed) == (0, 100)
    assert all("its directory must exist" in str(error) for error in errors)
    assert errors


class RecordingWriter(CommittingStoreWriter):
    def __init__(self, store, errors):
        super().__init__(store)
        self.errors = errors

    def on_error(self, batch, error):
        self.errors.append(error)


def test_nothing_silent_full_l1_queue_counts_its_refusals_and_the_rest_arrives():
    gate, handed = Gate(), []
    worker = L1AggregateWorker(handed.extend)
    with BatchQueue(
        "l1", presets.l1_aggregation(threads=ThreadPolicy.fixed(1), buffer_size=10)
    ) as l1:
        l1.add_handler(int, gate)
        l1.add_handler(COUNTS["UA"], worker)
        l1.produce(0)
        assert gate.entered.wait(GATE_TIMEOUT_S)
        accepted = sum(l1.produce(COUNTS["UA"]("UA", 0)) for _ in range(100))
        gate.open.set()
    assert accepted == 10
    assert l1.stats().refused == 90
    assert sum(partial.count for partial in handed) == accepted


def test_no_loss_full_l2_queue_makes_l1_keep_its_partials():
    """L2 refuses while its handler hangs; L1 continues to merge, and emits once there is room."""
    gate = Gate()
    config = presets.l2_persistence(
        threads=ThreadPolicy.fixed(1), buffer_size=5, strategy=BufferStrategy.IF_POSSIBLE
    )
    refused, all_taken = threading.Event(), threading.Event()
    with BatchQueue("l2", config) as l2:
        l2.add_handler(COUNTS["UA"], gate)

        def next_worker(partials):
            accepted = l2.produce_many(partials)
            if accepted < len(partials):
                refused.set()
                all_taken.clear()
            else:
                all_taken.set()
            return accepted

        worker = L1AggregateWorker(next_worker, flush_period_ms=0)
        with BatchQueue("l1", presets.l1_aggregation(strategy=BufferStrategy.BLOCKING)) as l1:
            l1.add_handler(COUNTS["UA"], worker)
            l1.produce_many(COUNTS["UA"](str(number), 0) for number in range(20))
            assert refused.wait(GATE_TIMEOUT_S)
            l1.produce_many(COUNTS["UA"](str(number), 0) for number in range(20))
            gate.open.set()
            assert l1.flush(GATE_TIMEOUT_S)
            assert all_taken.wait(GATE_TIMEOUT_S)
    assert l2.stats().refused > 0
    assert worker.dropped == 0
    totals = defaultdict(int)
    for partial in gate.taken:
        totals[partial.entity] += partial.count
    assert totals == {str(number): 2 for number in range(20)}


def test_nothing_silent_refusals_of_l2_at_the_end_are_in_the_drop_count():
    gate = Gate()
    config = presets.l2_persistence(
        threads=ThreadPolicy.fixed(1), buffer_size=3, strategy=BufferStrategy.IF_POSSIBLE
    )
    with BatchQueue("l2", config) as l2:
        l2.add_handler(COUNTS["UA"], gate)
        l2.produce(COUNTS["UA"]("first", 0))
        assert gate.entered.wait(GATE_TIMEOUT_S)
        worker = L1AggregateWorker(l2.produce_many)
        with BatchQueue("l1", presets.l1_aggregation()) as l1:
            l1.add_handler(COUNTS["UA"], worker)
            l1.produce_many(COUNTS["UA"](str(number), 0) for number in range(20))
        gate.open.set()
    assert l1.stats().consumed == 20
    assert len(gate.taken) + worker.dropped == 1 + 20
    assert worker.dropped == 20 - 3


def test_item_that_cannot_be_combined_fails_only_its_batch():
    handed, failed = [], []

    class Worker(L1AggregateWorker):
        def on_error(self, batch, error):
            failed.append((len(batch), error))

    with BatchQueue("l1", presets.l1_aggregation()) as l1:
        l1.add_handler(COUNTS["UA"], Worker(handed.extend))
        l1.add_handler(COUNTS["AA"], Worker(handed.extend))
        l1.produce_many([COUNTS["UA"]("UA", 0), COUNTS["UA"]("UA", 0, None)])
        l1.produce(COUNTS["AA"]("AA", 0))
    assert [(size, type(error)) for size, error in failed] == [(l1.stats().failed, TypeError)]
    assert COUNTS["AA"]("AA", 0) in handed
