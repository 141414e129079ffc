"""Producers of `AsyncBatchQueue`: tasks wait in line, and the loop never waits."""

import asyncio

import pytest

from batchqueue import AsyncBatchQueue, BufferStrategy, ConfigError, ProduceTimeoutError
from batchqueue.aio import wait_room as _wait_room
from core_support.event_loop import begin, fill, outcomes, run, until, wait_for_room
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S


def queue_of(handler, **settings):
    queue = AsyncBatchQueue("queue", config(**settings))
    queue.add_handler(int, handler)
    return queue


@pytest.mark.parametrize("kind", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_items_that_find_room_are_enqueued_in_order_and_without_a_wait(kind):
    async def main():
        handler = Recorder()
        async with queue_of(handler, buffer_size=100_000) as queue:
            assert await queue.produce(-1) is True
            assert await queue.produce_many(kind(range(50_000))) == 50_000
            assert await queue.produce_many(kind(())) == 0
            assert await queue.flush() is True
            assert handler.items == list(range(-1, 50_000))
        assert handler.closed == 1
        assert_conserved(queue.stats())

    run(main)


@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterator"])
def test_many_that_find_room_yield_to_other_tasks(kind):
    async def main():
        async with queue_of(Recorder(), buffer_size=200_000) as queue:
            (task,) = await begin(queue.produce_many(kind(range(100_000))))
            assert not task.done()
            assert await task == 100_000

    run(main)


@pytest.mark.parametrize("buffer_size", [1, 2, 7, 100])
@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterator"])
def test_room_wakes_a_task_every_time(buffer_size, kind):
    """Without a wake-up the drain thread and the loop would sleep for a minute."""

    async def main():
        handler = Recorder()
        async with queue_of(handler, buffer_size=buffer_size, min_idle_ms=0) as queue:
            for number in range(300):
                assert await queue.produce(number) is True
            assert await queue.produce_many(kind(range(300, 1_000))) == 700
            assert await queue.flush()
        assert handler.items == list(range(1_000))
        assert_conserved(queue.stats())

    run(main)


def test_pressure_ends_the_pause_of_a_drain_thread():
    async def main():
        async with queue_of(
            Recorder(), buffer_size=4, min_idle_ms=60_000, max_idle_ms=60_000
        ) as queue:
            assert await queue.produce_many(list(range(50))) == 50

    run(main)


def test_task_waits_for_room_and_the_loop_does_not():
    async def main():
        handler = Held()
        async with queue_of(handler, buffer_size=2) as queue:
            await fill(queue, handler)
            (task,) = await begin(queue.produce(3))
            for _ in range(10):
                await asyncio.sleep(0)
            stats = queue.stats()
            assert not task.done()
            assert (stats.attempts, stats.produced, stats.refused) == (4, 3, 0)
            handler.released.set()
            assert await task is True
        assert handler.items == [0, 1, 2, 3]
        assert_conserved(queue.stats())

    run(main)


@pytest.mark.parametrize("buffer_size", [1, 4])
def test_tasks_get_room_in_order_of_arrival(buffer_size):
    async def main():
        handler = Held()
        async with queue_of(handler, buffer_size=buffer_size) as queue:
            await fill(queue, handler)
            tasks = await begin(*(queue.produce(number) for number in range(100, 200)))
            handler.released.set()
            assert await asyncio.gather(*tasks) == [True] * 100
        assert handler.items[1 + buffer_size :] == list(range(100, 200))
        assert_conserved(queue.stats())

    run(main)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_late_task_does_not_overtake_although_there_is_room(many):
    async def main():
        handler = Held()
        async with queue_of(handler, buffer_size=1) as queue:
            await fill(queue, handler)
            waiting = await begin(queue.produce(2))
            handler.released.set()
            wait_for_room(queue)
            # The loop has not been notified of the room yet.
            later = await begin(queue.produce_many([3, 4]) if many else queue.produce(3))
            await asyncio.gather(*waiting, *later)
        assert handler.items == [0, 1, 2, 3, 4][: 5 if many else 4]

    run(main)


def test_call_of_many_uses_its_turn_for_everything_that_finds_room():
    async def main():
        handler = Held()
        async with queue_of(handler, buffer_size=4) as queue:
            await fill(queue, handler)
            tasks = await begin(
                queue.produce_many([10, 11, 12]), queue.produce_many(iter([20, 21, 22]))
            )
            handler.released.set()
            assert await asyncio.gather(*tasks) == [3, 3]
        assert handler.items[5:] == [10, 11, 12, 20, 21, 22]

    run(main)


# Giving up.


def test_cancelled_wait_has_enqueued_nothing():
    async def main():
        handler = Held()
        async with queue_of(handler, buffer_size=1) as queue:
            await fill(queue, handler)
            first, second, third = await begin(*(queue.produce(number) for number in (2, 3, 4)))
            second.cancel()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await queue.produce(5)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.produce(6), 0.001)
            assert await outcomes([second]) == [asyncio.CancelledError]
            assert queue.stats().refused == 3
            handler.released.set()
            assert await asyncio.gather(first, third) == [True, True]
        assert handler.items == [0, 1, 2, 4]
        assert_conserved(queue.stats())

    run(main)


