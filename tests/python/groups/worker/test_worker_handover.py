"""Workers join, leave and crash: who owns which partitions, and that the others never pause."""

import threading

import pytest

from batchqueue.groups import ReplacedError, Worker
from core_support.waits import WAIT_S, eventually
from groups_support.backends import on_memory
from groups_support.workers import LEASE_MS, Blocker, Collected, owns, running, send, worker_of


@pytest.fixture
def streams(backend):
    return backend.streams(8)


@on_memory
def test_first_worker_owns_all_partitions_and_the_second_takes_half(streams):
    got = Collected()
    first, second = worker_of(streams, got), worker_of(streams, got)
    with running(first):
        owns(first, 8)
        before = first.assigned()
        with running(second):
            owns(second, 4)
            owns(first, 4)
            kept = first.assigned()
            assert kept == {number: before[number] for number in kept}
            assert kept.keys() | second.assigned().keys() == set(range(8))
            moved = second.assigned()
            assert all(moved[number].token > before[number].token for number in moved)


def test_partitions_that_stay_never_stop(streams):
    """They have the same assignment as before, however often other workers come and go."""
    revoked = []
    first = worker_of(
        streams,
        Collected(),
        on_revoke=lambda given: revoked.extend(each.partition for each in given),
    )
    with running(first):
        owns(first, 8)
        before = first.assigned()
        for round_number in range(3):
            second = worker_of(streams, Collected(), name=f"second-{round_number}")
            with running(second):
                owns(second, 4)
            owns(first, 8)
        kept = set(range(8)) - set(revoked)
        assert len(kept) == 4
        after = first.assigned()
        assert [after[each] for each in kept] == [before[each] for each in kept]
        metrics = first.metrics()
        assert metrics.lost == 0
        assert metrics.assigned == 8 + 3 * 4


@on_memory
def test_leaving_worker_hands_over_without_a_record_coming_twice(streams):
    got = Collected()
    first, second = worker_of(streams, got), worker_of(streams, got)
    sent = 0
    with running(first, second):
        owns(first, 4)
        owns(second, 4)
        for number in range(5):
            send(streams, 400, prefix=f"{number}-")
            sent += 400
            if number == 2:
                first.leave()
        owns(second, 8)
        eventually(lambda: got.count >= sent, "all records are handled")
    assert got.count == sent
    assert len(set(got.values)) == sent


@on_memory
def test_partitions_of_a_crashed_worker_are_taken_over_when_its_lease_is_over(streams):
    got = Collected()
    lost = []
    first = worker_of(streams, Collected(), name="first", on_lost=lost.extend)
    second = worker_of(streams, got, name="second")
    with running(first, second):
        owns(first, 4)
        owns(second, 4)
        streams.crash("first")
        owns(second, 8)
        eventually(lambda: not first.assigned(), "the crashed worker has noticed")
        eventually(lambda: len(lost) == 4, "on_lost was called")
        send(streams, 80)
        eventually(lambda: got.count == 80, "the survivor handles everything")


def test_worker_that_stalls_loses_its_partitions_and_what_it_finishes_then_is_not_committed(
    streams,
):
    blocker, got, lost = Blocker(), Collected(), []
    first = worker_of(streams, blocker, name="first", on_lost=lost.extend)
    second = worker_of(streams, got, name="second")
    send(streams, 16)
    with running(first):
        assert blocker.entered.wait(WAIT_S)
        streams.stall("first")
        with running(second):
            owns(second, 8)
            blocker.release()
            eventually(lambda: got.count == 16, "all records come to the new owner")
            eventually(lambda: len(lost) == 8, "it has noticed that its lease is over")
            streams.wake("first")
            eventually(first.assigned, "it is a member again")
            assert first.metrics().lost == 8
    assert got.is_in_order()


def test_partition_that_comes_back_waits_behind_the_old_call(streams):
    """P1: one partition is never in two calls, also when it was lost and is back."""
    blocker, inside, most = Blocker(), [], []

    def handler(batch):
        inside.append(batch)
        most.append(len(inside))
        if len(most) == 1:
            blocker()
        inside.remove(batch)

    worker = worker_of(streams, handler, name="first")
    send(streams, 1, partition=0)
    with running(worker):
        assert blocker.entered.wait(WAIT_S)
        token = worker.assigned()[0].token
        streams.stall("first")
        eventually(lambda: not worker.assigned(), "the lease is over")
        streams.wake("first")
        owns(worker, 8)
        assert worker.assigned()[0].token > token
        blocker.release()
        eventually(lambda: len(most) == 2, "the record comes again")
    assert max(most) == 1


def test_worker_with_the_name_of_another_one_replaces_it_immediately(streams):
    first = worker_of(streams, Collected(), name="seat", lease_ms=60_000)
    second = worker_of(streams, Collected(), name="seat", lease_ms=60_000)
    first.start()
    owns(first, 8)
    with running(second):
        owns(second, 8)
        with pytest.raises(ReplacedError, match='worker "seat" was replaced by another process'):
            first.run()


def test_more_workers_than_partitions_stand_by_and_take_over(backend):
    streams = backend.streams(2)
    workers = [worker_of(streams, Collected(), name=f"w{number}") for number in range(3)]
    with running(*workers):
        eventually(
            lambda: sorted(len(worker.assigned()) for worker in workers) == [0, 1, 1],
            "one worker stands by",
        )
        owner = next(worker for worker in workers if worker.assigned())
        owner.leave()
        others = [worker for worker in workers if worker is not owner]
        eventually(lambda: all(len(each.assigned()) == 1 for each in others), "it takes over")


def test_all_workers_leave_together(streams):
    workers = [worker_of(streams, Collected(), name=f"w{number}") for number in range(4)]
    with running(*workers):
        for worker in workers:
            owns(worker, 2)
        threads = [threading.Thread(target=worker.leave) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    assert [worker.metrics().partitions for worker in workers] == [{}] * 4


@on_memory
def test_sixteen_workers_share_sixteen_partitions(backend):
    streams = backend.streams(16)
    got = Collected()
    workers = [worker_of(streams, got, name=f"w{number}", lease_ms=10_000) for number in range(16)]
    with running(*workers):
        for worker in workers:
            owns(worker, 1)
        send(streams, 160)
        eventually(lambda: got.count == 160, "all records are handled")


def test_groups_do_not_know_of_each_other(streams):
    got, others = Collected(), Collected()
    other = Worker("other", streams, codec="utf8", lease_ms=LEASE_MS)
    other.handler(others)
    send(streams, 40)
    with running(worker_of(streams, got), other):
        eventually(lambda: (got.count, others.count) == (40, 40), "each group gets all records")
