"""`on_open`: once before the first batch, on a drain thread, and paired with `on_close`."""

import sqlite3
import threading

import pytest

from batchqueue import AsyncBatchQueue, ConfigError, HandlerConsumer, RetryPolicy
from core_support.event_loop import run, until
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S, eventually


class Opened:
    """Notes its calls; `on_open` raises as often as it is asked to."""

    def __init__(self, failures=0):
        self.failures = failures
        self.calls = []
        self.threads = set()

    def on_open(self):
        self.threads.add(threading.current_thread().name)
        self.calls.append("open")
        if self.failures:
            self.failures -= 1
            raise ConnectionError("not yet")

    def consume(self, batch):
        self.threads.add(threading.current_thread().name)
        self.calls.append(batch)

    def on_close(self):
        self.threads.add(threading.current_thread().name)
        self.calls.append("close")


def test_on_open_comes_before_the_first_batch_and_only_once(make_queue):
    handler = Opened()
    queue = make_queue("orders")
    queue.add_handler(int, handler)
    for number in range(3):
        queue.produce(number)
        assert queue.flush(WAIT_S)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.calls == ["open", [0], [1], [2], "close"]
    assert handler.threads == {"batchqueue-orders-0"}


def test_a_handler_without_a_batch_is_neither_opened_nor_closed(make_queue):
    handler = Opened()
    queue = make_queue()
    queue.add_handler(int, handler)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.calls == []


def test_one_instance_for_two_classes_is_opened_once(make_queue):
    handler = Opened()
    queue = make_queue(threads=2, partitions=2)
    queue.add_handler(int, handler)
    queue.add_handler(str, handler)
    queue.produce_many([1, "a"])
    assert queue.shutdown(WAIT_S) == 0
    assert handler.calls.count("open") == handler.calls.count("close") == 1
    assert (handler.calls[0], handler.calls[-1]) == ("open", "close")


def test_every_consumer_of_a_factory_keeps_to_its_thread(make_queue):
    """So its own `sqlite3` connection needs no `check_same_thread=False`."""
    made = []

    class Writer(Opened):
        def on_open(self):
            super().on_open()
            self.connection = sqlite3.connect(":memory:")
            self.connection.execute("CREATE TABLE numbers (number INTEGER)")

        def consume(self, batch):
            super().consume(batch)
            rows = [(number,) for number in batch]
            self.connection.executemany("INSERT INTO numbers VALUES (?)", rows)

        def on_close(self):
            super().on_close()
            (self.rows,) = self.connection.execute("SELECT count(*) FROM numbers").fetchone()
            self.connection.close()

    def make():
        made.append(Writer())
        return made[-1]

    queue = make_queue(threads=3, partitions=6, consumer_factory=make)
    queue.produce_many(range(1_000))
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())
    opened = [writer for writer in made if writer.calls]
    assert all(len(writer.threads) == 1 for writer in opened)
    assert sum(writer.rows for writer in opened) == queue.stats().consumed == 1_000


def test_a_batch_whose_on_open_raises_fails_and_the_next_one_opens(make_queue):
    handler, reported = Opened(failures=1), []
    queue = make_queue(error_handler=lambda batch, error: reported.append((batch, str(error))))
    queue.add_handler(int, handler)
    for number in range(2):
        queue.produce(number)
        assert queue.flush(WAIT_S)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.calls == ["open", "open", [1], "close"]
    assert reported == [([0], "not yet")]
    assert (queue.stats().failed, queue.stats().consumed) == (1, 1)


def test_a_batch_whose_on_open_raises_is_retried_with_on_open(make_queue):
    handler = Opened(failures=2)
    queue = make_queue(retry=RetryPolicy(attempts=3, backoff_ms=0))
    queue.add_handler(int, handler)
    queue.produce_many([1, 2])
    assert queue.shutdown(WAIT_S) == 0
    assert handler.calls == ["open", "open", "open", [1, 2], "close"]
    assert_conserved(queue.stats())


def test_dead_letters_have_the_error_of_on_open(make_queue):
    letters = []
    queue = make_queue(dead_letter=letters.extend)
    queue.add_handler(int, Opened(failures=1))
    queue.produce(7)
    assert queue.shutdown(WAIT_S) == 0
    ((item, error),) = [(letter.item, letter.error) for letter in letters]
    assert item == 7
    assert isinstance(error, ConnectionError)


def test_a_handler_that_never_opened_is_not_closed(make_queue):
    handler = Opened(failures=1)
    queue = make_queue(error_handler=lambda batch, error: None)
    queue.add_handler(int, handler)
    queue.produce(1)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.calls == ["open"]


def test_on_idle_waits_for_on_open(make_queue):
    class Idle(Opened):
        def on_idle(self):
            if self.calls[-1] != "idle":
                self.calls.append("idle")

    handler = Idle()
    queue = make_queue(min_idle_ms=1, max_idle_ms=1)
    queue.add_handler(int, handler)
    cycles = queue.stats().drain_threads[0].cycles
    eventually(lambda: queue.stats().drain_threads[0].cycles > cycles + 3, "empty cycles")
    assert handler.calls == []
    queue.produce(1)
    eventually(lambda: "idle" in handler.calls, "on_idle")
    assert handler.calls[:2] == ["open", [1]]


def test_a_handler_of_dead_letters_is_opened_and_closed(make_queue):
    class Keeper(Opened):
        def consume(self, batch):
            super().consume([letter.item for letter in batch])

    def fail(batch):
        raise ValueError("as planned")

    keeper = Keeper()
    queue = make_queue(dead_letter=keeper)
    queue.add_handler(int, fail)
    queue.produce_many([1, 2])
    assert queue.shutdown(WAIT_S) == 0
    assert keeper.calls == ["open", [1, 2], "close"]


def test_a_handler_that_comes_back_is_opened_again(make_queue):
    handler = Opened()
    queue = make_queue()
    for number in range(2):
        queue.add_handler(int, handler)
        queue.produce(number)
        assert queue.flush(WAIT_S)
        assert queue.remove_handler(int)
    assert handler.calls == ["open", [0], "close", "open", [1], "close"]


def test_on_open_may_be_a_coroutine_function():
    class OnLoop(HandlerConsumer):
        def __init__(self):
            self.calls = []

        async def on_open(self):
            self.calls.append("open")

        async def consume(self, batch):
            self.calls.append(batch)

    async def main():
        handler = OnLoop()
        async with AsyncBatchQueue("queue", config()) as queue:
            queue.add_handler(int, handler)
            await queue.produce(1)
            await until(lambda: len(handler.calls) == 2)
        assert handler.calls == ["open", [1]]

    run(main)


def test_a_coroutine_function_is_refused_without_a_loop(make_queue):
    class OnLoop(HandlerConsumer):
        async def on_open(self):
            pass

        def consume(self, batch):
            pass

    with pytest.raises(ConfigError, match="on_open"):
        make_queue().add_handler(int, OnLoop())
