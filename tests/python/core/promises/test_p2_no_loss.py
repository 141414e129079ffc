"""P2: an accepted item is counted exactly once; what becomes of all attempts adds up."""

import threading
from collections import Counter

import pytest

from batchqueue import PartitionSelector
from core_support.handlers import Held, Recorder
from core_support.queues import TYPES, assert_conserved
from core_support.threads import in_background, join, run_threads
from core_support.waits import WAIT_S, eventually


@pytest.mark.parametrize("buffer_size", [1, 7, 10_000])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_item_of_every_producer_arrives_once(make_queue, threads, buffer_size):
    queue = make_queue(threads=threads, partitions=5, buffer_size=buffer_size)
    recorders = {item_type: Recorder() for item_type in TYPES}
    for item_type, recorder in recorders.items():
        queue.add_handler(item_type, recorder)
    count = 400 if buffer_size == 1 else 2_000

    def one_by_one():
        assert all(queue.produce(TYPES[number % 5](number)) for number in range(count))

    def in_bulk():
        for start in range(count, 2 * count, 100):
            assert (
                queue.produce_many(
                    [TYPES[number % 5](number) for number in range(start, start + 100)]
                )
                == 100
            )

    def from_a_generator():
        assert (
            queue.produce_many(TYPES[number % 5](number) for number in range(2 * count, 3 * count))
            == count
        )

    run_threads(one_by_one, in_bulk, from_a_generator)
    assert queue.flush(WAIT_S)
    arrived = Counter(int(item) for recorder in recorders.values() for item in recorder.items)
    assert arrived == Counter(range(3 * count))
    assert queue.shutdown(WAIT_S) == 0
    stats = queue.stats()
    assert_conserved(stats)
    assert stats.produced == stats.consumed == 3 * count
    assert stats.refused == 0
    assert all(
        type(item) is item_type
        for item_type, recorder in recorders.items()
        for item in recorder.items
    )


@pytest.mark.parametrize(
    "selector",
    [
        PartitionSelector.round_robin(),
        PartitionSelector.by_key(lambda item: int(item) % 13),
        PartitionSelector.custom(lambda item, count: int(item) * 7 % count),
    ],
    ids=["round_robin", "by_key", "custom"],
)
def test_every_item_arrives_once_with_any_selector(make_queue, selector):
    queue = make_queue(threads=2, partitions=5, selector=selector, buffer_size=50)
    recorders = [Recorder() for _ in TYPES]
    for item_type, recorder in zip(TYPES, recorders, strict=True):
        queue.add_handler(item_type, recorder)
    items = [TYPES[number % 5](number) for number in range(3_000)]
    run_threads(
        lambda: queue.produce_many(items[:1_000]),
        lambda: queue.produce_many(iter(items[1_000:2_000])),
        lambda: [queue.produce(item) for item in items[2_000:]],
    )
    assert queue.shutdown(WAIT_S) == 0
    assert sorted(int(item) for recorder in recorders for item in recorder.items) == list(
        range(3_000)
    )
    assert_conserved(queue.stats())


def test_consumers_of_a_factory_share_the_items_without_loss(make_queue):
    consumers = []

    def factory():
        consumers.append(Recorder())
        return consumers[-1]

    queue = make_queue(threads=4, consumer_factory=factory, buffer_size=100)
    run_threads(
        *[
            lambda start=start: queue.produce_many(range(start, start + 2_000))
            for start in (0, 2_000)
        ]
    )
    assert queue.shutdown(WAIT_S) == 0
    assert len(consumers) == 4
    assert all(consumer.batches for consumer in consumers), (
        "round robin gives each thread its share"
    )
    assert sorted(item for consumer in consumers for item in consumer.items) == list(range(4_000))
    assert [consumer.closed for consumer in consumers] == [1, 1, 1, 1]


def test_shutdown_wakes_blocked_producers_and_delivers_the_rest(make_queue):
    queue = make_queue(buffer_size=2)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    assert queue.produce_many([1, 2]) == 2
    producers = [in_background(lambda: queue.produce(9)) for _ in range(4)]
    many, accepted = in_background(lambda: queue.produce_many([9, 9]))
    eventually(lambda: queue.stats().attempts == 8, "all producers wait")
    closer, abandoned = in_background(lambda: queue.shutdown(WAIT_S))
    for thread, outcome in producers:
        join(thread)
        assert outcome == [False]
    join(many)
    assert accepted == [0]
    handler.released.set()
    join(closer)
    assert abandoned == [0]
    assert handler.items == [0, 1, 2]
    stats = queue.stats()
    assert (stats.attempts, stats.produced, stats.refused) == (8, 3, 5)
    assert_conserved(stats)


def test_shutdown_during_produce_loses_no_accepted_item(make_queue):
    for _ in range(30):
        queue = make_queue(threads=2, partitions=5, buffer_size=8)
        recorders = [Recorder() for _ in TYPES]
        for item_type, recorder in zip(TYPES, recorders, strict=True):
            queue.add_handler(item_type, recorder)
        accepted = [[] for _ in range(3)]
        some = threading.Event()

        def produce(mine, queue=queue, some=some):
            number = 0
            while queue.produce(TYPES[number % 5](number)):
                mine.append(number)
                number += 1
                if number == 30:
                    some.set()

        def close(queue=queue, some=some):
            assert some.wait(WAIT_S)
            assert queue.shutdown(WAIT_S) == 0

        run_threads(close, *[lambda mine=mine, produce=produce: produce(mine) for mine in accepted])
        arrived = Counter(int(item) for recorder in recorders for item in recorder.items)
        assert arrived == Counter(number for mine in accepted for number in mine)
        assert_conserved(queue.stats())
        assert queue.stats().refused == 3


