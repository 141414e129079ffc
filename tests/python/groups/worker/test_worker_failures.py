"""Handlers that raise, hang or are slow; records that cannot be decoded; callbacks that raise."""

import threading
from collections import Counter

import pytest

from batchqueue import BatchFailed, RetryPolicy, ThreadPolicy
from batchqueue.groups import (
    Codec,
    HandlerFailedError,
    OnFailure,
    StaleTokenError,
    Worker,
)
from core_support.waits import WAIT_S, eventually
from groups_support.backends import committed, dead_letters, on_memory
from groups_support.workers import Blocker, Collected, owns, running, send, worker_of

QUICK = RetryPolicy(attempts=2, backoff_ms=1, max_backoff_ms=2)
NEVER = RetryPolicy(attempts=1_000, backoff_ms=3_600_000, max_backoff_ms=3_600_000)


@pytest.fixture
def streams(backend):
    return backend.streams(2)


class TestBlock:
    def test_a_failing_partition_waits_and_the_other_one_continues(self, streams):
        got = Collected()

        def handler(batch):
            if batch.partition == 0:
                raise ValueError("no database")
            got(batch)

        worker = worker_of(streams, handler, retry=QUICK)
        with running(worker):
            send(streams, 200)
            eventually(lambda: got.count == 100, "partition 1 is handled")
            eventually(lambda: worker.metrics().blocked_partitions == (0,), "partition 0 is named")
            eventually(lambda: committed(streams, 1) == 100, "partition 1 is committed")
            assert committed(streams, 0) == 0

    def test_records_continue_in_order_once_the_handler_works_again(self, streams):
        got, is_down = Collected(), threading.Event()
        is_down.set()

        def handler(batch):
            if is_down.is_set():
                raise ConnectionError("down")
            got(batch)

        worker = worker_of(streams, handler, retry=QUICK)
        with running(worker):
            send(streams, 100)
            eventually(lambda: len(worker.metrics().blocked_partitions) == 2, "both are blocked")
            is_down.clear()
            eventually(lambda: got.count == 100, "all records are handled")
            eventually(lambda: worker.metrics().blocked_partitions == (), "none is blocked")
        assert got.is_in_order()

    def test_attempts_are_numbered_and_each_gets_a_new_batch(self, streams):
        seen = []

        def handler(batch):
            seen.append(batch)
            if batch.attempt < 4:
                raise ValueError("not yet")

        send(streams, 1)
        summary = worker_of(streams, handler, retry=QUICK).run(until_idle=0.05)
        assert [batch.attempt for batch in seen] == [1, 2, 3, 4]
        assert len({id(batch) for batch in seen}) == 4
        assert summary.handled == 1

    def test_without_a_limit_of_attempts_no_batch_is_given_up(self, streams):
        tries, got = [], Collected()

        def handler(batch):
            tries.append(batch.attempt)
            if len(tries) < 20:
                raise ValueError("not yet")
            got(batch)

        send(streams, 1)
        endless = RetryPolicy(attempts=None, backoff_ms=1, max_backoff_ms=1)
        worker = worker_of(streams, handler, retry=endless, on_failure=OnFailure.SKIP)
        assert worker.run(until_idle=0.05).handled == 1
        assert (tries, got.count) == (list(range(1, 21)), 1)

    def test_a_partition_in_back_off_is_given_up_immediately(self, streams):
        failed = threading.Event()

        def handler(batch):
            failed.set()
            raise ValueError("not today")

        got = Collected()
        first = worker_of(streams, handler, retry=NEVER, name="first")
        send(streams, 10)
        with running(first):
            assert failed.wait(WAIT_S)
            with running(worker_of(streams, got, name="second")):
                summary = first.leave()
                assert summary.unfinished == {}
                assert summary.dropped == summary.fetched > 0
                eventually(lambda: got.count == 10, "the next owner gets the records")


