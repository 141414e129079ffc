"""What the server refuses for one partition holds up that partition, and no other."""

import logging
import threading

import pytest

from batchqueue import RetryPolicy
from batchqueue.base.background_log import flush_log
from batchqueue.groups import CallRefusedError, HandlerFailedError, OnFailure
from core_support.waits import WAIT_S, eventually
from groups_support.backends import committed, dead_letters
from groups_support.workers import Collected, owns, running, send, worker_of

QUICK = RetryPolicy(attempts=2, backoff_ms=1, max_backoff_ms=2)
NEVER = RetryPolicy(attempts=1, backoff_ms=3_600_000, max_backoff_ms=3_600_000)


@pytest.fixture
def streams(backend):
    return backend.streams(2)


def leave(worker):
    """Lets a worker leave that would wait for ten minutes, and returns its summary."""
    summaries = []
    threading.Thread(target=lambda: summaries.append(worker.leave(600)), daemon=True).start()
    eventually(lambda: summaries, "it leaves")
    return summaries[0]


class Pusher(Collected):
    """Lets the server store values in two lists."""

    def __call__(self, batch):
        super().__call__(batch)
        batch.commit_with(
            ("RPUSH", batch.key("first"), *batch.values),
            ("RPUSH", batch.key("second"), *batch.values),
        )


def is_blocked(worker):
    return worker.metrics().blocked_partitions == (0,)


class TestCommands:
    def test_that_fail_hold_up_their_own_partition_only(self, streams, backend):
        backend.damage(streams, 0, "second")
        pusher = Pusher()
        worker = worker_of(streams, pusher, retry=QUICK)
        send(streams, 40)
        with running(worker):
            eventually(lambda: committed(streams, 1) == 20, "partition 1 is committed")
            eventually(lambda: is_blocked(worker), "partition 0 is named")
            before = len(pusher.records[0])
            send(streams, 40, prefix="later ")
            eventually(lambda: committed(streams, 1) == 40, "partition 1 continues")
            assert (committed(streams, 0), len(pusher.records[0])) == (0, before)

            backend.repair(streams, 0, "second")
            eventually(lambda: committed(streams, 0) == 40, "partition 0 continues")
            eventually(lambda: worker.metrics().blocked_partitions == (), "none is blocked")
        values = [record.value for record in pusher.records[0]]
        assert len(values) == len(set(values)) == 40
        for name in ("first", "second"):
            assert backend.pushed(streams, 0, name) == values

    @pytest.mark.parametrize("on_failure", [OnFailure.DEAD_LETTER, OnFailure.SKIP])
    def test_that_fail_lose_no_record(self, streams, backend, on_failure):
        """Its handler has returned, so the record is not what is wrong."""
        backend.damage(streams, 0, "second")
        send(streams, 3, partition=0)
        worker = worker_of(streams, Pusher(), retry=QUICK, on_failure=on_failure)
        with running(worker):
            eventually(lambda: is_blocked(worker), "it waits")
            backend.repair(streams, 0, "second")
            eventually(lambda: committed(streams, 0) == 3, "it continues")
            metrics = worker.metrics()
        assert (metrics.handled, metrics.dead, metrics.skipped) == (3, 0, 0)
        assert backend.pushed(streams, 0, "second") == ["0", "1", "2"]

    def test_that_fail_for_good_stop_the_worker_if_it_is_to_stop(self, streams, backend):
        backend.damage(streams, 0, "second")
        send(streams, 3, partition=0)
        pusher = Pusher()
        worker = worker_of(streams, pusher, retry=QUICK, on_failure=OnFailure.STOP)
        with pytest.raises(HandlerFailedError, match=r"failed 2 times.*RPUSH.*WRONGTYPE") as raised:
            worker.run()
        error = raised.value
        assert (error.stream, error.partition) == (streams.stream, 0)
        assert error.first == pusher.records[0][0].offset
        assert isinstance(error.cause, CallRefusedError)
        assert "DEAD_LETTER" not in str(error)
        assert committed(streams, 0) == 0

    def test_that_fail_do_not_keep_a_worker_that_leaves(self, streams, backend):
        backend.damage(streams, 0, "first")
        send(streams, 20)
        worker = worker_of(streams, Pusher(), retry=NEVER)
        with running(worker):
            eventually(lambda: is_blocked(worker), "it waits")
            eventually(lambda: committed(streams, 1) == 10, "partition 1 is committed")
            handled = worker.metrics().partitions[0].handled
            assert leave(worker).unfinished == {0: handled}
        backend.repair(streams, 0, "first")
        again = Collected()
        assert worker_of(streams, again).run(until_idle=0.05).handled == 10
        assert again.is_in_order()

    def test_that_failed_have_another_attempt_before_their_worker_leaves(self, streams, backend):
        backend.damage(streams, 0, "second")
        send(streams, 5, partition=0)
        worker = worker_of(streams, Pusher(), retry=NEVER)
        with running(worker):
            eventually(lambda: is_blocked(worker), "it waits for an hour")
            backend.repair(streams, 0, "second")
            assert leave(worker).unfinished == {}
        handled = committed(streams, 0)
        assert handled > 0
        for name in ("first", "second"):
            assert backend.pushed(streams, 0, name) == [str(number) for number in range(handled)]

    def test_log_names_partition_command_and_reason_once(self, streams, backend, caplog):
        caplog.set_level(logging.WARNING, "batchqueue")
        backend.damage(streams, 0, "second")
        send(streams, 1, partition=0)
        worker = worker_of(streams, Pusher(), retry=QUICK)
        with running(worker):
            eventually(lambda: is_blocked(worker), "it waits")
            eventually(lambda: worker._member.held[0].refused.pieces[0].tries > 5, "often")
            assert flush_log(WAIT_S)
            [line] = [each for each in caplog.messages if "the call is made again" in each]
        assert line.startswith(f"{streams.stream}/0: the partition waits")
        assert "RPUSH" in line
        assert "WRONGTYPE" in line


