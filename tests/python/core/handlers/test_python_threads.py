"""Drain threads are threads of Python: with names, identifiers and the hooks of `threading`."""

import logging
import sys
import threading

import pytest

from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy
from core_support.handlers import Held
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually


def names():
    return {thread.name for thread in threading.enumerate()}


class ThreadRecorder:
    """Keeps the current thread of each call."""

    def __init__(self):
        self.seen = []

    def consume(self, batch):
        self.seen.append((threading.current_thread(), threading.get_ident()))


def test_a_drain_thread_is_named_by_its_queue_and_number(make_queue):
    recorder = ThreadRecorder()
    queue = make_queue("orders", threads=2, partitions=2)
    queue.add_handler(int, recorder)
    queue.add_handler(str, recorder)
    for _ in range(50):
        queue.produce_many([1, "a"])
        assert queue.flush(WAIT_S)
    seen = {thread.name for thread, _ in recorder.seen}
    assert seen <= {"batchqueue-orders-0", "batchqueue-orders-1"}
    assert all(thread.ident == ident for thread, ident in recorder.seen)
    assert len({ident for _, ident in recorder.seen}) == len(seen), "one identifier for each"
    assert all(thread.native_id and thread.daemon for thread, _ in recorder.seen)


def test_log_records_of_a_handler_have_the_name_of_its_thread(make_queue, caplog):
    queue = make_queue("orders")
    queue.add_handler(int, lambda batch: logging.getLogger("app").warning("one"))
    queue.produce(1)
    assert queue.flush(WAIT_S)
    (record,) = [record for record in caplog.records if record.name == "app"]
    assert record.threadName == "batchqueue-orders-0"


def test_a_worker_of_a_shared_scheduler_is_named_by_its_pool():
    recorder = ThreadRecorder()
    pool = BatchQueueConfig(shared_scheduler=("NAMED_POOL", ThreadPolicy.fixed(1)))
    with BatchQueue("first", pool) as first, BatchQueue("other", pool) as other:
        for queue in (first, other):
            queue.add_handler(int, recorder)
            queue.produce(1)
            assert queue.flush(WAIT_S)
    assert [thread.name for thread, _ in recorder.seen] == ["batchqueue-NAMED_POOL-0"] * 2
    assert len({ident for _, ident in recorder.seen}) == 1
    eventually(lambda: "batchqueue-NAMED_POOL-0" not in names(), "the end of the worker")


def test_a_spare_thread_has_a_name_too(make_queue):
    hung, seen = Held(), []
    queue = make_queue("spares", threads=1, partitions=2, spare_threads=1)
    queue.add_handler(int, hung)
    queue.add_handler(str, lambda batch: seen.append(threading.current_thread().name))
    hung.hold(queue, 1)
    queue.produce("a")
    eventually(lambda: seen, "the spare thread")
    hung.released.set()
    assert seen == ["batchqueue-spares-1"]


def test_threads_are_listed_while_they_run_and_no_longer():
    with BatchQueue("listed", BatchQueueConfig(threads=ThreadPolicy.fixed(1))) as queue:
        queue.add_handler(int, lambda batch: None)
        queue.produce(1)
        assert queue.flush(WAIT_S)
        assert "batchqueue-listed-0" in names()
    assert "batchqueue-listed-0" not in names()


def test_the_frame_below_a_handler_is_that_of_its_thread(make_queue):
    """Debuggers return to it; without one they stop at every line."""
    below = []
    queue = make_queue()
    queue.add_handler(int, lambda batch: below.append(sys._getframe().f_back.f_code.co_name))
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert below == ["run"]


@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_hooks_of_threading_run_on_drain_threads(make_queue, kind):
    calls = []

    def hook(frame, event, argument):
        if event == "call":
            calls.append((frame.f_code.co_name, threading.current_thread().name))

    def handle_traced(batch):
        pass

    before = getattr(threading, f"get{kind}")()
    getattr(threading, f"set{kind}")(hook)
    try:
        queue = make_queue("hooked")
        queue.add_handler(int, handle_traced)
        queue.produce(1)
        assert queue.flush(WAIT_S)
    finally:
        getattr(threading, f"set{kind}")(before)
    assert ("handle_traced", "batchqueue-hooked-0") in calls


def test_a_hook_that_raises_loses_no_item(make_queue, capsys):
    def hook(frame, event, argument):
        raise ValueError("as planned")

    seen = []
    before = threading.gettrace()
    threading.settrace(hook)
    try:
        queue = make_queue("hooked")
        queue.add_handler(int, seen.extend)
        queue.produce_many([1, 2])
        assert queue.flush(WAIT_S)
    finally:
        threading.settrace(before)
    queue.produce(3)
    assert queue.flush(WAIT_S)
    assert seen == [1, 2, 3]


def test_the_stack_of_an_idle_thread_can_be_read(make_queue):
    seen = []
    queue = make_queue("idle")
    queue.add_handler(int, lambda batch: seen.append(threading.get_ident()))
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert seen[0] in sys._current_frames()


def test_many_queues_leave_nothing_in_the_list_of_threads():
    before = len(threading.enumerate())

    def make():
        for _ in range(50):
            with BatchQueue("short", BatchQueueConfig(threads=ThreadPolicy.fixed(1))) as queue:
                queue.add_handler(int, lambda batch: None)
                queue.produce(1)

    thread, outcome = in_background(make)
    join(thread)
    assert outcome == [None]
    eventually(lambda: len(threading.enumerate()) <= before, "the end of all threads")
