"""A custom balancer in a queue that nothing refers to any more."""

import gc

from batchqueue import DrainBalancer


def test_a_balancer_that_the_collector_has_seen_is_not_called_any_more(make_queue):
    """It may be cleared already: a function without its closure crashes the interpreter."""
    calls = []
    balancer = DrainBalancer.custom(lambda load, owner, threads: calls.append(owner))
    queue = make_queue(threads=2, partitions=2, balancer=balancer, rebalance_interval_ms=1e9)
    queue.shutdown()
    before = len(calls)
    gc.collect()
    assert queue.rebalance() == 0
    assert len(calls) == before


def test_a_running_queue_keeps_its_balancer_through_a_collection(make_queue):
    calls = []
    balancer = DrainBalancer.custom(lambda load, owner, threads: calls.append(owner))
    queue = make_queue(threads=2, partitions=2, balancer=balancer, rebalance_interval_ms=1e9)
    before = len(calls)
    gc.collect()
    queue.rebalance()
    assert len(calls) == before + 1
