"""The threads of a worker: what ends them, what they wait for, and what they keep."""

import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from batchqueue import RetryPolicy
from batchqueue.base.background_log import flush_log
from batchqueue.groups import (
    Codec,
    GroupBalancer,
    ManualClock,
    MemoryStreams,
    OnFailure,
    StaleTokenError,
    Worker,
)
from batchqueue.groups.messages import CallKind
from core_support.waits import HANG_S, WAIT_S, eventually
from groups_support.hooks import HookedStreams
from groups_support.workers import Blocker, Collected, owns, running, send, worker_of

NEVER = RetryPolicy(attempts=1_000, backoff_ms=3_600_000, max_backoff_ms=3_600_000)
ONCE = RetryPolicy(attempts=1, max_backoff_ms=10)


@pytest.fixture
def streams():
    return MemoryStreams("orders", partitions=2)


def lag(streams):
    return sum(streams.script(each).info("g").lag for each in range(streams.partition_count))


def test_a_handler_that_is_stuck_is_named_with_its_partition(streams):
    blocker = Blocker()

    def store(batch):
        blocker(batch)

    with running(worker := worker_of(streams, store)):
        send(streams, 1, partition=1)
        name = f"{store.__qualname__} of orders/1"
        eventually(lambda: worker.stats().stuck_handlers == (name,), "the name")
        blocker.release()


class TestErrors:
    """What ends a thread of a worker ends the worker, and `run` raises it."""

    @pytest.mark.parametrize("method", ["read", "open", "commit", "wait", "infos", "perform"])
    def test_of_a_backend(self, streams, method):
        def before(name, *arguments):
            if name == method:
                raise ValueError("odd reply")

        send(streams, 4)
        with pytest.raises(ValueError, match="odd reply"):
            worker_of(HookedStreams(streams, before), Collected(), grace=1).run()

    @pytest.mark.parametrize("name", ["on_assign", "on_revoke"])
    def test_of_a_callback_that_raises_no_exception(self, streams, name):
        def callback(assignments):
            raise SystemExit(3)

        worker = worker_of(streams, Collected(), grace=1, **{name: callback})
        with pytest.raises(SystemExit):
            worker.run(max_seconds=1)

    def test_of_a_balancer_that_raises_no_exception(self, streams):
        def plan(weights, last_owner, capacity, *, force):
            raise SystemExit(3)

        worker = worker_of(streams, Collected(), grace=1, balancer=GroupBalancer.custom(plan))
        with pytest.raises(SystemExit):
            worker.run()

    def test_of_a_codec_that_raises_no_exception(self, streams):
        def decode(data):
            raise SystemExit(3)

        send(streams, 2)
        worker = worker_of(streams, Collected(), grace=1, codec=Codec(str.encode, decode))
        with pytest.raises(SystemExit):
            worker.run()

    @pytest.mark.parametrize("on_failure", [OnFailure.DEAD_LETTER, OnFailure.STOP])
    def test_whose_text_cannot_be_made(self, streams, on_failure):
        class Untold(Exception):
            def __str__(self):
                raise RuntimeError("no text")

            __repr__ = __str__

        def handler(batch):
            raise Untold

        send(streams, 1)
        worker = worker_of(streams, handler, grace=1, retry=ONCE, on_failure=on_failure)
        if on_failure is OnFailure.STOP:
            with pytest.raises(Exception, match="Untold"):
                worker.run()
        else:
            assert worker.run(until_idle=0.1).dead == 1

    def test_of_a_balancer_are_logged_and_partitions_are_planned_by_load(self, streams, caplog):
        def plan(weights, last_owner, capacity, *, force):
            raise ValueError("no idea")

        with running(
            worker := worker_of(streams, Collected(), balancer=GroupBalancer.custom(plan))
        ):
            owns(worker, 2)
        assert flush_log(WAIT_S)
        assert "no idea" in caplog.text
        assert "the partitions are spread by load instead" in caplog.text


