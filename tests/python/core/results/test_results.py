"""What the handler of a submitted item returns or raises is the result of its future."""

import collections
import concurrent.futures
import logging
import threading

import numpy as np
import pytest

from batchqueue import BatchFailed, BatchQueueError, ConfigError, PartitionSelector, RetryPolicy
from core_support.handlers import Held
from core_support.queues import assert_conserved, try_once_more
from core_support.waits import WAIT_S, eventually

AGAIN = RetryPolicy(attempts=3, backoff_ms=1)


def doubled(batch):
    return [2 * item for item in batch]


class Gate(Held):
    """Holds its first batch, so that the items behind it come in one batch; returns the doubles."""

    def consume(self, batch):
        super().consume(batch)
        return doubled(batch)


def submitted_together(queue, handler, items, item_type=int):
    """Submits the items behind a call that is held, so that one batch has them all."""
    queue.add_handler(item_type, handler)
    handler.hold(queue, item_type())
    futures = [queue.submit(item) for item in items]
    handler.released.set()
    return futures


def test_each_future_gets_the_result_of_its_item(make_queue):
    queue = make_queue(threads=2)
    queue.add_handler(int, doubled)
    queue.add_handler(str, lambda batch: [item.upper() for item in batch])
    numbers = [queue.submit(number) for number in range(5_000)]
    texts = [queue.submit(text) for text in "abc"]
    assert [future.result(WAIT_S) for future in numbers] == [2 * n for n in range(5_000)]
    assert [future.result(WAIT_S) for future in texts] == ["A", "B", "C"]
    queue.flush(WAIT_S)
    assert_conserved(queue.stats())


@pytest.mark.parametrize("kind", [tuple, collections.deque, np.array, collections.UserList])
def test_any_sequence_can_hold_the_results(make_queue, kind):
    queue = make_queue()
    handler = Gate()
    handler_of_kind = handler.consume
    handler.consume = lambda batch: kind(handler_of_kind(batch))
    futures = submitted_together(queue, handler, [1, 2, 3])
    assert [future.result(WAIT_S) for future in futures] == [2, 4, 6]


WRONG = {
    "None": None,
    "0 results": [],
    "1 result": [1],
    "3 results": (1, 2, 3),
    "an object of class str": "ab",
    "an object of class bytes": b"ab",
    "an object of class dict": {0: 1, 1: 2},
    "an object of class set": {1, 2},
    "an object of class int": 2,
}


@pytest.mark.parametrize("what", WRONG)
def test_anything_else_fails_the_batch_once_and_says_what_to_return(make_queue, what, caplog):
    queue = make_queue(retry=AGAIN)
    handler = Held()
    calls = []

    def consume(batch):
        calls.append(len(batch))
        Held.consume(handler, batch)
        return WRONG[what]

    handler.consume = consume
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    futures = [queue.submit(1), queue.submit(2)]
    with caplog.at_level(logging.WARNING, "batchqueue"):
        handler.released.set()
        for future in futures:
            with pytest.raises(ConfigError, match=f"returned {what} for a batch of 2 with submit"):
                future.result(WAIT_S)
        queue.shutdown()
    stats = queue.stats()
    assert (stats.consumed, stats.failed, calls) == (1, 2, [1, 2])
    assert "with one result for each item of the batch" in caplog.text


def test_a_batch_without_submitted_items_may_return_anything(make_queue):
    queue = make_queue()
    queue.add_handler(int, lambda batch: object())
    queue.submit("unhandled").exception(WAIT_S)
    assert queue.produce_many([1, 2, 3]) == 3
    queue.flush(WAIT_S)
    assert queue.stats().consumed == 3


def test_a_batch_may_mix_produced_and_submitted_items(make_queue):
    queue = make_queue()
    handler = Gate()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    futures = []
    for number in range(100):
        queue.produce(-number)
        futures.append(queue.submit(number))
    handler.released.set()
    assert [future.result(WAIT_S) for future in futures] == [2 * n for n in range(100)]
    assert len(handler.batches) == 2


