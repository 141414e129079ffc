"""`AsyncBatchQueue` called from its own handlers: no call waits for itself."""

import asyncio

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueueConfig,
    BatchQueueError,
    ReentrantProduceError,
    ThreadPolicy,
)
from core_support.event_loop import OnLoopTo, begin, run, until
from core_support.queues import assert_conserved, config


def call_inside(call, **settings):
    """Returns what `call(queue)` gave or raised in a handler of the queue, and the statistics.

    The handler is a coroutine, and its partition is full.
    """

    async def main():
        results = []
        is_full = asyncio.Event()

        async def consume(batch):
            if not results:
                await is_full.wait()
                results.append(None)
                try:
                    results[0] = await call(queue)
                except BatchQueueError as error:
                    results[0] = error

        async with AsyncBatchQueue("queue", config(buffer_size=1, **settings)) as queue:
            queue.add_handler(int, consume)
            await queue.produce(1)
            await until(lambda: queue.stats().in_flight == 1)
            await queue.produce(2)
            is_full.set()
            await until(lambda: results and results[0] is not None)
        assert_conserved(queue.stats())
        return results[0], queue.stats()

    return run(main)


async def as_a_task(coroutine):
    return await asyncio.create_task(coroutine)


@pytest.mark.parametrize("way", [lambda coroutine: coroutine, as_a_task], ids=["itself", "task"])
def test_handler_that_would_wait_for_itself_gets_an_error(way):
    error, stats = call_inside(lambda queue: way(queue.produce(3)))
    assert isinstance(error, ReentrantProduceError)
    assert "partition 0 is full (1/1)" in str(error)
    assert (stats.attempts, stats.produced, stats.refused) == (3, 2, 1)
    error, _ = call_inside(lambda queue: way(queue.produce_many([3, 4])))
    assert isinstance(error, ReentrantProduceError)
    assert error.accepted == 0
    error, _ = call_inside(lambda queue: way(queue.flush()))
    assert "flush was called from a handler" in str(error)


def test_handler_may_shut_its_queue_down():
    async def shut_down(queue):
        assert await queue.shutdown() == 0
        assert not queue.running
        return await queue.produce(3), await queue.produce_many([4])

    result, stats = call_inside(shut_down)
    assert result == (False, 0)
    assert stats.consumed == 2


def test_handler_that_would_wait_for_itself_does_not_join_the_line():
    async def main():
        errors = []

        async def consume(batch):
            await until(lambda: queue.stats().attempts >= 3)
            if not errors:
                try:
                    errors.append(await queue.produce(9))
                except ReentrantProduceError as error:
                    errors.append(error)

        async with AsyncBatchQueue("queue", config(buffer_size=1)) as queue:
            queue.add_handler(int, consume)
            await queue.produce(1)
            await until(lambda: queue.stats().in_flight == 1)
            await queue.produce(2)
            assert await queue.produce(3) is True
        assert isinstance(errors[0], ReentrantProduceError)

    run(main)


def test_task_that_a_handler_left_behind_waits_like_any_other():
    async def main():
        left, seen, released = [], [], asyncio.Event()

        async def behind():
            await until(lambda: queue.stats().consumed == 1 and queue.stats().in_flight == 1)
            await queue.produce("b")
            (waits,) = await begin(queue.produce("c"))
            released.set()
            return await waits and await queue.flush()

        async def consume(batch):
            if not left:
                left.append(asyncio.create_task(behind()))
            else:
                await released.wait()
            seen.extend(batch)

        async with AsyncBatchQueue("queue", config(buffer_size=1)) as queue:
            queue.add_handler(str, consume)
            await queue.produce("first")
            await until(lambda: queue.stats().consumed == 1)
            await queue.produce("a")
            assert await left[0] is True
        assert seen == ["first", "a", "b", "c"]

    run(main)


def test_handler_may_wait_for_another_full_queue():
    async def main():
        seen = []

        async def emit(batch):
            assert await second.produce_many(batch) == len(batch)

        second = AsyncBatchQueue("second", config(buffer_size=2, min_idle_ms=0))
        second.add_handler(int, OnLoopTo(seen))
        async with second, AsyncBatchQueue("first", config(min_idle_ms=0)) as first:
            first.add_handler(int, emit)
            assert await first.produce_many(range(500)) == 500
        assert seen == list(range(500))

    run(main)


def test_queues_on_one_worker_may_wait_for_each_other():
    """A worker that waits for a coroutine is compensated by another."""

    async def main():
        seen = []

        def on_pool(buffer_size):
            pool = ("aio", ThreadPolicy.fixed(1))
            return BatchQueueConfig(
                shared_scheduler=pool, buffer_size=buffer_size, max_idle_ms=60_000
            )

        async def emit(batch):
            assert await second.produce_many(batch) == len(batch)

        second = AsyncBatchQueue("second", on_pool(1))
        second.add_handler(int, OnLoopTo(seen))
        async with second, AsyncBatchQueue("first", on_pool(10)) as first:
            first.add_handler(int, emit)
            assert await first.produce_many(range(100)) == 100
        assert seen == list(range(100))

    run(main)
