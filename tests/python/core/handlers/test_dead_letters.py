"""`dead_letter`: what fails for good goes to a handler that keeps it, once."""

import asyncio
import gc
import threading
import weakref

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchFailed,
    BatchQueue,
    BatchQueueConfig,
    BatchQueueError,
    ConfigError,
    DeadLetter,
    HandlerConsumer,
    PartitionSelector,
    RetryPolicy,
    ThreadPolicy,
)
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S, eventually

NO_WAIT = {"backoff_ms": 0}


class Rejected(Exception):
    """What the handlers of these tests raise."""


def reject_odd(batch):
    if any(item % 2 for item in batch):
        raise Rejected(len(batch))


def test_a_letter_has_the_item_its_error_and_where_it_came_from():
    letters = []
    settings = config(dead_letter=letters.extend, retry=RetryPolicy(attempts=3, **NO_WAIT))
    with BatchQueue("orders", settings) as queue:
        queue.add_handler(int, reject_odd)
        queue.produce(7)
        assert queue.flush(WAIT_S)
        stats = queue.stats()
    (letter,) = letters
    assert isinstance(letter, DeadLetter)
    assert (letter.item, letter.attempts) == (7, 3)
    assert (letter.queue, letter.item_type) == ("orders", int)
    assert isinstance(letter.error, Rejected)
    assert letter.error.args == (1,)
    assert letter.error.__traceback__ is not None
    assert (stats.dead_lettered, stats.failed, stats.consumed) == (1, 0, 0)
    assert_conserved(stats)


@pytest.mark.parametrize("selector", ["by_type", "round_robin"])
def test_bisect_leaves_only_bad_items_to_the_dead_letters(selector):
    letters = []
    settings = config(
        selector=getattr(PartitionSelector, selector)(),
        dead_letter=letters.extend,
        retry=RetryPolicy(attempts=1, bisect=True),
    )
    with BatchQueue("inserts", settings) as queue:
        queue.add_handler(int, reject_odd)
        queue.produce_many(range(100))
    assert [letter.item for letter in letters] == list(range(1, 100, 2))
    assert {letter.attempts for letter in letters} == {5, 8}
    stats = queue.stats()
    assert (stats.consumed, stats.dead_lettered, stats.failed) == (50, 50, 0)


def test_the_named_part_of_a_batch_goes_to_the_dead_letters():
    letters, cause = [], Rejected("row")

    def store(batch):
        raise BatchFailed([item for item in batch if item == 13], cause=cause)

    with BatchQueue("rows", config(dead_letter=letters.extend)) as queue:
        queue.add_handler(int, store)
        queue.produce_many([12, 13, 14])
    assert [letter.item for letter in letters] == [13]
    assert isinstance(letters[0].error, BatchFailed)
    assert letters[0].error.__cause__ is cause
    assert (queue.stats().consumed, queue.stats().dead_lettered) == (2, 1)


def test_a_type_has_its_own_dead_letters():
    of_queue, of_type = [], []
    with BatchQueue("own", config(dead_letter=of_queue.extend)) as queue:
        queue.add_handler(int, reject_odd)
        queue.add_handler(float, reject_odd, dead_letter=of_type.extend)
        queue.produce_many([1, 3.0, 5])
    assert [letter.item for letter in of_queue] == [1, 5]
    assert [(letter.item, letter.item_type) for letter in of_type] == [(3.0, float)]


def test_a_consumer_has_the_dead_letters_of_its_queue():
    letters = []

    def consume(batch):
        raise Rejected

    with BatchQueue("consumer", config(consumer=consume, dead_letter=letters.extend)) as queue:
        queue.produce_many([1, "a"])
    assert [(letter.item, letter.item_type) for letter in letters] == [(1, int), ("a", str)]


def test_a_consumer_object_is_closed_after_its_last_letter():
    events = []

    class Keeper(HandlerConsumer):
        def consume(self, batch):
            events.extend(letter.item for letter in batch)

        def on_close(self):
            events.append("closed")

    with BatchQueue("close", config(dead_letter=Keeper())) as queue:
        queue.add_handler(int, reject_odd)
        queue.produce_many([1, 3])
    assert events == [1, 3, "closed"]


def test_on_error_is_called_before_the_item_is_kept():
    events = []

    class Handler:
        def consume(self, batch):
            raise Rejected

        def on_error(self, batch, error):
            events.append(("error", list(batch)))
            batch.clear()

    settings = config(dead_letter=lambda letters: events.append(("kept", letters[0].item)))
    with BatchQueue("both", settings) as queue:
        queue.add_handler(int, Handler())
        queue.produce(1)
    assert events == [("error", [1]), ("kept", 1)]


