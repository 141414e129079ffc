"""P4: of handlers that would wait for each other for ever, one gives up and names the others."""

import asyncio
import logging
import threading

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueueConfig,
    PartitionPolicy,
    PartitionSelector,
    ProduceTimeoutError,
    ReentrantProduceError,
    ThreadPolicy,
)
from core_support.event_loop import run
from core_support.handlers import Recorder
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S, eventually

FEEDER_WAITS = (
    "queue feeder: a shutdown from a handler did not wait, because it would never have ended: "
    "the handler of int in queue fed waits for the end of queue feeder; "
    "the handler of str in queue feeder waits for room in partition 0 of queue fed"
)


def shut_down(*queues):
    for queue in queues:
        assert queue.shutdown(WAIT_S) == 0
        assert_conserved(queue.stats())


def test_a_handler_that_shuts_its_feeder_down_returns(make_queue, caplog):
    fed, feeder = make_queue("fed", buffer_size=4), make_queue("feeder")
    outcomes, returned = [], threading.Event()

    class Fed(Recorder):
        def consume(self, batch):
            super().consume(batch)
            if not returned.is_set():
                eventually(lambda: fed.stats().total_used >= 4, "the feeder to wait")
                outcomes.append(feeder.shutdown())
                returned.set()

    handler = Fed()
    fed.add_handler(int, handler)
    feeder.add_handler(str, lambda batch: outcomes.append(fed.produce_many(list(range(100)))))
    with caplog.at_level(logging.WARNING, "batchqueue"):
        assert feeder.produce("begin")
        assert returned.wait(WAIT_S)
    eventually(lambda: not feeder.running, "the end of the feeder")
    eventually(lambda: outcomes == [0, 100], "all items")
    shut_down(feeder, fed)
    assert handler.items == list(range(100))
    assert FEEDER_WAITS in caplog.text


POOL = BatchQueueConfig(
    shared_scheduler=("circle", ThreadPolicy.fixed(2)),
    partitions=PartitionPolicy.fixed(1),
    buffer_size=2,
)


@pytest.mark.parametrize("settings", [config(buffer_size=2), POOL], ids=["own threads", "one pool"])
def test_of_two_queues_that_feed_each_other_one_handler_gets_an_error(make_queue, settings):
    queues = [make_queue(name, settings) for name in ("left", "right")]
    errors = []

    def double_into(queue):
        def handler(batch):
            for depth in batch:
                for _ in range(2 if depth else 0):
                    try:
                        queue.produce(depth - 1)
                    except ReentrantProduceError as error:
                        errors.append(str(error))

        return handler

    for queue, other in zip(queues, reversed(queues), strict=True):
        queue.add_handler(int, double_into(other))
    assert queues[0].produce(5)
    eventually(
        lambda: all(queue.stats().total_used == 0 for queue in (*queues, *queues)), "no items left"
    )
    shut_down(*queues)
    assert errors
    for error in errors:
        assert (
            "the handler of int in queue left waits for room in partition 0 of queue right" in error
        )
        assert (
            "the handler of int in queue right waits for room in partition 0 of queue left" in error
        )
        assert "buffer_size" in error


def test_a_handler_on_an_event_loop_may_shut_its_feeder_down():
    """Both handlers are coroutines, and the feeder's awaits room."""

    async def main():
        fed = AsyncBatchQueue("fed", config(buffer_size=4))
        feeder = AsyncBatchQueue("feeder", config())
        seen, accepted, returned = [], [], asyncio.Event()

        async def collect(batch):
            seen.extend(batch)
            if not returned.is_set():
                while fed.stats().total_used < 4:
                    await asyncio.sleep(0)
                assert await feeder.shutdown() == 0
                returned.set()

        async def feed(batch):
            accepted.append(await fed.produce_many(list(range(100))))

        fed.add_handler(int, collect)
        feeder.add_handler(str, feed)
        assert await feeder.produce("begin")
        async with asyncio.timeout(WAIT_S):
            await returned.wait()
        assert await feeder.shutdown(WAIT_S) == 0
        assert await fed.shutdown(WAIT_S) == 0
        assert (seen, accepted) == (list(range(100)), [100])

    run(main)


