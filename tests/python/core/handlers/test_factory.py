"""A hot type on several partitions: `add_handler_factory` makes one handler for each."""

import threading
import time

import pytest

from batchqueue import ConfigError, PartitionPolicy, PartitionSelector
from core_support.handlers import Recorder
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S, eventually


class Made(Recorder):
    """Adds itself to a list of instances, and detects overlapping calls."""

    def __init__(self, instances):
        super().__init__()
        self._inside = threading.Lock()
        instances.append(self)

    def consume(self, batch):
        assert self._inside.acquire(blocking=False), "P1: entered twice"
        try:
            for _ in range(3):
                time.sleep(0)  # yields the interpreter, so that another thread could enter
            super().consume(batch)
        finally:
            self._inside.release()


def test_one_instance_per_partition_and_items_spread_evenly(make_queue):
    instances = []
    queue = make_queue(threads=2, partitions=4)
    assert queue.add_handler_factory(int, lambda: Made(instances), partitions=4) is None
    assert len(instances) == 4
    assert [queue.stats().partition(index).types for index in range(4)] == [(int,)] * 4
    for number in range(4_000):
        assert queue.produce(number)
    assert queue.produce_many(range(4_000, 8_000)) == 4_000
    assert queue.shutdown(WAIT_S) == 0
    counts = [len(instance.items) for instance in instances]
    assert sorted(item for instance in instances for item in instance.items) == list(range(8_000))
    assert max(counts) - min(counts) <= 128, counts
    assert [instance.closed for instance in instances] == [1] * 4
    assert (queue.stats().consumed, queue.stats().handlers()[int].consumed) == (8_000, 8_000)
    assert_conserved(queue.stats())


def test_order_is_kept_per_partition(make_queue):
    instances = []
    queue = make_queue(threads=3, partitions=3, buffer_size=100, max_batch_items=10)
    queue.add_handler_factory(int, lambda: Made(instances), partitions=3)
    assert queue.produce_many(range(5_000), timeout=WAIT_S) == 5_000
    assert queue.shutdown(WAIT_S) == 0
    assert all(instance.items == sorted(instance.items) for instance in instances)


def test_instances_run_in_parallel(make_queue):
    together = threading.Barrier(3)

    class Meets:
        def consume(self, batch):
            together.wait(WAIT_S)

    queue = make_queue(settings=config(threads=3, partitions=6))
    queue.add_handler_factory(int, Meets, partitions=3)
    assert {
        queue.stats().partition(part.index).owner for part in queue.stats().top_n(9) if part.types
    } == {
        0,
        1,
        2,
    }
    for number in range(3):
        assert queue.produce(number)
    assert queue.flush(WAIT_S)
    assert not together.broken


def test_adaptive_queue_grows_by_the_requested_partitions(make_queue):
    queue = make_queue(threads=2, partitions=PartitionPolicy.adaptive())
    queue.add_handler(str, Recorder())
    assert queue.stats().partition_count == 2
    instances = []
    queue.add_handler_factory(int, lambda: Made(instances), partitions=6)
    stats = queue.stats()
    assert stats.partition_count == 7
    assert sum(int in part.types for part in stats.top_n(99)) == len(instances) == 6


def test_other_types_work_beside_a_factory(make_queue):
    queue = make_queue(threads=2, partitions=3)
    instances, other = [], Recorder()
    queue.add_handler_factory(int, lambda: Made(instances), partitions=3)
    queue.add_handler(str, other)
    queue.produce_many([1, "a", 2, "b", 3])
    assert queue.shutdown(WAIT_S) == 0
    assert sorted(item for instance in instances for item in instance.items) == [1, 2, 3]
    assert other.items == ["a", "b"]


