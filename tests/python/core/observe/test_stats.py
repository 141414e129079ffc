"""Statistics: complete, immutable, and consistent while the queue runs."""

import dataclasses
import pickle
import threading

import pytest

from batchqueue import BufferStrategy, PartitionPolicy
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.threads import run_threads
from core_support.waits import WAIT_S, eventually


def test_new_queue_shows_its_shape(make_queue):
    stats = make_queue("orders", threads=2, partitions=6, buffer_size=50).stats()
    assert (stats.name, stats.partition_count, stats.thread_count) == ("orders", 6, 2)
    assert (stats.buffer_size, stats.total_capacity) == (50, 300)
    assert (stats.total_used, stats.used_percentage) == (0, 0.0)
    assert stats.attempts == stats.produced == stats.consumed == 0
    assert stats.stuck_handlers == ()
    assert [thread.index for thread in stats.drain_threads] == [0, 1]
    assert [stats.partition(index).owner for index in range(6)] == [0, 1, 0, 1, 0, 1]
    assert stats.handlers() == {}


def test_snapshot_does_not_change(make_queue):
    queue = make_queue()
    queue.add_handler(int, Recorder())
    before = queue.stats()
    queue.produce(1)
    queue.flush(WAIT_S)
    assert before.produced == 0
    assert queue.stats().produced == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.produced = 3
    before.handlers().clear()
    assert list(before.handlers()) == [int]


def test_snapshot_pickles(make_queue):
    queue = make_queue()
    queue.add_handler(int, Recorder())
    queue.produce(1)
    queue.flush(WAIT_S)
    stats = queue.stats()
    assert pickle.loads(pickle.dumps(stats)) == stats


def test_snapshot_lists_partitions_and_handlers_by_type(make_queue):
    queue = make_queue(partitions=PartitionPolicy.adaptive(), buffer_size=10)
    held, free = Held(), Recorder()
    queue.add_handler(str, free)
    queue.add_handler(int, held)
    queue.produce_many(["a", "b"])
    assert queue.flush(WAIT_S)
    held.hold(queue, 0)
    queue.produce_many([1, 2, 3, 4])
    stats = queue.stats()
    assert [stats.partition(index).types for index in range(2)] == [(str,), (int,)]
    assert [stats.partition(index).used for index in range(2)] == [0, 5]
    assert stats.partition(1).used_percentage == 50.0
    assert stats.total_used == 5
    assert stats.used_percentage == 25.0
    assert stats.in_flight == 1
    assert [part.index for part in stats.top_n(1)] == [1]
    assert [part.index for part in stats.top_n(10)] == [1, 0]
    assert stats.top_n(0) == []
    of_str = stats.handlers()[str]
    assert (of_str.consumed, of_str.failed) == (2, 0)
    assert of_str.batches in (1, 2)
    assert of_str.ns_per_item > 0
    assert stats.handlers()[int].batches == 0
    held.released.set()
    assert queue.flush(WAIT_S)
    assert queue.stats().total_used == 0


@pytest.mark.parametrize("index", [-1, 2, 10**9])
def test_unknown_partition_is_an_index_error(make_queue, index):
    with pytest.raises(IndexError, match=r"0 to 1"):
        make_queue(partitions=2).stats().partition(index)


def test_used_percentage_never_exceeds_a_hundred(make_queue):
    queue = make_queue(buffer_size=2, strategy=BufferStrategy.IF_POSSIBLE)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    queue.produce_many([1, 2, 3])
    stats = queue.stats()
    assert stats.total_used == 3
    assert stats.used_percentage == 100.0
    assert stats.partition(0).used_percentage == 100.0
    handler.released.set()


def test_drain_threads_count_what_they_dispatched(make_queue):
    queue = make_queue(threads=2)
    queue.add_handler(int, lambda batch: sum(sum(range(2_000)) for _ in batch))
    queue.add_handler(str, Recorder())
    queue.produce_many([1] * 100 + ["a"] * 10 + [2.5])
    queue.shutdown(WAIT_S)
    threads = queue.stats().drain_threads
    assert sum(thread.items for thread in threads) == 111
    assert all(thread.cycles > 0 for thread in threads)
    assert max(threads, key=lambda thread: thread.cpu_s).items >= 100


def test_stats_are_available_after_shutdown(make_queue):
    queue = make_queue()
    queue.add_handler(int, Recorder())
    queue.produce_many([1, 2])
    queue.shutdown(WAIT_S)
    stats = queue.stats()
    assert (stats.produced, stats.consumed) == (2, 2)
    assert_conserved(stats)
    assert queue.stats() == stats


def test_counts_only_grow_and_agree_while_the_queue_runs(make_queue):
    queue = make_queue(threads=2, partitions=4, buffer_size=20, max_batch_items=10)
    types = [type(f"T{index}", (), {}) for index in range(4)]

    def consume(batch):
        if len(batch) % 3 == 0:
            raise ValueError("as planned")

    for item_type in types[:3]:
        queue.add_handler(item_type, consume)
    done = threading.Event()

    def produce():
        for _ in range(1_500):
            for item_type in types:
                queue.produce(item_type())

    def produce_all():
        try:
            run_threads(produce, produce)
        finally:
            done.set()

    def watch():
        last = queue.stats()
        while not done.is_set():
            stats = queue.stats()
            for count in ("attempts", "produced", "refused", "consumed", "failed", "unhandled"):
                assert getattr(stats, count) >= getattr(last, count), count
            assert stats.produced + stats.refused <= stats.attempts
            assert stats.consumed + stats.failed + stats.unhandled <= stats.produced
            assert 0 <= stats.in_flight <= stats.total_used
            assert 0.0 <= stats.used_percentage <= 100.0
            last = stats

    run_threads(produce_all, watch)
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())
    assert queue.stats().produced == 12_000


def test_stats_name_a_handler_only_while_it_is_stuck(make_queue):
    queue = make_queue()
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    eventually(lambda: queue.stats().stuck_handlers == ("int",), "the handler is named")
    handler.released.set()
    assert queue.flush(WAIT_S)
    assert queue.stats().stuck_handlers == ()