def test_task_cancelled_at_its_turn_passes_the_room_on(monkeypatch):
    """Between the call and the task's next step: there is no second notification of that room."""

    async def main():
        handler = Held()
        async with queue_of(handler, buffer_size=1) as queue:
            await fill(queue, handler)
            first, second = await begin(queue.produce(2), queue.produce(3))
            call = _wait_room.Waiter.call

            def call_and_cancel(waiter):
                call(waiter)
                first.cancel()

            monkeypatch.setattr(_wait_room.Waiter, "call", call_and_cancel)
            handler.released.set()
            assert await outcomes([first, second]) == [asyncio.CancelledError, True]
        assert handler.items == [0, 1, 3]
        assert_conserved(queue.stats())

    run(main)


@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterator"])
def test_cancelled_many_have_enqueued_a_prefix(kind):
    async def main():
        handler, caught = Held(), []

        async def enqueue():
            try:
                await queue.produce_many(kind(range(1, 10)))
            except asyncio.CancelledError as error:
                caught.append(error.accepted)
                raise

        async with queue_of(handler, buffer_size=5) as queue:
            await queue.produce(0)
            await until(handler.entered.is_set)
            tasks = await begin(enqueue())
            tasks[0].cancel()
            assert await outcomes(tasks) == [asyncio.CancelledError]
            assert caught == [5]
            handler.released.set()
        assert handler.items == [0, 1, 2, 3, 4, 5]
        stats = queue.stats()
        assert (stats.attempts, stats.produced, stats.refused) == (7, 6, 1)
        assert_conserved(stats)

    run(main)


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_time_out_refuses_and_counts(timeout):
    async def main():
        handler = Held()
        async with queue_of(handler, buffer_size=4) as queue:
            await queue.produce(0)
            await until(handler.entered.is_set)
            for items, accepted in ((iter(range(1, 10)), 4), (list(range(5, 10)), 0)):
                with pytest.raises(ProduceTimeoutError) as caught:
                    await queue.produce_many(items, timeout=timeout)
                assert caught.value.accepted == accepted
            with pytest.raises(
                ProduceTimeoutError, match=r"partition 0 stayed full \(4/4\).*raise"
            ) as caught:
                await queue.produce(10, timeout=timeout)
            assert caught.value.accepted == 0
            stats = queue.stats()
            assert (stats.attempts, stats.produced, stats.refused) == (8, 5, 3)
            handler.released.set()
            assert await queue.produce(11, timeout=WAIT_S) is True
        assert handler.items == [0, 1, 2, 3, 4, 11]
        assert_conserved(queue.stats())

    run(main)


def test_invalid_time_out_is_refused():
    async def main():
        async with queue_of(Recorder()) as queue:
            for call in (
                queue.produce(1, timeout=-1),
                queue.produce_many([1], timeout=float("nan")),
            ):
                with pytest.raises(ConfigError, match=r"timeout is (-1|nan)"):
                    await call
        assert queue.stats().attempts == 0

    run(main)


def test_full_queue_refuses_without_a_wait_with_if_possible():
    async def main():
        handler = Held()
        queue = queue_of(handler, buffer_size=2, strategy=BufferStrategy.IF_POSSIBLE)
        async with queue:
            await fill(queue, handler)
            assert await queue.produce(3) is False
            assert await queue.produce_many([3, 4]) == 0
            assert await queue.produce_many(iter([3, 4])) == 0
            assert queue.stats().refused == 3
            handler.released.set()
        assert_conserved(queue.stats())

    run(main)


def test_shutdown_wakes_all_waiting_tasks_and_refuses_later_ones():
    async def main():
        handler = Held()
        async with queue_of(handler, buffer_size=2) as queue:
            await fill(queue, handler)
            tasks = await begin(*(queue.produce(3) for _ in range(20)), queue.produce_many([3, 4]))
            (ends,) = await begin(queue.shutdown())
            # The handler is still inside, so there is no room.
            assert await asyncio.gather(*tasks) == [False] * 20 + [0]
            assert not queue.running
            assert await queue.produce(5) is False
            assert await queue.produce_many([5, 6]) == 0
            assert not ends.done()
            handler.released.set()
            assert await ends == 0
            assert await queue.shutdown() == 0
        assert handler.items == [0, 1, 2]
        stats = queue.stats()
        assert (stats.attempts, stats.produced, stats.refused) == (26, 3, 23)
        assert_conserved(stats)

    run(main)


def test_tasks_have_the_room_of_a_class_that_hangs():
    """Its tasks wait in the same partition, before theirs; a cycle of the queue would not end."""

    async def main():
        hung, healthy = Held(), Recorder()
        settings = {"threads": 2, "partitions": 2, "buffer_size": 8, "max_batch_items": 4}
        async with queue_of(hung, **settings) as queue:
            for item_type in (str, float):  # `float` shares the partition of `int`
                queue.add_handler(item_type, healthy)
            waiting = await begin(*(queue.produce(number) for number in range(100)))
            await until(hung.entered.is_set)
            for number in range(50):
                assert await queue.produce(float(number)) is True
            await until(lambda: len(healthy.items) == 50)
            assert not all(task.done() for task in waiting)
            hung.released.set()
            assert await outcomes(waiting) == [True] * 100
        assert hung.items == list(range(100))
        assert_conserved(queue.stats())

    run(main)