def test_what_ends_while_the_lease_is_in_doubt_is_committed():
    """The beat is answered after the worker's own deadline, and before the lease is over."""
    clock = ManualClock()
    streams, blocker = MemoryStreams("orders", clock=clock), Blocker()
    is_held, hold, go = threading.Event(), threading.Event(), threading.Event()

    def before(name, *arguments):
        if name == "perform" and arguments[1].kind is CallKind.BEAT and hold.is_set():
            is_held.set()
            assert go.wait(WAIT_S)

    worker = worker_of(HookedStreams(streams, before), blocker, max_batch_items=1)
    worker.start()
    while not worker.assigned():
        clock.advance(0.01)
        threading.Event().wait(0.01)
    send(streams, 5)
    assert blocker.entered.wait(WAIT_S)
    clock.advance(0.3)
    eventually(lambda: streams._groups["g"].state.leases, "it is a member")
    threading.Event().wait(0.1)  # the beat that is due now
    hold.set()
    clock.advance(0.3)
    assert is_held.wait(WAIT_S)
    clock.advance(0.66)
    blocker.release()
    eventually(lambda: worker.metrics().handled == 1, "it is handled")
    turns = worker.stats().consumed
    threading.Event().wait(0.2)
    assert worker.stats().consumed <= turns + 5, "the others have turns although they must wait"
    assert worker.metrics().handled == 1
    go.set()
    eventually(lambda: lag(streams) == 0, "all are handled and committed")
    worker.leave(0)


class TestUntilIdle:
    def test_an_outage_is_not_idleness(self, streams):
        got, stalled = Collected(), threading.Event()

        def handler(batch):
            if got.count >= 10 and not stalled.is_set():
                stalled.set()
                streams.stall("a")
                threading.Timer(2.0, streams.wake, ["a"]).start()
            got(batch)

        send(streams, 100)
        worker = worker_of(streams, handler, name="a", max_batch_items=2, lease_ms=500)
        worker.run(until_idle=0.3)
        assert lag(streams) == 0

    def test_a_standby_worker_ends(self, streams):
        with running(worker := worker_of(streams, Collected())):
            owns(worker, 2)
            others = [worker_of(streams, Collected(), lease_ms=500) for _ in range(2)]
            assert [each.run(until_idle=0.1).handled for each in others] == [0, 0]


