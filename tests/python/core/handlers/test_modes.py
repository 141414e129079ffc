"""Modes: one consumer, one consumer per drain thread, a handler per class, or no handler."""

import threading

import pytest

from batchqueue import BatchQueueConfig, ConfigError, ThreadPolicy
from core_support.handlers import Recorder
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "batchqueue"]


def test_one_consumer_takes_all_types_as_one_batch(make_queue):
    recorder = Recorder()
    queue = make_queue(consumer=recorder, min_idle_ms=60_000)
    queue.produce_many([1, "a", 2.5, None])
    assert queue.flush(WAIT_S)
    assert recorder.batches == [[1, "a", 2.5, None]]
    assert queue.shutdown(WAIT_S) == 0
    assert (queue.stats().consumed, queue.stats().unhandled, recorder.closed) == (4, 0, 1)


def test_consumer_may_be_a_function_and_may_fail(make_queue):
    reported = []

    def consume(batch):
        raise ValueError("as planned")

    queue = make_queue(
        consumer=consume, error_handler=lambda batch, error: reported.append((batch, str(error)))
    )
    queue.produce(1)
    assert queue.shutdown(WAIT_S) == 0
    assert reported == [([1], "as planned")]
    assert queue.stats().failed == 1


def test_one_consumer_is_spread_round_robin_by_default(make_queue):
    queue = make_queue(threads=2, partitions=4, consumer=Recorder())
    for number in range(400):
        assert queue.produce(number)
    assert [queue.stats().partition(index).attempts for index in range(4)] == [100] * 4


def test_factory_makes_one_instance_per_drain_thread_and_all_run_in_parallel(make_queue):
    together = threading.Barrier(4)
    made = []

    class Connection(Recorder):
        def __init__(self):
            super().__init__()
            made.append(self)

        def consume(self, batch):
            together.wait(WAIT_S)
            super().consume(batch)

    queue = make_queue(threads=4, consumer_factory=Connection, max_batch_items=1)
    assert len(made) == 4
    for number in range(8):
        assert queue.produce(number)
    assert queue.shutdown(WAIT_S) == 0
    assert not together.broken
    assert [len(connection.items) for connection in made] == [2] * 4
    assert [connection.closed for connection in made] == [1] * 4


def test_factory_makes_as_many_instances_as_there_are_drain_threads(make_queue):
    """Fewer partitions than threads reduce both; a shared scheduler has one drain task."""
    made = []

    def factory():
        made.append(Recorder())
        return made[-1]

    shared = BatchQueueConfig(
        shared_scheduler=("pool", ThreadPolicy.fixed(3)), consumer_factory=factory
    )
    for settings, count in (
        (config(threads=4, partitions=3, consumer_factory=factory), 3),
        (config(threads=2, partitions=8, consumer_factory=factory), 2),
        (shared, 1),
    ):
        made.clear()
        queue = make_queue(settings=settings)
        assert (len(made), queue.stats().thread_count) == (count, count)


@pytest.mark.parametrize("mode", ["consumer", "consumer_factory"])
def test_handler_beside_a_consumer_is_refused(make_queue, mode):
    """It would get nothing."""
    consumer, handler = Recorder(), Recorder()
    queue = make_queue(**{mode: consumer if mode == "consumer" else lambda: consumer})
    for add in (
        lambda: queue.add_handler(int, handler),
        lambda: queue.add_handler("rows", handler),
        lambda: queue.handler(int)(handler),
        lambda: queue.add_handler_factory(int, Recorder, partitions=1),
    ):
        with pytest.raises(ConfigError, match=rf"has a {mode}, which gets .*leave {mode} out"):
            add()
    queue.produce_many([1, "a"])
    assert queue.shutdown(WAIT_S) == 0
    assert (consumer.items, handler.closed) == ([1, "a"], 0)
    assert (queue.stats().consumed, queue.stats().unhandled) == (2, 0)


def test_items_without_any_handler_are_unhandled_and_logged_with_their_number(make_queue, caplog):
    queue = make_queue(max_batch_items=1)
    for _ in range(20):
        queue.produce(1)
        assert queue.flush(WAIT_S)
    queue.produce("another type")
    assert queue.shutdown(WAIT_S) == 0
    assert (queue.stats().consumed, queue.stats().unhandled) == (0, 21)
    assert_conserved(queue.stats())
    assert [line.split(":")[1].strip() for line in lines(caplog)] == [
        "1 item of int had no handler",
        "1 item of str had no handler",
        "19 more items of int had no handler",
    ]
    assert "add_handler" in lines(caplog)[0]
