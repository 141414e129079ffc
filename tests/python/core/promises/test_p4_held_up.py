"""P4: a handler that is slow, hangs or backs off holds up its own class, and no other."""

import threading
import time

import pytest

from batchqueue import BufferStrategy, DrainBalancer, PartitionSelector, RetryPolicy
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved, try_once_more
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually

HEALTHY = (str, float, bytes, tuple, list)
SELECTORS = {
    "by type": PartitionSelector.by_type(),
    "round robin": PartitionSelector.round_robin(),
    "by key": PartitionSelector.by_key(str),
    "custom": PartitionSelector.custom(lambda item, partitions: len(str(item)) % partitions),
}
BALANCERS = {"no balancer": None, "a balancer": DrainBalancer.throughput_weighted()}


@pytest.fixture(params=BALANCERS)
def settings(request: pytest.FixtureRequest) -> dict:
    balancer = BALANCERS[request.param]
    interval_ms = 20 if balancer else 5_000
    return {
        "threads": 2,
        "partitions": 6,
        "balancer": balancer,
        "rebalance_interval_ms": interval_ms,
    }


def assert_healthy_classes_are_served(queue, recorders, before=0):
    for number in range(before, before + 100):
        for item_type in HEALTHY:
            assert queue.produce(item_type())
        eventually(
            lambda wanted=number + 1: all(len(recorder.items) == wanted for recorder in recorders),
            "the items of the healthy classes",
        )


def healthy(queue):
    recorders = [Recorder() for _ in HEALTHY]
    for item_type, recorder in zip(HEALTHY, recorders, strict=True):
        queue.add_handler(item_type, recorder)
    return recorders


@pytest.mark.parametrize("selector", SELECTORS)
def test_all_other_classes_are_served_while_a_handler_hangs(make_queue, settings, selector):
    queue, hung = make_queue(selector=SELECTORS[selector], **settings), Held()
    queue.add_handler(int, hung)
    recorders = healthy(queue)
    hung.hold(queue, 0)
    assert_healthy_classes_are_served(queue, recorders)
    assert queue.stats().taken_over >= 1
    hung.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())


def test_all_other_classes_are_served_while_a_handler_backs_off(make_queue, settings):
    """The second try is due long after the test."""
    retry = RetryPolicy(attempts=2, backoff_ms=600_000, max_backoff_ms=600_000)
    queue, tried = make_queue(retry=retry, **settings), threading.Event()

    def fail(batch):
        tried.set()
        raise OSError("the database is down")

    queue.add_handler(int, fail)
    recorders = healthy(queue)
    assert queue.produce(1)
    assert tried.wait(WAIT_S)
    assert_healthy_classes_are_served(queue, recorders)
    try_once_more(queue)
    assert queue.shutdown(WAIT_S) == 0
    assert queue.stats().failed == 1
    assert_conserved(queue.stats())


def test_shutdown_delivers_all_but_the_items_of_a_handler_that_hangs(make_queue, settings):
    queue, hung = make_queue(**settings), Held()
    queue.add_handler(int, hung)
    recorders = healthy(queue)
    hung.hold(queue, 0)
    for item_type in HEALTHY:
        assert queue.produce(item_type())
    closing, outcome = in_background(lambda: queue.shutdown(WAIT_S))
    eventually(lambda: all(recorder.items for recorder in recorders), "the healthy classes")
    hung.released.set()
    join(closing)
    assert outcome == [0]
    assert_conserved(queue.stats())


def test_slow_handlers_leave_a_thread_to_quick_ones(make_queue, settings):
    """Both slow classes are in one call after the other, as sinks that take 0.15 s would be."""
    queue, ends = make_queue(spare_threads=0, **settings), threading.Event()
    inside, most = [], []

    def slow(batch):
        inside.append(batch)
        most.append(len(inside))
        time.sleep(0.15)
        inside.pop()

    for item_type in (int, dict):
        queue.add_handler(item_type, lambda batch: slow(batch))
    recorders = healthy(queue)

    def produce_slow():
        while not ends.is_set():
            assert queue.produce(1)
            assert queue.produce({})
            time.sleep(0.005)

    feeder, _ = in_background(produce_slow)
    eventually(lambda: len(most) > 2, "the slow classes to be known")
    assert_healthy_classes_are_served(queue, recorders)
    most.clear()
    assert_healthy_classes_are_served(queue, recorders, 100)
    assert max(most) == 1
    ends.set()
    join(feeder)
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())


def test_a_spare_thread_serves_the_other_classes_while_all_threads_hang(make_queue, settings):
    queue, hung = make_queue(**settings), [Held(), Held()]
    for item_type, handler in zip((int, dict), hung, strict=True):
        queue.add_handler(item_type, handler)
        handler.hold(queue, item_type())
    recorders = healthy(queue)
    assert_healthy_classes_are_served(queue, recorders)
    stats = queue.stats()
    assert stats.thread_count == 2
    # Another spare one may help a first that gets no processor.
    assert len(stats.drain_threads) >= 3
    for handler in hung:
        handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_class_that_hangs_leaves_the_room_of_its_partitions_to_others(make_queue, selector):
    """It has filled every partition that it shares."""
    queue = make_queue(
        selector=SELECTORS[selector],
        threads=2,
        partitions=2,
        buffer_size=16,
        max_batch_items=4,
        strategy=BufferStrategy.IF_POSSIBLE,
    )
    hung, healthy = Held(), Recorder()
    queue.add_handler(int, hung)
    for item_type in (str, float):  # `float` shares the partition of `int`
        queue.add_handler(item_type, healthy)
    hung.hold(queue, 0)
    number = 0
    refused_since = None
    while refused_since is None or time.monotonic() - refused_since < 0.3:
        number += 1
        if queue.produce(number):
            refused_since = None
        elif refused_since is None:
            refused_since = time.monotonic()
    for sent in range(200):
        eventually(lambda sent=sent: queue.produce(float(sent)), "room for the healthy class")
    eventually(lambda: len(healthy.items) == 200, "the items of the healthy class")
    assert not queue.produce(-1), "the class that hangs has no room"
    hung.released.set()
    eventually(lambda: queue.produce(-1), "room for the class that hung")
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())
