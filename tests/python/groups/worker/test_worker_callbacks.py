"""Callbacks, and calls of the worker by its own handlers."""

import threading

import pytest

from batchqueue import ConfigError, RetryPolicy
from batchqueue.groups import Codec, Worker
from batchqueue.groups.control import Phase
from core_support.waits import WAIT_S, eventually
from groups_support.backends import committed, on_memory
from groups_support.workers import (
    LEASE_MS,
    Blocker,
    Collected,
    owns,
    running,
    send,
    worker_of,
)

QUICK = RetryPolicy(attempts=2, backoff_ms=1, max_backoff_ms=2)


@pytest.fixture
def streams(backend):
    return backend.streams(2)


def drains(worker, assignments):
    """Whether all of these partitions are to be given up."""
    partitions = worker.metrics().partitions
    return all(partitions[each.partition].phase is Phase.DRAINING for each in assignments)


class TestCallbacks:
    @on_memory
    def test_on_assign_that_raises_is_called_again(self, streams):
        calls = []

        def on_assign(assignments):
            calls.append([each.partition for each in assignments])
            if len(calls) == 1:
                raise ConnectionError("no cache yet")

        got = Collected()
        send(streams, 4)
        worker = worker_of(streams, got, on_assign=on_assign)
        with running(worker):
            eventually(lambda: got.count == 4, "the records are handled in the end")
        assert {each for call in calls[1:] for each in call} == {0, 1}

    @on_memory
    def test_a_factory_that_returns_no_handler_stops_the_worker(self, streams):
        worker = Worker("g", streams)
        worker.handler_factory(lambda assignment: None)
        with pytest.raises(ConfigError, match="cannot be a handler"):
            worker.run()

    def test_leave_does_not_wait_for_another_call_of_on_assign(self, streams):
        called = threading.Event()

        def on_assign(assignments):
            called.set()
            raise ConnectionError("never")

        worker = worker_of(streams, Collected(), on_assign=on_assign)
        worker.start()
        assert called.wait(WAIT_S)
        assert worker.leave(WAIT_S).unfinished == {}

    @pytest.mark.parametrize("is_inside", [True, False], ids=["while it runs", "afterwards"])
    def test_a_partition_whose_on_assign_raised_is_revoked(self, streams, is_inside):
        called, revoked, lost, declined = [], [], [], threading.Event()

        def on_assign(given):
            called.extend(each.token for each in given)
            if is_inside:
                worker.leave()
                eventually(lambda: drains(worker, given), "the partitions are to be given up")
            declined.set()
            raise ConnectionError("no cache")

        worker = worker_of(
            streams,
            Collected(),
            on_assign=on_assign,
            on_revoke=lambda given: revoked.extend(each.token for each in given),
            on_lost=lambda given: lost.extend(each.token for each in given),
        )
        worker.start()
        assert declined.wait(WAIT_S)
        worker.leave(WAIT_S)
        assert sorted(revoked) == sorted(set(called))
        assert not lost

    def test_a_partition_that_is_lost_while_another_is_revoked_is_not_revoked(self, streams):
        revoking, handling, revoked, lost = Blocker(), Blocker(), [], []

        def on_revoke(given):
            revoked.extend(each.partition for each in given)
            revoking()

        def handler(batch):
            worker.leave()
            handling()

        worker = worker_of(
            streams,
            handler,
            name="a",
            on_revoke=on_revoke,
            on_lost=lambda given: lost.extend(each.partition for each in given),
        )
        with running(worker):
            owns(worker, 2)
            send(streams, 1, partition=1)
            assert revoking.entered.wait(WAIT_S)
            handling.release()
            eventually(lambda: worker.metrics().in_hand == 0, "partition 1 waits for on_revoke")
            streams.stall("a")
            eventually(lambda: worker.metrics().lost == 2, "its lease is over")
            revoking.release()
            eventually(lambda: lost, "on_lost was called")
        assert revoked == [0]
        assert lost == [1]

    @on_memory
    def test_a_partition_that_is_lost_while_its_handler_is_made_is_not_assigned(self, streams):
        blocker, made, assigned, lost = Blocker(), [], [], []

        def factory(assignment):
            made.append(assignment.token)
            if len(made) == 1:
                blocker()
            return Collected()

        worker = Worker(
            "g",
            streams,
            name="a",
            lease_ms=LEASE_MS,
            on_assign=lambda given: assigned.extend(each.token for each in given),
            on_lost=lambda given: lost.extend(each.token for each in given),
        )
        worker.handler_factory(factory)
        with running(worker):
            assert blocker.entered.wait(WAIT_S)
            streams.stall("a")
            eventually(lambda: worker.metrics().lost == 2, "its lease is over")
            streams.wake("a")
            blocker.release()
            owns(worker, 2)
            assert made[0] not in assigned
            assert not lost

    @on_memory
    def test_on_revoke_that_raises_changes_nothing(self, streams, caplog):
        def on_revoke(assignments):
            raise ValueError("cannot flush")

        send(streams, 10)
        worker = worker_of(streams, Collected(), on_revoke=on_revoke)
        assert worker.run(until_idle=0.05).handled == 10
        assert committed(streams, 0) + committed(streams, 1) == 10
        expected = f"on_revoke of {streams.stream} raised: ValueError: cannot flush"
        assert expected in caplog.text

    def test_callbacks_come_before_the_first_record_and_after_the_last(self, streams):
        seen = []
        worker = worker_of(
            streams,
            lambda batch: seen.append(("batch", batch.partition)),
            on_assign=lambda given: seen.extend(("assign", each.partition) for each in given),
            on_revoke=lambda given: seen.extend(("revoke", each.partition) for each in given),
        )
        send(streams, 20)
        worker.run(until_idle=0.05)
        for partition in range(2):
            mine = [kind for kind, at in seen if at == partition]
            assert mine[0] == "assign"
            assert mine[-1] == "revoke"
            assert set(mine[1:-1]) == {"batch"}

    def test_handlers_of_a_factory_are_closed_when_their_partition_goes(self, streams):
        class Handler:
            def __init__(self, assignment):
                self.events = ["made"]
                made[assignment.partition] = self

            def consume(self, batch):
                self.events.append("batch")

            def on_close(self):
                self.events.append("closed")

        made = {}
        worker = Worker("g", streams, codec="utf8")
        worker.handler_factory(Handler)
        send(streams, 2)
        worker.run(until_idle=0.05)
        assert [made[number].events for number in range(2)] == [["made", "batch", "closed"]] * 2

    @on_memory
    def test_a_shared_handler_is_closed_once_at_the_end(self, streams):
        class Handler:
            def __init__(self):
                self.closed = 0

            def consume(self, batch):
                pass

            def on_close(self):
                self.closed += 1

        handler = Handler()
        send(streams, 2)
        worker_of(streams, handler).run(until_idle=0.05)
        assert handler.closed == 1


