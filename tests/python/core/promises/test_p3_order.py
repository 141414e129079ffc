"""P3: order per type and producer, per key and producer, and per partition; also through growth."""

import threading
from collections import defaultdict

import pytest

from batchqueue import PartitionPolicy, PartitionSelector
from core_support.handlers import Recorder
from core_support.queues import assert_conserved
from core_support.threads import run_threads
from core_support.waits import WAIT_S


class Item:
    __slots__ = ("number", "producer")

    def __init__(self, producer, number):
        self.producer = producer
        self.number = number


TYPES = [type(f"Item{index}", (Item,), {"__slots__": ()}) for index in range(6)]


def assert_in_order(items, count=None):
    """Each producer's numbers arrive in the order in which it produced them."""
    numbers = defaultdict(list)
    for item in items:
        numbers[item.producer].append(item.number)
    for producer, seen in numbers.items():
        assert seen == sorted(seen), f"producer {producer} was reordered"
        assert len(set(seen)) == len(seen)
        if count is not None:
            assert seen == list(range(count))


@pytest.mark.parametrize("buffer_size", [1, 5, 300, 10_000])
@pytest.mark.parametrize("max_batch_items", [1, 64, 10_000])
def test_each_type_and_producer_keeps_its_order(make_queue, buffer_size, max_batch_items):
    queue = make_queue(
        threads=3, partitions=4, buffer_size=buffer_size, max_batch_items=max_batch_items
    )
    recorders = [Recorder() for _ in TYPES]
    for item_type, recorder in zip(TYPES, recorders, strict=True):
        queue.add_handler(item_type, recorder)
    count = 100 if buffer_size == 1 else 600

    def produce(producer):
        for number in range(count):
            if (number // 50 + producer) % 2:
                assert queue.produce_many(
                    [item_type(producer, number) for item_type in TYPES]
                ) == len(TYPES)
            else:
                assert all(queue.produce(item_type(producer, number)) for item_type in TYPES)

    run_threads(*[lambda producer=producer: produce(producer) for producer in range(3)])
    assert queue.shutdown(WAIT_S) == 0
    for recorder in recorders:
        assert len(recorder.items) == 3 * count
        assert_in_order(recorder.items, count)


def test_long_runs_of_one_type_keep_their_order(make_queue):
    """Long runs fill many segments; a full buffer stops the producer in the middle of a segment."""
    queue = make_queue(buffer_size=1_000, max_batch_items=300)
    recorder = Recorder()
    queue.add_handler(TYPES[0], recorder)

    def produce(producer):
        items = [TYPES[0](producer, number) for number in range(20_000)]
        assert queue.produce_many(items) == 20_000

    run_threads(*[lambda producer=producer: produce(producer) for producer in range(2)])
    assert queue.shutdown(WAIT_S) == 0
    assert_in_order(recorder.items, 20_000)


def test_one_handler_for_several_types_keeps_each_in_order(make_queue):
    queue = make_queue(threads=2, partitions=6, buffer_size=20)
    recorder = Recorder()
    for item_type in TYPES:
        queue.add_handler(item_type, recorder)

    def produce(producer):
        for number in range(500):
            for item_type in TYPES:
                assert queue.produce(item_type(producer, number))

    run_threads(*[lambda producer=producer: produce(producer) for producer in range(2)])
    assert queue.shutdown(WAIT_S) == 0
    for item_type in TYPES:
        assert_in_order([item for item in recorder.items if type(item) is item_type], 500)


@pytest.mark.parametrize(
    "key",
    [str, lambda number: number, lambda number: str(number).encode()],
    ids=["str", "int", "bytes"],
)
def test_each_key_and_producer_keeps_its_order(make_queue, key):
    selector = PartitionSelector.by_key(lambda item: key(item.number % 7))
    consumers = []

    def factory():
        consumers.append(Recorder())
        return consumers[-1]

    queue = make_queue(
        threads=3, partitions=6, selector=selector, consumer_factory=factory, buffer_size=30
    )

    def produce(producer):
        for number in range(0, 1_000, 10):
            assert (
                queue.produce_many(
                    Item(producer, following) for following in range(number, number + 10)
                )
                == 10
            )

    run_threads(*[lambda producer=producer: produce(producer) for producer in range(3)])
    assert queue.shutdown(WAIT_S) == 0
    seen_by = defaultdict(set)
    for index, consumer in enumerate(consumers):
        by_key = defaultdict(list)
        for item in consumer.items:
            by_key[item.number % 7].append(item)
            seen_by[item.number % 7].add(index)
        for items in by_key.values():
            assert_in_order(items)
    assert sum(len(consumer.items) for consumer in consumers) == 3_000
    assert all(len(indexes) == 1 for indexes in seen_by.values()), "a key stays in its partition"
    assert len({next(iter(indexes)) for indexes in seen_by.values()}) > 1, "the keys are spread"


def test_each_partition_keeps_its_order_with_a_custom_selector(make_queue):
    selector = PartitionSelector.custom(lambda item, count: item.number % count)
    recorder = Recorder()
    queue = make_queue(
        threads=2, partitions=4, selector=selector, consumer=recorder, buffer_size=10
    )
    run_threads(
        *[
            lambda producer=producer: queue.produce_many(Item(producer, n) for n in range(1_000))
            for producer in range(2)
        ]
    )
    assert queue.shutdown(WAIT_S) == 0
    for partition in range(4):
        assert_in_order([item for item in recorder.items if item.number % 4 == partition])
    assert len(recorder.items) == 2_000


def test_order_is_kept_while_the_queue_grows(make_queue):
    """Types are added while others are produced: each type keeps its partition and its order."""
    queue = make_queue(threads=2, partitions=PartitionPolicy.adaptive(2), buffer_size=50)
    recorders = {TYPES[0]: Recorder()}
    queue.add_handler(TYPES[0], recorders[TYPES[0]])
    stop = threading.Event()
    produced = [0, 0]

    def produce(producer):
        number = 0
        while not stop.is_set():
            assert queue.produce(TYPES[0](producer, number))
            number += 1
            produced[producer] = number

    def grow():
        try:
            for index in range(120):
                item_type = type(f"Grown{index}", (Item,), {"__slots__": ()})
                recorders[item_type] = Recorder()
                queue.add_handler(item_type, recorders[item_type])
                for number in range(20):
                    assert queue.produce(item_type(0, number))
        finally:
            stop.set()

    run_threads(grow, lambda: produce(0), lambda: produce(1))
    home = [part.index for part in queue.stats().top_n(1_000) if TYPES[0] in part.types]
    assert home == [0]
    assert queue.shutdown(WAIT_S) == 0
    stats = queue.stats()
    assert stats.partition_count == 4 + (121 - 4) // 2
    assert stats.unhandled == 0
    assert_conserved(stats)
    for item_type, recorder in recorders.items():
        assert_in_order(recorder.items)
        if item_type is not TYPES[0]:
            assert len(recorder.items) == 20
    assert len(recorders[TYPES[0]].items) == sum(produced)


def test_order_is_kept_through_failures_and_shutdown(make_queue):
    seen = []

    def fail_sometimes(batch):
        seen.extend(batch)
        if len(seen) % 3 == 0:
            raise ValueError("as planned")

    queue = make_queue(buffer_size=10)
    queue.add_handler(TYPES[0], fail_sometimes)
    queue.produce_many(TYPES[0](0, number) for number in range(2_000))
    assert queue.shutdown(WAIT_S) == 0
    assert_in_order(seen, 2_000)


def test_queued_items_are_handled_as_one_batch_per_type(make_queue):
    """One cycle takes what is queued, groups it by type and calls each handler once."""
    queue = make_queue(min_idle_ms=60_000)
    first, second = Recorder(), Recorder()
    queue.add_handler(int, first)
    queue.add_handler(str, second)
    queue.produce_many([1, "a", 2, "b", 3])
    assert queue.flush(WAIT_S)
    assert first.batches == [[1, 2, 3]]
    assert second.batches == [["a", "b"]]
