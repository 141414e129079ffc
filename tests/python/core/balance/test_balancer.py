"""Balancing: who drains which partition is decided by measured load, by the strategy of the config."""

import logging
import threading
from pathlib import Path

import pytest

from batchqueue import BatchQueueConfig, DrainBalancer, PartitionPolicy, ThreadPolicy
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.threads import run_threads
from core_support.waits import WAIT_S, eventually

TYPES = [type(f"Item{index}", (), {}) for index in range(4)]


@pytest.fixture
def lines(caplog):
    """Return the lines that the queue has logged so far, at any level."""
    caplog.set_level(logging.DEBUG, "batchqueue")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "batchqueue"]


def owners(queue):
    stats = queue.stats()
    return [stats.partition(index).owner for index in range(stats.partition_count)]


def balanced(make_queue, balancer, threads=2, **settings):
    """A queue of four types, each in its own partition; with two threads their owners are 0, 1, 0, 1."""
    settings.setdefault("rebalance_interval_ms", 0)
    queue = make_queue(threads=threads, partitions=4, balancer=balancer, **settings)
    for item_type in TYPES:
        queue.add_handler(item_type, Recorder())
    return queue


def swap(load, owner, threads):
    return [(one + 1) % threads for one in owner]


def load(queue, *counts):
    for item_type, count in zip(TYPES, counts, strict=True):
        assert queue.produce_many([item_type() for _ in range(count)]) == count


