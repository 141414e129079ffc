"""`AsyncBatchQueue.submit`: results without a thread that waits, and the door for threads."""

import asyncio
import threading

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchFailed,
    BatchQueueError,
    BufferStrategy,
    ConfigError,
    ProduceTimeoutError,
    QueueClosedError,
    RetryPolicy,
)
from core_support.event_loop import begin, run, until
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S


async def doubled(batch):
    await asyncio.sleep(0)
    return [2 * item for item in batch]


class Echo(Held):
    def consume(self, batch):
        super().consume(batch)
        return batch


def held_queue(**settings):
    queue, handler = AsyncBatchQueue("queue", config(**settings)), Echo()
    queue.add_handler(int, handler)
    return queue, handler


@pytest.mark.parametrize("handler", [doubled, lambda batch: [2 * item for item in batch]])
def test_each_awaited_submit_returns_the_result_of_its_item(handler):
    async def main():
        async with AsyncBatchQueue("queue", config(threads=2)) as queue:
            queue.add_handler(int, handler)
            assert await queue.submit(21) == 42
            results = await asyncio.gather(*(queue.submit(number) for number in range(2_000)))
            assert results == [2 * number for number in range(2_000)]
        assert_conserved(queue.stats())

    run(main)


def test_items_are_enqueued_in_the_order_of_submit_before_anything_is_awaited():
    async def main():
        queue, handler = held_queue()
        async with queue:
            futures = [queue.submit(number) for number in range(5)]
            assert queue.stats().produced == 5
            handler.released.set()
            assert await asyncio.gather(*futures) == list(range(5))
        assert handler.items == list(range(5))

    run(main)


def test_an_error_of_the_handler_is_raised_where_the_result_is_awaited():
    async def main():
        async with AsyncBatchQueue("queue", config()) as queue:

            @queue.handler(int)
            async def fail(batch):
                raise BatchFailed(indexes=[0], results=[None] * len(batch))

            @queue.handler(str)
            def stop(batch):
                raise StopIteration

            with pytest.raises(BatchFailed):
                await queue.submit(1)
            with pytest.raises(RuntimeError, match="StopIteration"):
                await queue.submit("x")
            with pytest.raises(BatchQueueError, match=r"no handler for items of float"):
                await queue.submit(0.5)

    run(main)


def test_a_cancelled_task_cancels_an_item_that_no_handler_has():
    async def main():
        queue, handler = held_queue()
        async with queue:
            first = queue.submit(0)
            await until(handler.entered.is_set)

            async def ask(number):
                return await queue.submit(number)

            tasks = await begin(ask(1), ask(2))
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await queue.submit(3)
            handler.released.set()
            assert await tasks[1] == 2
            assert await first == 0
        assert handler.items == [0, 2]
        assert queue.stats().consumed == 4
        assert_conserved(queue.stats())

    run(main)


def test_a_cancelled_task_does_not_interrupt_the_call_of_its_item():
    async def main():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: problems.append(what))
        queue, handler = held_queue()
        async with queue:
            future = queue.submit(1)
            await until(handler.entered.is_set)
            assert future.cancel()
            handler.released.set()
            with pytest.raises(asyncio.CancelledError):
                await future
        assert (handler.items, problems) == ([1], [])

    run(main)


def test_a_submit_into_a_full_partition_waits_for_room_in_its_turn():
    async def main():
        queue, handler = held_queue(buffer_size=2)
        async with queue:
            first = queue.submit(0)
            await until(handler.entered.is_set)
            futures = [queue.submit(number) for number in range(1, 7)]
            late = queue.submit(7, timeout=0.001)
            with pytest.raises(ProduceTimeoutError):
                await late
            futures[3].cancel()
            handler.released.set()
            results = await asyncio.gather(first, *futures, return_exceptions=True)
            assert [r for r in results if not isinstance(r, asyncio.CancelledError)] == [
                *(0, 1, 2, 3, 5, 6)
            ]
        assert handler.items == [0, 1, 2, 3, 5, 6]
        # One was too late, another was cancelled before it had room.
        assert queue.stats().refused == 2
        assert_conserved(queue.stats())

    run(main)


def test_refusals_are_in_the_future():
    async def main():
        queue, handler = held_queue(buffer_size=1, strategy=BufferStrategy.IF_POSSIBLE)
        async with queue:
            queue.submit(0)
            await until(handler.entered.is_set)
            queue.submit(1)
            with pytest.raises(ProduceTimeoutError):
                await queue.submit(2)
            with pytest.raises(ConfigError):
                queue.submit(2, timeout=-1)
            handler.released.set()
        with pytest.raises(QueueClosedError):
            await queue.submit(3)

    run(main)


