"""Balancing: measured load decides which thread drains which partition."""

import threading

from batchqueue import BatchQueueConfig, DrainBalancer, PartitionPolicy, ThreadPolicy
from core_support.balance import TYPES, balanced, load, owners, swap, thread_name
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.threads import run_threads
from core_support.waits import WAIT_S, eventually


def test_throughput_spreads_the_busy_partitions(make_queue, lines):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted())
    load(queue, 1_000, 0, 1_000, 0)
    assert queue.rebalance() == 1
    stats = queue.stats()
    assert (stats.rebalances, stats.moves, stats.load_ratio) == (1, 1, float("inf"))
    eventually(lambda: len({owners(queue)[0], owners(queue)[2]}) == 2, "the move")
    assert "queue queue: rebalanced 1 partitions, max thread load delta: 100% -> 0%" in lines()


def test_balanced_load_stays_and_load_ratio_shows_it(make_queue, lines):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted())
    load(queue, 1_000, 500, 0, 500)
    assert queue.rebalance() == 0
    stats = queue.stats()
    assert (stats.rebalances, stats.moves, stats.load_ratio) == (1, 0, 1.0)
    assert owners(queue) == [0, 1, 0, 1]
    assert lines() == []


def test_only_load_since_the_last_run_counts(make_queue):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted())
    load(queue, 9_000, 9_000, 0, 0)
    assert queue.rebalance() == 0
    load(queue, 0, 3_000, 1_000, 0)
    queue.rebalance()
    assert queue.stats().load_ratio == 3.0


def test_idle_queue_moves_nothing(make_queue):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted(1.0))
    assert [queue.rebalance() for _ in range(3)] == [0, 0, 0]
    assert (queue.stats().rebalances, queue.stats().load_ratio) == (3, 1.0)


def test_skip_ratio_is_the_tolerated_imbalance(make_queue):
    for ratio, moved in ((4.0, False), (1.5, True)):
        queue = balanced(make_queue, DrainBalancer.throughput_weighted(ratio))
        load(queue, 2_000, 1_000, 1_000, 0)
        assert (queue.rebalance() > 0) is moved, ratio


def test_load_is_the_time_that_handlers_were_busy(make_queue):
    """Few items that take long share a thread, and many quick ones share the other."""

    def slow(batch):
        threading.Event().wait(0.01 * len(batch))

    for strategy, heavy in (
        (DrainBalancer.load_weighted(), (0, 2)),
        (DrainBalancer.throughput_weighted(), (1, 3)),
    ):
        queue = make_queue(
            threads=2,
            partitions=4,
            balancer=strategy,
            rebalance_interval_ms=0,
            buffer_size=1_000,
            max_batch_items=1,
        )
        for item_type, handler in zip(TYPES, [slow, len, slow, len], strict=True):
            queue.add_handler(item_type, handler)
        # One slow handler after the other: no items wait behind a call, so no thread takes over.
        for counts in (40, 1_000, 0, 1_000), (0, 0, 40, 0):
            load(queue, *counts)
            assert queue.flush(WAIT_S)
        assert queue.rebalance() > 0
        owner = owners(queue)
        assert owner[heavy[0]] != owner[heavy[1]], (strategy, owner)


def test_balancer_runs_on_the_control_thread_or_the_caller_but_never_on_a_drain_thread(
    make_queue,
):
    names, drains = [], set()
    ask = threading.Event()
    queue = balanced(
        make_queue,
        DrainBalancer.custom(lambda *_: names.append(thread_name())),
        rebalance_interval_ms=0,
    )
    queue.add_handler(str, lambda batch: (drains.add(thread_name()), queue.rebalance(), ask.set()))
    queue.rebalance()
    mine = thread_name()
    assert names == [mine]
    assert queue.produce("please")
    assert ask.wait(WAIT_S)
    eventually(lambda: len(names) == 2, "the requested run")
    assert names[1] == "batchqueue-control"[:15]
    assert drains.isdisjoint(names)


def test_rebalance_from_a_handler_returns_0_and_runs_soon(make_queue):
    returned = []
    queue = balanced(make_queue, DrainBalancer.custom(swap))
    queue.add_handler(str, lambda batch: returned.append(queue.rebalance()))
    assert queue.produce("please")
    eventually(lambda: owners(queue) == [1, 0, 1, 0], "the moves")
    assert returned == [0]
    assert (queue.stats().rebalances, queue.stats().moves) == (1, 4)


