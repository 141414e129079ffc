"""A custom balancer: its plan is checked, and it may call the queue."""

import threading

import pytest

from batchqueue import DrainBalancer
from core_support.balance import TYPES, balanced, load, owners, swap
from core_support.threads import run_threads
from core_support.waits import WAIT_S, eventually


def test_custom_gets_loads_owners_and_threads(make_queue):
    seen = []
    queue = balanced(make_queue, DrainBalancer.custom(lambda *args: seen.append(args)))
    load(queue, 5, 0, 7, 1)
    assert queue.rebalance() == 0
    assert seen == [([5.0, 0.0, 7.0, 1.0], [0, 1, 0, 1], 2)]
    assert [type(value) for value in seen[0]] == [list, list, int]


def test_custom_balancer_decides_and_rebalance_counts_its_changes(make_queue, lines):
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
def test_invalid_custom_plan_is_refused_and_logged(make_queue, lines, assign, words):
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
    assert queue.stats().consumed == 80, "the queue keeps working"


def test_none_keeps_all_partitions_in_place_without_a_log_line(make_queue, lines):
    queue = balanced(make_queue, DrainBalancer.custom(lambda *_: None))
    load(queue, 1_000, 300, 100, 600)
    assert queue.rebalance() == 0
    assert lines() == []
    assert (queue.stats().rebalances, queue.stats().load_ratio) == (1, 1_100 / 900)


@pytest.mark.parametrize("interval", [0, 1], ids=["on demand", "control thread"])
def test_custom_balancer_may_call_the_queue(make_queue, interval):
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
def test_custom_balancer_may_shut_the_queue_down(make_queue, interval):
    """Its plan then comes too late, which is not a fault."""
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


def test_balancers_of_two_queues_may_call_each_other(make_queue):
    queues = []

    def assign(*_):
        for queue in queues:
            queue.rebalance()

    queues += [balanced(make_queue, DrainBalancer.custom(assign)) for _ in range(2)]
    run_threads(*[lambda queue=queue: [queue.rebalance() for _ in range(50)] for queue in queues])
    assert [queue.stats().rebalances for queue in queues] == [50, 50]
