"""A first worker takes all 8 partitions, a second joins, the first leaves, and one crashes.

Partitions 1 to 8 of the story are 0 to 7 here. A custom balancer says who is to own which, as in
the story: with two workers, the one that was there keeps the first four.
"""

import threading

import pytest

from batchqueue.groups import GroupBalancer, GroupMonitor, Worker
from batchqueue.groups.messages import EventKind
from core_support.waits import WAIT_S, eventually
from groups_support.backends import committed, lag
from groups_support.workers import Blocker, Collected, owns, running, send

FIRST_HALF, SECOND_HALF = {0, 1, 2, 3}, {4, 5, 6, 7}


def by_halves(weights, last_owner, capacity, *, force):
    names = sorted(capacity)  # first, second, third
    return {each: names[0] if each in FIRST_HALF else names[-1] for each in weights}


@pytest.fixture
def streams(backend):
    return backend.streams(8)


def worker_of(streams, name, got, *, blocked=None, blocker=None, **settings):
    """Returns a worker with a handler per partition; that of one partition is a blocker."""
    settings = {"lease_ms": 1_000, "balancer": GroupBalancer.custom(by_halves), **settings}
    worker = Worker("g", streams, codec="utf8", name=name, **settings)

    def handler_of(assignment):
        def handler(batch):
            got.records[batch.partition] += batch.records
            if assignment.partition == blocked:
                blocker(batch)

        return handler

    worker.handler_factory(handler_of)
    return worker


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
        join, plan = (event for event in monitor.history() if event.kind is not EventKind.FREE)
        assert (join.kind, join.name) == (EventKind.JOIN, "first")
        assert (plan.kind, set(plan.partitions)) == (EventKind.PLAN, FIRST_HALF | SECOND_HALF)
        send(streams, 80)
        is_all_in(streams, got, 80)


def test_second_worker_joins_and_5_to_8_move_while_1_to_4_never_pause(streams):
    """A callback of the first holds up the move for as long as 1 to 4 are at work."""
    got, blocker, revoked = Collected(), Blocker(), []

    def on_revoke(assignments):
        revoked.extend(each.partition for each in assignments)
        blocker()

    first = worker_of(streams, "first", got, on_revoke=on_revoke)
    second = worker_of(streams, "second", got)
    with running(first):
        owns(first, 8)
        before = first.assigned()
        with running(second):
            assert blocker.entered.wait(WAIT_S)
            for number in range(3):
                for partition in FIRST_HALF:
                    send(streams, 10, partition=partition, prefix=f"{number}-")
                eventually(lambda: got.count == 40 * (number + 1), "1 to 4 continue")  # noqa: B023
            assert second.assigned() == {}
            blocker.release()
            owns(second, 4)
            after, moved = first.assigned(), second.assigned()
            assert (set(after), set(moved), set(revoked)) == (FIRST_HALF, SECOND_HALF, SECOND_HALF)
            assert all(after[each] == before[each] for each in FIRST_HALF)
            assert all(moved[each].token > before[each].token for each in SECOND_HALF)
            send(streams, 80)
            is_all_in(streams, got, 200)
            assert first.metrics().lost == second.metrics().lost == 0


def test_partition_that_is_not_released_yet_is_acquired_later(streams):
    got, blocker = Collected(), Blocker()
    first = worker_of(streams, "first", got, blocked=4, blocker=blocker)
    second = worker_of(streams, "second", got)
    with running(first):
        owns(first, 8)
        send(streams, 1, partition=4)
        assert blocker.entered.wait(WAIT_S)
        with running(second):
            eventually(lambda: set(second.assigned()) == {5, 6, 7}, "5 is not released")
            send(streams, 5, partition=4, prefix="later ")
            send(streams, 5, partition=5)
            eventually(lambda: len(got.records[5]) == 5, "its neighbour continues")
            assert len(got.records[4]) == 1
            blocker.release()
            owns(second, 4)
            is_all_in(streams, got, 11)


def test_worker_that_leaves_has_a_grace_for_what_its_handlers_began(streams):
    got, blocker, summaries = Collected(), Blocker(), []
    first = worker_of(streams, "first", got, blocked=0, blocker=blocker)
    second = worker_of(streams, "second", got)
    with running(first, second):
        owns(first, 4)
        owns(second, 4)
        send(streams, 2, partition=0)
        assert blocker.entered.wait(WAIT_S)
        leaving = threading.Thread(target=lambda: summaries.append(first.leave(WAIT_S)))
        leaving.start()
        eventually(lambda: set(second.assigned()) >= {1, 2, 3}, "the others move before")
        send(streams, 5, partition=0, prefix="later ")
        assert 0 not in second.assigned()
        blocker.release()
        leaving.join(WAIT_S)
        assert summaries[0].unfinished == {}
        owns(second, 8)
        is_all_in(streams, got, 7)


def test_what_is_in_hand_when_the_grace_is_over_comes_again(streams):
    got, again, blocker = Collected(), Collected(), Blocker()
    first = worker_of(streams, "first", got, blocked=0, blocker=blocker)
    second = worker_of(streams, "second", again)
    with running(first, second):
        owns(first, 4)
        owns(second, 4)
        send(streams, 1, partition=0)
        assert blocker.entered.wait(WAIT_S)
        assert first.leave(0.05).unfinished == {0: 1}
        owns(second, 8)
        eventually(lambda: len(again.records[0]) == 1, "the record comes again")
        blocker.release()
        eventually(lambda: committed(streams, 0) == 1, "it is committed once")


def test_partitions_of_a_worker_that_crashes_move_when_its_lease_is_over(streams):
    got, again, blocker = Collected(), Collected(), Blocker()
    first = worker_of(streams, "first", got, blocked=0, blocker=blocker)
    second = worker_of(streams, "second", again)
    with running(first, second), GroupMonitor("g", streams) as monitor:
        owns(first, 4)
        owns(second, 4)
        before = second.assigned()
        send(streams, 1, partition=0)
        assert blocker.entered.wait(WAIT_S)
        streams.crash("first")
        owns(second, 8)
        after = second.assigned()
        assert all(after[each] == before[each] for each in SECOND_HALF)
        kinds = [(event.kind, event.name) for event in monitor.history()]
        assert (EventKind.DEAD, "first") in kinds
        eventually(lambda: len(again.records[0]) == 1, "the record in hand comes again")
        blocker.release()
        send(streams, 16, prefix="later ")
        eventually(lambda: again.count == 17, "it has all of them")
        eventually(lambda: lag(streams) == 0, "they are committed")
        assert first.assigned() == {}