def test_items_without_a_handler_are_unhandled(make_queue):
    queue = make_queue(threads=2, partitions=4)
    recorder = Recorder()
    queue.add_handler(int, recorder)
    assert queue.produce_many(["a", 1, "b", 2, None, True]) == 6
    assert queue.flush(WAIT_S)
    stats = queue.stats()
    assert (stats.consumed, stats.unhandled) == (2, 4), "bool is not int: classes match exactly"
    assert recorder.items == [1, 2]
    queue.shutdown(WAIT_S)
    assert_conserved(queue.stats())


def test_item_produced_before_its_handler_is_counted_once(make_queue):
    """Handled or unhandled, but never both and never lost."""
    for _ in range(50):
        queue = make_queue(threads=2, partitions=4, min_idle_ms=0)
        recorder = Recorder()
        queue.produce_many([1, 2, 3])
        queue.add_handler(int, recorder)
        queue.produce_many([4, 5, 6])
        assert queue.shutdown(WAIT_S) == 0
        stats = queue.stats()
        assert stats.consumed == len(recorder.items)
        assert recorder.items[-3:] == [4, 5, 6], "items after add_handler are handled"
        assert recorder.items[:-3] in ([], [1, 2, 3], [2, 3], [3])
        assert_conserved(stats)


def test_failed_batch_counts_as_failed_and_the_next_as_consumed(make_queue):
    class Sometimes(Recorder):
        def consume(self, batch):
            super().consume(batch)
            if batch[0] % 2:
                raise ValueError(batch)

    handler = Sometimes()
    queue = make_queue()
    queue.add_handler(int, handler)
    for number in range(6):
        assert queue.produce(number)
        assert queue.flush(WAIT_S)
    assert handler.batches == [[0], [1], [2], [3], [4], [5]], "a failed batch is not retried"
    queue.shutdown(WAIT_S)
    stats = queue.stats()
    assert (stats.consumed, stats.failed) == (3, 3)
    assert (stats.handlers()[int].consumed, stats.handlers()[int].failed) == (3, 3)
    assert_conserved(stats)


def test_failing_handler_does_not_affect_other_types(make_queue):
    def fail(batch):
        raise RuntimeError("as planned")

    other = Recorder()
    queue = make_queue(min_idle_ms=20)
    queue.add_handler(int, fail)
    queue.add_handler(str, other)
    queue.produce_many([1, "a", 2, "b"])
    queue.shutdown(WAIT_S)
    stats = queue.stats()
    assert (stats.consumed, stats.failed) == (2, 2)
    assert other.items == ["a", "b"]
    assert_conserved(stats)


def test_on_error_takes_precedence_over_error_handler(make_queue):
    calls = []

    class Own:
        def consume(self, batch):
            raise ValueError("own")

        def on_error(self, batch, error):
            calls.append(("on_error", batch, error))

    def without(batch):
        raise KeyError("without")

    queue = make_queue(
        error_handler=lambda batch, error: calls.append(("error_handler", batch, error))
    )
    queue.add_handler(int, Own())
    queue.add_handler(str, without)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    queue.produce("a")
    queue.shutdown(WAIT_S)
    assert [call[:2] for call in calls] == [("on_error", [1]), ("error_handler", ["a"])]
    assert type(calls[0][2]) is ValueError
    assert type(calls[1][2]) is KeyError
    assert calls[0][2].__traceback__ is not None
    assert queue.stats().failed == 2


def test_shutdown_that_times_out_returns_the_number_of_abandoned_items(make_queue):
    queue = make_queue(threads=2, buffer_size=100)
    handler, other = Held(), Recorder()
    queue.add_handler(int, handler)
    queue.add_handler(str, other)
    handler.hold(queue, 0)
    assert queue.produce_many(list(range(1, 41))) == 40
    assert queue.produce("free") is True
    eventually(lambda: other.items, "the other thread continues")
    assert queue.shutdown(0.05) == 41, "one in flight and 40 queued"
    stats = queue.stats()
    assert (stats.produced, stats.consumed, stats.abandoned) == (42, 1, 41)
    assert_conserved(stats)
    handler.released.set()
    eventually(lambda: handler.closed == 1, "on_close after the handler returned")
    after = queue.stats()
    assert (after.consumed, after.abandoned) == (1, 41), (
        "an item in flight is abandoned or consumed, never both"
    )
    assert after.handlers()[int].consumed == 0
    assert handler.items == [0], "abandoned items are not handled later"
    assert queue.shutdown(WAIT_S) == 41
    assert_conserved(after)


def test_abandoned_batch_that_fails_later_is_not_counted_again(make_queue):
    handler = Held()

    def consume(batch):
        handler.consume(batch)
        raise ValueError("late")

    reported = threading.Event()
    queue = make_queue(error_handler=lambda batch, error: reported.set())
    queue.add_handler(int, consume)
    handler.hold(queue, 1)
    assert queue.shutdown(0) == 1
    handler.released.set()
    assert reported.wait(WAIT_S)
    assert queue.shutdown(WAIT_S) == 1
    stats = queue.stats()
    assert (stats.failed, stats.consumed, stats.abandoned) == (0, 0, 1)
    assert_conserved(stats)


def test_second_shutdown_returns_after_the_first_has_abandoned(make_queue):
    """The number is final: there is nothing left to wait for."""
    queue = make_queue()
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    assert queue.shutdown(0) == 1
    second, outcome = in_background(lambda: queue.shutdown(WAIT_S))
    try:
        eventually(lambda: outcome, "the second shutdown returns while the handler hangs")
        assert not handler.released.is_set()
    finally:
        handler.released.set()
    join(second)
    assert outcome == [1]