def test_factory_that_returns_one_instance_makes_it_one_handler(make_queue):
    instances = []
    instance = Made(instances)
    queue = make_queue(threads=3, partitions=3, min_idle_ms=0)
    queue.add_handler_factory(int, lambda: instance, partitions=3)
    for number in range(3_000):
        assert queue.produce(number)
    assert queue.shutdown(WAIT_S) == 0
    assert queue.stats().failed == 0
    assert sorted(instance.items) == list(range(3_000))
    assert instance.closed == 1


def test_factory_may_be_replaced_removed_and_added_again(make_queue):
    first, second = [], []
    queue = make_queue(threads=2, partitions=2)
    queue.add_handler_factory(int, lambda: Made(first), partitions=2)
    queue.produce_many([1, 2])
    assert queue.flush(WAIT_S)
    queue.add_handler_factory(int, lambda: Made(second), partitions=2, replace=True)
    assert [instance.closed for instance in first] == [1, 1]
    assert queue.remove_handler(int) is True
    assert [instance.closed for instance in second] == [1, 1]
    alone = Recorder()
    queue.add_handler(int, alone)
    assert queue.produce_many([3, 4, 5]) == 3
    assert queue.shutdown(WAIT_S) == 0
    assert sorted(alone.items) == [3, 4, 5], "one handler for all of its partitions"


def test_type_keeps_its_number_of_partitions(make_queue):
    queue = make_queue(threads=2, partitions=4)
    kept = Recorder()
    queue.add_handler(int, kept)
    with pytest.raises(ConfigError, match=r"int has 1 of the queue's partitions, .*over 3.*give 1"):
        queue.add_handler_factory(int, Recorder, partitions=3, replace=True)
    queue.add_handler_factory(str, Recorder, partitions=2)
    with pytest.raises(ConfigError, match=r"str has 2 .*over 4"):
        queue.add_handler_factory(str, Recorder, partitions=4, replace=True)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert (kept.items, kept.closed) == ([1], 0), "a refused change changes nothing"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((int, Recorder, 0), r"partitions is 0.*1 to 1_024"),
        ((int, Recorder, 1_025), r"partitions is 1025.*1 to 1_024"),
        ((int, Recorder, True), r"partitions is True"),
        ((int, Recorder, 2.0), r"partitions is 2\.0"),
        ((int, Recorder, 5), r"over 5 partitions: the queue has 4.*fewer.*adaptive"),
        ((3, Recorder, 2), r"item_type is 3.*give a class"),
        ((int, None, 2), r"factory is None.*function without arguments"),
        ((int, lambda: 5, 2), r"int cannot be a handler.*consume"),
    ],
    ids=["zero", "many", "bool", "float", "fixed", "type", "factory", "handler"],
)
def test_invalid_arguments_are_rejected(make_queue, arguments, message):
    queue = make_queue(threads=2, partitions=4)
    item_type, factory, partitions = arguments
    with pytest.raises(ConfigError, match=message):
        queue.add_handler_factory(item_type, factory, partitions=partitions)
    assert queue.stats().handlers() == {}


@pytest.mark.parametrize(
    "selector",
    [
        PartitionSelector.round_robin(),
        PartitionSelector.by_key(str),
        PartitionSelector.custom(lambda item, count: 0),
    ],
    ids=lambda selector: selector.kind,
)
def test_other_selectors_have_no_partitions_per_type(make_queue, selector):
    queue = make_queue(threads=2, partitions=4, selector=selector)
    with pytest.raises(ConfigError, match=r"only the selector by_type.*use add_handler"):
        queue.add_handler_factory(int, Recorder, partitions=2)


def test_factory_that_raises_registers_nothing(make_queue):
    queue = make_queue(threads=2, partitions=4)
    made = []

    def factory():
        made.append(1)
        if len(made) == 2:
            raise OSError("as planned")
        return Recorder()

    with pytest.raises(OSError, match="as planned"):
        queue.add_handler_factory(int, factory, partitions=3)
    assert queue.stats().handlers() == {}
    queue.produce(1)
    eventually(lambda: queue.stats().unhandled == 1)
