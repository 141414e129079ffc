"""P9: whatever a handler or a caller does has a defined result, and nothing hangs."""

import gc

import pytest

from batchqueue import (
    BatchQueue,
    BatchQueueError,
    BufferStrategy,
    PartitionPolicy,
    QueueClosedError,
    ReentrantProduceError,
)
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved, config
from core_support.threads import in_background, join, run_threads
from core_support.waits import WAIT_S, eventually


class Calling(Recorder):
    """A handler that makes a call with its first batch and keeps the outcome."""

    def __init__(self, call):
        super().__init__()
        self.call = call
        self.outcomes = []

    def consume(self, batch):
        super().consume(batch)
        if not self.outcomes:
            try:
                self.outcomes.append(self.call())
            except BaseException as error:
                self.outcomes.append(error)


@pytest.mark.parametrize(
    "error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration]
)
def test_any_exception_of_a_handler_fails_only_its_batch(make_queue, error):
    class Raising(Recorder):
        def consume(self, batch):
            super().consume(batch)
            if len(self.batches) % 2:
                raise error("as planned")

    handler = Raising()
    queue = make_queue()
    queue.add_handler(int, handler)
    for number in range(4):
        assert queue.produce(number)
        assert queue.flush(WAIT_S)
    stats = queue.stats()
    assert (stats.consumed, stats.failed) == (2, 2)
    assert queue.running


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_error_handler_may_raise(make_queue, error):
    def fail(batch):
        raise ValueError("first")

    def fail_again(batch, cause):
        raise error("second")

    queue = make_queue(error_handler=fail_again)
    queue.add_handler(int, fail)
    for number in range(3):
        assert queue.produce(number)
        assert queue.flush(WAIT_S)
    assert queue.stats().failed == 3


def test_unprintable_exception_does_no_harm(make_queue):
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError("no text")

        __repr__ = __str__

    def fail(batch):
        raise Unprintable

    queue = make_queue()
    queue.add_handler(int, fail)
    for _ in range(3):
        queue.produce(1)
        assert queue.flush(WAIT_S)
    assert queue.stats().failed == 3


@pytest.mark.parametrize("timeout", [None, 0, 5])
def test_handler_may_call_shutdown(make_queue, timeout):
    """It closes and returns; the drain threads deliver the rest and end on their own."""
    queue = make_queue(threads=2)
    handler = Calling(lambda: queue.shutdown(timeout))
    other = Recorder()
    queue.add_handler(int, handler)
    queue.add_handler(str, other)
    queue.produce(1)
    eventually(lambda: handler.outcomes, "shutdown returns to the handler")
    assert handler.outcomes == [0]
    assert queue.produce(2) is False
    assert not queue.running
    assert queue.shutdown(WAIT_S) == 0
    assert (handler.closed, other.closed) == (1, 1)
    assert_conserved(queue.stats())


def test_handler_that_calls_shutdown_loses_nothing(make_queue):
    queue = make_queue(min_idle_ms=60_000, max_batch_items=10)
    handler = Calling(lambda: queue.shutdown())
    queue.add_handler(int, handler)
    assert queue.produce_many(list(range(95))) == 95
    queue_ended, outcome = in_background(lambda: queue.flush(WAIT_S))
    join(queue_ended)
    assert outcome == [True]
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == list(range(95))


def test_flush_from_a_handler_raises(make_queue):
    other = make_queue("other")
    queue = make_queue()
    own = Calling(lambda: queue.flush(WAIT_S))
    foreign = Calling(lambda: other.flush(WAIT_S))
    queue.add_handler(int, own)
    queue.add_handler(str, foreign)
    queue.produce_many([1, "a"])
    assert queue.flush(WAIT_S)
    for handler in (own, foreign):
        (error,) = handler.outcomes
        assert type(error) is BatchQueueError
        assert "drain thread" in str(error)
        assert "another thread" in str(error)


def test_handler_may_produce_into_its_own_queue(make_queue):
    queue = make_queue(buffer_size=100)
    seen = []

    def count_down(batch):
        seen.extend(batch)
        for number in batch:
            if number:
                assert queue.produce(number - 1)

    queue.add_handler(int, count_down)
    queue.produce(500)
    eventually(lambda: len(seen) == 501, "the chain of items")
    assert seen == list(range(500, -1, -1))


@pytest.mark.parametrize("many", [False, True], ids=["produce", "produce_many"])
def test_handler_that_would_wait_for_itself_gets_an_error(make_queue, many):
    queue = make_queue(buffer_size=2)
    handler = Calling(
        lambda: queue.produce_many([1, 2, 3]) if many else [queue.produce(1) for _ in range(3)]
    )
    queue.add_handler(int, handler)
    queue.produce(0)
    assert queue.flush(WAIT_S)
    (error,) = handler.outcomes
    assert type(error) is ReentrantProduceError
    assert "2/2" in str(error)
    assert "buffer_size" in str(error)
    assert queue.flush(WAIT_S)
    queue.shutdown(WAIT_S)
    assert len(handler.items) == 3
    assert_conserved(queue.stats())


def test_full_queue_refuses_its_handler_with_if_possible(make_queue):
    queue = make_queue(buffer_size=2, strategy=BufferStrategy.IF_POSSIBLE)
    handler = Calling(lambda: [queue.produce(1) for _ in range(3)])
    queue.add_handler(int, handler)
    queue.produce(0)
    assert queue.flush(WAIT_S)
    assert handler.outcomes == [[True, True, False]]


def test_handler_may_add_handlers(make_queue):
    class New:
        pass

    new = Recorder()
    queue = make_queue(partitions=PartitionPolicy.adaptive())
    handler = Calling(lambda: (queue.add_handler(New, new), queue.produce(New())))
    queue.add_handler(int, handler)
    queue.produce(1)
    eventually(lambda: new.items, "the new type's item")
    assert handler.outcomes == [(None, True)]
    assert queue.stats().unhandled == 0


