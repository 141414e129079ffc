"""Queues on a shared pool: made on first use, counted, fair, never blocked by its own work."""

import itertools
import logging
import threading

import pytest

from batchqueue import (
    BatchQueueConfig,
    ConfigError,
    PartitionPolicy,
    PartitionSelector,
    ReentrantProduceError,
    RetryPolicy,
    ThreadPolicy,
)
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.threads import native_threads, run_threads
from core_support.waits import WAIT_S, eventually


def on_pool(pool, threads=2, partitions=1, **settings):
    settings.setdefault("min_idle_ms", 1)
    settings.setdefault("max_idle_ms", 60_000)
    return BatchQueueConfig(
        shared_scheduler=(pool, ThreadPolicy.fixed(threads)),
        partitions=PartitionPolicy.fixed(partitions),
        **settings,
    )


def threads_of(pool):
    return native_threads(f"batchqueue-{pool}")


@pytest.fixture
def add(make_queue):
    """Makes queues on a pool, each with a handler for ints."""

    def add(name, pool, handler, **settings):
        queue = make_queue(name, settings=on_pool(pool, **settings))
        queue.add_handler(int, handler)
        return queue

    return add


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, "batchqueue")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "batchqueue"]


def test_pool_is_made_by_its_first_queue_and_ends_with_its_last(add):
    on_pool("aa", 3)
    assert threads_of("aa") == 0, "a config alone starts nothing"
    first = add("first", "aa", Recorder(), threads=3)
    second = add("second", "aa", Recorder(), threads=3)
    eventually(lambda: threads_of("aa") == 3, "the workers")
    assert first.shutdown(WAIT_S) == 0
    assert second.produce(1)
    assert second.flush(WAIT_S)
    eventually(lambda: threads_of("aa") == 3, "the workers")
    assert second.shutdown(WAIT_S) == 0
    eventually(lambda: threads_of("aa") == 0, "the end of the workers")
    third = add("third", "aa", Recorder(), threads=2)
    eventually(lambda: threads_of("aa") == 2, "a new pool, of the newly requested size")
    assert third.produce(1)
    assert third.shutdown(WAIT_S) == 0


def test_dropped_queues_end_the_pool_too(make_queue):
    from batchqueue import BatchQueue

    queues = [BatchQueue("queue", on_pool("ab")) for _ in range(3)]
    eventually(lambda: threads_of("ab") == 2, "the workers")
    del queues
    eventually(lambda: threads_of("ab") == 0, "the end of the workers")


def test_first_policy_is_kept_and_another_one_warns(add, lines):
    add("first", "ac", Recorder(), threads=2)
    add("same", "ac", Recorder(), threads=2)
    assert lines() == []
    add("other", "ac", Recorder(), threads=5)
    (line,) = lines()
    assert all(word in line for word in ["queue other", '"ac"', "2 threads", "the 5", "ignored"]), (
        line
    )
    eventually(lambda: threads_of("ac") == 2, "the workers")


def test_names_keep_pools_apart(add):
    add("one", "ad", Recorder(), threads=1)
    add("two", "ae", Recorder(), threads=2)
    eventually(lambda: (threads_of("ad"), threads_of("ae")) == (1, 2), "the workers")


def test_queue_has_one_drain_task_and_its_other_settings(add):
    handler = Recorder()
    queue = add("queue", "af", handler, threads=3, partitions=4, buffer_size=7)
    queue.add_handler(str, Recorder())
    stats = queue.stats()
    assert (stats.thread_count, stats.partition_count, stats.total_capacity) == (1, 4, 28)
    assert queue.produce_many(range(500), timeout=WAIT_S) == 500
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == list(range(500))
    assert handler.closed == 1
    assert_conserved(queue.stats())