def test_dead_letters_that_raise_count_as_failed_and_are_logged_once(caplog):
    calls = []

    def keep(letters):
        calls.append(len(letters))
        raise OSError("disk full")

    settings = config(dead_letter=keep, retry=RetryPolicy(attempts=5, **NO_WAIT))
    with BatchQueue("raises", settings) as queue:
        queue.add_handler(int, reject_odd)
        for number in (1, 3, 5):
            queue.produce(number)
            assert queue.flush(WAIT_S)
    stats = queue.stats()
    assert (stats.dead_lettered, stats.failed) == (0, 3)
    assert sum(calls) == 3
    assert_conserved(stats)
    lines = [line for line in caplog.messages if "in the handler of dead letters" in line]
    assert len(lines) == 2, lines  # the first, and the rest at the end
    assert "disk full" in lines[0]


def test_the_log_says_once_that_items_went_to_the_dead_letters(caplog):
    with BatchQueue("log", config(dead_letter=lambda letters: None)) as queue:
        queue.add_handler(int, reject_odd)
        for number in (1, 3, 5):
            queue.produce(number)
            assert queue.flush(WAIT_S)
    lines = [line for line in caplog.messages if "queue log" in line]
    assert len(lines) == 2, lines
    assert "1 item of int went to the handler of dead letters (" in lines[0]
    assert "Rejected" in lines[0]


def test_dead_letters_that_hang_hold_up_no_handler_and_are_abandoned_in_the_end():
    hanging, healthy = threading.Event(), []
    settings = config(2, dead_letter=lambda letters: hanging.wait(WAIT_S), max_batch_items=1)
    queue = BatchQueue("hangs", settings)
    queue.add_handler(int, reject_odd)
    queue.add_handler(str, healthy.extend)
    queue.produce(1)
    eventually(lambda: queue.stats().held + queue.stats().in_flight == 1, "the letter")
    queue.produce_many(["a"] * 100 + [2] * 100)
    eventually(lambda: len(healthy) == 100, "the healthy class")
    eventually(lambda: queue.stats().consumed == 200, "good items of the other")
    assert not queue.flush(0.01)
    assert queue.shutdown(0.01) == 1
    hanging.set()
    assert_conserved(queue.stats())


def test_a_coroutine_function_keeps_dead_letters_on_its_loop():
    kept, own = [], []

    async def keep(letters):
        await asyncio.sleep(0)
        kept.extend(letter.item for letter in letters)

    async def keep_own(letters):
        own.extend(letter.item for letter in letters)

    async def reject(batch):
        raise Rejected

    async def main():
        settings = config(dead_letter=keep)
        async with AsyncBatchQueue("loop", settings) as queue:
            queue.add_handler(int, reject)
            queue.add_handler(str, reject, dead_letter=keep_own)
            await queue.produce_many([1, "a", 2])
            assert await queue.flush(WAIT_S)
            return queue.stats()

    stats = asyncio.run(main())
    assert (kept, own, stats.dead_lettered) == ([1, 2], ["a"], 3)


def test_what_lost_its_handler_between_two_attempts_is_kept():
    letters, tried = [], threading.Event()

    def down(batch):
        tried.set()
        raise ConnectionError

    settings = config(dead_letter=letters.extend, retry=RetryPolicy(backoff_ms=60_000))
    with BatchQueue("removed", settings) as queue:
        queue.add_handler(int, down)
        queue.produce(1)
        assert tried.wait(WAIT_S)
        assert queue.remove_handler(int, timeout=WAIT_S)
        assert queue.flush(WAIT_S)
    (letter,) = letters
    assert type(letter.error) is BatchQueueError
    assert str(letter.error) == "its handler was removed before the next attempt"


def test_letters_keep_nothing_alive():
    class Item:
        pass

    def reject(batch):
        raise Rejected

    with BatchQueue("garbage", config(dead_letter=lambda letters: None)) as queue:
        queue.add_handler(Item, reject)
        item = Item()
        dead = weakref.ref(item)
        queue.produce(item)
        del item
        assert queue.flush(WAIT_S)
        gc.collect()
        eventually(lambda: dead() is None, "the end of the item")


