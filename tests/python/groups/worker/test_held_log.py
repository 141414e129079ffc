"""A log, a balancer or an error of the program that hangs holds up no thread of a worker."""

import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from batchqueue import RetryPolicy
from batchqueue.groups import GroupBalancer, MemoryStreams, OnFailure, Worker
from core_support.held_log import calling_log, held_log
from core_support.waits import HANG_S, WAIT_S, eventually
from groups_support.workers import Blocker, Collected, owns, running, send, worker_of

ONCE = RetryPolicy(attempts=1, max_backoff_ms=10)


@pytest.fixture
def streams():
    return MemoryStreams("orders", partitions=2)


def failing(error, got):
    """A handler that raises an error once, for partition 0."""
    errors = [error]

    def handler(batch):
        if batch.partition == 0 and errors:
            raise errors.pop()
        got(batch)

    return handler


def keeps_its_lease(worker, streams, got, partition=None):
    """Sends records for more than two leases, of which each is handled under the same tokens."""
    tokens = {number: each.token for number, each in worker.assigned().items()}
    end = time.monotonic() + 2.5 * worker.settings.lease_ms / 1_000
    wanted = got.count
    while time.monotonic() < end:
        wanted += 1
        send(streams, 1, partition=partition)
        eventually(partial(is_count, got, wanted), "the records are handled")
    assert {number: each.token for number, each in worker.assigned().items()} == tokens
    assert worker.metrics().lost == 0


def is_count(got, count):
    return got.count >= count


def test_a_log_that_hangs_at_a_failure_holds_up_no_heartbeat_and_no_handler(streams):
    got = Collected()
    settings = {"retry": ONCE, "on_failure": OnFailure.SKIP}
    worker = worker_of(streams, failing(ValueError("bad"), got), **settings)
    with running(worker), held_log("failed once") as handler:
        owns(worker, 2)
        send(streams, 2)
        assert handler.entered.wait(WAIT_S)
        eventually(lambda: got.count == 1, "the other partition is handled")
        keeps_its_lease(worker, streams, got)
        assert worker.metrics().log_stuck_s > 0


def test_a_log_may_send_to_the_worker_whose_line_it_gets(streams):
    got = Collected()

    def send_line(line):
        before = got.count
        send(streams, 2)
        eventually(lambda: got.count >= before + 2, "the line is handled")

    settings = {"retry": ONCE, "on_failure": OnFailure.SKIP}
    worker = worker_of(streams, failing(ValueError("bad"), got), **settings)
    with running(worker), calling_log(send_line, "failed once") as handler:
        owns(worker, 2)
        send(streams, 2)
        assert handler.returned.wait(WAIT_S)
        keeps_its_lease(worker, streams, got)


def test_an_error_whose_text_hangs_holds_up_its_handler_alone(streams):
    entered, go, got = threading.Event(), threading.Event(), Collected()

    class HangingError(Exception):
        def __str__(self):
            entered.set()
            go.wait(10 * WAIT_S)
            return "late"

    settings = {"retry": ONCE, "on_failure": OnFailure.DEAD_LETTER}
    worker = Worker("g", streams, codec="utf8", lease_ms=1_000, **settings)
    handler = failing(HangingError(), got)
    worker.handler_factory(lambda assignment: lambda batch: handler(batch))  # one per partition
    with running(worker):
        owns(worker, 2)
        send(streams, 1, partition=0)
        assert entered.wait(WAIT_S)
        try:
            keeps_its_lease(worker, streams, got, partition=1)
        finally:
            go.set()
        eventually(lambda: worker.metrics().dead == 1, "the dead letter")


def test_a_balancer_that_hangs_holds_up_no_heartbeat(streams):
    blocker, got = Blocker(), Collected()

    def plan(weights, last_owner, capacity, *, force):
        blocker()

    settings = {"balancer": GroupBalancer.custom(plan)}
    worker = worker_of(streams, got, name="a", **settings)
    with held_log() as handler, running(worker):
        assert blocker.entered.wait(WAIT_S)
        owns(worker, 2)
        assert handler.entered.wait(WAIT_S)
        keeps_its_lease(worker, streams, got)
        other = worker_of(streams, got, name="b", **settings)
        with running(other):
            owns(worker, 1)
            owns(other, 1)
            assert len(blocker.inside) <= 2  # each worker calls it once, as long as it hangs
            blocker.release()


def test_a_balancer_that_came_back_is_asked_again(streams, caplog):
    blocker, got = Blocker(), Collected()
    is_first = [True]

    def plan(weights, last_owner, capacity, *, force):
        if is_first.pop() if is_first else False:
            blocker()
        return dict.fromkeys(weights, min(capacity))

    settings = {"balancer": GroupBalancer.custom(plan)}
    worker = worker_of(streams, got, name="a", **settings)
    with running(worker):
        owns(worker, 2)
        blocker.release()
        with running(other := worker_of(streams, got, name="b", **settings)):
            eventually(lambda: len(worker.assigned()) == 2, "all stay where the balancer says")
            assert not other.assigned()
    assert "it has not returned after 0.25 s" in caplog.text


PROGRAM = """
import logging, sys, threading
from batchqueue.groups import MemoryStreams, Worker

inside = threading.Event()

class Handler(logging.Handler):
    def emit(self, record):
        if record.name == "program":
            inside.set()
            threading.Event().wait()

handler = Handler()
logging.getLogger().addHandler(handler)
logging.getLogger().setLevel(logging.INFO)
threading.Thread(target=lambda: logging.getLogger("program").info("x"), daemon=True).start()
assert inside.wait(30)
streams = MemoryStreams("orders", partitions=2)
worker = Worker("g", streams, on_assign=lambda assignments: print("runs", flush=True))

@worker.handler
def handle(batch):
    pass

print(worker.run().handled, flush=True)
handler.lock = None  # `logging.shutdown` waits for it without a limit
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_worker_while_the_log_hangs(number):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "runs\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
        process.wait()
    assert (out, process.returncode) == ("0\n", 0)
