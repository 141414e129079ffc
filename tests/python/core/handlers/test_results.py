"""What handlers return, what iterators raise, and timeouts as `timedelta`."""

import asyncio
import concurrent.futures
import datetime
from collections.abc import Callable
from typing import NamedTuple

import pytest

from batchqueue import AsyncBatchQueue, BatchQueueManager, ConfigError
from core_support.queues import config
from core_support.waits import WAIT_S


def generator(batch):
    yield from batch


async def async_generator(batch):
    yield batch


async def coroutine(batch):
    pass


@pytest.mark.parametrize("seconds", [datetime.timedelta(seconds=5), 5, 5.0])
def test_timeout_may_be_a_timedelta(make_queue, seconds):
    queue = make_queue()
    queue.add_handler(int, lambda batch: None)
    assert queue.produce(1, timeout=seconds) is True
    assert queue.produce_many([1], timeout=seconds) == 1
    assert queue.flush(seconds) is True
    assert queue.remove_handler(int, timeout=seconds) is True
    assert queue.shutdown(seconds) == 0
    assert BatchQueueManager.shutdown_all(seconds) == {}


def test_timeout_on_a_loop_may_be_a_timedelta():
    async def main():
        seconds = datetime.timedelta(seconds=WAIT_S)
        queue = AsyncBatchQueue("queue", config())
        queue.add_handler(int, lambda batch: None)
        assert await queue.produce(1, timeout=seconds)
        assert await queue.produce_many([1], timeout=seconds) == 1
        assert await queue.flush(seconds)
        with pytest.raises(ConfigError, match=r"timeout is '1', a str; give seconds.*timedelta"):
            await queue.produce(1, timeout="1")
        with pytest.raises(ConfigError, match=r"timeout is '1', a str; give seconds.*timedelta"):
            await queue.flush("1")
        assert await queue.shutdown(seconds) == 0

    asyncio.run(main())


def failed_future():
    future = concurrent.futures.Future()
    future.set_exception(ValueError("late"))
    return future


def cancelled_future():
    future = concurrent.futures.Future()
    future.cancel()
    return future


class Returned(NamedTuple):
    what: Callable[[], object]
    said: str


@pytest.mark.parametrize(
    "returned",
    [
        Returned(failed_future, "ValueError: late"),
        Returned(cancelled_future, "CancelledError"),
        Returned(lambda: coroutine([]), "returned a coroutine, which is never awaited"),
        Returned(lambda: generator([1]), "returned a generator, whose body has not run"),
        Returned(lambda: async_generator([1]), "returned an async_generator, whose body"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_handler_whose_result_says_that_it_failed_counts_as_failed(make_queue, caplog, returned):
    queue = make_queue()
    queue.add_handler(int, lambda batch: returned.what())
    queue.produce(1)
    assert queue.shutdown(WAIT_S) == 0
    assert (queue.stats().consumed, queue.stats().failed) == (0, 1)
    assert returned.said in caplog.text


def test_future_that_fails_after_its_batch_is_logged(make_queue, caplog):
    queue = make_queue()
    future = concurrent.futures.Future()
    queue.add_handler(int, lambda batch: future)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert queue.stats().consumed == 1
    future.set_exception(ValueError("late"))
    assert "failed after its batch had counted as consumed" in caplog.text
    assert "ValueError: late" in caplog.text


@pytest.mark.parametrize("value", [None, 3, True, [1], (1,), "text", {}, object(), ValueError])
def test_any_other_result_of_a_handler_is_ignored(make_queue, value):
    queue = make_queue()
    queue.add_handler(int, lambda batch: value)
    queue.produce(1)
    assert queue.shutdown(WAIT_S) == 0
    assert queue.stats().consumed == 1


@pytest.mark.parametrize("count", [0, 3])
def test_generator_that_raises_says_how_many_items_went_in(make_queue, count):
    queue = make_queue()
    seen = []
    queue.add_handler(int, seen.extend)

    def items():
        yield from range(count)
        raise ValueError("bad line")

    with pytest.raises(ValueError, match="bad line") as caught:
        queue.produce_many(items())
    assert caught.value.accepted == count
    assert f"the first {count} items" in caught.value.__notes__[0]
    assert queue.shutdown(WAIT_S) == 0
    assert seen == list(range(count))