def test_a_shutdown_refuses_a_submit_that_waits_for_room():
    async def main():
        queue, handler = held_queue(buffer_size=1)
        queue.submit(0)
        await until(handler.entered.is_set)
        inside, waiting = queue.submit(1), queue.submit(2)
        (closing,) = await begin(queue.shutdown())
        with pytest.raises(QueueClosedError):
            await waiting
        handler.released.set()
        assert await closing == 0
        assert await inside == 1

    run(main)


def test_a_shutdown_that_runs_out_of_time_ends_the_futures():
    async def main():
        queue, handler = held_queue()
        futures = [queue.submit(number) for number in range(3)]
        await until(handler.entered.is_set)
        assert await queue.shutdown(0.01) == 3
        for future in futures:
            with pytest.raises(QueueClosedError):
                await future
        handler.released.set()

    run(main)


def test_a_result_is_awaited_only_after_the_last_attempt():
    async def main():
        attempts = []

        async def consume(batch):
            attempts.append(len(batch))
            if len(attempts) < 3:
                raise OSError
            return batch

        retry = RetryPolicy(attempts=3, backoff_ms=1)
        async with AsyncBatchQueue("queue", config()) as queue:
            queue.add_handler(int, consume, retry=retry)
            assert await queue.submit(1) == 1
        assert attempts == [1, 1, 1]

    run(main)


def test_several_loops_get_their_own_results():
    queue = AsyncBatchQueue("queue", config(threads=2))
    queue.add_handler(int, lambda batch: [2 * item for item in batch])
    results = {}

    def loop(start):
        async def main():
            numbers = range(start, start + 500)
            results[start] = await asyncio.gather(*(queue.submit(n) for n in numbers))

        run(main)

    threads = [threading.Thread(target=loop, args=(start,)) for start in (0, 1_000, 2_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert results == {s: [2 * n for n in range(s, s + 500)] for s in (0, 1_000, 2_000)}
    run(queue.shutdown)


def test_a_loop_is_woken_once_for_the_results_of_a_batch():
    async def main():
        loop, wakes = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe

        def counted(*args, **options):
            wakes.append(args)
            return wake(*args, **options)

        queue, handler = held_queue()
        async with queue:
            first = queue.submit(0)
            await until(handler.entered.is_set)
            futures = [queue.submit(number) for number in range(1, 201)]
            loop.call_soon_threadsafe = counted
            handler.released.set()
            assert await asyncio.gather(first, *futures) == list(range(201))
            loop.call_soon_threadsafe = wake
        assert len(handler.batches) == 2
        assert len(wakes) <= 2

    run(main)


def test_results_for_a_closed_loop_go_nowhere(caplog):
    queue, handler = held_queue()

    async def main():
        queue.submit(1)

    asyncio.run(main())
    handler.released.set()
    run(queue.shutdown)
    assert queue.stats().consumed == 1
    assert caplog.text == ""


def test_the_door_for_threads_is_the_same_queue():
    async def main():
        async with AsyncBatchQueue("queue", config(threads=2)) as queue:
            queue.add_handler(int, doubled)
            recorder = Recorder()
            queue.add_handler(str, recorder)

            def produce():
                door = queue.sync
                assert door.produce("a") is True
                assert door.produce_many(["b", "c"], timeout=WAIT_S) == 2
                return [door.submit(number).result(WAIT_S) for number in range(50)]

            # The handler needs the loop while the thread waits.
            assert await asyncio.to_thread(produce) == [2 * number for number in range(50)]
            await queue.flush()
            assert recorder.items == ["a", "b", "c"]

    run(main)


def test_the_decorator_registers_functions_and_classes():
    async def main():
        async with AsyncBatchQueue("queue", config()) as queue:

            @queue.handler(int, max_batch_items=1)
            async def add(batch):
                return [item + len(batch) for item in batch]

            @queue.handler(str)
            class Upper:
                async def consume(self, batch):
                    return [item.upper() for item in batch]

            assert await asyncio.gather(queue.submit(1), queue.submit(2), queue.submit("a")) == [
                2,
                3,
                "A",
            ]
            assert isinstance(Upper, type)

    run(main)


def test_the_balancer_can_be_run():
    async def main():
        async with AsyncBatchQueue("queue", config(threads=2, balancer=True)) as queue:
            assert queue.rebalance() == 0
        assert queue.stats().rebalances == 1

    run(main)
