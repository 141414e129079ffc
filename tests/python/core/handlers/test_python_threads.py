"""Drain threads are threads of Python: named, known to `threading`, with its hooks and stacks."""

import ctypes
import logging
import resource
import sys
import threading

import pytest

from batchqueue import BatchQueue, BatchQueueConfig, DrainBalancer, ThreadPolicy
from core_support.handlers import Held
from core_support.scripts import run_script
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


GUARD = 1 << 16
"""The most that the system takes off a stack for the page that guards it."""


def stack_size():
    """Returns the size of the calling thread's stack, in bytes."""
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_ulong
    attributes, address, size = (ctypes.c_char * 64)(), ctypes.c_void_p(), ctypes.c_size_t()
    assert libc.pthread_getattr_np(ctypes.c_ulong(libc.pthread_self()), attributes) == 0
    stack = (ctypes.byref(address), ctypes.byref(size))
    assert libc.pthread_attr_getstack(attributes, *stack) == 0
    libc.pthread_attr_destroy(attributes)
    return size.value


def of_drain_thread(make_queue, keep):
    queue = make_queue()
    queue.add_handler(int, lambda batch: keep(stack_size()))
    queue.produce(1)


def of_spare_thread(make_queue, keep):
    hung = Held()
    queue = make_queue(threads=1, partitions=2, spare_threads=1)
    queue.add_handler(int, hung)
    queue.add_handler(str, lambda batch: (keep(stack_size()), hung.released.set()))
    hung.hold(queue, 1)
    queue.produce("a")


def of_pool_worker(make_queue, keep):
    settings = BatchQueueConfig(shared_scheduler=("STACK_POOL", ThreadPolicy.fixed(1)))
    queue = make_queue(settings=settings)
    queue.add_handler(int, lambda batch: keep(stack_size()))
    queue.produce(1)


def of_custom_balancer(make_queue, keep):
    balancer = DrainBalancer.custom(lambda *loads: keep(stack_size()))
    make_queue(threads=2, partitions=2, balancer=balancer, rebalance_interval_ms=1)


def of_log_thread(make_queue, keep):
    class Keeper(logging.Handler):
        def emit(self, record):
            keep(stack_size())
            logging.getLogger("batchqueue").removeHandler(self)

    logging.getLogger("batchqueue").addHandler(Keeper())
    queue = make_queue()
    queue.add_handler(int, lambda batch: 1 / 0)
    queue.produce(1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the attributes of threads of Linux")
@pytest.mark.parametrize("asked", [0, 1 << 20, 16 << 20])
@pytest.mark.parametrize(
    "ask", [of_drain_thread, of_spare_thread, of_pool_worker, of_custom_balancer, of_log_thread]
)
def test_threads_that_run_python_have_the_stack_of_a_thread_of_python(make_queue, ask, asked):
    before = threading.stack_size(asked)
    try:
        sizes = []
        ask(make_queue, sizes.append)
        eventually(lambda: sizes, "a call on a thread of the queue")
    finally:
        threading.stack_size(before)
    # More if the system reuses the stack of a thread that has ended.
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    assert sizes[0] >= (asked or max(limit, 8 << 20)) - GUARD


def test_a_handler_may_call_what_needs_a_large_stack():
    """OpenBLAS keeps small matrices on the stack."""
    exit_code, out, err = run_script("""
import numpy
with BatchQueue("solver", config()) as queue:
    eye, ones = numpy.eye(160), numpy.ones(160)
    queue.add_handler(int, lambda batch: say(numpy.linalg.solve(eye, ones).sum()))
    queue.produce(1)
""")
    assert (exit_code, out) == (0, ["160.0"]), err


@pytest.mark.skipif(sys.platform != "linux", reason="reads the attributes of threads of Linux")
@pytest.mark.parametrize(("least", "expected"), [(64 << 20, 64 << 20), (1 << 20, 32 << 20)])
def test_the_environment_of_rust_may_only_ask_for_more(make_queue, monkeypatch, least, expected):
    monkeypatch.setenv("RUST_MIN_STACK", str(least))
    before = threading.stack_size(32 << 20)
    try:
        sizes = []
        of_drain_thread(make_queue, sizes.append)
        eventually(lambda: sizes, "the call")
    finally:
        threading.stack_size(before)
    assert sizes[0] >= expected - GUARD
