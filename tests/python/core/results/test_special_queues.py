"""`submit` on queues without threads, in forked children, and to handlers of base classes."""

import os
import threading

import pytest

from batchqueue import BatchFailed, RetryPolicy
from core_support.queues import assert_conserved
from core_support.scripts import run_script
from core_support.waits import WAIT_S


class Event:
    pass


class Click(Event):
    pass


@pytest.fixture
def inline_queue(make_queue):
    return lambda **settings: make_queue(inline=True, **settings)


def test_result_of_an_inline_queue_is_there_when_submit_returns(inline_queue):
    queue = inline_queue()
    threads = []

    @queue.handler(int)
    def double(batch):
        threads.append(threading.current_thread())
        return [2 * number for number in batch]

    future = queue.submit(21)
    assert future.done()
    assert future.result(0) == 42
    assert threads == [threading.main_thread()]
    assert_conserved(queue.stats())


def test_error_of_an_inline_handler_is_that_of_the_future(inline_queue):
    queue = inline_queue(retry=RetryPolicy(attempts=2, backoff_ms=0))
    tries = []

    @queue.handler(int)
    def fail(batch):
        tries.append(list(batch))
        raise BatchFailed(batch) from KeyError("seven")

    future = queue.submit(7)
    assert isinstance(future.exception(0), BatchFailed)
    assert tries == [[7], [7]]
    assert queue.stats().failed == 1


def test_callback_of_an_inline_future_may_submit_again(inline_queue):
    queue = inline_queue()
    queue.add_handler(int, lambda batch: [number + 1 for number in batch])
    seen = []

    def again(future):
        seen.append(future.result())
        if len(seen) < 100:
            queue.submit(future.result()).add_done_callback(again)

    queue.submit(0).add_done_callback(again)
    assert queue.flush(WAIT_S)
    assert seen == list(range(1, 101))


def test_handler_of_a_base_class_returns_results_for_its_subclasses(make_queue):
    queue = make_queue()
    queue.add_handler(Event, lambda batch: [type(item).__name__ for item in batch], subclasses=True)
    futures = [queue.submit(item) for item in (Click(), Event(), Click())]
    assert [future.result(WAIT_S) for future in futures] == ["Click", "Event", "Click"]


def test_default_handler_returns_results_for_classes_without_a_handler(make_queue):
    queue = make_queue(default_handler=lambda batch: [str(item) for item in batch])
    queue.add_handler(int, lambda batch: batch)
    assert queue.submit(1).result(WAIT_S) == 1
    assert queue.submit(2.5).result(WAIT_S) == "2.5"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_gets_its_own_results_and_the_parent_those_from_before():
    code, out, err = run_script(
        """
        import warnings
        warnings.simplefilter("ignore")
        entered, released = threading.Event(), threading.Event()

        def double(batch):
            if os.getpid() == parent:
                entered.set()
                released.wait(60)
            return [2 * number for number in batch]

        parent = os.getpid()
        queue = BatchQueue("q", config(threads=2, restart_after_fork=True))
        queue.add_handler(int, double)
        before = queue.submit(1)
        entered.wait(30)
        pid = os.fork()
        if pid == 0:
            say("child", queue.submit(21).result(30))
            say(type(before.exception(30)).__name__, before.exception(30))
            say("left", queue.shutdown(30))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        released.set()
        say("parent", before.result(30), queue.submit(4).result(30), queue.shutdown(30))
        """
    )
    assert code == 0, err
    assert out == [
        "child 42",
        "QueueForkedError this item was submitted before a fork and its result stays in the parent "
        "process; submit it again in the child",
        "left 0",
        "parent 2 8 0",
    ]
