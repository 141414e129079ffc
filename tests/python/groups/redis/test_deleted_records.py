"""Records that are deleted singly stop no worker, and are not taken for a gap."""

import pytest

from batchqueue.groups import GroupMonitor, RedisStreams, TruncatedError, Worker
from batchqueue.groups.record import format_id
from core_support.waits import eventually
from groups_support.workers import Collected, running

RECORDS = "bq:{orders/0}:s"


@pytest.fixture
def streams(redis_server):
    return RedisStreams(redis_server.url, "orders")


@pytest.fixture
def client(redis_server):
    with redis_server.client() as client:
        yield client


def send(streams, count):
    with streams.producer() as producer:
        return [producer.send(b"x") for _ in range(count)]


def work(streams, handler, **settings):
    worker = Worker("g", streams, lease_ms=2_000, **settings)
    worker.handler(handler)
    return worker


def done_up_to(streams, end):
    with GroupMonitor("g", streams) as monitor:
        return monitor.metrics().partitions[0].done == end


def test_workers_continue_past_deleted_records(streams, client):
    send(streams, 5)
    work(streams, Collected()).run(until_idle=0.2)
    offsets = send(streams, 10)
    client.xdel(RECORDS, *map(format_id, offsets[3:6]))

    got = Collected()
    worker = work(streams, got)
    with running(worker):
        eventually(lambda: done_up_to(streams, offsets[-1]), "the others are done")
        assert got.count == 7
        eventually(lambda: worker.metrics().partitions[0].lag == 3, "the lags were read")
        last = send(streams, 1)[0]
        eventually(lambda: done_up_to(streams, last), "the next one is done")
        eventually(lambda: worker.metrics().partitions[0].lag == 0, "the lag is right again")
        assert worker.metrics().lost_records == 0
    client.xtrim(RECORDS, maxlen=0)
    assert work(streams, got).run(until_idle=0.2).lost_records == 0


def test_trimmed_records_are_still_a_gap(streams, client):
    send(streams, 5)
    work(streams, Collected()).run(until_idle=0.2)
    send(streams, 10)
    client.xtrim(RECORDS, maxlen=6, approximate=False)

    with pytest.raises(TruncatedError, match="orders/0: 4 records after offset"):
        work(streams, Collected()).run()
    assert work(streams, Collected(), on_gap="skip").run(until_idle=0.2).lost_records == 4