class TestLeave:
    def test_from_a_signal_handler_while_it_leaves(self):
        program = """
            import signal, threading
            from batchqueue.groups import MemoryStreams, Worker
            streams = MemoryStreams("orders")
            with streams.producer() as producer:
                producer.send(b"x")
            worker = Worker("g", streams, lease_ms=1_000, grace=600)
            entered, go = threading.Event(), threading.Event()
            @worker.handler
            def handler(batch):
                entered.set()
                go.wait()
            signal.signal(signal.SIGALRM, lambda *_: worker.leave(0))
            with worker:
                entered.wait()
                signal.setitimer(signal.ITIMER_REAL, 0.5)
            go.set()
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=HANG_S, check=True)

    def test_of_another_thread_may_shorten_the_first(self, streams):
        blocker = Blocker()
        send(streams, 1, partition=0)
        worker = worker_of(streams, blocker)
        worker.start()
        assert blocker.entered.wait(WAIT_S)
        patient = threading.Thread(target=worker.leave, args=[600])
        patient.start()
        eventually(lambda: worker._leaving.leaver is not None, "the first has begun")
        assert worker.leave(0).unfinished == {0: 1}
        patient.join(WAIT_S)
        assert not patient.is_alive()
        blocker.release()

    def test_a_drain_by_a_monitor_keeps_to_the_grace(self, streams):
        blocker, summaries = Blocker(), []
        send(streams, 1, partition=0)
        worker = worker_of(streams, blocker, name="a", grace=0.5)
        thread = threading.Thread(target=lambda: summaries.append(worker.run()))
        thread.start()
        assert blocker.entered.wait(WAIT_S)
        administration = streams.open_administration("g")
        [session] = administration.group().members
        administration.drain(session)
        thread.join(WAIT_S)
        assert [summary.unfinished for summary in summaries] == [{0: 1}]
        blocker.release()

    def test_while_on_assign_fails_slowly(self, streams):
        blocker = Blocker()

        def on_assign(assignments):
            blocker()
            raise ConnectionError("down")

        worker = worker_of(streams, Collected(), on_assign=on_assign, grace=600)
        worker.start()
        assert blocker.entered.wait(WAIT_S)
        leaving = threading.Thread(target=worker.leave)
        leaving.start()
        eventually(lambda: worker._leaving.leaver is not None, "it leaves")
        blocker.release()
        leaving.join(WAIT_S)
        assert not leaving.is_alive()


class TestHandlers:
    def test_a_factory_that_raises_holds_up_its_own_partition_only(self):
        streams, got = MemoryStreams("orders", partitions=4), Collected()
        worker = Worker("g", streams, codec="utf8", lease_ms=1_000)

        @worker.handler_factory
        def handler_of(assignment):
            if assignment.partition == 3:
                raise OSError("its state is damaged")
            return lambda batch: got.records[batch.partition].extend(batch.records)

        send(streams, 40)
        with running(worker):
            eventually(lambda: got.count == 30, "the three others are handled")

    def test_each_handler_of_a_factory_is_closed(self, streams):
        made, closed = [], []

        class Handler:
            def consume(self, batch):
                pass

            def on_close(self):
                closed.append(self)

        def factory(assignment):
            made.append(Handler())
            return made[-1]

        def on_assign(assignments):
            raise ConnectionError("down")

        worker = Worker("g", streams, lease_ms=500, on_assign=on_assign)
        worker.handler_factory(factory)
        worker.start()
        eventually(lambda: len(made) == 2, "both are made")
        worker.leave()
        eventually(lambda: set(closed) == set(made), "both are closed")

    def test_a_shared_handler_is_closed_although_it_never_had_a_partition(self):
        closed = []

        class Handler:
            def consume(self, batch):
                pass

            def on_close(self):
                closed.append(self)

        streams = MemoryStreams("orders")
        with running(first := worker_of(streams, Collected(), name="a")):
            owns(first, 1)
            standby = worker_of(streams, Handler(), name="b")
            standby.start()
            standby.leave()
        assert len(closed) == 1

    def test_a_sink_that_always_refuses_is_named(self, streams, caplog):
        calls = []

        def handler(batch):
            calls.append(batch.token)
            raise StaleTokenError("orders", batch.partition, batch.token, batch.token + 1)

        send(streams, 1, partition=0)
        with running(worker_of(streams, handler)):
            eventually(lambda: "refused 2 times in a row" in caplog.text, "the log says so")
        assert calls == sorted(set(calls))


def test_a_balancer_that_takes_long_pauses_no_partition(streams):
    blocker, got = Blocker(), Collected()

    def plan(weights, last_owner, capacity, *, force):
        if len(capacity) == 2:
            blocker()
        return dict.fromkeys(weights, "a")

    balancer = GroupBalancer.custom(plan)
    first = worker_of(streams, got, balancer=balancer, name="a", lease_ms=60_000)
    second = worker_of(streams, Collected(), balancer=balancer, name="b", lease_ms=60_000)
    with running(first):
        owns(first, 2)
        with running(second):
            assert blocker.entered.wait(WAIT_S)
            send(streams, 100)
            eventually(lambda: got.count == 100, "both partitions continue")
            eventually(lambda: lag(streams) == 0, "and are committed")
            blocker.release()


def test_records_of_a_lost_partition_are_not_kept(streams):
    class Value(str):
        __slots__ = ("__weakref__",)

    known, failed = [], threading.Event()

    def decode(data):
        value = Value(data.decode())
        known.append(weakref.ref(value))
        return value

    def handler(batch):
        failed.set()
        raise ValueError("no")

    send(streams, 100, partition=0)
    worker = worker_of(
        streams, handler, name="a", retry=NEVER, lease_ms=500, codec=Codec(str.encode, decode)
    )
    with running(worker):
        assert failed.wait(WAIT_S)
        streams.stall("a")

        def are_gone():
            gc.collect()
            return not any(each() for each in known)

        eventually(are_gone, "they are freed")


def test_bytes_that_are_read_are_bounded():
    streams, blocker = MemoryStreams("orders"), Blocker()
    with streams.producer() as producer:
        producer.send_many(bytes(10_000) for _ in range(1_000))
    worker = worker_of(streams, blocker, codec="bytes", prefetch_bytes=100_000)
    with running(worker):
        assert blocker.entered.wait(WAIT_S)
        assert worker.metrics().in_hand <= 20
        blocker.release()
        eventually(lambda: worker.metrics().handled == 1_000, "all are handled")


def test_several_concurrent_starts_are_one(streams):
    worker = Worker("starts", streams)
    worker.handler(Collected())
    starts = [threading.Thread(target=worker.start) for _ in range(8)]
    for each in starts:
        each.start()
    for each in starts:
        each.join()
    count = sum(each.name.startswith("starts-") for each in threading.enumerate())
    worker.leave()
    assert count == 5
