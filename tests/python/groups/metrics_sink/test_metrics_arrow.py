"""The sink of metrics for records that are Arrow batches, which an aggregation merges."""

import pickle
import random
from collections import Counter

import pyarrow as pa
import pytest

from batchqueue import BatchQueueError, ConfigError
from batchqueue.aggregation import Aggregation, Count, Sum
from batchqueue.groups import MemoryStreams, MetricsSink, Record, Worker
from groups_support.databases import FakeBatch
from groups_support.metrics import LENGTHS, TALLY, tallied
from groups_support.workers import LEASE_MS

BY_CITY = Aggregation(keys=["city"], measures={"rows": Count(), "cents": Sum("cents")})


def metrics(groups):
    for group in groups.to_pylist():
        yield TALLY(group["city"], 0, group["rows"])
        yield LENGTHS(group["city"], 0, group["cents"])


def rows(*cities):
    return pa.record_batch(
        {"city": pa.array(cities, pa.string()), "cents": pa.array([5] * len(cities), pa.int64())}
    )


def batch(*values, first=0, token=1):
    records = [Record(value, None, first + number, 0) for number, value in enumerate(values)]
    return FakeBatch(token, records)


@pytest.fixture
def store(open_sqlite):
    store = open_sqlite()
    store.prepare()
    return store


@pytest.fixture
def sink(store):
    return MetricsSink.arrow(store, BY_CITY, metrics)


def test_rows_of_all_records_are_merged(store, sink):
    sink.consume(batch(rows("rome", "oslo"), rows("rome"), rows()))
    sink.consume(batch(rows("oslo", "oslo"), first=3))
    assert tallied(store) == {"rome": 2, "oslo": 3}
    assert {each.entity: each.total for each in store.read(LENGTHS)} == {"rome": 10, "oslo": 15}


def test_records_of_a_batch_may_differ_in_their_columns(store, sink):
    """A producer was changed: its older records are still in the stream."""
    floats = pa.record_batch({"city": ["rome"], "cents": pa.array([5.0], pa.float64())})
    more = pa.record_batch({"cents": pa.array([5], pa.int64()), "shop": [1], "city": ["rome"]})
    sink.consume(batch(floats, floats, rows("rome"), more, floats))
    assert tallied(store) == {"rome": 5}
    assert [each.total for each in store.read(LENGTHS)] == [25]


def test_records_that_come_again_count_once(store, sink):
    sink.consume(batch(rows("rome"), rows("oslo")))
    pickle.loads(pickle.dumps(sink)).consume(batch(rows("oslo"), rows("bari"), first=1, token=2))
    assert tallied(store) == {"rome": 1, "oslo": 1, "bari": 1}


def test_records_without_rows_are_passed_over(store, sink):
    sink.consume(batch(rows()))
    sink.consume(batch(rows("rome"), first=0))  # offset 0 is done
    sink.consume(batch(rows("rome"), first=1))
    assert tallied(store) == {"rome": 1}


def test_totals_of_a_worker_are_those_of_a_dict(store, sink):
    chance, expected = random.Random(3), Counter()
    streams = MemoryStreams("orders", partitions=3)
    with streams.producer(codec="arrow") as producer:
        for _ in range(100):
            cities = [f"city {chance.randrange(9)}" for _ in range(chance.randrange(20))]
            producer.send(rows(*cities))
            expected.update(cities)
    worker = Worker("g", streams, codec="arrow", lease_ms=LEASE_MS, max_batch_items=7)
    worker.handler_factory(lambda assignment: sink)
    assert worker.run(until_idle=0.05).handled == 100
    assert tallied(store) == expected


def test_more_groups_than_the_aggregation_allows_store_nothing(store):
    few = Aggregation(keys=["city"], measures={"rows": Count(), "cents": Count()}, max_groups=2)
    sink = MetricsSink.arrow(store, few, metrics)
    with pytest.raises(BatchQueueError, match="more groups than max_groups, 2: raise it"):
        sink.consume(batch(rows("rome", "oslo", "bari")))
    assert tallied(store) == {}


def test_value_without_arrow_data_is_refused(store, sink):
    with pytest.raises(ConfigError, match="batch is a str; give an object with __arrow_c_array__"):
        sink.consume(batch("rome"))


def test_function_that_returns_no_list_is_named_with_the_offsets(store):
    with pytest.raises(
        TypeError, match=r"^metrics returned None for the groups of offsets 3\.\.4; return a list"
    ):
        MetricsSink.arrow(store, BY_CITY, lambda groups: None).consume(
            batch(rows("rome"), rows("oslo"), first=3)
        )


def test_invalid_arguments_are_rejected(store):
    with pytest.raises(ConfigError, match="aggregation is 'city'; give an Aggregation"):
        MetricsSink.arrow(store, "city", metrics)
    with pytest.raises(ConfigError, match=r"metrics is 7; give a function that takes a pyarrow\.R"):
        MetricsSink.arrow(store, BY_CITY, 7)
    with pytest.raises(ConfigError, match="store is 'metrics'; give a store of metrics"):
        MetricsSink.arrow("metrics", BY_CITY, metrics)