def test_handler_may_wait_for_another_queue(make_queue):
    """Two stages with small buffers: the second slows the first down, and nothing is lost."""
    second = make_queue("second", buffer_size=2)
    last = Recorder()
    second.add_handler(int, last)
    first = make_queue("first", buffer_size=3)
    first.add_handler(int, lambda batch: second.produce_many(batch))
    assert first.produce_many(list(range(1_000))) == 1_000
    assert first.shutdown(WAIT_S) == 0
    assert second.shutdown(WAIT_S) == 0
    assert last.items == list(range(1_000))


def test_shutdown_ends_a_ring_of_queues(make_queue):
    """Two handlers wait for each other's full queues; a shutdown ends this and counts the rest."""
    left, right = make_queue("left", buffer_size=1), make_queue("right", buffer_size=1)

    def double_into(queue):
        return lambda batch: [queue.produce(item) for item in batch for _ in range(3)]

    left.add_handler(int, double_into(right))
    right.add_handler(int, double_into(left))
    left.produce(1)
    eventually(
        lambda: left.stats().in_flight and right.stats().in_flight and left.stats().total_used == 2
    )
    for queue in (left, right):
        queue.shutdown(1)
    for queue in (left, right):
        queue.shutdown(WAIT_S)
        assert_conserved(queue.stats())


def test_on_close_is_called_once_after_the_last_batch(make_queue):
    order = []

    class Closing:
        def consume(self, batch):
            order.append(len(batch))

        def on_close(self):
            order.append("closed")

    queue = make_queue(threads=3, partitions=6, max_batch_items=10)
    handler = Closing()
    types = [type(f"T{index}", (), {}) for index in range(6)]
    for item_type in types:
        queue.add_handler(item_type, handler)
    queue.produce_many([item_type() for item_type in types for _ in range(100)])
    assert queue.shutdown(WAIT_S) == 0
    assert order.count("closed") == 1
    assert order[-1] == "closed"
    assert sum(order[:-1]) == 600
    queue.shutdown(WAIT_S)
    assert order.count("closed") == 1


def test_on_close_may_produce_into_the_next_queue(make_queue):
    second = make_queue("second")
    last = Recorder()
    second.add_handler(int, last)

    class Summing(Recorder):
        def on_close(self):
            super().on_close()
            assert second.produce(sum(self.items))

    first = make_queue("first")
    summing = Summing()
    first.add_handler(int, summing)
    first.produce_many(list(range(10)))
    assert first.shutdown(WAIT_S) == 0
    assert second.shutdown(WAIT_S) == 0
    assert last.items == [45]


def test_on_close_cannot_produce_into_its_own_queue(make_queue):
    outcomes = []

    class Late(Recorder):
        def on_close(self):
            outcomes.append(queue.produce(1))
            outcomes.append(queue.shutdown())

    queue = make_queue()
    queue.add_handler(int, Late())
    assert queue.shutdown(WAIT_S) == 0
    assert outcomes == [False, 0]
    assert_conserved(queue.stats())


def test_concurrent_shutdowns_agree(make_queue):
    for _ in range(20):
        queue = make_queue(threads=2)
        handler = Recorder()
        queue.add_handler(int, handler)
        queue.produce_many(list(range(100)))
        outcomes = []
        run_threads(
            *[lambda queue=queue, outcomes=outcomes: outcomes.append(queue.shutdown(WAIT_S))] * 6
        )
        assert outcomes == [0] * 6
        assert handler.items == list(range(100))
        assert handler.closed == 1


def test_with_block_delivers_what_was_accepted():
    recorder = Recorder()
    with BatchQueue("block", config(min_idle_ms=60_000)) as queue:
        queue.add_handler(int, recorder)
        queue.produce_many([1, 2, 3])
    assert recorder.items == [1, 2, 3]
    assert recorder.closed == 1
    assert not queue.running
    with pytest.raises(ZeroDivisionError), BatchQueue("block", config()) as queue:
        raise ZeroDivisionError
    assert not queue.running


def test_with_block_gives_up_after_shutdown_timeout():
    handler = Held()
    with BatchQueue("block", config(shutdown_timeout=0.05)) as queue:
        queue.add_handler(int, handler)
        handler.hold(queue, 1)
    assert queue.stats().abandoned == 1
    handler.released.set()


def test_add_handler_on_a_closed_queue_raises(make_queue):
    queue = make_queue("orders")
    queue.shutdown(WAIT_S)
    with pytest.raises(QueueClosedError, match=r"orders.*int.*shut down.*new BatchQueue"):
        queue.add_handler(int, Recorder())


def test_dropped_queue_delivers_what_it_accepted(make_queue):
    recorder = Recorder()
    queue = BatchQueue("dropped", config(min_idle_ms=60_000))
    queue.add_handler(int, recorder)
    queue.produce_many([1, 2, 3])
    del queue
    gc.collect()
    eventually(lambda: recorder.closed == 1, "the dropped queue ends")
    assert recorder.items == [1, 2, 3]


def test_handler_may_drop_the_last_reference_to_its_queue():
    recorder = Recorder()
    queues = [BatchQueue("dropped", config())]

    def drop(batch):
        recorder.consume(batch)
        queues.clear()

    queues[0].add_handler(int, drop)
    queues[0].add_handler(str, recorder)
    queues[0].produce_many([1, "a", 2, "b"])
    eventually(lambda: recorder.closed == 1, "the dropped queue ends")
    assert sorted(map(str, recorder.items)) == ["1", "2", "a", "b"]
    assert queues == []
