"""The queues of an event loop's waiting tasks, step by step, with scripted answers of the core."""

import asyncio

import pytest

from batchqueue import _core
from batchqueue.aio.wait_room import WaitRoom
from core_support.event_loop import ScriptedNotifier, ScriptedQueue, begin, outcomes, run


@pytest.fixture(autouse=True)
def _scripted_core(monkeypatch):
    monkeypatch.setattr(_core, "RoomNotifier", ScriptedNotifier)
    monkeypatch.setattr(_core, "room", ScriptedQueue.room)


def test_tasks_do_not_try_while_the_first_waiter_finds_no_room():
    """Another thread took the room that two were called for; more came between their tries."""

    async def main():
        queue = ScriptedQueue(0, 2, 2, 1)
        wait_room = WaitRoom(queue)
        first = wait_room.enqueue(queue.pending("first", None, True), None, None)
        second = wait_room.enqueue(queue.pending("second", True), None, None)
        tasks = await begin(first, second)
        assert queue.tries == []
        wait_room.notifier.notify()
        assert await asyncio.gather(*tasks) == [True, True]
        assert queue.tries == ["first", "first", "second"]
        assert wait_room.wait_queues == {}

    run(main)


def test_task_that_finds_no_room_waits_until_it_is_called_again():
    async def main():
        queue = ScriptedQueue(1)
        wait_room = WaitRoom(queue)
        (task,) = await begin(wait_room.enqueue(queue.pending("only", None, True), None, None))
        for _ in range(10):
            await asyncio.sleep(0)
        assert queue.tries == ["only"]
        queue.rooms = [1]
        wait_room.notifier.notify()
        assert await task is True

    run(main)


def test_room_that_came_before_the_loop_listened_is_found():
    async def main():
        queue = ScriptedQueue(1)
        wait_room = WaitRoom(queue)
        assert await wait_room.enqueue(queue.pending("only", True), None, None) is True

    run(main)


def test_last_called_task_finds_room_without_a_notification():
    async def main():
        queue = ScriptedQueue(0, 1, 1)
        wait_room = WaitRoom(queue)
        tasks = await begin(
            *(
                wait_room.enqueue(queue.pending(name, True), None, None)
                for name in ("first", "second")
            )
        )
        wait_room.notifier.notify()
        assert await asyncio.gather(*tasks) == [True, True]

    run(main)


def test_task_out_of_time_tries_once_more_only_at_the_head_of_the_queue():
    async def main():
        queue = ScriptedQueue()
        wait_room = WaitRoom(queue)
        soon = asyncio.get_running_loop().time() + 0.01
        first, second = await begin(
            wait_room.enqueue(queue.pending("first", True), None, None),
            wait_room.enqueue(queue.pending("second", True), soon, None),
        )
        assert await outcomes([second]) == [TimeoutError]
        assert queue.tries == []
        first.cancel()
        soon = asyncio.get_running_loop().time() + 0.01
        assert await wait_room.enqueue(queue.pending("third", True), soon, None) is True
        assert await outcomes(
            await begin(wait_room.enqueue(queue.pending("late", True), soon, None))
        ) == [TimeoutError]
        assert queue.tries == ["third"]

    run(main)
