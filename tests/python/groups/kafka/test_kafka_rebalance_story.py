"""The story of `worker/test_rebalance_story.py`, whose test names these are, on a real broker.

It assigns in place of a balancer: which partitions move is its choice. Partitions that move wait
together, and a worker that leaves gives all of its partitions back together.
"""

import threading

import pytest

from batchqueue import ConfigError
from batchqueue.groups import GroupBalancer, GroupMonitor, Worker
from batchqueue.groups.control import Phase
from core_support.waits import WAIT_S, eventually
from groups_support.backends import KafkaTopic, committed, lag
from groups_support.committed import check_commits
from groups_support.workers import Blocker, Collected, owns, running, send

pytestmark = pytest.mark.matrix(8, name="groups on Kafka like those on Redis")

ALL = set(range(8))


@pytest.fixture(params=["consumer", "classic"])
def protocol(request):
    return request.param


@pytest.fixture
def streams(new_kafka_broker, protocol):
    yield (streams := KafkaTopic(new_kafka_broker.address, 8, protocol))
    assert check_commits(new_kafka_broker.address, f"{streams.stream}.g") >= 8


def worker_of(streams, name, got, *, blocked=(), blocker=None, **settings):
    """Returns a worker with a handler per partition; those of some partitions are blockers."""
    worker = Worker("g", streams, codec="utf8", name=name, **settings)

    def handler_of(assignment):
        def handler(batch):
            got.records[batch.partition] += batch.records
            if assignment.partition in blocked:
                blocker(batch)

        return handler

    worker.handler_factory(handler_of)
    return worker


def draining(worker):
    """Returns the partitions that wait for their handlers, to move."""
    found = worker.metrics().partitions.items()
    return {number for number, each in found if each.phase is Phase.DRAINING}


def is_all_in(streams, got, count):
    """Waits until so many records are handled and committed, each once and in order."""
    eventually(lambda: got.count == count, f"{count} records are handled")
    eventually(lambda: lag(streams) == 0, "they are committed")
    assert got.is_in_order()


def test_first_worker_takes_8_of_8_partitions(streams):
    got = Collected()
    with running(first := worker_of(streams, "first", got)), GroupMonitor("g", streams) as monitor:
        owns(first, 8)
        assert {each.owner for each in monitor.metrics().partitions.values()} == {"first"}
        assert list(monitor.metrics().members) == ["first"]
        send(streams, 80)
        is_all_in(streams, got, 80)


def test_second_worker_joins_and_5_to_8_move_while_1_to_4_never_pause(streams):
    """A callback of the first holds up the move, and those that stay are at work until its end."""
    got, blocker, revoked, inside = Collected(), Blocker(), [], Blocker()

    def on_revoke(assignments):
        revoked.extend(each.partition for each in assignments)
        blocker()

    # Each handler gets one record, and the next ones have been read.
    settings = {"on_revoke": on_revoke, "max_batch_items": 1}
    first = worker_of(streams, "first", got, blocked=ALL, blocker=inside, **settings)
    second = worker_of(streams, "second", got)
    send(streams, 40)
    with running(first):
        owns(first, 8)
        before = first.assigned()
        eventually(lambda: len(inside.inside) == 8, "a handler is inside each")
        with running(second):
            eventually(lambda: len(draining(first)) == 4, "half of them wait for their handlers")
            stay = ALL - draining(first)
            inside.release()
            assert blocker.entered.wait(WAIT_S)
            eventually(lambda: all(len(got.records[each]) == 5 for each in stay), "they continue")
            assert second.assigned() == {}
            blocker.release()
            owns(second, 4)
            after, moved = first.assigned(), second.assigned()
            assert (set(after), set(moved)) == (stay, set(revoked))
            assert all(after[each] == before[each] for each in stay)
            assert all(moved[each].token > before[each].token for each in moved)
            send(streams, 80)
            is_all_in(streams, got, 120)
            assert first.metrics().lost == second.metrics().lost == 0


def test_partition_that_is_not_released_yet_is_acquired_later(streams):
    """Those that move with it wait for it."""
    got, blocker = Collected(), Blocker()
    first = worker_of(streams, "first", got, blocked=ALL, blocker=blocker)
    second = worker_of(streams, "second", got)
    with running(first):
        owns(first, 8)
        send(streams, 8)
        eventually(lambda: len(blocker.inside) == 8, "a handler is inside each")
        with running(second):
            eventually(lambda: len(draining(first)) == 4, "half of them wait for their handlers")
            moving = draining(first)
            send(streams, 40, prefix="later ")
            assert second.assigned() == {}
            assert got.count == 8
            blocker.release()
            owns(second, 4)
            assert set(second.assigned()) == moving
            is_all_in(streams, got, 48)
            assert first.metrics().lost == 0


