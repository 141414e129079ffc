"""`max_delay_ms`: a batch waits until it is full or its oldest item has waited for that long."""

import asyncio
import threading
import time
from itertools import chain

import pyarrow as pa
import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    BatchQueueConfig,
    ConfigError,
    PartitionPolicy,
    PartitionSelector,
    RetryPolicy,
    ThreadPolicy,
)
from core_support.waits import WAIT_S, eventually

ONE = ThreadPolicy.fixed(1)
FOR_EVER = 86_400_000
"""A delay that no test waits for."""

SELECTORS = {
    "by_type": PartitionSelector.by_type(),
    "round_robin": PartitionSelector.round_robin(),
    "by_key": PartitionSelector.by_key(lambda item: "all"),
    "custom": PartitionSelector.custom(lambda item, count: 0),
}


def sizes_of(calls):
    return [len(call) for call in calls]


@pytest.mark.parametrize("scheduler", [None, ("DELAYS", ONE)])
@pytest.mark.parametrize("selector", SELECTORS)
def test_a_batch_waits_until_it_is_full(selector, scheduler):
    calls = []
    config = BatchQueueConfig(
        threads=None if scheduler else ONE,
        shared_scheduler=scheduler,
        selector=SELECTORS[selector],
        max_batch_items=500,
        max_delay_ms=FOR_EVER,
        buffer_size=2_000,
    )
    with BatchQueue("full", config) as queue:
        queue.add_handler(int, calls.append)
        queue.produce_many(range(499))
        assert calls == []
        queue.produce(499)
        eventually(lambda: sizes_of(calls) == [500], "a full batch")
        for number in range(500, 1_700):
            queue.produce(number)
        eventually(lambda: sizes_of(calls) == [500, 500, 500], "three full batches")
    assert sizes_of(calls) == [500, 500, 500, 200]
    assert list(chain.from_iterable(calls)) == list(range(1_700))


def test_the_oldest_item_waits_for_the_delay_and_no_longer_than_the_next_event():
    called = []
    config = BatchQueueConfig(threads=ONE, max_delay_ms=30)
    with BatchQueue("delay", config) as queue:
        queue.add_handler(int, lambda batch: called.append((time.monotonic(), batch)))
        before = time.monotonic()
        queue.produce_many([1, 2])
        eventually(lambda: called, "the call")
        assert called[0][0] - before >= 0.03
        assert called[0][1] == [1, 2]


def test_a_type_has_its_own_delay():
    waiting, prompt = [], []
    config = BatchQueueConfig(threads=ONE, max_delay_ms=FOR_EVER)
    with BatchQueue("own", config) as queue:
        queue.add_handler(int, waiting.extend)
        queue.add_handler(str, prompt.extend, max_delay_ms=0)
        queue.produce_many([1, "a", 2])
        eventually(lambda: prompt == ["a"], "the prompt class")
        assert waiting == []
        assert queue.flush(WAIT_S)
        assert waiting == [1, 2]
    with BatchQueue("own", BatchQueueConfig(threads=ONE)) as queue:
        queue.add_handler(int, waiting.extend, max_delay_ms=FOR_EVER, max_batch_items=3)
        queue.produce_many([3, 4])
        queue.handler(str, max_delay_ms=0)(prompt.extend)
        queue.produce("b")
        eventually(lambda: prompt == ["a", "b"], "the prompt class")
        assert waiting == [1, 2]
        queue.produce(5)
        eventually(lambda: waiting == [1, 2, 3, 4, 5], "a full batch")


def test_rows_fill_a_batch():
    calls = []
    config = BatchQueueConfig(threads=ONE, max_batch_items=100, max_delay_ms=FOR_EVER)
    with BatchQueue("rows", config) as queue:
        queue.add_handler("a", lambda batches: calls.append(sum(b.num_rows for b in batches)))
        rows = pa.record_batch({"tag": ["a"] * 70, "number": list(range(70))})
        for _ in range(3):
            queue.produce_arrow(rows, type_column="tag")
        eventually(lambda: calls == [100, 100], "two full batches")
    assert calls == [100, 100, 10]


