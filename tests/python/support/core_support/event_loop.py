"""Helpers of the tests of `AsyncBatchQueue`."""

import asyncio
import socket
import time

from batchqueue import _core
from core_support.waits import WAIT_S


def run(main):
    """Runs a coroutine function in a new loop; fails if it does not end."""

    async def bounded():
        async with asyncio.timeout(WAIT_S * 2):
            return await main()

    return asyncio.run(bounded())


async def until(condition, what="the condition"):
    """Yields to the loop until `condition()` is true; fails after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {WAIT_S} s"
        await asyncio.sleep(0)


async def begin(*coroutines):
    """Starts a task for each; when this returns, each has run as far as it can without a wait."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    await asyncio.sleep(0)
    return tasks


async def outcomes(tasks):
    """What each task returned, or the class of the exception it raised."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [type(result) if isinstance(result, BaseException) else result for result in results]


async def fill(queue, handler, item=0, size=None):
    """Makes `handler`, a `Held`, hold one item, and fills the partition behind it."""
    assert await queue.produce(item) is True
    await until(handler.entered.is_set)
    for number in range(1, 1 + (size or queue.config.buffer_size)):
        assert await queue.produce(type(item)(number)) is True


def wait_for_room(queue, partition=0, item_type=int):
    """Blocks the loop until there is room."""
    deadline = time.monotonic() + WAIT_S
    while _core.room(queue._queue, (partition, id(item_type))) == 0:
        assert time.monotonic() < deadline


class OnLoopTo:
    """Keeps its items, on the loop."""

    def __init__(self, seen):
        self.seen = seen

    async def consume(self, batch):
        await asyncio.sleep(0)
        self.seen.extend(batch)


class ScriptedQueue:
    """Replaces the core: the test scripts the room each check finds and each attempt's result."""

    def __init__(self, *rooms):
        self.rooms = list(rooms)
        self.tries = []

    def room(self, line):
        return self.rooms.pop(0) if self.rooms else 0

    def pending(self, name, *answers):
        return ScriptedPendingItem(self, name, list(answers))


class ScriptedPendingItem:
    line = (0, 0)
    is_given_up = False

    def __init__(self, queue, name, answers):
        self.queue, self.name, self.answers = queue, name, answers

    def try_again(self, call):
        self.queue.tries.append(self.name)
        return self.answers.pop(0)

    def begin_wait(self, call):
        pass

    def refuse(self):
        pass

    def time_out(self, accepted):
        return TimeoutError(self.name)


class ScriptedNotifier:
    """Notifies the loop when the test says so."""

    def __init__(self):
        self.read, self.write = socket.socketpair()
        self.read.setblocking(False)

    def fileno(self):
        return self.read.fileno()

    def notify(self):
        self.write.send(b"1")

    def take_notified(self):
        self.read.recv(16)
        return [(0, 0)]

    def watch(self, pending):
        pass

    def unwatch(self, line):
        pass