def test_what_a_handler_raises_is_the_error_of_all_its_items(make_queue):
    queue = make_queue()
    handler = Gate()

    def consume(batch):
        Gate.consume(handler, batch)
        raise ValueError("bad batch")

    handler.consume = consume
    futures = submitted_together(queue, handler, [1, 2, 3])
    for future in futures:
        with pytest.raises(ValueError, match="bad batch") as raised:
            future.result(WAIT_S)
        assert raised.traceback[-1].name == "consume"
        assert isinstance(future.exception(), ValueError)


def test_the_traceback_of_a_shared_error_does_not_grow(make_queue):
    queue = make_queue()
    queue.add_handler(int, lambda batch: 1 / 0)
    future = queue.submit(1)

    def depth():
        with pytest.raises(ZeroDivisionError) as raised:
            future.result(WAIT_S)
        return len(raised.traceback)

    assert depth() == depth() == depth()


@pytest.mark.parametrize("returns", [False, True])
def test_batch_failed_gives_its_items_the_error_and_the_others_their_results(make_queue, returns):
    queue = make_queue()
    cause = OSError("disk")
    handler = Gate()

    def consume(batch):
        results = Gate.consume(handler, batch)
        bad = [index for index, item in enumerate(batch) if item % 3 == 2]
        failure = BatchFailed(indexes=bad, results=results, cause=cause)
        if returns:
            return failure
        raise failure

    handler.consume = consume
    futures = submitted_together(queue, handler, range(1, 9))
    for number, future in enumerate(futures, 1):
        if number % 3 == 2:
            error = future.exception(WAIT_S)
            assert isinstance(error, BatchFailed)
            assert error.cause is cause
        else:
            assert future.result(WAIT_S) == 2 * number
    queue.shutdown()
    assert (queue.stats().consumed, queue.stats().failed) == (6, 3)


def test_batch_failed_without_results_means_none_for_the_others(make_queue):
    queue = make_queue()
    handler = Gate()

    def consume(batch):
        Gate.consume(handler, batch)
        raise BatchFailed([batch[0]])

    handler.consume = consume
    bad, good = submitted_together(queue, handler, [1, 2])
    assert good.result(WAIT_S) is None
    assert isinstance(bad.exception(WAIT_S), BatchFailed)


def test_batch_failed_with_too_few_results_fails_the_batch(make_queue):
    queue = make_queue()
    handler = Gate()

    def consume(batch):
        Gate.consume(handler, batch)
        raise BatchFailed(indexes=[0], results=[1])

    handler.consume = consume
    for future in submitted_together(queue, handler, [1, 2]):
        error = future.exception(WAIT_S)
        assert isinstance(error, ConfigError)
        assert "1 result for a list of 2 items" in str(error)


def test_a_future_is_done_only_after_the_last_attempt(make_queue):
    queue = make_queue(retry=AGAIN)
    futures, seen = [], []

    def consume(batch):
        seen.append([future.done() for future in futures])
        if len(seen) < 3:
            raise OSError("not yet")
        return doubled(batch)

    started = threading.Event()
    queue.add_handler(int, lambda batch: started.wait(WAIT_S) and consume(batch))
    futures.append(queue.submit(21))
    started.set()
    assert futures[0].result(WAIT_S) == 42
    assert seen == [[False]] * 3


def test_after_the_last_attempt_the_future_has_its_error(make_queue):
    queue = make_queue(retry=AGAIN)
    attempts = []

    def consume(batch):
        attempts.append(len(batch))
        raise OSError(f"attempt {len(attempts)}")

    queue.add_handler(int, consume)
    assert str(queue.submit(1).exception(WAIT_S)) == "attempt 3"
    queue.flush(WAIT_S)
    assert queue.stats().failed == 1


def test_only_the_failed_part_waits_for_the_next_attempt(make_queue):
    queue = make_queue(retry=RetryPolicy(attempts=2, backoff_ms=60_000))
    handler = Gate()

    def consume(batch):
        results = Gate.consume(handler, batch)
        if len(handler.batches) == 2:
            raise BatchFailed(indexes=[1], results=results)
        return results

    handler.consume = consume
    first, bad, last = submitted_together(queue, handler, [1, 2, 3])
    assert (first.result(WAIT_S), last.result(WAIT_S)) == (2, 6)
    assert bad.running()
    assert not bad.cancel()
    try_once_more(queue)
    assert bad.result(0) == 4


