"""What a monitor sees of a group, and how it lets workers leave."""

import socket

import pytest

from batchqueue import ConfigError, RetryPolicy
from batchqueue.groups import GroupMonitor, MemoryStreams, OnFailure
from batchqueue.groups.messages import EventKind
from core_support.waits import eventually
from groups_support.workers import Blocker, Collected, owns, running, send, worker_of


@pytest.fixture
def streams():
    return MemoryStreams("orders", partitions=4)


@pytest.fixture
def monitor(streams):
    with GroupMonitor("g", streams) as monitor:
        yield monitor


def test_members_and_the_partitions_that_they_own(streams, monitor):
    first, second = (worker_of(streams, Collected(), name=name) for name in ("a", "b"))
    with running(first, second):
        owns(first, 2)
        owns(second, 2)
        metrics = monitor.metrics()
        assert list(metrics.members) == ["a", "b"]
        member = metrics.members["a"]
        assert member.partitions == tuple(first.assigned())
        assert (member.host, member.is_leaving) == (socket.gethostname(), False)
        assert 0 < member.lease_left_ms <= 1_000
        owners = {number: each.owner for number, each in metrics.partitions.items()}
        assert owners == {
            number: "a" if number in member.partitions else "b" for number in range(4)
        }
        assert (metrics.moves, metrics.rebalances) >= (4, 1)


def test_lag_and_counts(streams, monitor):
    blocker = Blocker()
    send(streams, 10, partition=1)
    worker = worker_of(streams, blocker, name="a")
    assert (monitor.metrics().lag, monitor.metrics().partitions[1].owner) == (10, None)
    with running(worker):
        owns(worker, 4)
        assert monitor.metrics().partitions[1].lag == 10
        eventually(lambda: worker.metrics().partitions[1].lag == 10, "the worker knows its lag")
        blocker.release()
        eventually(lambda: monitor.metrics().lag == 0, "all is done")
        eventually(lambda: monitor.metrics().members["a"].handled == 10, "a beat says so")
        eventually(lambda: (monitor.metrics().partitions[1].rate or 0) > 0, "and how quick it was")


def test_blocked_partitions_and_dead_letters(streams, monitor):
    def handler(batch):
        raise ValueError("no")

    quick = RetryPolicy(attempts=1, max_backoff_ms=1)
    send(streams, 3, partition=2)
    with running(worker_of(streams, handler, retry=quick)):
        eventually(lambda: monitor.metrics().partitions[2].is_blocked, "it is blocked")
    worker_of(streams, handler, retry=quick, on_failure=OnFailure.DEAD_LETTER).run(until_idle=0.05)
    metrics = monitor.metrics()
    assert (metrics.partitions[2].dead, metrics.partitions[2].lag) == (3, 0)


def test_history_says_who_came_and_went(streams, monitor):
    worker = worker_of(streams, Collected(), name="a")
    worker.start()
    owns(worker, 4)
    worker.leave()
    kinds = [event.kind for event in monitor.history()]
    assert kinds[:2] == [EventKind.JOIN, EventKind.PLAN]
    assert kinds[-1] is EventKind.LEFT
    assert monitor.history()[0].name == "a"
    version = monitor.history()[-2].version
    assert [event.kind for event in monitor.history(version)] == [EventKind.LEFT]


def test_drained_worker_leaves_and_its_run_ends(streams, monitor):
    first, second = (worker_of(streams, Collected(), name=name) for name in ("a", "b"))
    with running(first, second):
        owns(second, 2)
        assert monitor.drain(name="a") == ["a"]
        assert first.run().lost == 0
        owns(second, 4)
        assert monitor.drain(host="elsewhere") == []
        assert monitor.drain(host=socket.gethostname()) == ["b"]
        second.run()
        assert monitor.metrics().members == {}


@pytest.mark.parametrize("given", [{}, {"name": "a", "host": "b"}])
def test_drain_needs_a_name_or_a_host(monitor, given):
    with pytest.raises(ConfigError, match="of name and host is given; give one of them"):
        monitor.drain(**given)


def test_a_group_with_members_is_not_deleted(streams, monitor):
    worker = worker_of(streams, Collected(), name="a")
    send(streams, 4)
    with running(worker):
        eventually(lambda: monitor.metrics().lag == 0, "all is done")
        with pytest.raises(ConfigError, match='group "g" has members: a; let them leave before'):
            monitor.delete()
    monitor.delete()
    with GroupMonitor("g", streams) as again:
        assert again.metrics().lag == 4
