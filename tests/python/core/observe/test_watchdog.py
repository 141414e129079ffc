"""The log names what takes longer than `warn_after`: calls, waits of producers, waiting items."""

import asyncio
import logging
import threading
import time

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    BatchQueueConfig,
    ConfigError,
    ThreadPolicy,
)
from core_support.event_loop import run, until
from core_support.handlers import Held, Recorder
from core_support.queues import config
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually

SOON = 0.05
"""A limit that a call exceeds soon; nothing here depends on how soon."""


@pytest.fixture
def lines(caplog):
    """Returns a function that gives the messages with all given parts so far."""
    caplog.set_level(logging.INFO, logger="batchqueue")

    def with_parts(*parts):
        messages = [record.getMessage() for record in caplog.records if record.name == "batchqueue"]
        return [message for message in messages if all(part in message for part in parts)]

    return with_parts


def wait_for(lines, *parts, count=1):
    eventually(lambda: len(lines(*parts)) >= count, f"{count} lines with {parts}: {lines()}")
    return lines(*parts)


class OnTheTelephone(Held):
    """A handler that the stack shows in a method that nothing else has."""

    def consume(self, batch):
        self.speak(batch)

    def speak(self, batch):
        super().consume(batch)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_call_is_logged_with_its_stack_then_again_and_when_it_is_over(
    make_queue, lines, threads
):
    handler = OnTheTelephone()
    queue = make_queue("orders", threads=threads, partitions=threads, warn_after=SOON)
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    queue.produce_many([2, 3])
    start = "queue orders: handler int has been in one call for"
    first, second = wait_for(lines, start, "behind it", count=2)[:2]
    for line in (first, second):
        assert line.startswith(start)
        assert "on batchqueue-orders-0 with 1 item; 2 items wait behind it" in line
        assert "Stack of the thread, most recent call last:" in line
        assert "self.speak(batch)" in line
        assert line.rstrip().count("\n") >= 4
        assert "batchqueue/base/threads.py" not in line
    handler.released.set()
    wait_for(lines, "a long call of handler int has ended after")
    assert queue.flush(WAIT_S)


def test_a_line_is_logged_on_a_thread_with_a_name(make_queue, lines, caplog):
    handler = Held()
    queue = make_queue("orders", warn_after=SOON)
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    wait_for(lines, "in one call")
    assert {record.threadName for record in caplog.records} == {"batchqueue-log"}
    handler.released.set()


def test_each_drain_thread_has_lines_for_its_own_call(make_queue, lines):
    handlers = {int: Held(), str: Held(), float: Held()}
    queue = make_queue("orders", threads=3, partitions=3, warn_after=SOON)
    for item_type, handler in handlers.items():
        queue.add_handler(item_type, handler)
    for item_type, handler in handlers.items():
        handler.hold(queue, item_type())
    for item_type in handlers:
        wait_for(lines, f"handler {item_type.__name__} has been in one call")
    for handler in handlers.values():
        handler.released.set()
    for item_type in handlers:
        wait_for(lines, f"a long call of handler {item_type.__name__} has ended")


def test_a_producer_that_waits_is_logged_with_the_handler_that_it_waits_for(make_queue, lines):
    handler = OnTheTelephone()
    queue = make_queue("orders", buffer_size=1, warn_after=SOON)
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    queue.produce(2)
    producer, outcome = in_background(lambda: queue.produce(3))
    producer_name = producer.name
    (line, *_) = wait_for(lines, "a producer on")
    assert f"a producer on {producer_name} has waited for room for an item of int for" in line
    assert "partition 0 is full (1 item)" in line
    assert "handler int has been in one call for" in line
    assert "self.speak(batch)" in line
    handler.released.set()
    join(producer)
    assert outcome == [True]
    wait_for(lines, "producers do not wait for long any more")