@on_memory
class TestCallsFromInside:
    def test_a_handler_that_leaves_does_not_wait_for_its_own_end(self, streams):
        summaries = []

        def handler(batch):
            summaries.append(worker.leave())

        send(streams, 1, partition=0)
        worker = worker_of(streams, handler)
        summary = worker.run()
        assert summary.handled == 1
        assert len(summaries) == 1
        assert committed(streams, 0) == 1

    def test_a_callback_that_leaves(self, streams):
        worker = worker_of(streams, Collected(), on_assign=lambda given: worker.leave())
        assert worker.run().unfinished == {}

    def test_a_handler_cannot_run_the_worker_again(self, streams):
        refused = []

        def handler(batch):
            with pytest.raises(ConfigError, match="run was called by a handler"):
                worker.run()
            refused.append(worker.metrics().partitions[0].in_hand)

        send(streams, 1, partition=0)
        worker = worker_of(streams, handler)
        worker.run(until_idle=0.05)
        assert refused == [1]

    def test_a_thread_that_fails_stops_the_worker_with_its_error(self, streams):
        def on_assign(given):
            raise SystemExit("enough")

        with pytest.raises(SystemExit, match="enough"):
            worker_of(streams, Collected(), on_assign=on_assign).run()

    def test_a_callback_that_fails_its_thread_is_followed_by_on_lost_and_on_close(self, streams):
        class Handler:
            def __init__(self, assignment):
                made.append(assignment)

            def consume(self, batch):
                pass

            def on_close(self):
                closed.append(self)

        def on_assign(given):
            assigned.extend(given)
            raise SystemExit("enough")

        made, assigned, lost, closed = [], [], [], []
        worker = Worker("g", streams, on_assign=on_assign, on_lost=lost.extend)
        worker.handler_factory(Handler)
        with pytest.raises(SystemExit, match="enough"):
            worker.run()
        eventually(lambda: len(closed) == len(made), "the handlers are closed")
        assert lost == assigned

    def test_a_codec_that_fails_its_lane_stops_the_worker_behind_its_handlers(self, streams):
        def decode(value):
            if value == b"bad0":
                failed.set()
                raise SystemExit("enough")
            return value.decode()

        blocker, failed, lost, revoked = Blocker(), threading.Event(), [], []
        worker = worker_of(
            streams,
            blocker,
            codec=Codec(str.encode, decode),
            grace=10 * WAIT_S,
            on_lost=lambda given: lost.extend(each.partition for each in given),
            on_revoke=lambda given: revoked.extend(each.partition for each in given),
        )
        send(streams, 1, partition=0)
        with running(worker):
            assert blocker.entered.wait(WAIT_S)
            send(streams, 1, partition=0, prefix="bad")
            assert failed.wait(WAIT_S)
            blocker.release()
            with pytest.raises(SystemExit, match="enough"):
                worker.leave()
        assert (sorted(revoked), lost) == ([0, 1], [])
        assert committed(streams, 0) == 1

    def test_a_server_that_refuses_calls_stops_the_worker_with_its_error(
        self, streams, monkeypatch
    ):
        def refuse(*arguments, **settings):
            raise PermissionError("no permission for this command")

        monkeypatch.setattr("batchqueue.groups.memory.GroupScripts.join", refuse)
        with pytest.raises(PermissionError, match="no permission"):
            worker_of(streams, Collected()).run()