class TestDeadLetters:
    def test_bad_records_stand_alone_and_the_others_are_handled_once(self, streams):
        got, bad = Collected(), {"3", "7", "8", "40"}

        def handler(batch):
            if bad & set(batch.values):
                raise ValueError("bad cents")
            got(batch)

        send(streams, 100, partition=0)
        worker = worker_of(streams, handler, retry=QUICK, on_failure=OnFailure.DEAD_LETTER)
        summary = worker.run(until_idle=0.05)

        assert (summary.handled, summary.dead) == (96, 4)
        assert Counter(got.values) == Counter(set(map(str, range(100))) - bad)
        assert got.is_in_order()
        letters = dead_letters(streams, 0)
        assert [letter.value.decode() for letter in letters] == ["3", "7", "8", "40"]
        about = dict(letters[0].headers)
        assert about["dead-error"] == b"ValueError: bad cents"
        assert about["dead-partition"] == b"0"
        assert int(about["dead-offset"]) == letters[0].offset
        assert committed(streams, 0) == 100

    def test_a_record_that_does_not_decode_is_set_aside_alone(self, streams):
        got = Collected()
        with streams.producer() as producer:
            for value in (b"a", b"\xff\xfe", b"c"):
                producer.send(value, partition=0)
        worker = worker_of(streams, got, retry=QUICK, on_failure=OnFailure.DEAD_LETTER)
        assert worker.run(until_idle=0.05).dead == 1
        assert got.values == ["a", "c"]
        assert [letter.value for letter in dead_letters(streams, 0)] == [b"\xff\xfe"]

    @on_memory
    def test_headers_of_an_earlier_failure_are_replaced(self, streams):
        with streams.producer(codec="utf8") as producer:
            producer.send("x", partition=0, headers={"dead-error": b"old", "mine": b"1"})

        def handler(batch):
            raise KeyError("new")

        worker_of(streams, handler, retry=QUICK, on_failure=OnFailure.DEAD_LETTER).run(
            until_idle=0.05
        )
        [letter] = dead_letters(streams, 0)
        headers = [name for name, _ in letter.headers]
        assert headers.count("dead-error") == 1
        assert dict(letter.headers)["mine"] == b"1"

    @on_memory
    def test_later_records_wait_for_one_that_does_not_decode(self, streams):
        """Else a sink that checks offsets would be past it when the codec is right."""
        got = Collected()
        with streams.producer() as producer:
            for value in (b"a", b"b", b"\xff", b"\xfe", b"c"):
                producer.send(value, partition=0)
            producer.send(b"d", partition=1)
        worker = worker_of(streams, got, retry=QUICK)
        with running(worker):
            eventually(lambda: worker.metrics().blocked_partitions == (0,), "it is blocked")
            eventually(lambda: got.count == 3, "what comes before it is handled")
            assert sorted(got.values) == ["a", "b", "d"]
            summary = worker.leave()
            assert summary.unfinished == {}
        latin = Worker("g", streams, codec=Codec(str.encode, lambda data: data.decode("latin1")))
        latin.handler(got)
        latin.run(until_idle=0.05)
        assert [record.value for record in got.records[0]] == ["a", "b", "\xff", "\xfe", "c"]

    @on_memory
    def test_records_after_several_bad_ones_are_handled(self, streams):
        got = Collected()
        with streams.producer() as producer:
            for number in range(40):
                producer.send(b"\xff" if number % 4 in (1, 2) else b"good", partition=0)
        worker = worker_of(streams, got, retry=QUICK, on_failure=OnFailure.DEAD_LETTER)
        summary = worker.run(until_idle=0.05)
        assert (summary.handled, summary.dead) == (20, 20)
        offsets = [letter.offset for letter in dead_letters(streams, 0)]
        assert offsets == sorted(offsets)


class TestSkipAndStop:
    def test_skip_with_bisect_leaves_out_the_bad_records_only(self, streams):
        got = Collected()

        def handler(batch):
            if "3" in batch.values:
                raise ValueError("no")
            got(batch)

        send(streams, 10, partition=0)
        retry = RetryPolicy(attempts=1, bisect=True)
        worker = worker_of(streams, handler, retry=retry, on_failure=OnFailure.SKIP)
        summary = worker.run(until_idle=0.05)
        assert (summary.handled, summary.skipped) == (9, 1)

    @on_memory
    @pytest.mark.parametrize("kind", ["failure", "coroutine"])
    def test_what_a_handler_returns_may_be_a_failure(self, streams, kind):
        async def coroutine(batch):
            pass

        def handler(batch):
            return BatchFailed(indexes=[0]) if kind == "failure" else coroutine(batch)

        send(streams, 2, partition=0)
        worker = worker_of(streams, handler, retry=QUICK, on_failure=OnFailure.DEAD_LETTER)
        assert worker.run(until_idle=0.05).dead == 2

    def test_skipped_records_are_counted_and_the_partition_continues(self, streams):
        got = Collected()

        def handler(batch):
            if batch.values[0] == "0":
                raise ValueError("no")
            got(batch)

        send(streams, 1, partition=0)
        worker = worker_of(streams, handler, retry=QUICK, on_failure=OnFailure.SKIP)
        with running(worker):
            eventually(lambda: worker.metrics().skipped == 1, "the record is skipped")
            send(streams, 2, partition=0, prefix="later ")
            eventually(lambda: got.count == 2, "the partition continues")
            eventually(lambda: committed(streams, 0) == 3, "all of it is committed")

    def test_stop_leaves_the_position_before_the_batch(self, streams):
        def handler(batch):
            raise ValueError("bad cents")

        send(streams, 10, partition=0)
        worker = worker_of(streams, handler, retry=QUICK, on_failure=OnFailure.STOP)
        with pytest.raises(HandlerFailedError, match="failed 2 times, last: ValueError") as raised:
            worker.run()
        assert isinstance(raised.value.cause, ValueError)
        assert committed(streams, 0) == 0
        got = Collected()
        assert worker_of(streams, got).run(until_idle=0.05).handled == 10

    @on_memory
    def test_a_system_exit_stops_the_worker(self, streams):
        def handler(batch):
            raise SystemExit(3)

        send(streams, 1)
        with pytest.raises(SystemExit):
            worker_of(streams, handler).run()


