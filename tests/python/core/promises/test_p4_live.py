"""P4: no handler, producer, flush or call from a handler blocks anything but what it must."""

import os
import signal
import threading

import pytest

from batchqueue import BatchQueue, BatchQueueError, DrainBalancer, ProduceTimeoutError
from core_support.handlers import Held, Recorder
from core_support.queues import TYPES, assert_conserved, config
from core_support.threads import in_background, join, run_threads
from core_support.waits import WAIT_S, eventually


def rotate(load, owner, threads):
    return [(thread + 1) % threads for thread in owner]


def test_handler_that_never_returns_does_not_stop_other_threads_partitions(make_queue):
    queue = make_queue(threads=2, partitions=4)
    hung, others = Held(), [Recorder() for _ in range(3)]
    for item_type, handler in zip((int, str, float, bytes), [hung, *others], strict=True):
        queue.add_handler(item_type, handler)
    hung.hold(queue, 1)
    for _ in range(50):
        assert queue.produce_many(["a", b"b"], timeout=WAIT_S) == 2
    eventually(
        lambda: len(others[0].items) == len(others[2].items) == 50, "the other thread's partitions"
    )
    queue.produce(0.5)
    assert others[1].items == [], "float belongs to the hung thread"
    hung.released.set()
    assert queue.flush(WAIT_S)
    assert others[1].items == [0.5]


def test_stuck_handlers_names_the_type_while_it_is_stuck(make_queue):
    class Order:
        pass

    queue = make_queue(threads=2)
    hung = Held()
    queue.add_handler(Order, hung)
    queue.add_handler(str, Recorder())
    assert queue.stats().stuck_handlers == ()
    hung.hold(queue, Order())
    queue.produce("quick")
    eventually(lambda: queue.stats().stuck_handlers, "a second inside")
    (name,) = queue.stats().stuck_handlers
    assert name.endswith("Order")
    hung.released.set()
    assert queue.flush(WAIT_S)
    assert queue.stats().stuck_handlers == ()


def test_partitions_of_a_thread_with_a_hung_handler_move_immediately(make_queue):
    plan = []
    balancer = DrainBalancer.custom(lambda *_: plan or None)
    queue = make_queue(threads=2, partitions=4, balancer=balancer, rebalance_interval_ms=0)
    hung = Held()
    for item_type in (int, str, float, bytes):
        queue.add_handler(item_type, hung if item_type is int else Recorder())
    hung.hold(queue, 1)
    plan += [1, 1, 1, 1]
    assert queue.rebalance() == 2
    assert queue.rebalance() == 0
    stats = queue.stats()
    assert [stats.partition(index).owner for index in range(4)] == [1, 1, 1, 1]
    eventually(lambda: queue.stats().stuck_handlers == ("int",), "the hung handler")
    assert queue.produce_many(["a", 0.5, b"b"]) == 3
    eventually(lambda: queue.stats().consumed == 3, "the other types")
    hung.released.set()
    assert queue.flush(WAIT_S)
    for _ in range(20):
        assert queue.produce_many([1, "a", 0.5, b"b"]) == 4
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())
    assert queue.stats().consumed == 84


def test_blocked_producer_wakes_on_space(make_queue):
    queue = make_queue(buffer_size=1)
    held = Held()
    queue.add_handler(int, held)
    held.hold(queue, 0)
    assert queue.produce(1)
    producers = [in_background(lambda number=number: queue.produce(number)) for number in (2, 3, 4)]
    eventually(lambda: queue.stats().attempts == 5, "all three wait")
    held.released.set()
    for thread, outcome in producers:
        join(thread)
        assert outcome == [True]
    assert queue.flush(WAIT_S)
    assert sorted(held.items) == [0, 1, 2, 3, 4]


def test_blocked_producer_that_times_out_leaves_the_wake_up_to_the_next(make_queue):
    queue = make_queue(buffer_size=1)
    held = Held()
    queue.add_handler(int, held)
    held.hold(queue, 0)
    assert queue.produce(1)
    patient, got = in_background(lambda: queue.produce(2))
    impatient, gave_up = in_background(lambda: queue.produce(3, timeout=0.02))
    join(impatient)
    assert isinstance(gave_up[0], ProduceTimeoutError)
    assert got == []
    held.released.set()
    join(patient)
    assert got == [True]


def test_blocked_producer_wakes_on_close(make_queue):
    queue = make_queue(buffer_size=1)
    held = Held()
    queue.add_handler(int, held)
    held.hold(queue, 0)
    assert queue.produce(1)
    single, got_single = in_background(lambda: queue.produce(2))
    many, got_many = in_background(lambda: queue.produce_many([3, 4]))
    eventually(lambda: queue.stats().attempts == 4, "both wait")
    closer, _ = in_background(lambda: queue.shutdown(WAIT_S))
    join(single)
    join(many)
    assert (got_single, got_many) == ([False], [0])
    held.released.set()
    join(closer)
    assert held.items == [0, 1]
    assert queue.stats().refused == 2


