"""The futures of submitted items are futures of the standard library, in all that it promises."""

import asyncio
import concurrent.futures
import gc
import logging
import pickle
import threading
import weakref
from datetime import timedelta

import pytest

from batchqueue import BatchQueue, BatchQueueConfig, BatchQueueError, ConfigError, ThreadPolicy
from core_support.handlers import Held
from core_support.queues import config
from core_support.waits import WAIT_S, eventually


class Echo(Held):
    """Held; returns its items."""

    def consume(self, batch):
        super().consume(batch)
        return batch


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
def queue(make_queue, echo):
    queue = make_queue()
    queue.add_handler(int, echo)
    return queue


def test_a_future_is_an_instance_of_the_standard_class(queue, echo):
    future = queue.submit(1)
    assert isinstance(future, concurrent.futures.Future)
    echo.released.set()
    assert future.result(WAIT_S) == 1


def test_a_future_goes_from_pending_through_running_to_done(queue, echo):
    echo.hold(queue, 0)
    future = queue.submit(1)
    assert (future.done(), future.running(), future.cancelled()) == (False, False, False)
    assert "state=pending" in repr(future)
    echo.released.set()
    assert future.result(WAIT_S) == 1
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert future.exception() is None
    assert "state=finished returned int" in repr(future)


def test_a_future_is_running_while_its_item_is_in_a_call(queue, echo):
    future = queue.submit(1)
    assert echo.entered.wait(WAIT_S)
    assert future.running()
    assert not future.done()
    echo.released.set()


def test_a_wait_for_a_result_ends_with_its_time(queue, echo):
    future = queue.submit(1)
    for timeout in (0, -1, 0.001, timedelta(milliseconds=1)):
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(timeout)
        with pytest.raises(TimeoutError):
            future.exception(timeout=timeout)
    echo.released.set()
    assert future.result(timeout=WAIT_S) == 1


@pytest.mark.parametrize("timeout", ["1", [1], True])
def test_an_invalid_timeout_is_refused(queue, echo, timeout):
    future = queue.submit(1)
    for wait in (future.result, future.exception):
        with pytest.raises(ConfigError, match=r"timeout is .*; give seconds from 0 up"):
            wait(timeout)
    echo.released.set()
    assert future.result(WAIT_S) == 1


def test_many_threads_can_wait_for_one_result(queue, echo):
    future = queue.submit(1)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(future.result, WAIT_S) for _ in range(4)]
        echo.released.set()
        assert [wait.result(WAIT_S) for wait in waits] == [1] * 4


@pytest.mark.parametrize(
    "return_when",
    [
        concurrent.futures.ALL_COMPLETED,
        concurrent.futures.FIRST_COMPLETED,
        concurrent.futures.FIRST_EXCEPTION,
    ],
)
def test_wait_works_with_futures_that_are_done_and_that_are_not(queue, echo, return_when):
    queue.add_handler(str, lambda batch: batch)
    before = queue.submit("before")
    before.result(WAIT_S)
    future = queue.submit(1)
    waiting = [future] if return_when == concurrent.futures.FIRST_COMPLETED else [before, future]
    timer = threading.Thread(target=lambda: eventually(echo.entered.is_set) or echo.released.set())
    timer.start()
    done, not_done = concurrent.futures.wait(waiting, WAIT_S, return_when)
    timer.join()
    assert (done, not_done) == (set(waiting), set())


def test_wait_returns_at_the_first_error(make_queue, echo):
    def fail(batch):
        raise ValueError

    queue = make_queue(threads=2, partitions=2)
    queue.add_handler(int, echo)
    queue.add_handler(str, fail)
    held, failed = queue.submit(1), queue.submit("x")
    done, not_done = concurrent.futures.wait([held, failed], WAIT_S, "FIRST_EXCEPTION")
    assert (done, not_done) == ({failed}, {held})
    echo.released.set()


def test_a_wait_in_vain_leaves_nothing_behind(queue, echo):
    future = queue.submit(1)
    assert concurrent.futures.wait([future], 0.001).not_done == {future}
    assert future._waiters == []
    echo.released.set()
    assert concurrent.futures.wait([future], WAIT_S).done == {future}


def test_as_completed_yields_each_future_once(make_queue):
    queue = make_queue(threads=2, partitions=2)
    queue.add_handler(int, lambda batch: batch)
    for _ in range(20):
        futures = {queue.submit(number): number for number in range(50)}
        done = [futures[future] for future in concurrent.futures.as_completed(futures, WAIT_S)]
        assert sorted(done) == list(range(50))


def test_wait_counts_a_future_that_ends_meanwhile_once(make_queue):
    """A result that comes while `wait` enters itself must not count twice for ALL_COMPLETED."""
    queue = make_queue(threads=2, partitions=2)
    queue.add_handler(int, lambda batch: batch)
    for _ in range(300):
        futures = [queue.submit(number) for number in range(10)]
        done, _ = concurrent.futures.wait(futures, WAIT_S)
        assert len(done) == 10
        assert all(future.done() for future in futures)