def test_bisection_gives_each_item_its_own_end(make_queue):
    queue = make_queue(retry=RetryPolicy(attempts=1, backoff_ms=1, bisect=True))
    handler = Gate()

    def consume(batch):
        results = Gate.consume(handler, batch)
        if 13 in batch:
            raise ValueError("13")
        return results

    handler.consume = consume
    futures = submitted_together(queue, handler, range(1, 65))
    for number, future in enumerate(futures, 1):
        if number == 13:
            assert isinstance(future.exception(WAIT_S), ValueError)
        else:
            assert future.result(WAIT_S) == 2 * number


def test_a_dead_letter_has_the_item_and_the_future_has_the_error(make_queue):
    letters = []
    queue = make_queue(dead_letter=letters.extend, retry=AGAIN)
    error = ValueError("bad")

    def consume(batch):
        raise error

    queue.add_handler(int, consume)
    future = queue.submit(7)
    assert future.exception(WAIT_S) is error
    eventually(lambda: letters)
    assert [(letter.item, letter.error) for letter in letters] == [(7, error)]
    queue.flush(WAIT_S)
    assert queue.stats().dead_lettered == 1


def test_a_handler_of_errors_gets_the_items_themselves(make_queue):
    seen = []
    queue = make_queue(error_handler=lambda batch, error: seen.append((batch, error)))
    queue.add_handler(int, lambda batch: None)
    error = queue.submit(5).exception(WAIT_S)
    queue.flush(WAIT_S)
    assert seen == [([5], error)]


def test_a_consumer_gets_submitted_items_of_all_types(make_queue):
    queue = make_queue(consumer=lambda batch: [repr(item) for item in batch])
    futures = [queue.submit(item) for item in (1, "a", None, 2.5)]
    assert [future.result(WAIT_S) for future in futures] == ["1", "'a'", "None", "2.5"]


def test_a_subclass_is_its_own_type(make_queue):
    class Special(int):
        pass

    queue = make_queue()
    queue.add_handler(int, doubled)
    queue.add_handler(Special, lambda batch: ["special"] * len(batch))
    assert queue.submit(2).result(WAIT_S) == 4
    assert queue.submit(Special(2)).result(WAIT_S) == "special"
    assert queue.submit(True).exception(WAIT_S) is not None


def test_an_item_without_a_handler_fails_and_names_its_type(make_queue):
    queue = make_queue()
    with pytest.raises(BatchQueueError, match=r"queue \"queue\": there is no handler for items of"):
        queue.submit(collections.OrderedDict()).result(WAIT_S)
    assert "collections.OrderedDict" in str(queue.submit(collections.OrderedDict()).exception())
    queue.flush(WAIT_S)
    assert queue.stats().unhandled == 2


def test_an_item_whose_handler_was_removed_fails(make_queue):
    queue = make_queue(retry=RetryPolicy(attempts=2, backoff_ms=60_000))
    failed = threading.Event()

    def consume(batch):
        failed.set()
        raise OSError("again")

    queue.add_handler(int, consume)
    future = queue.submit(1)
    assert failed.wait(WAIT_S)
    queue.remove_handler(int)
    assert "was removed before the next attempt" in str(future.exception(WAIT_S))
    assert "there is no handler" in str(queue.submit(1).exception(WAIT_S))


def test_selectors_that_need_the_item_get_it(make_queue):
    keys = []
    selector = PartitionSelector.by_key(lambda item: keys.append(item) or item)
    queue = make_queue(partitions=4, selector=selector)
    queue.add_handler(int, doubled)
    assert [queue.submit(n).result(WAIT_S) for n in range(8)] == [2 * n for n in range(8)]
    assert keys == list(range(8))


def test_results_from_many_threads_find_their_futures(make_queue):
    queue = make_queue(threads=2, partitions=4, selector=PartitionSelector.round_robin())
    queue.add_handler(int, doubled)

    def submit(start):
        futures = [queue.submit(number) for number in range(start, start + 2_000)]
        return [future.result(WAIT_S) for future in futures]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(submit, range(0, 8_000, 2_000)))
    assert [n for part in results for n in part] == [2 * number for number in range(8_000)]