def stuck_s(worker, partition):
    return worker.metrics().partitions[partition].stuck_s


class TestSlowAndHung:
    def test_a_handler_that_hangs_holds_up_its_own_partition_only(self, streams):
        blocker, got = Blocker(), Collected()
        worker = Worker("g", streams, codec="utf8", lease_ms=1_000)

        @worker.handler_factory
        def handler_of(assignment):
            return blocker if assignment.partition == 0 else got

        with running(worker):
            owns(worker, 2)
            send(streams, 1, partition=0)
            assert blocker.entered.wait(WAIT_S)
            send(streams, 500, partition=1)
            eventually(lambda: got.count == 500, "the neighbour is handled")
            eventually(lambda: committed(streams, 1) == 500, "the neighbour is committed")
            eventually(lambda: 0 in worker.metrics().stuck_handlers, "the handler is named")
            assert set(worker.assigned()) == {0, 1}
            blocker.release()

    def test_a_slow_handler_keeps_its_partition_and_holds_up_no_other(self, streams):
        """A batch of it takes longer than three leases; the neighbour is quick meanwhile."""
        blocker, got = Blocker(), Collected()
        worker = Worker("g", streams, codec="utf8", lease_ms=500)
        worker.handler_factory(lambda given: blocker if given.partition == 0 else got)
        with running(worker):
            owns(worker, 2)
            before = worker.assigned()
            send(streams, 1, partition=0)
            assert blocker.entered.wait(WAIT_S)
            for number in range(1, 17):  # a tenth of a second each
                send(streams, 10, partition=1, prefix=f"{number}-")
                eventually(lambda: got.count == 10 * number, "its neighbour")  # noqa: B023
                eventually(lambda: stuck_s(worker, 0) >= number / 10, "it is slow")  # noqa: B023
            blocker.release()
            eventually(lambda: committed(streams, 0) == 1, "it is committed")
            assert worker.assigned() == before
            assert worker.metrics().lost == 0

    def test_leave_gives_up_a_handler_that_hangs_and_its_records_come_again(self, streams):
        blocker, got = Blocker(), Collected()
        send(streams, 5, partition=0)
        first = worker_of(streams, blocker)
        first.start()
        assert blocker.entered.wait(WAIT_S)
        summary = first.leave(grace=0.1)
        assert summary.unfinished == {0: 5}
        assert worker_of(streams, got).run(until_idle=0.05).handled == 5
        blocker.release()
        assert committed(streams, 0) == 5

    @on_memory
    def test_more_handlers_hang_than_there_are_threads(self, backend):
        streams = backend.streams(12)
        blocker, got = Blocker(), Collected()
        worker = Worker("g", streams, codec="utf8", threads=ThreadPolicy.fixed(1))
        worker.handler_factory(lambda given: got if given.partition == 11 else blocker.of())
        send(streams, 11)
        with running(worker):
            eventually(lambda: len(blocker.inside) == 11, "all of them hang")
            send(streams, 100, partition=11)
            eventually(lambda: got.count == 100, "the last partition is handled")
            blocker.release()

    def test_a_move_waits_for_the_handler_and_the_other_partition_moves(self, backend):
        streams = backend.streams(4)
        blocker, got = Blocker(), Collected()
        first = Worker("g", streams, codec="utf8", lease_ms=1_000, name="first")
        first.handler_factory(lambda assignment: blocker if assignment.partition < 2 else got)
        send(streams, 1, partition=0)
        send(streams, 1, partition=1)
        with running(first):
            eventually(lambda: len(first.metrics().partitions) == 4, "it owns all")
            assert blocker.entered.wait(WAIT_S)
            second = worker_of(streams, got, name="second")
            with running(second):
                eventually(lambda: len(first.assigned()) == 2, "two are revoked")
                moving = set(range(4)) - set(first.assigned())
                stuck = moving & {0, 1}
                owns(second, 2 - len(stuck))
                blocker.release()
                owns(second, 2)


class TestFence:
    def test_a_sink_that_refuses_makes_the_worker_begin_anew_with_a_larger_token(self, streams):
        tokens, got = [], Collected()

        def handler(batch):
            tokens.append(batch.token)
            if len(tokens) == 1:
                raise StaleTokenError("orders", 0, batch.token, batch.token + 10**12)
            got(batch)

        send(streams, 3, partition=0)
        worker = worker_of(streams, handler)
        with running(worker):
            eventually(lambda: got.count == 3, "the records come again")
        assert tokens[1] > tokens[0] + 10**12