def test_items_that_wait_for_a_hung_handler_are_logged(make_queue, lines):
    handler = Held()
    queue = make_queue("orders", warn_after=SOON)
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    queue.produce_many(range(10))
    (line, *_) = wait_for(lines, "an item in partition 0 (int) has waited for its call for")
    assert "10 items wait there; handler int has been in one call for" in line
    handler.released.set()
    wait_for(lines, "items do not wait for long any more")


@pytest.mark.parametrize("mode", ["consumer", "consumer_factory"])
def test_consumers_are_watched(make_queue, lines, mode):
    handler = Held()
    given = handler if mode == "consumer" else lambda: handler
    queue = make_queue("orders", warn_after=SOON, **{mode: given})
    handler.hold(queue, 1)
    wait_for(lines, "handler Held has been in one call for", "on batchqueue-orders-0", "released")
    handler.released.set()
    wait_for(lines, "a long call of handler Held has ended")


def test_a_handler_on_a_shared_scheduler_is_logged_with_its_worker(lines):
    handler = Held()
    settings = BatchQueueConfig(
        shared_scheduler=("WATCHED_POOL", ThreadPolicy.fixed(1)), warn_after=SOON
    )
    with BatchQueue("orders", settings) as queue, BatchQueue("clicks", settings) as other:
        queue.add_handler(int, handler)
        other.add_handler(str, Recorder())
        handler.hold(queue, 1)
        other.produce("a")
        wait_for(lines, "queue orders: handler int", "on batchqueue-WATCHED_POOL-0")
        wait_for(lines, "queue clicks: an item in partition 0 (str) has waited")
        handler.released.set()


def test_a_spare_thread_is_watched(make_queue, lines):
    first, second = Held(), Held()
    queue = make_queue("orders", threads=1, partitions=2, spare_threads=1, warn_after=SOON)
    queue.add_handler(int, first)
    queue.add_handler(str, second)
    first.hold(queue, 1)
    second.hold(queue, "a")
    wait_for(lines, "handler str has been in one call for", "on batchqueue-orders-1")
    first.released.set()
    second.released.set()


def test_on_close_is_watched(lines):
    class Closing(Recorder):
        def __init__(self):
            super().__init__()
            self.released = threading.Event()

        def on_close(self):
            assert self.released.wait(WAIT_S)

    handler = Closing()
    queue = BatchQueue("orders", config(warn_after=SOON))
    queue.add_handler(int, handler)
    queue.produce(1)
    thread, outcome = in_background(lambda: queue.shutdown(WAIT_S))
    wait_for(lines, "Closing has been in one call for", "on_close")
    handler.released.set()
    join(thread)
    assert outcome == [0]


def test_a_coroutine_that_waits_is_logged_with_its_own_stack(lines):
    class OnLoop:
        def __init__(self):
            self.released = asyncio.Event()

        async def consume(self, batch):
            await self.ask_the_server(batch)

        async def ask_the_server(self, batch):
            await self.released.wait()

    async def main():
        handler = OnLoop()
        async with AsyncBatchQueue("orders", config(warn_after=SOON)) as queue:
            queue.add_handler(int, handler)
            await queue.produce(1)
            await until(lambda: lines("handler int has been in one call"), "the line")
            (line, *_) = lines("handler int has been in one call")
            assert "Stack of the task of the handler on its event loop" in line
            assert "await self.ask_the_server(batch)" in line
            assert "await self.released.wait()" in line
            assert "batchqueue/aio/handlers.py" not in line
            handler.released.set()
            await until(lambda: lines("a long call of handler int has ended"), "the end")

    run(main)


def test_a_coroutine_that_blocks_its_loop_is_logged_with_the_frames_it_is_in(lines):
    async def main():
        released = threading.Event()

        def block_the_loop():
            assert released.wait(WAIT_S)

        async def consume(batch):
            block_the_loop()

        async with AsyncBatchQueue("orders", config(warn_after=SOON)) as queue:
            queue.add_handler(int, consume)
            watcher, outcome = in_background(
                lambda: wait_for(lines, "has been in one call", "in block_the_loop") or 1
            )
            releaser, _ = in_background(lambda: (join(watcher), released.set()))
            await queue.produce(1)
            await until(lambda: outcome, "the line")
            await asyncio.to_thread(join, releaser)
            assert not isinstance(outcome[0], BaseException), outcome

    run(main)


