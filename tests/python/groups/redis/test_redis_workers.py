"""Workers that share a stream on Redis: handovers, crashes of the server, dead letters."""

import logging
import threading

import pytest
import redis

from batchqueue import RetryPolicy
from batchqueue.base.background_log import flush_log
from batchqueue.groups import GroupMonitor, OnFailure, RedisStreams, Worker
from core_support.waits import WAIT_S, eventually
from groups_support.workers import LEASE_MS, Collected, owns, running, send, worker_of


def all_of(*handlers):
    return sorted(value for handler in handlers for value in handler.values)


def numbered(count, prefix=""):
    return sorted(f"{prefix}{number}" for number in range(count))


def test_worker_handles_everything_in_order(streams):
    handler = Collected()
    send(streams, 500)
    with running(worker_of(streams, handler)):
        eventually(lambda: handler.count == 500)
    assert all_of(handler) == numbered(500)
    assert handler.is_in_order()


def test_worker_starts_although_the_server_pauses(durable_server):
    """For longer than a call may take that keeps a lease."""
    streams = RedisStreams(durable_server.url, "orders", partitions=4)
    streams.producer().close()
    durable_server.pause()
    threading.Timer(0.5, durable_server.resume).start()
    with running(worker := worker_of(streams, Collected(), lease_ms=500)):
        owns(worker, 4)


def test_partitions_move_without_a_repetition(streams):
    first, second = Collected(), Collected()
    with running(a := worker_of(streams, first, name="a")):
        owns(a, 4)
        send(streams, 200)
        with running(b := worker_of(streams, second, name="b")):
            eventually(b.assigned)
            send(streams, 200, prefix="later ")
            eventually(lambda: first.count + second.count == 400)
            eventually(lambda: len(a.assigned()) + len(b.assigned()) == 4)
            assert a.leave().unfinished == {}
            owns(b, 4)
    assert all_of(first, second) == sorted(numbered(200) + numbered(200, "later "))
    assert first.is_in_order()
    assert second.is_in_order()


def test_worker_whose_calls_are_refused_loses_its_partitions(streams, client):
    class Handler:
        def consume(self, batch):
            pass

        def on_close(self):
            closed.append(self)

    lost, closed = [], []
    worker = Worker("g", streams, lease_ms=LEASE_MS, on_lost=lost.extend)
    worker.handler_factory(lambda assignment: Handler())
    worker.start()
    owns(worker, 4)
    client.set("bq:{orders|g}:lease", "of another type")
    eventually(lambda: len(lost) == len(closed) == 4, "on_lost and on_close were called")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        worker.leave()
    assert [each.partition for each in lost] == [0, 1, 2, 3]


def test_server_that_is_killed_loses_nothing(durable_server):
    streams = RedisStreams(durable_server.url, "orders", partitions=4)
    handler = Collected()
    with running(worker := worker_of(streams, handler, name="a")):
        owns(worker, 4)
        for number in range(3):
            send(streams, 50, prefix=f"{number} ")
            eventually(lambda: handler.count > 0)
            durable_server.kill()
            durable_server.start()
        expected = sorted(value for number in range(3) for value in numbered(50, f"{number} "))
        eventually(lambda: sorted(set(handler.values)) == expected, "all values are handled")
        eventually(lambda: GroupMonitor("g", streams).metrics().lag == 0, "all is committed")
    assert not handler.entered_twice


def test_scripts_may_be_forgotten_at_any_time(streams, client):
    handler, over = Collected(), threading.Event()

    def flush():
        while not over.wait(0.005):
            client.script_flush()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        with running(a := worker_of(streams, handler, name="a")):
            owns(a, 4)
            send(streams, 200)
            with running(b := worker_of(streams, handler_b := Collected(), name="b")):
                eventually(b.assigned)
                send(streams, 200, prefix="later ")
                eventually(lambda: handler.count + handler_b.count == 400)
                # With its grace: what is handled is committed before it goes.
                assert b.leave().unfinished == {}
    finally:
        over.set()
        thread.join()
    assert all_of(handler, handler_b) == sorted(numbered(200) + numbered(200, "later "))


def test_bad_records_are_set_aside(streams):
    def handler(batch):
        if "7" in batch.values:
            raise ValueError("seven")

    send(streams, 20, partition=1)
    retry = RetryPolicy(attempts=2, backoff_ms=1, max_backoff_ms=2)
    worker = worker_of(streams, handler, on_failure=OnFailure.DEAD_LETTER, retry=retry)
    with running(worker):
        eventually(lambda: worker.metrics().dead == 1)
        eventually(lambda: GroupMonitor("g", streams).metrics().lag == 0)
    [letter] = streams.open_administration("g").dead_letters(1, 10)
    assert letter.value == b"7"
    headers = dict(letter.headers)
    assert headers["dead-error"] == b"ValueError: seven"
    assert int(headers["dead-offset"]) == letter.offset


def test_effects_of_a_commit(streams, client):
    def handler(batch):
        batch.commit_with(("INCRBY", batch.key("handled"), len(batch)))

    send(streams, 100, partition=2)
    with running(worker := worker_of(streams, handler)):
        eventually(lambda: worker.metrics().handled == 100)
        eventually(lambda: GroupMonitor("g", streams).metrics().lag == 0)
    assert client.get("bq:{orders/2}:handled") == b"100"


@pytest.mark.parametrize("level", [logging.DEBUG])
def test_log_shows_no_secret(durable_server, caplog, level):
    caplog.set_level(level)
    with durable_server.client() as client:
        client.config_set("requirepass", "only-for-tests")
    url = f"redis://:only-for-tests@127.0.0.1:{durable_server.port}"
    handler = Collected()
    with running(worker := worker_of(RedisStreams(url, "orders"), handler)):
        owns(worker, 1)
        durable_server.kill()
        eventually(lambda: not worker.assigned(), "the lease is over")
    assert flush_log(WAIT_S)
    assert caplog.messages
    assert "only-for-tests" not in caplog.text