def thread_name():
    """The name that the system knows; native threads have no other."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()


def test_throughput_spreads_the_busy_partitions(make_queue, lines):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted())
    load(queue, 1_000, 0, 1_000, 0)
    assert queue.rebalance() == 1
    stats = queue.stats()
    assert (stats.rebalances, stats.moves, stats.load_ratio) == (1, 1, float("inf"))
    eventually(lambda: len({owners(queue)[0], owners(queue)[2]}) == 2, "one of the two has moved")
    assert "queue queue: rebalanced 1 partitions, max thread load delta: 100% -> 0%" in lines()


def test_what_is_balanced_stays_and_load_ratio_says_so(make_queue, lines):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted())
    load(queue, 1_000, 500, 0, 500)
    assert queue.rebalance() == 0
    stats = queue.stats()
    assert (stats.rebalances, stats.moves, stats.load_ratio) == (1, 0, 1.0)
    assert owners(queue) == [0, 1, 0, 1]
    assert lines() == []


def test_only_the_time_since_the_last_run_counts(make_queue):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted())
    load(queue, 9_000, 9_000, 0, 0)
    assert queue.rebalance() == 0
    load(queue, 0, 3_000, 1_000, 0)
    queue.rebalance()
    assert queue.stats().load_ratio == 3.0


def test_an_idle_queue_moves_nothing(make_queue):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted(1.0))
    assert [queue.rebalance() for _ in range(3)] == [0, 0, 0]
    assert (queue.stats().rebalances, queue.stats().load_ratio) == (3, 1.0)


def test_skip_ratio_is_how_uneven_the_threads_may_be(make_queue):
    for ratio, moved in ((4.0, False), (1.5, True)):
        queue = balanced(make_queue, DrainBalancer.throughput_weighted(ratio))
        load(queue, 2_000, 1_000, 1_000, 0)
        assert (queue.rebalance() > 0) is moved, ratio


def test_cost_weighs_the_time_that_handlers_need(make_queue):
    """The busy thread is the one with few items that take long, and one of those is what moves."""

    def slow(batch):
        threading.Event().wait(0.02 * len(batch))

    for strategy, moved in (
        (DrainBalancer.cost_weighted(), {0, 2}),
        (DrainBalancer.throughput_weighted(), {1, 3}),
    ):
        queue = make_queue(threads=2, partitions=4, balancer=strategy, rebalance_interval_ms=0)
        for item_type, handler in zip(TYPES, [slow, len, slow, len], strict=True):
            queue.add_handler(item_type, handler)
        load(queue, 20, 1_000, 20, 1_000)
        assert queue.flush(WAIT_S)
        assert queue.rebalance() == 1
        eventually(lambda queue=queue: owners(queue) != [0, 1, 0, 1], "the move")
        assert {index for index, owner in enumerate(owners(queue)) if owner != index % 2} < moved


def test_custom_gets_loads_owners_and_threads(make_queue):
    seen = []
    queue = balanced(make_queue, DrainBalancer.custom(lambda *args: seen.append(args)))
    load(queue, 5, 0, 7, 1)
    assert queue.rebalance() == 0
    assert seen == [([5.0, 0.0, 7.0, 1.0], [0, 1, 0, 1], 2)]
    assert [type(one) for one in seen[0]] == [list, list, int]


def test_custom_decides_and_rebalance_counts_what_it_changed(make_queue, lines):
    plans = [[1, 0, 1, 0], [1, 0, 1, 0], [1, 1, 1, 0], None]
    queue = balanced(make_queue, DrainBalancer.custom(lambda *_: plans.pop(0)))
    for changed, wanted in (
        (4, [1, 0, 1, 0]),
        (0, [1, 0, 1, 0]),
        (1, [1, 1, 1, 0]),
        (0, [1, 1, 1, 0]),
    ):
        assert queue.rebalance() == changed
        eventually(lambda wanted=wanted: owners(queue) == wanted, f"owners {wanted}")
    assert plans == []
    stats = queue.stats()
    assert (stats.rebalances, stats.moves) == (4, 5)
    assert sum(line.startswith("queue queue: rebalanced") for line in lines()) == 2


def raises(*_):
    raise ZeroDivisionError("as planned")


@pytest.mark.parametrize(
    ("assign", "words"),
    [
        (raises, ["raised Traceback", "ZeroDivisionError: as planned"]),
        (lambda *_: [0, 1, 0], ["3 entries", "4 partitions", "one thread per partition"]),
        (lambda *_: [0] * 5, ["5 entries", "4 partitions"]),
        (lambda *_: [], ["0 entries", "4 partitions"]),
        (lambda *_: [0, 99, 0, 1], ["partition 1 to thread 99", "2 drain threads", "from 0 to 1"]),
        (lambda *_: [0, 1, 2, 1], ["partition 2 to thread 2", "from 0 to 1"]),
        (lambda *_: [0, 1, 0, -1], ["partition 3 to thread", "from 0 to 1"]),
        (lambda *_: 7, ["returned 7", "give a list", "or None"]),
        (lambda *_: "0101", ["returned '0101'", "give a list"]),
        (lambda *_: [0, 1, 0, "1"], ["returned [0, 1, 0, '1']", "give a list"]),
        (lambda *_: [0, 1, 0, 0.5], ["returned [0, 1, 0, 0.5]", "give a list"]),
        (lambda *_: [0, 1, 0, 1 << 80], ["partition 3 to thread", "from 0 to 1"]),
    ],
    ids=[
        "raises",
        "short",
        "long",
        "empty",
        "99",
        "2",
        "negative",
        "int",
        "str",
        "strings",
        "floats",
        "huge",
    ],
)
def test_a_custom_plan_that_is_none_is_refused_with_a_line(make_queue, lines, assign, words):
    queue = balanced(make_queue, DrainBalancer.custom(assign))
    load(queue, 10, 10, 10, 10)
    assert queue.rebalance() == 0
    assert queue.rebalance() == 0
    (line,) = lines()
    assert all(
        word in line for word in ["queue queue: 1 plans of the balancer were refused", *words]
    ), line
    assert (queue.stats().rebalances, queue.stats().moves) == (2, 0)
    assert owners(queue) == [0, 1, 0, 1]
    load(queue, 10, 10, 10, 10)
    assert queue.shutdown(WAIT_S) == 0
    assert queue.stats().consumed == 80, "the queue works on"


def test_none_leaves_all_where_they_are_without_a_line(make_queue, lines):
    queue = balanced(make_queue, DrainBalancer.custom(lambda *_: None))
    load(queue, 1_000, 300, 100, 600)
    assert queue.rebalance() == 0
    assert lines() == []
    assert (queue.stats().rebalances, queue.stats().load_ratio) == (1, 1_100 / 900)


def test_the_balancer_runs_on_the_control_thread_or_the_caller_and_never_on_a_drain_thread(
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
    eventually(lambda: len(names) == 2, "the run that the handler asked for")
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


def test_the_interval_runs_the_balancer_and_interval_0_does_not(make_queue):
    """Both are on one control thread, so what the first shows in many runs, the second had time for."""
    often = balanced(make_queue, DrainBalancer.custom(lambda *_: None), rebalance_interval_ms=1)
    never = balanced(make_queue, DrainBalancer.custom(swap), rebalance_interval_ms=0)
    eventually(lambda: often.stats().rebalances >= 20, "runs of the interval")
    assert (never.stats().rebalances, owners(never)) == (0, [0, 1, 0, 1])
    assert never.rebalance() == 4


def test_a_balancer_is_silently_off_where_there_is_nothing_to_balance(make_queue, lines):
    called = []
    off = DrainBalancer.custom(lambda *args: called.append(args))
    one = make_queue(threads=1, partitions=4, balancer=off, rebalance_interval_ms=1)
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
    for queue in (one, shared):
        assert queue.rebalance() == 0
        assert (queue.stats().rebalances, queue.stats().moves, queue.stats().load_ratio) == (
            0,
            0,
            1.0,
        )
    assert called == []
    assert lines() == []


def test_without_a_balancer_rebalance_is_nothing(make_queue):
    queue = make_queue(threads=2, partitions=4)
    assert queue.rebalance() == 0
    assert queue.stats().rebalances == 0


def test_a_partition_above_a_threads_share_is_named_once_with_the_remedy(make_queue, lines):
    queue = balanced(make_queue, DrainBalancer.throughput_weighted())
    for _ in range(3):
        load(queue, 0, 9_000, 500, 500)
        queue.rebalance()
    named = [line for line in lines() if "add_handler_factory" in line]
    assert len(named) == 1
    assert all(
        word in named[0] for word in ["partition 1 (Item1)", "90% of the load", "50% of one of 2"]
    )


def test_a_busy_owner_hands_over_when_it_is_done(make_queue, lines):
    """And longest_handoff_ms says how long the slowest one took."""
    queue = balanced(make_queue, DrainBalancer.custom(swap))
    handler = Held()
    queue.add_handler(TYPES[0], handler)
    handler.hold(queue, TYPES[0]())
    assert queue.stats().longest_handoff_ms == 0
    assert queue.rebalance() == 4
    eventually(
        lambda: [owners(queue)[index] for index in (1, 3)] == [0, 0], "the other thread hands over"
    )
    handler.released.set()
    assert queue.flush(WAIT_S)
    taken_back = "keeps 2 partitions"  # by a control thread that had to wait for over a second
    eventually(
        lambda: owners(queue) == [1, 0, 1, 0] or any(taken_back in line for line in lines()),
        "the busy one does, too",
    )
    assert queue.stats().longest_handoff_ms > 0
    assert len(handler.items) == 1


def test_partitions_of_a_hung_thread_are_taken_back_and_its_handler_is_named(make_queue, lines):
    queue = balanced(make_queue, DrainBalancer.custom(swap))
    handler = Held()
    queue.add_handler(TYPES[0], handler)
    handler.hold(queue, TYPES[0]())
    assert queue.rebalance() == 4
    eventually(lambda: any("keeps 2 partitions" in line for line in lines()), "the take-back")
    (line,) = [line for line in lines() if "keeps" in line]
    assert "drain thread 0 has been inside Item0" in line
    assert owners(queue) == [0, 0, 0, 0]
    handler.released.set()
    load(queue, 1, 1, 1, 1)
    assert queue.shutdown(WAIT_S) == 0
    assert_conserved(queue.stats())
    assert len(handler.items) == 2


@pytest.mark.parametrize("interval", [0, 1], ids=["on demand", "control thread"])
def test_a_custom_balancer_may_use_the_queue(make_queue, interval):
    seen = []
    ready = threading.Event()

    def assign(load, owner, threads):
        assert ready.wait(WAIT_S)
        seen.append((queue.rebalance(), queue.stats().partition_count, queue.produce(TYPES[0]())))

    queue = balanced(make_queue, DrainBalancer.custom(assign), rebalance_interval_ms=interval)
    ready.set()
    if not interval:
        assert queue.rebalance() == 0
    eventually(lambda: seen, "the balancer's run")
    assert seen[0] == (0, 4, True)
    assert queue.shutdown(WAIT_S) == 0
    assert queue.stats().consumed == queue.stats().produced > 0


@pytest.mark.parametrize("interval", [0, 1], ids=["on demand", "control thread"])
def test_a_custom_balancer_may_shut_the_queue_down(make_queue, interval):
    """Its plan comes too late then, and is not a fault."""
    returned = []
    ready = threading.Event()

    def assign(load, owner, threads):
        assert ready.wait(WAIT_S)
        returned.append(queue.shutdown(WAIT_S))
        return swap(load, owner, threads)

    queue = balanced(make_queue, DrainBalancer.custom(assign), rebalance_interval_ms=interval)
    load(queue, 3, 3, 3, 3)
    ready.set()
    if not interval:
        assert queue.rebalance() == 0
    eventually(lambda: returned, "the shutdown")
    assert returned == [0]
    assert not queue.running
    assert queue.stats().consumed == 12
    assert (queue.stats().moves, queue.rebalance()) == (0, 0)


def test_two_queues_whose_balancers_call_each_other(make_queue):
    queues = []

    def assign(*_):
        for queue in queues:
            queue.rebalance()

    queues += [balanced(make_queue, DrainBalancer.custom(assign)) for _ in range(2)]
    run_threads(*[lambda queue=queue: [queue.rebalance() for _ in range(50)] for queue in queues])
    assert [queue.stats().rebalances for queue in queues] == [50, 50]


def test_nothing_is_lost_doubled_or_reordered_while_partitions_move_all_the_time(make_queue):
    """A balancer that moves every partition each millisecond, against producers and slow owners."""
    turn = iter(range(1_000_000))
    queue = make_queue(
        threads=3,
        partitions=4,
        buffer_size=50,
        max_batch_items=16,
        min_idle_ms=0,
        balancer=DrainBalancer.custom(
            lambda load, owner, threads: [(next(turn) + one) % threads for one in owner]
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