def test_many_queues_on_few_threads_lose_and_reorder_nothing(add):
    handlers = [Recorder() for _ in range(40)]
    queues = [
        add(f"queue{index}", "ag", handler, buffer_size=50, max_batch_items=20)
        for index, handler in enumerate(handlers)
    ]

    def produce(producer):
        for number in range(300):
            for queue in queues:
                assert queue.produce(producer * 1_000 + number, timeout=WAIT_S)

    run_threads(*[lambda producer=producer: produce(producer) for producer in range(3)])
    run_threads(*[lambda queue=queue: queue.shutdown(WAIT_S) for queue in queues])
    for queue, handler in zip(queues, handlers, strict=True):
        assert_conserved(queue.stats())
        for producer in range(3):
            mine = [item % 1_000 for item in handler.items if item // 1_000 == producer]
            assert mine == list(range(300))
    eventually(lambda: threads_of("ag") == 0)


def test_busy_queue_does_not_starve_another_on_one_thread(add):
    """The busy queue always has work, and the other queue's item is handled nevertheless."""
    seen = Recorder()
    busy = add(
        "busy", "ah", lambda batch: busy.produce(batch[0]) if not seen.items else None, threads=1
    )
    quiet = add("quiet", "ah", seen, threads=1)
    assert busy.produce_many(range(5)) == 5
    eventually(lambda: busy.stats().consumed > 50, "the busy queue feeds itself")
    assert quiet.produce(1)
    assert quiet.flush(WAIT_S)
    assert seen.items == [1]


def test_queues_with_a_backlog_alternate(add):
    """On one thread, neither gets two batches in a row while the other waits."""
    order, gate = [], Held()
    gated = add("gate", "ai", gate, threads=1)
    gate.hold(gated, 0)
    queues = [
        add(
            name,
            "ai",
            lambda batch, name=name: order.append(name),
            threads=1,
            max_batch_items=1,
            min_idle_ms=0,
        )
        for name in "xy"
    ]
    for queue in queues:
        queue.produce_many(range(20))
    gate.released.set()
    for queue in queues:
        assert queue.flush(WAIT_S)
    assert sorted(order) == ["x"] * 20 + ["y"] * 20
    assert all(name != following for name, following in itertools.pairwise(order)), order


def test_long_handler_of_one_queue_leaves_the_free_threads_to_the_others(add):
    held, seen = Held(), Recorder()
    long = add("long", "aj", held)
    others = [add(f"other{index}", "aj", seen) for index in range(3)]
    held.hold(long, 1)
    for number, queue in enumerate(others):
        assert queue.produce(number)
        assert queue.flush(WAIT_S)
    assert seen.items == [0, 1, 2]
    assert not held.released.is_set()
    held.released.set()


def test_handler_that_waits_for_a_full_queue_of_the_same_pool_is_compensated(add):
    """The only thread waits for space that only this pool can free; another worker frees it."""
    small = add(
        "small", "ak", lambda batch: seen.extend(batch), threads=1, buffer_size=1, max_batch_items=1
    )
    seen = []
    first = add(
        "first",
        "ak",
        lambda batch: [small.produce(item, timeout=WAIT_S) for item in batch],
        threads=1,
    )
    assert first.produce_many(range(200)) == 200
    assert first.flush(WAIT_S)
    assert small.flush(WAIT_S)
    assert seen == list(range(200))
    assert (first.stats().failed, small.stats().refused) == (0, 0)
    eventually(lambda: threads_of("ak") == 1, "the compensating worker leaves")


@pytest.mark.parametrize("many", [False, True])
def test_handler_that_would_wait_beyond_twice_the_threads_gets_an_error(add, many):
    """The worker waits and so does the worker that compensates it; a third is not started."""
    errors, seen, gate = [], Recorder(), Held()

    class Emitting:
        def consume(self, batch):
            try:
                small.produce_many(batch) if many else small.produce(batch[0])
            except ReentrantProduceError as error:
                errors.append(error)

    at_once = {"threads": 1, "min_idle_ms": 0}
    small = add("small", "al", seen, buffer_size=1, **at_once)
    stages = [add(f"stage{index}", "al", Emitting(), **at_once) for index in range(3)]
    gated = add("gate", "al", gate, **at_once)
    gate.hold(gated, 0)
    # The pool's one worker is busy, so the turns are taken in this order: three that need space,
    # then the one that frees it.
    for number, queue in enumerate([*stages, small], start=1):
        assert queue.produce(number)
    gate.released.set()
    for queue in [*stages, small]:
        assert queue.flush(WAIT_S)
    # The first waits, the second runs on the compensating worker and may not wait, and so on until
    # the turn of `small`.
    assert len(errors) == 2
    assert all(error.accepted == 0 for error in errors)
    assert "partition 0" in str(errors[0])
    eventually(lambda: small.stats().consumed == 2, "the item that the first one emitted")
    assert seen.items == [4, 1]
    assert small.stats().refused == 2
    assert_conserved(small.stats())
    eventually(lambda: threads_of("al") == 1, "the compensating worker leaves")


def test_handler_may_shut_down_its_own_queue_and_another_of_its_pool(add):
    returned = []
    other_seen = Recorder()
    other = add("other", "an", other_seen, threads=1)
    queue = add(
        "queue",
        "an",
        lambda batch: returned.append((queue.shutdown(), other.shutdown(WAIT_S))),
        threads=1,
    )
    assert other.produce(1)
    assert queue.produce(1)
    eventually(lambda: returned, "both calls return")
    assert returned == [(0, 0)]
    assert other_seen.items == [1]
    assert queue.shutdown(WAIT_S) == 0
    assert queue.stats().consumed == 1
    eventually(lambda: threads_of("an") == 0, "the end of the workers")


def test_shutdown_that_times_out_leaves_the_pool_to_the_others(add):
    held, seen = Held(), Recorder()
    hung = add("hung", "ao", held)
    other = add("other", "ao", seen)
    held.hold(hung, 1)
    assert hung.produce_many([2, 3]) == 2
    assert hung.shutdown(0.05) == 3
    assert other.produce(1)
    assert other.shutdown(WAIT_S) == 0
    assert seen.items == [1]
    held.released.set()
    eventually(lambda: threads_of("ao") == 0, "the end of the workers, the hung one too")
    assert_conserved(hung.stats())


def test_on_idle_on_error_and_retries_work_on_a_pool(add):
    idle, reported = threading.Event(), []

    class Handler(Recorder):
        def consume(self, batch):
            super().consume(batch)
            if len(self.batches) < 3:
                raise ValueError("as planned")

        def on_idle(self):
            idle.set()

    handler = Handler()
    queue = add("queue", "ap", handler, retry=RetryPolicy(backoff_ms=1), max_idle_ms=5)
    queue.add_handler(str, lambda batch: 1 // 0)
    queue_errors = add(
        "errors",
        "ap",
        lambda batch: 1 // 0,
        error_handler=lambda batch, error: reported.append(type(error)),
    )
    queue.produce(1)
    queue_errors.produce(1)
    assert queue.flush(WAIT_S)
    assert queue_errors.flush(WAIT_S)
    assert handler.items == [1, 1, 1]
    assert (queue.stats().consumed, queue_errors.stats().failed, reported) == (
        1,
        1,
        [ZeroDivisionError],
    )
    idle.clear()
    assert idle.wait(WAIT_S)


def test_handlers_change_on_a_pool_as_anywhere(add):
    first, second = Recorder(), Recorder()
    queue = add("queue", "aq", first)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    queue.add_handler(int, second, replace=True)
    assert first.closed == 1
    queue.produce(2)
    assert queue.flush(WAIT_S)
    assert queue.remove_handler(int)
    assert (first.items, second.items, second.closed) == ([1], [2], 1)


@pytest.mark.parametrize(
    "shared",
    [
        "pool",
        ("pool",),
        ("pool", 2),
        (5, ThreadPolicy.fixed(1)),
        ("", ThreadPolicy.fixed(1)),
        ["pool", ThreadPolicy.fixed(1)],
        ("a\nb", ThreadPolicy.fixed(1)),
    ],
    ids=repr,
)
def test_invalid_pool_is_rejected(shared):
    with pytest.raises(ConfigError, match=r"shared_scheduler is .*give a name and a ThreadPolicy"):
        BatchQueueConfig(shared_scheduler=shared)


def test_exactly_one_of_threads_and_shared_scheduler_is_given():
    with pytest.raises(ConfigError, match="both of threads and shared_scheduler"):
        BatchQueueConfig(
            threads=ThreadPolicy.fixed(1), shared_scheduler=("pool", ThreadPolicy.fixed(1))
        )
    with pytest.raises(ConfigError, match="neither of threads and shared_scheduler"):
        BatchQueueConfig()


def test_other_modes_and_selectors_work_on_a_pool(make_queue):
    made = []

    class Consumer(Recorder):
        def __init__(self):
            super().__init__()
            made.append(self)

    queue = make_queue(settings=on_pool("ar", partitions=3, consumer_factory=Consumer))
    queue.produce_many(range(9))
    assert queue.shutdown(WAIT_S) == 0
    assert [sorted(consumer.items) for consumer in made] == [list(range(9))]
    handler = Recorder()
    keyed = make_queue(settings=on_pool("ar", partitions=3, selector=PartitionSelector.by_key(str)))
    keyed.add_handler(int, handler)
    keyed.produce_many(range(9))
    assert keyed.shutdown(WAIT_S) == 0
    assert sorted(handler.items) == list(range(9))