def double_into(queue, errors, **timeout):
    """A coroutine that puts each item but 0 into `queue` twice, one less each time."""

    async def handler(batch):
        for depth in batch:
            for _ in range(2 if depth else 0):
                try:
                    await queue.produce(depth - 1, **timeout)
                except (ReentrantProduceError, ProduceTimeoutError) as error:
                    errors.append(type(error))

    return handler


async def at_rest(*queues):
    """Waits until the queues hold nothing, seen twice in a row."""
    async with asyncio.timeout(WAIT_S):
        while any(queue.stats().total_used for queue in (*queues, *queues)):
            await asyncio.sleep(0.01)


def test_coroutines_that_feed_each_other_beside_other_tasks_get_errors():
    """Room goes to tasks that wait in the same line first, so a circle may close long after the
    wait began."""

    async def main():
        queues = [AsyncBatchQueue(name, config(buffer_size=2)) for name in ("left", "right")]
        errors = []
        for queue, other in zip(queues, reversed(queues), strict=True):
            queue.add_handler(int, double_into(other, errors))
        tasks = [asyncio.create_task(queues[0].produce(3)) for _ in range(6)]
        async with asyncio.timeout(WAIT_S):
            assert all(await asyncio.gather(*tasks))
        await at_rest(*queues)
        assert set(errors) == {ReentrantProduceError}
        for queue in queues:
            assert await queue.shutdown(WAIT_S) == 0
            assert_conserved(queue.stats())

    run(main)


def test_a_coroutine_with_a_timeout_waits_for_it():
    async def main():
        queues = [AsyncBatchQueue(name, config(buffer_size=1)) for name in ("left", "right")]
        errors = []
        for queue, other in zip(queues, reversed(queues), strict=True):
            queue.add_handler(int, double_into(other, errors, timeout=0.2))
        assert await queues[0].produce(4)
        await at_rest(*queues)
        assert set(errors) == {ProduceTimeoutError}
        for queue in queues:
            assert await queue.shutdown(WAIT_S) == 0

    run(main)


def test_a_task_that_outlives_its_handler_is_in_no_circle():
    """It waits for room, and nothing waits for its handler, which has returned."""

    async def main():
        left = AsyncBatchQueue("left", config(buffer_size=1))
        tasks, errors = [], []
        hold = asyncio.Event()

        async def begin(batch):
            for item in batch:
                if item == "begin":
                    tasks.extend(asyncio.create_task(right.produce(n)) for n in range(3))
                    await asyncio.sleep(0)

        async def slow(batch):
            await hold.wait()
            for _ in batch:
                try:
                    await left.produce("more")
                except ReentrantProduceError as error:
                    errors.append(error)

        right = AsyncBatchQueue("right", config(buffer_size=1, max_batch_items=1))
        left.add_handler(str, begin)
        right.add_handler(int, slow)
        assert await left.produce("begin")
        await asyncio.sleep(0.3)
        hold.set()
        async with asyncio.timeout(WAIT_S):
            while len(tasks) < 3:
                await asyncio.sleep(0)
            assert await asyncio.gather(*tasks) == [True] * 3
        assert await right.shutdown(WAIT_S) == 0
        assert await left.shutdown(WAIT_S) == 0
        assert errors == []

    run(main)


def test_a_consumer_that_waits_for_its_partition_is_in_a_circle(make_queue):
    """The other thread is free, but the batches of a partition do not overlap."""
    errors = []

    def produce_twice(queue, item):
        for _ in range(2):
            try:
                queue.produce(item)
            except ReentrantProduceError as error:
                errors.append(error)

    def consumer():
        return lambda batch: [produce_twice(fed, item) for item in batch]

    many = {"threads": 2, "partitions": 2, "selector": PartitionSelector.custom(lambda _, n: n - 1)}
    queue = make_queue(
        "many", config(consumer_factory=consumer, buffer_size=2, max_batch_items=1, **many)
    )
    fed = make_queue("fed", buffer_size=2, max_batch_items=1)
    fed.add_handler(
        int, lambda batch: [produce_twice(queue, item + 1) for item in batch if item < 3]
    )
    assert queue.produce(0)
    eventually(
        lambda: all(each.stats().total_used == 0 for each in (queue, fed, queue, fed)), "the end"
    )
    assert errors
    shut_down(queue, fed)