def test_blocked_producer_wakes_on_a_signal(make_queue):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    queue = make_queue(buffer_size=1)
    held = Held()
    queue.add_handler(int, held)
    held.hold(queue, 0)
    assert queue.produce(1)
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        watcher, _ = in_background(
            lambda: (
                eventually(lambda: queue.stats().attempts == 3),
                os.kill(os.getpid(), signal.SIGUSR1),
            )
        )
        with pytest.raises(Alarm) as raised:
            queue.produce(2)
        join(watcher)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert raised.value.accepted == 0
    held.released.set()
    assert queue.flush(WAIT_S)
    assert held.items == [0, 1]
    assert queue.stats().refused == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_control_calls_from_a_handler_never_wait(make_queue, threads):
    """All of them together, on the handler's queue and on another whose handler hangs."""
    hung, outcome = Held(), {"own": {}, "other": {}}
    balancer = DrainBalancer.custom(rotate)
    other = make_queue("other", threads=2, partitions=4, balancer=balancer, rebalance_interval_ms=0)
    other.add_handler(int, hung)
    hung.hold(other, 1)
    queue = make_queue(threads=threads, partitions=4, balancer=balancer, rebalance_interval_ms=0)

    class Calls(Recorder):
        def consume(self, batch):
            super().consume(batch)
            for name, target in (("own", queue), ("other", other)):
                calls = outcome[name]
                try:
                    target.flush()
                except BatchQueueError as error:
                    calls["flush"] = "drain thread" in str(error)
                calls["rebalance"] = target.rebalance()
                calls["add"] = target.add_handler(int, Recorder(), replace=True)
                calls["factory"] = target.add_handler_factory(bytes, Recorder, partitions=2)
                calls["remove"] = target.remove_handler(int)
            outcome["shutdown"] = queue.shutdown()

    queue.add_handler(int, Calls())
    assert queue.produce(1)
    eventually(lambda: "shutdown" in outcome, "every call returns")
    assert not hung.released.is_set()
    for name in ("own", "other"):
        assert outcome[name] == {
            "flush": True,
            "rebalance": 0,
            "add": None,
            "factory": None,
            "remove": True,
        }
    assert outcome["shutdown"] == 0
    eventually(lambda: other.stats().rebalances == 1, "the requested run")
    hung.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert other.shutdown(WAIT_S) == 0
    assert hung.closed == 1


def test_balancing_continues_while_every_drain_thread_is_busy():
    """Balancing must not starve when the pool is saturated."""
    settings = config(
        threads=2,
        partitions=4,
        buffer_size=20,
        max_batch_items=5,
        balancer=DrainBalancer.throughput_weighted(),
        rebalance_interval_ms=1,
    )
    stop = threading.Event()
    with BatchQueue("busy", settings) as queue:
        for item_type in (int, str, float, bytes):
            queue.add_handler(item_type, lambda batch: threading.Event().wait(0.001))

        def produce():
            while not stop.is_set():
                queue.produce_many([1] * 5 + [0.5] * 5, timeout=WAIT_S)

        producers = [in_background(produce) for _ in range(2)]
        try:
            eventually(
                lambda: queue.stats().rebalances >= 25 and queue.stats().moves >= 1,
                "runs and moves",
            )
        finally:
            stop.set()
            for thread, _ in producers:
                join(thread)
    assert_conserved(queue.stats())


def test_flush_during_an_expired_shutdown_returns_false(make_queue):
    queue = make_queue()
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    flusher, outcome = in_background(lambda: queue.flush(WAIT_S))
    assert queue.shutdown(0.05) == 1
    join(flusher)
    assert outcome == [False]
    handler.released.set()


def test_flush_waits_for_what_was_accepted_before_it(make_queue):
    queue = make_queue(threads=3, partitions=5)
    recorders = [Recorder() for _ in TYPES]
    for item_type, recorder in zip(TYPES, recorders, strict=True):
        queue.add_handler(item_type, recorder)

    def produce_and_flush():
        for count in range(100):
            mine = [TYPES[number % 5](number) for number in range(count % 7)]
            assert queue.produce_many(mine) == len(mine)
            assert queue.flush(WAIT_S) is True
            handled = {id(item) for recorder in recorders for item in recorder.items}
            assert all(id(item) in handled for item in mine)

    run_threads(*[produce_and_flush] * 3)


def test_flush_returns_false_when_time_runs_out(make_queue):
    queue = make_queue()
    handler = Held()
    queue.add_handler(int, handler)
    assert queue.flush(0) is True, "an empty queue has nothing to wait for"
    handler.hold(queue, 1)
    assert queue.flush(0) is False
    assert queue.flush(0.02) is False
    handler.released.set()
    assert queue.flush(WAIT_S) is True
    queue.shutdown(WAIT_S)
    assert queue.flush(0) is True, "a queue that was shut down has delivered everything"


def test_flush_ends_the_pause_of_an_idle_thread(make_queue):
    """An idle thread pauses for a minute to collect a batch; a flush does not wait for it."""
    queue = make_queue(min_idle_ms=60_000)
    recorder = Recorder()
    queue.add_handler(int, recorder)
    queue.produce(1)
    assert queue.flush(WAIT_S) is True
    assert recorder.items == [1]


def test_first_item_wakes_a_sleeping_queue(make_queue):
    """Each round waits until the drain thread has gone to sleep for a minute."""
    queue = make_queue(min_idle_ms=0, max_idle_ms=60_000)
    recorder = Recorder()
    queue.add_handler(int, recorder)
    for number in range(300):
        assert queue.produce(number)
        eventually(
            lambda number=number: len(recorder.batches) == number + 1, "the item wakes the thread"
        )
    assert recorder.items == list(range(300))
