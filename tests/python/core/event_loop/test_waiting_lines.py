"""The lines of an event loop's waiting tasks, step by step, with scripted answers of the core."""

import asyncio

import pytest

from batchqueue import _core
from batchqueue._lines import Desk
from core_support.event_loop import ScriptedQueue, SilentBell, begin, outcomes, run


@pytest.fixture(autouse=True)
def _scripted_core(monkeypatch):
    monkeypatch.setattr(_core, "Bell", SilentBell)
    monkeypatch.setattr(_core, "room", ScriptedQueue.room)


def test_tasks_do_not_try_while_the_first_in_line_finds_no_room():
    """Another thread took the room that two were called for; more came between their tries."""

    async def main():
        queue = ScriptedQueue(0, 2, 2, 1)
        desk = Desk(queue)
        first = desk.put(queue.waiting("first", None, True), None, None)
        second = desk.put(queue.waiting("second", True), None, None)
        tasks = await begin(first, second)
        assert queue.tries == []
        desk.bell.ring()
        assert await asyncio.gather(*tasks) == [True, True]
        assert queue.tries == ["first", "first", "second"]
        assert desk.lines == {}

    run(main)


def test_task_that_finds_no_room_waits_until_it_is_called_again():
    async def main():
        queue = ScriptedQueue(1)
        desk = Desk(queue)
        (task,) = await begin(desk.put(queue.waiting("only", None, True), None, None))
        for _ in range(10):
            await asyncio.sleep(0)
        assert queue.tries == ["only"]
        queue.rooms = [1]
        desk.bell.ring()
        assert await task is True

    run(main)


def test_room_that_came_before_the_loop_listened_is_found():
    async def main():
        queue = ScriptedQueue(1)
        desk = Desk(queue)
        assert await desk.put(queue.waiting("only", True), None, None) is True

    run(main)


def test_last_called_task_finds_room_without_a_notification():
    async def main():
        queue = ScriptedQueue(0, 1, 1)
        desk = Desk(queue)
        tasks = await begin(
            *(desk.put(queue.waiting(name, True), None, None) for name in ("first", "second"))
        )
        desk.bell.ring()
        assert await asyncio.gather(*tasks) == [True, True]

    run(main)


def test_task_out_of_time_tries_once_more_only_at_the_head_of_the_line():
    async def main():
        queue = ScriptedQueue()
        desk = Desk(queue)
        soon = asyncio.get_running_loop().time() + 0.01
        first, second = await begin(
            desk.put(queue.waiting("first", True), None, None),
            desk.put(queue.waiting("second", True), soon, None),
        )
        assert await outcomes([second]) == [TimeoutError]
        assert queue.tries == []
        first.cancel()
        soon = asyncio.get_running_loop().time() + 0.01
        assert await desk.put(queue.waiting("third", True), soon, None) is True
        assert await outcomes(await begin(desk.put(queue.waiting("late", True), soon, None))) == [
            TimeoutError
        ]
        assert queue.tries == ["third"]

    run(main)