def test_asyncio_can_await_a_wrapped_future(queue, echo):
    async def main():
        future = asyncio.wrap_future(queue.submit(1))
        echo.released.set()
        return await asyncio.wait_for(future, WAIT_S)

    assert asyncio.run(main()) == 1


def test_callbacks_run_once_with_the_future_and_their_errors_are_logged(queue, echo, caplog):
    future = queue.submit(1)
    seen = []

    def fail(future):
        seen.append("failed")
        raise ValueError("in a callback")

    future.add_done_callback(fail)
    future.add_done_callback(seen.append)
    with caplog.at_level(logging.WARNING, "batchqueue"):
        echo.released.set()
        eventually(lambda: len(seen) == 2)
        future.add_done_callback(seen.append)
        eventually(lambda: "in a callback" in caplog.text)
    assert seen == ["failed", future, future]


def test_results_of_a_batch_are_all_there_when_the_first_callback_runs(queue, echo):
    echo.hold(queue, 0)
    futures = [queue.submit(number) for number in range(1, 100)]
    seen = []
    futures[0].add_done_callback(lambda _: seen.append([future.done() for future in futures]))
    echo.released.set()
    eventually(lambda: seen)
    assert seen == [[True] * 99]


def test_the_methods_for_makers_of_futures_keep_their_contract(queue, echo):
    future = queue.submit(1)
    assert echo.entered.wait(WAIT_S)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_running_or_notify_cancel()
    with pytest.raises(TypeError, match="exception is 5"):
        future.set_exception(5)
    future.set_result("mine")
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result("again")
    echo.released.set()
    queue.flush(WAIT_S)
    assert future.result() == "mine"


def test_a_handler_that_waits_for_a_result_of_the_queue_that_it_handles_is_refused(make_queue):
    queue = make_queue()
    errors = []

    def consume(batch):
        inner = queue.submit("inner")
        try:
            inner.result()
        except BatchQueueError as error:
            errors.append(str(error))
        with pytest.raises(TimeoutError):
            inner.result(timeout=0.001)
        return batch

    queue.add_handler(int, consume)
    queue.add_handler(str, lambda batch: batch)
    assert queue.submit(1).result(WAIT_S) == 1
    assert "waits for a result of the queue that it handles" in errors[0]


def test_a_handler_may_wait_for_another_queue(make_queue):
    first, second = make_queue("first"), make_queue("second")
    second.add_handler(int, lambda batch: [item + 1 for item in batch])
    first.add_handler(int, lambda batch: [second.submit(item).result(WAIT_S) for item in batch])
    assert first.submit(1).result(WAIT_S) == 2


def test_a_handler_on_a_shared_scheduler_is_refused_a_wait_for_another_queue_there(make_queue):
    settings = BatchQueueConfig(shared_scheduler=("results", ThreadPolicy.fixed(1)))
    first, second = make_queue("first", settings), make_queue("second", settings)
    alone = make_queue("alone")
    second.add_handler(int, lambda batch: [item + 1 for item in batch])
    for queue in (first, alone):
        queue.add_handler(str, lambda batch: [second.submit(len(item)).result() for item in batch])
    with pytest.raises(BatchQueueError, match="of a queue on a shared scheduler"):
        first.submit("four").result(WAIT_S)
    assert alone.submit("four").result(WAIT_S) == 5


def test_a_future_can_be_referred_to_weakly_and_is_garbage_when_done(queue, echo):
    class Result:
        pass

    queue.add_handler(str, lambda batch: [Result() for _ in batch])
    future = queue.submit("x")
    result = future.result(WAIT_S)
    result.future, gone = future, (weakref.ref(future), weakref.ref(result))
    queue.flush(WAIT_S)
    del future, result
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_a_done_future_keeps_its_item_no_longer(make_queue):
    class Item:
        pass

    queue = make_queue()
    queue.add_handler(Item, lambda batch: [1] * len(batch))
    item = Item()
    gone = weakref.ref(item)
    future = queue.submit(item)
    del item
    assert future.result(WAIT_S) == 1
    queue.flush(WAIT_S)
    gc.collect()
    assert gone() is None


def test_a_future_cannot_be_pickled(queue, echo):
    echo.released.set()
    with pytest.raises(TypeError, match="send its result"):
        pickle.dumps(queue.submit(1))


def test_a_queue_that_is_dropped_still_gives_its_results():
    queue = BatchQueue("dropped", config())
    queue.add_handler(int, lambda batch: batch)
    futures = [queue.submit(number) for number in range(100)]
    del queue
    assert [future.result(WAIT_S) for future in futures] == list(range(100))
