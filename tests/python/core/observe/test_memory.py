"""Memory: references are released, cycles are collected, types keep their addresses."""

import gc
import sys
import weakref

import pytest

from batchqueue import (
    BatchQueue,
    BufferStrategy,
    DrainBalancer,
    PartitionSelector,
    QueueClosedError,
    RetryPolicy,
)
from core_support.handlers import Held, Recorder
from core_support.queues import config
from core_support.waits import WAIT_S, eventually


class Item:
    pass


def collected(reference):
    gc.collect()
    return reference() is None


def test_reference_counts_of_items_are_restored(make_queue):
    queue = make_queue(threads=2, buffer_size=3, strategy=BufferStrategy.IF_POSSIBLE)
    queue.add_handler(Item, lambda batch: None)
    item, stranger = Item(), 1.5
    counts = sys.getrefcount(item), sys.getrefcount(stranger)
    for _ in range(50):
        queue.produce(item)
        queue.produce(stranger)
        queue.produce_many([item, stranger] * 5)
        queue.produce_many(iter([item, stranger]))
        assert queue.flush(WAIT_S)
    queue.shutdown(WAIT_S)
    queue.produce(item)
    queue.produce_many([item] * 5)
    del _
    assert (sys.getrefcount(item), sys.getrefcount(stranger)) == counts


def test_handled_item_dies_with_its_batch(make_queue):
    queue = make_queue()
    queue.add_handler(Item, lambda batch: None)
    item = Item()
    reference = weakref.ref(item)
    queue.produce(item)
    del item
    assert queue.flush(WAIT_S)
    eventually(lambda: reference() is None, "the item dies")


@pytest.mark.parametrize("fail", ["handler", "on_error"])
def test_failed_item_dies_with_its_error(make_queue, fail):
    class Failing:
        def consume(self, batch):
            raise ValueError(batch)

    if fail == "on_error":
        Failing.on_error = lambda self, batch, error: None
    queue = make_queue()
    queue.add_handler(Item, Failing())
    item = Item()
    reference = weakref.ref(item)
    queue.produce(item)
    del item
    assert queue.flush(WAIT_S)
    eventually(lambda: collected(reference), "the item dies")


def test_abandoned_items_die_when_their_thread_returns(make_queue):
    queue = make_queue()
    handler = Held()
    queue.add_handler(Item, handler)
    handler.hold(queue, Item())
    item = Item()
    reference = weakref.ref(item)
    queue.produce(item)
    del item
    assert queue.shutdown(0) == 2
    handler.released.set()
    eventually(lambda: reference() is None, "the abandoned item dies")


def test_queue_that_was_shut_down_and_its_handler_are_collected():
    class Handler(Recorder):
        pass

    queue = BatchQueue("cycle", config())
    handler = Handler()
    handler.queue = queue
    queue.add_handler(int, handler)
    queue.produce(1)
    queue.shutdown(WAIT_S)
    references = weakref.ref(queue), weakref.ref(handler)
    del queue, handler
    assert all(collected(reference) for reference in references)


def canary_in_a_cycle(through):
    """Puts a queue into a cycle through one of its arguments, runs it and shuts it down.

    Returns a weak reference into the cycle.
    """

    class Canary:
        pass

    class Kept(Item):
        pass

    canary = Canary()
    box = [canary]
    settings = {
        "error_handler": {"error_handler": lambda batch, error: box},
        "consumer": {"consumer": lambda batch: box},
        "factory": {"consumer_factory": lambda: lambda batch: box},
        "selector": {"selector": PartitionSelector.custom(lambda item, count: len(box) and 0)},
        "key": {"selector": PartitionSelector.by_key(lambda item: str(len(box)))},
        "balancer": {"threads": 2, "balancer": DrainBalancer.custom(lambda *_: box and None)},
        "retry_on": {"retry": RetryPolicy(retry_on=(type("Boxed", (Exception,), {"box": box}),))},
    }.get(through, {})
    queue = BatchQueue("cycle", config(**settings))
    box.append(queue)
    if through in ("function", "replaced", "removed"):
        queue.add_handler(int, lambda batch: box)
    if through == "replaced":
        queue.add_handler(int, lambda batch: None, replace=True)
    elif through == "removed":
        queue.remove_handler(int)
    elif through == "made_by_factory":
        queue.add_handler_factory(int, lambda: lambda batch: box, partitions=1)
    elif through in ("item", "type"):
        queue.add_handler(Kept, lambda batch: None)
        item = Kept()
        (item if through == "item" else Kept).box = box
        queue.produce(item)
    queue.produce(1)
    queue.rebalance()
    queue.shutdown(WAIT_S)
    return weakref.ref(canary)


@pytest.mark.parametrize(
    "through",
    [
        *("function", "replaced", "removed", "made_by_factory", "consumer", "factory"),
        *("error_handler", "selector", "key", "balancer", "retry_on", "item", "type"),
    ],
)
def test_cycles_through_any_argument_of_a_queue_are_collected(through):
    assert collected(canary_in_a_cycle(through))


def test_dropped_queue_releases_its_handler():
    class Handler(Recorder):
        pass

    handler = Handler()
    reference = weakref.ref(handler)
    queue = BatchQueue("dropped", config())
    queue.add_handler(int, handler)
    queue.produce(1)
    del queue, handler
    eventually(lambda: collected(reference), "the handler dies after its last batch")


def test_running_queue_keeps_its_handlers(make_queue):
    seen = []

    class Handler:
        def consume(self, batch):
            seen.extend(batch)

    queue = make_queue()
    queue.add_handler(int, Handler())
    gc.collect()
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert seen == [1]


def test_rejected_handler_is_not_kept(make_queue):
    queue = make_queue()
    queue.shutdown(30)

    class Handler(Recorder):
        pass

    refused = Handler()
    reference = weakref.ref(refused)
    with pytest.raises(QueueClosedError):
        queue.add_handler(int, refused)
    del refused
    assert collected(reference)


def test_registered_types_stay_alive_so_that_their_addresses_are_not_reused(make_queue):
    queue = make_queue(partitions=4)
    recorder = Recorder()
    references = []
    for index in range(200):
        item_type = type(f"Short{index}", (), {})
        references.append(weakref.ref(item_type))
        queue.add_handler(item_type, recorder)
        del item_type
    gc.collect()
    assert all(reference() is not None for reference in references)
    for index in range(500):
        queue.produce(type(f"Unknown{index}", (), {})())
    assert queue.flush(WAIT_S)
    assert recorder.items == [], "an unknown type is never taken for a registered one"
    assert queue.stats().unhandled == 500


def test_unregistered_types_do_not_stay_alive(make_queue):
    queue = make_queue()
    item_type = type("Unregistered", (), {})
    reference = weakref.ref(item_type)
    queue.produce(item_type())
    assert queue.flush(WAIT_S)
    del item_type
    eventually(lambda: collected(reference), "the type dies with its last item")


def test_short_lived_queues_leave_nothing_behind():
    def live_queues():
        gc.collect()
        return sum(isinstance(candidate, BatchQueue) for candidate in gc.get_objects())

    before = live_queues()
    for _ in range(20):
        with BatchQueue("short", config(threads=2)) as queue:
            queue.add_handler(int, Recorder())
            queue.produce(1)
    del queue
    assert live_queues() == before