def test_worker_that_leaves_has_a_grace_for_what_its_handlers_began(streams):
    got, blocker, blocked, summaries = Collected(), Blocker(), set(), []
    first = worker_of(streams, "first", got, blocked=blocked, blocker=blocker)
    second = worker_of(streams, "second", got)
    with running(first, second):
        owns(first, 4)
        owns(second, 4)
        partition = min(first.assigned())
        blocked.add(partition)
        send(streams, 2, partition=partition)
        assert blocker.entered.wait(WAIT_S)
        leaving = threading.Thread(target=lambda: summaries.append(first.leave(WAIT_S)))
        leaving.start()
        send(streams, 5, partition=partition, prefix="later ")
        assert partition not in second.assigned()
        blocker.release()
        leaving.join(WAIT_S)
        assert summaries[0].unfinished == {}
        owns(second, 8)
        is_all_in(streams, got, 7)


def test_what_is_in_hand_when_the_grace_is_over_comes_again(streams):
    got, again, blocker, blocked = Collected(), Collected(), Blocker(), set()
    first = worker_of(streams, "first", got, blocked=blocked, blocker=blocker)
    second = worker_of(streams, "second", again)
    with running(first, second):
        owns(first, 4)
        owns(second, 4)
        partition = min(first.assigned())
        blocked.add(partition)
        send(streams, 1, partition=partition)
        assert blocker.entered.wait(WAIT_S)
        assert first.leave(0.05).unfinished == {partition: 1}
        owns(second, 8)
        eventually(lambda: len(again.records[partition]) == 1, "the record comes again")
        blocker.release()
        eventually(lambda: committed(streams, partition) == 1, "it is committed once")


def test_partitions_of_a_worker_that_crashes_move_when_its_lease_is_over(
    streams, new_kafka_broker, protocol
):
    got, again, blocker, blocked = Collected(), Collected(), Blocker(), set()
    both = [
        KafkaTopic(address, 8, protocol, topic=streams.stream, session_ms=6_000)
        for address in (new_kafka_broker.proxied_address, new_kafka_broker.address)
    ]
    first = worker_of(both[0], "first", got, blocked=blocked, blocker=blocker)
    second = worker_of(both[1], "second", again)
    streams.producer().close()  # creates it
    with running(first, second), GroupMonitor("g", streams) as monitor:
        owns(first, 4)
        owns(second, 4)
        before = second.assigned()
        partition = min(first.assigned())
        blocked.add(partition)
        send(streams, 1, partition=partition)
        assert blocker.entered.wait(WAIT_S)
        new_kafka_broker.proxy.cut()
        try:
            owns(second, 8)
            after = second.assigned()
            assert all(after[each] == before[each] for each in before)
            assert list(monitor.metrics().members) == ["second"]
            eventually(lambda: len(again.records[partition]) == 1, "the record in hand comes again")
            blocker.release()
            send(streams, 16, prefix="later ")
            eventually(lambda: again.count == 17, "it has all of them")
            eventually(lambda: lag(streams) == 0, "they are committed")
            assert first.assigned() == {}
        finally:
            new_kafka_broker.proxy.restore()  # it leaves


class TestConsumerGroup:
    """The tests of `worker/test_partition_management.py` that have a balancer there."""

    def test_manual_assignment_without_group_id(self, streams):
        """A worker without a group is refused; a balancer has no effect, for the broker assigns."""
        with pytest.raises(ConfigError, match="the group's name is empty"):
            Worker("", streams)

        def plan(weights, last_owner, capacity, *, force):
            return dict.fromkeys(weights, "first")

        settings = {"balancer": GroupBalancer.custom(plan)}
        first = worker_of(streams, "first", Collected(), **settings)
        second = worker_of(streams, "second", Collected(), **settings)
        with running(first, second):
            owns(first, 4)
            owns(second, 4)


class TestRebalance:
    def test_offsets_are_committed_in_a_rebalance(self, streams):
        """What is in hand when a partition is revoked is committed before it moves."""
        got, blocker = Collected(), Blocker()
        first = worker_of(streams, "first", got, blocked=ALL, blocker=blocker)
        second = worker_of(streams, "second", got)
        with running(first):
            owns(first, 8)
            send(streams, 40)
            eventually(lambda: len(blocker.inside) == 8, "a handler is inside each")
            inside = {each: list(got.records[each]) for each in ALL}
            with running(second):
                eventually(lambda: len(draining(first)) == 4, "half of them wait for them")
                assert lag(streams) == 40
                blocker.release()
                owns(second, 4)
                for partition, assignment in second.assigned().items():
                    assert assignment.position >= inside[partition][-1].offset
                is_all_in(streams, got, 40)