def test_consumers_get_full_batches():
    calls = []
    config = BatchQueueConfig(
        threads=ONE, consumer=calls.append, max_batch_items=10, max_delay_ms=FOR_EVER
    )
    with BatchQueue("consumer", config) as queue:
        queue.produce_many([1, "a"] * 10)
        eventually(lambda: sizes_of(calls) == [10, 10], "two full batches")


def test_coroutines_get_full_batches():
    calls = []

    async def consume(batch):
        await asyncio.sleep(0)
        calls.append(batch)

    async def main():
        config = BatchQueueConfig(threads=ONE, max_batch_items=10)
        async with AsyncBatchQueue("loop", config) as queue:
            queue.add_handler(int, consume, max_delay_ms=FOR_EVER)
            await queue.produce_many(range(25))
            while len(calls) < 2:
                await asyncio.sleep(0.001)
            assert await queue.flush(WAIT_S)

    asyncio.run(main())
    assert sizes_of(calls) == [10, 10, 5]


def test_a_removed_handler_gets_what_waits_for_it():
    calls, closed = [], []

    class Session:
        def consume(self, batch):
            assert not closed
            calls.append(batch)

        def on_close(self):
            closed.append(True)

    config = BatchQueueConfig(threads=ONE, max_delay_ms=FOR_EVER)
    with BatchQueue("sessions", config) as queue:
        queue.add_handler(int, Session())
        queue.produce_many([1, 2])
        eventually(lambda: queue.stats().held == 2, "the take")
        assert queue.remove_handler(int, timeout=WAIT_S)
        assert (calls, closed) == ([[1, 2]], [True])


def test_a_batch_that_is_tried_again_does_not_wait_again():
    calls = []

    def fails_once(batch):
        calls.append(batch)
        if len(calls) == 1:
            raise ValueError("as planned")

    config = BatchQueueConfig(threads=ONE, max_batch_items=2, max_delay_ms=FOR_EVER)
    with BatchQueue("retries", config) as queue:
        queue.add_handler(int, fails_once, retry=RetryPolicy(backoff_ms=0))
        queue.produce_many([1, 2, 3])
        eventually(lambda: calls == [[1, 2], [1, 2]], "the second attempt")
    assert calls[2:] == [[3]]


def test_an_idle_handler_beside_one_that_waits_is_not_held_up():
    slow, quick = threading.Event(), []
    config = BatchQueueConfig(
        threads=ThreadPolicy.fixed(2),
        partitions=PartitionPolicy.adaptive(),
        max_delay_ms=FOR_EVER,
    )
    with BatchQueue("beside", config) as queue:
        queue.add_handler(int, lambda batch: slow.wait(WAIT_S), max_delay_ms=0)
        queue.add_handler(str, quick.extend, max_batch_items=10)
        queue.produce(1)
        queue.produce_many(["a"] * 10)
        eventually(lambda: len(quick) == 10, "a full batch beside a handler that hangs")
        slow.set()


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), True, "5"])
def test_an_invalid_delay_is_rejected(delay):
    with pytest.raises(ConfigError, match=r"max_delay_ms is .*; give"):
        BatchQueueConfig(threads=ONE, max_delay_ms=delay)
    with BatchQueue("q") as queue, pytest.raises(ConfigError, match=r"max_delay_ms is .*; give"):
        queue.add_handler(int, print, max_delay_ms=delay)


def test_a_batch_of_one_item_cannot_wait():
    message = r"max_delay_ms is 5(\.0)? with max_batch_items 1, and a batch of one item is full"
    with pytest.raises(ConfigError, match=message):
        BatchQueueConfig(threads=ONE, max_delay_ms=5, max_batch_items=1)
    with BatchQueue("q") as queue, pytest.raises(ConfigError, match=message):
        queue.add_handler(int, print, max_delay_ms=5, max_batch_items=1)