class TestRecords:
    def test_partition_that_cannot_be_opened_waits(self, streams, backend, caplog):
        send(streams, 40)
        backend.damage(streams, 0, "s")
        got = Collected()
        worker = worker_of(streams, got, retry=QUICK)
        with running(worker):
            eventually(lambda: committed(streams, 1) == 20, "partition 1 is committed")
            eventually(lambda: is_blocked(worker), "partition 0 is named")
            assert flush_log(WAIT_S)
            assert f"{streams.stream}/0: the partition waits" in caplog.text
            backend.repair(streams, 0, "s")
            eventually(lambda: got.count == 40, "partition 0 is handled")
        assert got.is_in_order()

    def test_partition_that_cannot_be_read_any_more_waits(self, streams, backend):
        got = Collected()
        worker = worker_of(streams, got, retry=QUICK)
        with running(worker):
            owns(worker, 2)
            send(streams, 10)
            eventually(lambda: committed(streams, 0) == 5, "partition 0 is committed")
            backend.damage(streams, 0, "s")
            send(streams, 10, partition=1, prefix="later ")
            eventually(lambda: committed(streams, 1) == 15, "partition 1 continues")
            eventually(lambda: is_blocked(worker), "partition 0 is named")
            backend.repair(streams, 0, "s")
            send(streams, 5, partition=0, prefix="last ")
            eventually(lambda: len(got.records[0]) == 10, "partition 0 continues")
        assert got.is_in_order()

    def test_partition_that_cannot_be_opened_keeps_no_worker_that_leaves(self, streams, backend):
        backend.damage(streams, 0, "s")
        worker = worker_of(streams, Collected(), retry=NEVER)
        with running(worker):
            eventually(lambda: is_blocked(worker), "partition 0 waits for an hour")
            assert leave(worker).unfinished == {}


class TestDeadLetters:
    def test_that_cannot_be_stored_hold_up_their_own_partition_only(self, streams, backend):
        got = Collected()
        worker = worker_of(
            streams,
            lambda batch: refuse_3(batch, got),
            retry=QUICK,
            on_failure=OnFailure.DEAD_LETTER,
        )
        backend.damage(streams, 0, "dead:g")
        send(streams, 10, partition=0)
        send(streams, 3, partition=1)
        with running(worker):
            eventually(lambda: is_blocked(worker), "partition 0 waits")
            eventually(lambda: committed(streams, 1) == 3, "partition 1 is committed")
            assert [record.value for record in got.records[0]] == ["0", "1", "2"]
            backend.repair(streams, 0, "dead:g")
            eventually(lambda: committed(streams, 0) == 10, "partition 0 continues")
            eventually(lambda: worker.metrics().blocked_partitions == (), "none is blocked")
        assert [each.value for each in dead_letters(streams, 0)] == [b"3"]
        assert len(got.records[0]) == 9

    def test_that_cannot_be_stored_keep_no_worker_that_leaves(self, streams, backend):
        worker = worker_of(
            streams,
            lambda batch: refuse_3(batch, Collected()),
            retry=RetryPolicy(attempts=1, max_backoff_ms=3_600_000),
            on_failure=OnFailure.DEAD_LETTER,
        )
        backend.damage(streams, 0, "dead:g")
        send(streams, 10, partition=0)
        with running(worker):
            eventually(lambda: is_blocked(worker), "partition 0 waits")
            summary = leave(worker)
            assert summary.unfinished == {}
            assert summary.dropped == summary.fetched - 3
        backend.repair(streams, 0, "dead:g")
        assert worker_of(streams, Collected()).run(until_idle=0.05).handled >= 7


def refuse_3(batch, got):
    if "3" in batch.values:
        raise ValueError("three")
    got(batch)
