"""P2: a refused item counts as an attempt and as refused, and stays with the caller."""

import os
import signal

import pytest

from batchqueue import BufferStrategy, ProduceTimeoutError, ReentrantProduceError
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually


class Stop(Exception):
    """A signal handler raises it."""


@pytest.fixture
def stopping_signal():
    """SIGUSR1 raises Stop in the main thread."""

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_full_partition_refuses_and_counts(make_queue):
    queue = make_queue(buffer_size=3, strategy=BufferStrategy.IF_POSSIBLE)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    assert [queue.produce(number) for number in range(1, 6)] == [True, True, True, False, False]
    stats = queue.stats()
    assert (stats.attempts, stats.produced, stats.refused) == (6, 4, 2)
    # Of the list, only the item that did not fit was attempted; the items after it were not.
    assert queue.produce_many([7, 8, 9]) == 0
    assert queue.produce_many(iter([7, 8, 9])) == 0
    stats = queue.stats()
    assert (stats.attempts, stats.produced, stats.refused) == (8, 4, 4)
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == [0, 1, 2, 3]
    assert_conserved(queue.stats())


@pytest.mark.parametrize("as_list", [True, False], ids=["list", "iterator"])
def test_produce_many_stops_at_the_first_refusal(make_queue, as_list):
    queue = make_queue(buffer_size=10, strategy=BufferStrategy.IF_POSSIBLE)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, -1)
    items = list(range(25))
    assert queue.produce_many(items if as_list else iter(items)) == 10
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == [-1, *range(10)]
    stats = queue.stats()
    assert (stats.attempts, stats.produced, stats.refused) == (12, 11, 1)
    assert_conserved(stats)


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_time_out_refuses_and_counts(make_queue, timeout):
    queue = make_queue(buffer_size=4)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    with pytest.raises(ProduceTimeoutError) as caught:
        queue.produce_many(range(1, 10), timeout=timeout)
    assert caught.value.accepted == 4
    with pytest.raises(ProduceTimeoutError) as caught:
        queue.produce_many(list(range(5, 10)), timeout=timeout)
    assert caught.value.accepted == 0
    with pytest.raises(ProduceTimeoutError, match=r"partition 0.*4/4") as caught:
        queue.produce(10, timeout=timeout)
    assert caught.value.accepted == 0
    assert isinstance(caught.value, TimeoutError)
    stats = queue.stats()
    assert (stats.attempts, stats.produced, stats.refused) == (8, 5, 3)
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == [0, 1, 2, 3, 4]
    assert_conserved(queue.stats())


def test_list_of_several_pieces_times_out_with_the_right_count(make_queue):
    """Lists are enqueued in pieces; `accepted` counts over all of them."""
    queue = make_queue(buffer_size=10_000)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, -1)
    with pytest.raises(ProduceTimeoutError) as caught:
        queue.produce_many(list(range(25_000)), timeout=0)
    assert caught.value.accepted == 10_000
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == [-1, *range(10_000)]
    assert_conserved(queue.stats())


@pytest.mark.parametrize("as_list", [True, False], ids=["list", "iterator"])
def test_interrupt_refuses_and_counts(make_queue, stopping_signal, as_list):
    queue = make_queue(buffer_size=5)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    blocked, _ = in_background(
        lambda: (
            eventually(lambda: queue.stats().attempts == 7),
            os.kill(os.getpid(), stopping_signal),
        )
    )
    items = list(range(1, 20))
    with pytest.raises(Stop) as caught:
        queue.produce_many(items if as_list else iter(items))
    join(blocked)
    assert caught.value.accepted == 5
    stats = queue.stats()
    assert (stats.attempts, stats.produced, stats.refused) == (7, 6, 1)
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == [0, 1, 2, 3, 4, 5]
    assert_conserved(queue.stats())


def test_closed_queue_refuses_and_counts(make_queue):
    queue = make_queue()
    recorder = Recorder()
    queue.add_handler(int, recorder)
    assert queue.produce(1)
    assert queue.shutdown(WAIT_S) == 0
    assert queue.produce(2) is False
    assert queue.produce(2, timeout=0) is False
    assert queue.produce_many([3, 4]) == 0
    assert queue.produce_many(iter([3, 4])) == 0
    assert recorder.items == [1]
    stats = queue.stats()
    assert (stats.attempts, stats.produced, stats.refused) == (5, 1, 4)
    assert_conserved(stats)


def test_reentrant_refusals_are_counted(make_queue):
    errors = []
    queue = make_queue(buffer_size=2)

    def refill(batch):
        try:
            errors.append(queue.produce_many(["a", "b", "c", "d"]))
        except ReentrantProduceError as error:
            errors.append(error)

    queue.add_handler(int, refill)
    queue.add_handler(str, Recorder())
    queue.produce(1)
    assert queue.flush(WAIT_S)
    queue.shutdown(WAIT_S)
    assert [type(error) for error in errors] == [ReentrantProduceError]
    stats = queue.stats()
    assert (stats.produced, stats.refused) == (3, 1)
    assert_conserved(stats)
