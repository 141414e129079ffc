"""P1: calls into one handler instance never overlap."""

import threading
import time

from batchqueue import PartitionSelector
from core_support.handlers import Held
from core_support.queues import config
from core_support.threads import run_threads
from core_support.waits import WAIT_S, eventually

TYPES = [type(f"Item{index}", (), {}) for index in range(8)]
ROUNDS = 150


class Exclusive:
    """Detects overlapping calls; yields the interpreter inside each call to give them a chance."""

    def __init__(self):
        self._inside = threading.Lock()
        self.overlaps = []
        self.calls = {"consume": 0, "on_idle": 0, "on_error": 0, "on_close": 0}
        self.count = 0

    def _enter(self, method):
        if not self._inside.acquire(blocking=False):
            self.overlaps.append(method)
            return
        try:
            self.calls[method] += 1
            for _ in range(3):
                time.sleep(0)
        finally:
            self._inside.release()

    def consume(self, batch):
        self._enter("consume")
        self.count += len(batch)

    def on_idle(self):
        self._enter("on_idle")

    def on_close(self):
        self._enter("on_close")


def produce_all_types(queue):
    for _ in range(ROUNDS):
        for item_type in TYPES:
            assert queue.produce(item_type())


def test_one_instance_for_several_types_is_exclusive(make_queue):
    queue = make_queue(threads=4, partitions=8, min_idle_ms=0)
    handler = Exclusive()
    for item_type in TYPES:
        queue.add_handler(item_type, handler)
    assert len({queue.stats().partition(index).owner for index in range(8)}) == 4
    run_threads(*[lambda: produce_all_types(queue)] * 2)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.overlaps == []
    assert handler.count == 2 * ROUNDS * len(TYPES)
    assert handler.calls["on_close"] == 1


def test_one_instance_on_several_queues_is_exclusive(make_queue):
    handler = Exclusive()
    queues = [make_queue(f"queue{index}", threads=1, min_idle_ms=0) for index in range(4)]
    for queue in queues:
        for item_type in TYPES:
            queue.add_handler(item_type, handler)
    run_threads(*[lambda queue=queue: produce_all_types(queue) for queue in queues])
    for queue in queues:
        assert queue.shutdown(WAIT_S) == 0
    assert handler.overlaps == []
    assert handler.count == 4 * ROUNDS * len(TYPES)
    assert handler.calls["on_close"] == 4, "on_close is called once per instance and queue"


def test_one_consumer_on_several_threads_is_exclusive(make_queue):
    handler = Exclusive()
    queue = make_queue(threads=4, partitions=8, consumer=handler, min_idle_ms=0, max_idle_ms=1)
    run_threads(*[lambda: produce_all_types(queue)] * 2)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.overlaps == []
    assert handler.count == 2 * ROUNDS * len(TYPES)
    assert handler.calls["on_close"] == 1


def test_one_instance_from_a_consumer_factory_is_exclusive(make_queue):
    handler = Exclusive()
    queue = make_queue(threads=4, consumer_factory=lambda: handler, min_idle_ms=0)
    run_threads(*[lambda: produce_all_types(queue)] * 2)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.overlaps == []
    assert handler.count == 2 * ROUNDS * len(TYPES)


def test_on_close_is_called_once_for_one_instance_from_a_consumer_factory(make_queue):
    handler = Exclusive()
    queue = make_queue(threads=4, consumer_factory=lambda: handler)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.calls["on_close"] == 1


def test_instances_from_a_consumer_factory_run_in_parallel(make_queue):
    together = threading.Barrier(4)

    class Consumer:
        def consume(self, batch):
            together.wait(WAIT_S)

    queue = make_queue(threads=4, consumer_factory=Consumer)
    assert queue.produce_many(range(4)) == 4
    assert queue.flush(WAIT_S)
    assert not together.broken


def test_custom_selector_spreads_one_type_over_threads(make_queue):
    handler = Exclusive()
    spread = PartitionSelector.custom(lambda item, count: id(item) // 16 % count)
    queue = make_queue(threads=4, partitions=8, selector=spread, min_idle_ms=0, max_idle_ms=1)
    for item_type in TYPES:
        queue.add_handler(item_type, handler)
    run_threads(*[lambda: produce_all_types(queue)] * 2)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.overlaps == []
    assert handler.count == 2 * ROUNDS * len(TYPES)


def test_on_idle_does_not_overlap_consume(make_queue):
    handler = Exclusive()
    queue = make_queue(threads=4, partitions=8, min_idle_ms=0, max_idle_ms=0)
    for item_type in TYPES:
        queue.add_handler(item_type, handler)
    for _ in range(20):
        before = handler.calls["on_idle"]
        produce_all_types(queue)
        eventually(lambda before=before: handler.calls["on_idle"] > before, "on_idle")
    queue.shutdown(WAIT_S)
    assert handler.overlaps == []


def test_on_error_is_exclusive_too(make_queue):
    class Failing(Exclusive):
        def consume(self, batch):
            super().consume(batch)
            raise ValueError("as planned")

        def on_error(self, batch, error):
            self._enter("on_error")

    handler = Failing()
    queue = make_queue(threads=4, partitions=8, min_idle_ms=0)
    for item_type in TYPES:
        queue.add_handler(item_type, handler)
    run_threads(*[lambda: produce_all_types(queue)] * 2)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.overlaps == []
    assert handler.calls["on_error"] == handler.calls["consume"] > 0


def test_bound_methods_of_one_instance_are_one_handler(make_queue):
    """`worker.consume` is a new object at each access, and still the same worker."""
    worker = Exclusive()
    queue = make_queue(threads=4, partitions=8, min_idle_ms=0)
    for item_type in TYPES:
        queue.add_handler(item_type, worker.consume)
    run_threads(*[lambda: produce_all_types(queue)] * 2)
    assert queue.shutdown(WAIT_S) == 0
    assert worker.overlaps == []
    assert worker.count == 2 * ROUNDS * len(TYPES)


def test_second_thread_waits_outside_and_then_enters(make_queue):
    handler = Held()
    queue = make_queue(threads=2, min_idle_ms=0)
    queue.add_handler(int, handler)
    queue.add_handler(str, handler)
    handler.hold(queue, 1)
    queue.produce("second")
    eventually(lambda: queue.stats().held == 1, "the second thread has taken its item")
    assert handler.batches == []
    handler.released.set()
    assert queue.flush(WAIT_S)
    assert handler.batches == [[1], ["second"]]


def test_thread_that_waits_for_a_handler_serves_its_free_handlers_first(make_queue):
    """While one thread is inside the shared handler, the other serves the handlers only it has."""
    shared, own, pause = Held(), Held(), Held()
    own.released.set()
    queue = make_queue(settings=config(threads=2, partitions=4))
    # Types take partitions in order and owners are index mod threads: str alone is thread 1's.
    queue.add_handler(int, shared)
    queue.add_handler(str, shared)
    queue.add_handler(bytes, own)
    queue.add_handler(bytearray, Held())
    queue.add_handler(float, pause)
    assert [set(queue.stats().partition(index).types) for index in (0, 2)] == [
        {int, float},
        {bytes},
    ]
    queue.produce("held by thread 1")
    assert shared.entered.wait(WAIT_S)
    # Thread 0 finds both items in one cycle, the item for the busy handler first.
    pause.hold(queue, 0.5)
    queue.produce_many([1, b"free"])
    pause.released.set()
    assert own.entered.wait(WAIT_S), "the free handler waits behind the busy one"
    shared.released.set()
    assert queue.flush(WAIT_S)
    assert own.items == [b"free"]
    assert shared.items == ["held by thread 1", 1]