def test_balancer_runs_at_the_interval_and_never_at_interval_0(make_queue):
    """Both share one control thread: many runs of the first prove the second had time for a run."""
    often = balanced(make_queue, DrainBalancer.custom(lambda *_: None), rebalance_interval_ms=1)
    never = balanced(make_queue, DrainBalancer.custom(swap), rebalance_interval_ms=0)
    eventually(lambda: often.stats().rebalances >= 20, "runs of the interval")
    assert (never.stats().rebalances, owners(never)) == (0, [0, 1, 0, 1])
    assert never.rebalance() == 4


def test_balancer_is_silently_off_where_there_is_nothing_to_balance(make_queue, lines):
    called = []
    off = DrainBalancer.custom(lambda *args: called.append(args))
    single = make_queue(threads=1, partitions=4, balancer=off, rebalance_interval_ms=1)
    shared = make_queue(
        settings=BatchQueueConfig(
            shared_scheduler=("pool", ThreadPolicy.fixed(2)),
            partitions=PartitionPolicy.fixed(4),
            balancer=off,
            rebalance_interval_ms=1,
        )
    )
    watch = balanced(make_queue, DrainBalancer.throughput_weighted(), rebalance_interval_ms=1)
    eventually(lambda: watch.stats().rebalances >= 20, "runs of another queue with that interval")
    for queue in (single, shared):
        assert queue.rebalance() == 0
        assert (queue.stats().rebalances, queue.stats().moves, queue.stats().load_ratio) == (
            0,
            0,
            1.0,
        )
    assert called == []
    assert lines() == []


def test_rebalance_without_a_balancer_does_nothing(make_queue):
    queue = make_queue(threads=2, partitions=4)
    assert queue.rebalance() == 0
    assert queue.stats().rebalances == 0


def test_partition_above_a_threads_share_is_logged_once_with_the_remedy(make_queue, lines):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted())
    for _ in range(3):
        load(queue, 0, 9_000, 500, 500)
        queue.rebalance()
    named = [line for line in lines() if "add_handler_factory" in line]
    assert len(named) == 1
    assert all(
        word in named[0] for word in ["partition 1 (Item1)", "90% of the load", "50% of one of 2"]
    )


def test_partition_of_a_busy_owner_moves_immediately_and_its_items_wait_for_the_batch(make_queue):
    """longest_handoff_ms is the slowest hand-over."""
    queue = balanced(make_queue, DrainBalancer.custom(lambda *_: [1, 1, 1, 1]))
    handler = Held()
    queue.add_handler(TYPES[0], handler, replace=True)
    handler.hold(queue, TYPES[0]())
    assert queue.stats().longest_handoff_ms == 0
    assert queue.rebalance() == 2
    assert owners(queue) == [1, 1, 1, 1]
    assert queue.stats().longest_handoff_ms > 0
    load(queue, 1, 1, 1, 1)
    eventually(lambda: queue.stats().consumed == 3, "the items of the other types")
    assert len(handler.items) == 0
    handler.released.set()
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())
    assert len(handler.items) == 2


def test_constant_moves_lose_duplicate_and_reorder_nothing(make_queue):
    """The balancer moves every partition each millisecond, against producers and slow owners."""
    turn = iter(range(1_000_000))
    queue = make_queue(
        threads=3,
        partitions=4,
        buffer_size=50,
        max_batch_items=16,
        min_idle_ms=0,
        balancer=DrainBalancer.custom(
            lambda load, owner, threads: [(next(turn) + thread) % threads for thread in owner]
        ),
        rebalance_interval_ms=1,
    )
    recorders = [Recorder() for _ in TYPES]
    for item_type, recorder in zip(TYPES, recorders, strict=True):
        queue.add_handler(item_type, recorder)

    def produce(producer):
        number = 0
        while number < 2_000 or queue.stats().moves < 50:
            for item_type in TYPES:
                item = item_type()
                item.producer, item.number = producer, number
                assert queue.produce(item, timeout=WAIT_S)
            number += 1

    run_threads(lambda: produce(0), lambda: produce(1))
    assert queue.shutdown(WAIT_S) == 0
    stats = queue.stats()
    assert_conserved(stats)
    assert stats.consumed == stats.produced == sum(len(recorder.items) for recorder in recorders)
    for recorder in recorders:
        for producer in range(2):
            numbers = [item.number for item in recorder.items if item.producer == producer]
            assert numbers == list(range(len(numbers)))
