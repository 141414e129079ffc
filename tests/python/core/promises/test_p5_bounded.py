"""P5: at most buffer_size items per partition, and max_batch_items in flight per drain thread."""

import pytest

from batchqueue import BufferStrategy, PartitionSelector
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.scripts import run_script
from core_support.threads import in_background, join, run_threads
from core_support.waits import WAIT_S, eventually


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 4, 5, 63, 255, 256, 257, 1_000, 5_000])
@pytest.mark.parametrize("how", ["one by one", "list", "iterator"])
def test_bound_is_exact(make_queue, buffer_size, how):
    queue = make_queue(buffer_size=buffer_size, strategy=BufferStrategy.IF_POSSIBLE)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, -1)
    items = range(buffer_size + 10)
    if how == "one by one":
        accepted = sum(queue.produce(item) for item in items)
    else:
        accepted = queue.produce_many(list(items) if how == "list" else iter(items))
    assert accepted == buffer_size
    stats = queue.stats()
    assert stats.in_flight == 1
    assert stats.total_used == buffer_size + 1, "items in flight count as used"
    assert stats.partition(0).used == buffer_size + 1
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == [-1, *range(buffer_size)]


def test_each_partition_has_its_own_bound(make_queue):
    selector = PartitionSelector.custom(lambda item, count: item % count)
    handler = Held()
    queue = make_queue(
        partitions=3,
        consumer=handler,
        selector=selector,
        buffer_size=5,
        strategy=BufferStrategy.IF_POSSIBLE,
    )
    handler.hold(queue, 0)
    accepted = [
        sum(queue.produce(3 * number + partition) for number in range(9)) for partition in range(3)
    ]
    assert accepted == [5, 5, 5]
    stats = queue.stats()
    assert [stats.partition(index).used for index in range(3)] == [6, 5, 5]
    assert [stats.partition(index).attempts for index in range(3)] == [10, 9, 9]
    assert stats.total_capacity == 15
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 50])
def test_many_producers_cannot_exceed_the_bound(make_queue, buffer_size):
    """The handler holds one item, so all other accepted items stay queued."""
    queue = make_queue(buffer_size=buffer_size, strategy=BufferStrategy.IF_POSSIBLE)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, -1)
    accepted = []

    def produce():
        accepted.extend(number for number in range(200) if queue.produce(number))
        accepted.extend(range(queue.produce_many(list(range(200)))))

    run_threads(*[produce] * 4)
    assert len(accepted) == buffer_size
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())


def test_producer_waits_while_its_partition_is_full(make_queue):
    queue = make_queue(buffer_size=2)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    assert queue.produce_many([1, 2]) == 2
    producer, outcome = in_background(lambda: queue.produce_many([3, 4, 5]))
    eventually(
        lambda: queue.stats().attempts == 4, "the attempt is counted while the producer waits"
    )
    assert queue.stats().produced == 3
    assert outcome == []
    handler.released.set()
    join(producer)
    assert outcome == [3]
    assert queue.flush(WAIT_S)
    assert handler.items == [0, 1, 2, 3, 4, 5]


def test_full_partition_does_not_block_another(make_queue):
    queue = make_queue(threads=2, buffer_size=1)
    held, free = Held(), Recorder()
    queue.add_handler(int, held)
    queue.add_handler(str, free)
    held.hold(queue, 0)
    assert queue.produce(1)
    blocked, _ = in_background(lambda: queue.produce(2))
    eventually(lambda: queue.stats().attempts == 3, "the producer waits")
    for number in range(50):
        assert queue.produce(str(number), timeout=WAIT_S)
    assert queue.stats().produced == 52
    held.released.set()
    join(blocked)
    assert queue.flush(WAIT_S)
    assert len(free.items) == 50


@pytest.mark.parametrize("max_batch_items", [1, 2, 100, 300])
def test_no_call_of_a_handler_of_several_classes_gets_more_than_max_batch_items(
    make_queue, max_batch_items
):
    queue = make_queue(partitions=3, max_batch_items=max_batch_items, buffer_size=2_000)
    handler = Held()
    types = [int, str, bytes]
    for item_type in types:
        queue.add_handler(item_type, handler)
    handler.hold(queue, -1)
    for make in (int, str, lambda number: b"%d" % number):
        assert queue.produce_many([make(number) for number in range(1_500)]) == 1_500
    handler.released.set()
    assert queue.flush(WAIT_S)
    assert max(len(batch) for batch in handler.batches) <= max_batch_items
    assert len(handler.items) == 4_501


def test_in_flight_is_bounded_over_all_partitions_of_a_thread(make_queue):
    largest = []

    def consume(batch):
        largest.append(queue.stats().in_flight)

    queue = make_queue(
        partitions=8, max_batch_items=50, buffer_size=200, min_idle_ms=60_000, consumer=consume
    )
    queue.produce_many(list(range(800)))
    assert queue.flush(WAIT_S)
    assert max(largest) == 50


def test_unused_partition_costs_little_whatever_its_buffer_size():
    """A thousand partitions of 50,000 items: a slot for each item would need 800 MB."""
    code, out, err = run_script(
        """
        def resident():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        before = resident()
        settings = config(partitions=PartitionPolicy.fixed(1_000), buffer_size=50_000)
        queue = BatchQueue("wide", settings)
        say((resident() - before) // 1_000)
        """
    )
    assert code == 0, err
    assert int(out[0]) < 40_000, "bytes per partition"


def test_memory_is_returned_when_a_backlog_is_drained():
    code, out, err = run_script(
        """
        import ctypes
        def resident():
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        consumer = lambda batch: gate.wait(60)
        settings = config(partitions=PartitionPolicy.fixed(64), consumer=consumer,
                          buffer_size=20_000, max_batch_items=20_000)
        gate = threading.Event()
        queue = BatchQueue("wide", settings)
        before = resident()
        items = list(range(1_000_000))
        listed = resident()
        queue.produce_many(items)
        full = resident()
        gate.set()
        queue.flush(60)
        say(full - listed, resident() - listed)
        """
    )
    assert code == 0, err
    full, drained = (int(word) for word in out[0].split())
    assert full > 10_000_000
    assert drained < full / 2