def test_at_any_moment_each_item_is_counted_once():
    keeping = threading.Event()
    settings = config(
        2, max_batch_items=7, dead_letter=lambda letters: keeping.wait(0.0005), max_delay_ms=1
    )
    with BatchQueue("counts", settings) as queue:
        queue.add_handler(int, reject_odd)
        queue.add_handler(float, lambda batch: None)

        def produce():
            for number in range(3_000):
                queue.produce(number)
                queue.produce(float(number))

        producer = threading.Thread(target=produce)
        producer.start()
        while producer.is_alive():
            stats = queue.stats()
            settled = stats.consumed + stats.dead_lettered + stats.failed + stats.unhandled
            assert stats.produced == settled + stats.queued + stats.held + stats.in_flight, stats
            assert stats.total_used == stats.queued + stats.held + stats.in_flight
        producer.join()
    assert_conserved(queue.stats())
    assert queue.stats().dead_lettered > 0


def test_an_invalid_handler_of_dead_letters_is_rejected():
    with pytest.raises(ConfigError, match="cannot be a handler"):
        BatchQueueConfig(threads=ThreadPolicy.fixed(1), dead_letter=3)
    with BatchQueue("q") as queue, pytest.raises(ConfigError, match="cannot be a handler"):
        queue.add_handler(int, print, dead_letter=3)

    async def keep(letters):
        pass

    settings = BatchQueueConfig(threads=ThreadPolicy.fixed(1), dead_letter=keep)
    with pytest.raises(ConfigError, match="must run on an event loop"):
        BatchQueue("q", settings)


def test_the_statistics_of_a_handler_count_what_went_to_the_dead_letters():
    with BatchQueue("stats", config(dead_letter=lambda letters: None)) as queue:
        queue.add_handler(int, reject_odd)
        queue.produce_many([1, 3])
        assert queue.flush(WAIT_S)
        handler = queue.stats().handlers()[int]
        assert (handler.consumed, handler.failed) == (0, 2)
        assert handler.batches >= 1


def test_letters_that_waited_for_room_come_before_the_end_of_their_handler():
    events, hold = [], threading.Event()

    class Keeper(HandlerConsumer):
        def consume(self, letters):
            assert hold.wait(WAIT_S)
            events.extend(letter.item for letter in letters)

        def on_close(self):
            events.append("closed")

    settings = config(2, buffer_size=2, max_batch_items=1)
    with BatchQueue("room", settings) as queue:
        queue.add_handler(int, reject_odd, dead_letter=Keeper())
        # One is in the call, two fill the box, and the last waits for room there.
        queue.produce_many([1, 3, 5, 7])
        eventually(lambda: queue.stats().handlers()[int].batches == 4, "the failures")
        assert not queue.remove_handler(int, timeout=0.01)
        hold.set()
    assert events == [1, 3, 5, 7, "closed"]


def test_a_flush_waits_for_the_letters_of_each_handler():
    hold, kept = threading.Event(), []

    def keep_slowly(letters):
        assert hold.wait(WAIT_S)
        kept.extend(letter.item for letter in letters)

    with BatchQueue("boxes", config(2, partitions=2, dead_letter=lambda letters: None)) as queue:
        queue.add_handler(int, reject_odd, dead_letter=keep_slowly)
        queue.add_handler(float, reject_odd)
        queue.produce_many([1, 3, 5])
        eventually(lambda: queue.stats().in_flight == 3, "the letters")
        flushed = []
        flusher = threading.Thread(target=lambda: flushed.append(queue.flush(WAIT_S)))
        flusher.start()
        queue.produce_many([float(number) for number in range(1, 21)])
        eventually(lambda: queue.stats().dead_lettered == 20, "the other letters")
        assert flushed == []
        hold.set()
        flusher.join(WAIT_S)
        assert (flushed, kept) == ([True], [1, 3, 5])


def test_dead_letters_that_hang_keep_no_other_handler_from_its_end():
    hold, closed = threading.Event(), threading.Event()

    class Healthy(HandlerConsumer):
        def consume(self, batch):
            pass

        def on_close(self):
            closed.set()

    queue = BatchQueue("ends", config(2, dead_letter=lambda letters: hold.wait(WAIT_S)))
    queue.add_handler(int, reject_odd)
    queue.add_handler(str, Healthy())
    queue.produce(1)
    eventually(lambda: queue.stats().in_flight == 1, "the letter")
    queue.shutdown(0.1)
    assert closed.wait(WAIT_S)
    hold.set()
