"""An item can be cancelled until it is in a call; then no handler gets it."""

import concurrent.futures
import random
import threading

import pytest

from batchqueue import RetryPolicy
from core_support.handlers import Held
from core_support.queues import assert_conserved
from core_support.waits import WAIT_S


class Echo(Held):
    def consume(self, batch):
        super().consume(batch)
        return batch


def held_queue(make_queue, handler=None, **settings):
    handler = handler or Echo()
    queue = make_queue(**settings)
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    return queue, handler


def test_a_cancelled_item_is_not_handled_and_counts_as_consumed(make_queue):
    queue, handler = held_queue(make_queue)
    futures = [queue.submit(number) for number in range(1, 7)]
    assert [futures[index].cancel() for index in (0, 2, 5)] == [True] * 3
    handler.released.set()
    assert [futures[index].result(WAIT_S) for index in (1, 3, 4)] == [2, 4, 5]
    queue.flush(WAIT_S)
    assert handler.batches == [[0], [2, 4, 5]]
    assert (queue.stats().consumed, queue.stats().failed) == (7, 0)
    assert_conserved(queue.stats())


def test_a_batch_whose_items_are_all_cancelled_is_not_handled(make_queue):
    queue, handler = held_queue(make_queue)
    for future in [queue.submit(number) for number in range(5)]:
        assert future.cancel()
        assert future.cancel()
    handler.released.set()
    queue.flush(WAIT_S)
    assert handler.batches == [[0]]
    assert queue.stats().consumed == 6


def test_a_cancelled_future_is_done_and_raises(make_queue):
    queue, handler = held_queue(make_queue)
    future = queue.submit(1)
    called = []
    future.add_done_callback(called.append)
    assert future.cancel()
    assert (future.cancelled(), future.done(), future.running()) == (True, True, False)
    assert called == [future]
    for ask in (future.result, future.exception):
        with pytest.raises(concurrent.futures.CancelledError):
            ask(0)
    assert not future.set_running_or_notify_cancel()
    assert "state=cancelled" in repr(future)
    handler.released.set()


def test_a_cancel_ends_waits_that_have_begun(make_queue):
    queue, handler = held_queue(make_queue)
    future = queue.submit(1)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ready = threading.Barrier(3)

        def begin(how):
            ready.wait(WAIT_S)
            return how()

        waits = [
            pool.submit(begin, lambda: concurrent.futures.wait([future], WAIT_S).done),
            pool.submit(
                begin, lambda: isinstance(_error(future), concurrent.futures.CancelledError)
            ),
        ]
        ready.wait(WAIT_S)
        assert future.cancel()
        assert [wait.result(WAIT_S) for wait in waits] == [{future}, True]
    handler.released.set()


def _error(future):
    try:
        return future.result(WAIT_S)
    except concurrent.futures.CancelledError as error:
        return error


def test_an_item_in_a_call_or_done_cannot_be_cancelled(make_queue):
    handler = Echo()
    queue = make_queue()
    queue.add_handler(int, handler)
    future = queue.submit(1)
    assert handler.entered.wait(WAIT_S)
    assert not future.cancel()
    handler.released.set()
    assert future.result(WAIT_S) == 1
    assert not future.cancel()
    assert not future.cancelled()


@pytest.mark.parametrize("retry", [None, RetryPolicy(attempts=2, backoff_ms=1, bisect=True)])
@pytest.mark.parametrize("dead_letter", [False, True])
def test_a_batch_that_fails_without_its_cancelled_items_is_counted_right(
    make_queue, retry, dead_letter
):
    letters = []

    class Failing(Echo):
        def consume(self, batch):
            super().consume(batch)
            if batch != [0]:
                raise ValueError
            return batch

    settings = {"dead_letter": letters.extend} if dead_letter else {}
    queue, handler = held_queue(make_queue, Failing(), retry=retry, **settings)
    futures = [queue.submit(number) for number in range(1, 7)]
    assert futures[1].cancel()
    assert futures[4].cancel()
    handler.released.set()
    errors = [futures[index].exception(WAIT_S) for index in (0, 2, 3, 5)]
    assert [type(error) for error in errors] == [ValueError] * 4
    queue.flush(WAIT_S)
    stats = queue.stats()
    assert stats.consumed == 3
    assert stats.failed + stats.dead_lettered == 4
    assert len(letters) == (4 if dead_letter else 0)
    assert_conserved(stats)


def test_cancels_race_with_calls_and_each_item_has_one_end(make_queue):
    queue = make_queue(threads=2, partitions=2, buffer_size=500)
    handled = set()

    def consume(batch):
        handled.update(batch)
        return batch

    queue.add_handler(int, consume)
    futures = []
    stop = threading.Event()

    def cancel():
        chance = random.Random(1)
        while not stop.is_set():
            if futures:
                chance.choice(futures).cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    for number in range(20_000):
        futures.append(queue.submit(number))
        if number % 50 == 0:
            futures[chance_index(number)].cancel()
    concurrent.futures.wait(futures, WAIT_S)
    stop.set()
    thread.join()
    queue.flush(WAIT_S)
    cancelled = {number for number, future in enumerate(futures) if future.cancelled()}
    assert cancelled.isdisjoint(handled)
    assert len(cancelled) + len(handled) == 20_000
    assert all(f.result() == n for n, f in enumerate(futures) if n not in cancelled)
    assert_conserved(queue.stats())


def chance_index(number):
    return max(0, number - number % 7)
