"""Handlers that are removed while the queue runs."""

import threading

from batchqueue import BatchQueueError
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.threads import run_threads
from core_support.waits import WAIT_S, eventually


def test_removed_type_counts_as_unhandled_until_it_has_a_handler_again(make_queue):
    queue = make_queue()
    first, second = Recorder(), Recorder()
    queue.add_handler(int, first)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert queue.remove_handler(int) is True
    assert first.closed == 1
    assert queue.remove_handler(int) is False
    queue.produce_many([2, 3])
    assert queue.flush(WAIT_S)
    assert (queue.stats().consumed, queue.stats().unhandled, queue.stats().handlers()) == (1, 2, {})
    queue.add_handler(int, second)
    queue.produce(4)
    assert queue.shutdown(WAIT_S) == 0
    assert (first.items, second.items) == ([1], [4])
    assert (first.closed, second.closed) == (1, 1)
    assert_conserved(queue.stats())


def test_removal_does_not_wait_for_other_threads(make_queue):
    queue = make_queue(threads=2)
    busy, idle = Held(), Recorder()
    queue.add_handler(int, busy)
    queue.add_handler(str, idle)
    busy.hold(queue, 1)
    assert queue.remove_handler(str) is True
    assert idle.closed == 1
    assert not busy.released.is_set()
    busy.released.set()


def test_handler_may_remove_itself(make_queue):
    queue = make_queue()

    class Once(Recorder):
        def consume(self, batch):
            super().consume(batch)
            assert queue.remove_handler(int)
            assert self.closed == 0

    handler = Once()
    queue.add_handler(int, handler)
    queue.produce(1)
    eventually(lambda: handler.closed == 1, "on_close after the batch")
    queue.produce(2)
    assert queue.shutdown(WAIT_S) == 0
    assert (handler.items, handler.closed, queue.stats().unhandled) == ([1], 1, 1)


def test_flush_from_on_close_of_a_removed_handler_raises(make_queue):
    """It is a call on a drain thread like any other."""
    raised = []

    class Flushes(Recorder):
        def on_close(self):
            try:
                queue.flush()
            except BatchQueueError as error:
                raised.append(str(error))

    queue = make_queue()
    queue.add_handler(int, Flushes())
    assert queue.remove_handler(int)
    assert "drain thread" in raised[0]


def test_instance_that_serves_several_types_is_closed_with_the_last(make_queue):
    queue = make_queue(threads=2)
    handler = Recorder()
    for item_type in (int, str, float):
        queue.add_handler(item_type, handler)
    assert queue.remove_handler(int)
    queue.add_handler(str, Recorder(), replace=True)
    assert handler.closed == 0
    queue.produce(0.5)
    assert queue.flush(WAIT_S)
    assert handler.items == [0.5]
    assert queue.remove_handler(float)
    assert handler.closed == 1
    assert queue.shutdown(WAIT_S) == 0
    assert handler.closed == 1


def test_on_idle_ends_with_the_removal(make_queue):
    queue = make_queue(threads=2, min_idle_ms=0, max_idle_ms=0)
    calls = {"removed": 0, "kept": 0}

    class Idle(Recorder):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def on_idle(self):
            calls[self.name] += 1

    queue.add_handler(int, Idle("removed"))
    queue.add_handler(str, Idle("kept"))
    eventually(lambda: min(calls.values()) > 5, "on_idle of both")
    assert queue.remove_handler(int)
    last, kept = calls["removed"], calls["kept"]
    eventually(lambda: calls["kept"] > kept + 20, "more on_idle of the other handler")
    assert calls["removed"] == last


def test_handler_is_never_entered_after_its_removal_has_returned(make_queue):
    """Against producers, two drain threads and the growth of other types; many times."""
    queue = make_queue(threads=2, partitions=4, min_idle_ms=0, max_batch_items=3)
    for item_type in (str, float):
        queue.add_handler(item_type, Recorder())
    gone, late, stop = set(), [], threading.Event()

    class Handler(Recorder):
        def consume(self, batch):
            if self in gone:
                late.append(batch)
            super().consume(batch)

        def on_close(self):
            super().on_close()
            gone.add(self)

    def produce():
        number = 0
        while not stop.is_set():
            queue.produce_many([number, "", 0.5], timeout=WAIT_S)
            number += 1

    def change():
        try:
            for turn in range(150):
                handler = Handler()
                made.append(handler)
                queue.add_handler(int, handler, replace=True)
                assert set(made[:-1]) == gone, "all but the new handler are closed"
                if turn % 3 == 0:
                    assert queue.remove_handler(int)
                    assert set(made) == gone
        finally:
            stop.set()

    made = []
    run_threads(produce, produce, change)
    assert queue.shutdown(WAIT_S) == 0
    assert late == []
    assert all(handler.closed == 1 for handler in gone)
    assert_conserved(queue.stats())