def test_a_task_that_waits_for_room_is_logged(lines):
    async def main():
        handler = Held()
        async with AsyncBatchQueue("orders", config(buffer_size=1, warn_after=SOON)) as queue:
            queue.add_handler(int, handler)
            await queue.produce(1)
            await until(handler.entered.is_set)
            await queue.produce(2)
            task = asyncio.create_task(queue.produce(3))
            await until(lambda: lines("a producer on MainThread"), "the line")
            handler.released.set()
            assert await task is True

    run(main)


def test_a_shutdown_names_the_handler_of_what_it_abandons(make_queue, lines):
    handler = OnTheTelephone()
    queue = make_queue("orders")
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    queue.produce_many([2, 3])
    assert queue.shutdown(0) == 3
    (line,) = lines("abandoned 3 items of partition 0 (int)")
    assert "handler int has been in one call for" in line
    assert "on batchqueue-orders-0 with 1 item; 2 items wait behind it" in line
    assert "self.speak(batch)" in line
    handler.released.set()


def test_a_shutdown_names_the_types_of_what_it_abandons(make_queue, lines):
    held = {kind: Held() for kind in (int, str, float, bytes, bool)}
    queue = make_queue("orders", threads=1, partitions=5)
    for kind, handler in held.items():
        queue.add_handler(kind, handler)
    queue.produce(1)
    assert held[int].entered.wait(WAIT_S)
    queue.produce_many(["a", 1.5, b"b"])
    assert queue.shutdown(0) == 4
    (line,) = lines("abandoned 4 items of partitions 0 (int), 1 (str), 2 (float), ...")
    assert "bool" not in line
    for handler in held.values():
        handler.released.set()


def test_nothing_is_logged_without_warn_after_or_within_it(make_queue, lines):
    watched, unwatched = make_queue("watched"), make_queue("unwatched", warn_after=None)
    marker = make_queue("marker", warn_after=SOON)
    handlers = {queue: Held() for queue in (watched, unwatched, marker)}
    for queue, handler in handlers.items():
        queue.add_handler(int, handler)
        handler.hold(queue, 1)
    wait_for(lines, "queue marker: handler int has been in one call", count=3)
    for handler in handlers.values():
        handler.released.set()
    assert not lines("queue watched")
    assert not lines("queue unwatched")


def test_twenty_thousand_classes_are_watched_by_one_visit(make_queue, lines):
    handler, quick = Held(), Recorder()
    queue = make_queue("types", threads=2, partitions=64, warn_after=SOON)
    for number in range(20_000):
        queue.add_handler(f"tag {number}", quick)
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    wait_for(lines, "handler int has been in one call", count=2)
    handler.released.set()
    wait_for(lines, "a long call of handler int has ended")
    assert len(lines("has been in one call")) < 40


def test_a_handler_in_native_code_is_logged_by_what_it_called(make_queue, lines):
    """`time.sleep` has no frame; that of its caller is shown."""

    def sleep_in_native_code(batch):
        while not released.is_set():
            time.sleep(0.02)

    released = threading.Event()
    queue = make_queue("orders", warn_after=SOON)
    queue.add_handler(int, sleep_in_native_code)
    queue.produce(1)
    wait_for(lines, "in one call", "sleep_in_native_code")
    released.set()


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), 0.0001])
def test_an_invalid_limit_is_refused_with_its_value_and_the_remedy(value):
    with pytest.raises(ConfigError, match=f"warn_after is {value}; give .*, or None"):
        config(warn_after=value)


@pytest.mark.parametrize("value", ["10", True, [1]])
def test_a_limit_of_another_type_is_refused(value):
    with pytest.raises(ConfigError, match=r"warn_after is .*; give a finite number of sec.*None"):
        config(warn_after=value)
