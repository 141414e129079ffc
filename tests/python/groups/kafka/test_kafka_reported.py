"""What users of other clients have reported, tried on workers.

Each link leads to the report, and the words behind it say what was seen there.
"""

import threading
import time
from collections import Counter
from contextlib import ExitStack
from uuid import uuid4

import pytest

from batchqueue import RetryPolicy
from batchqueue.groups import GroupMonitor, KafkaStreams, Start, Worker
from batchqueue.groups.kafka.server import KafkaServer
from core_support.waits import WAIT_S, eventually
from groups_support.workers import Collected, owns, running, send

pytestmark = pytest.mark.matrix(12, name="reports about Kafka")


@pytest.fixture(params=["consumer", "classic"])
def streams(new_kafka_broker, request):
    config = {"session.timeout.ms": 6_000} if request.param == "classic" else {}
    return KafkaStreams(
        f"orders-{uuid4()}",
        bootstrap=new_kafka_broker.address,
        partitions=4,
        protocol=request.param,
        config=config,
    )


def worker_of(streams, handler, **settings):
    worker = Worker(streams.stream, streams, codec="utf8", **settings)
    worker.handler_factory(lambda assignment: handler)
    return worker


def lag(streams):
    with GroupMonitor(streams.stream, streams) as monitor:
        return monitor.metrics().lag


def test_handler_may_take_longer_than_the_poll_interval_and_the_session(streams, monkeypatch):
    """https://github.com/aio-libs/aiokafka/issues/848: it is handled again and again."""
    settings_of = KafkaServer.consumer_settings

    def with_short_interval(server, *arguments):
        return {**settings_of(server, *arguments), "max.poll.interval.ms": 6_000}

    monkeypatch.setattr(KafkaServer, "consumer_settings", with_short_interval)
    handled = Counter()

    def slow(batch):
        if batch.partition == 0:
            time.sleep(10)
        handled.update((batch.partition, each.offset) for each in batch.records)

    first, second = worker_of(streams, slow), worker_of(streams, slow)
    with running(first, second):
        owns(first, 2)
        owns(second, 2)
        send(streams, 40)
        eventually(lambda: handled.total() >= 40, "all are handled")
        eventually(lambda: lag(streams) == 0, "all are committed")
        assert (first.metrics().lost, second.metrics().lost) == (0, 0)
    assert set(handled.values()) == {1}


def test_partition_that_comes_back_is_committed(streams):
    """https://github.com/robinhood/faust/issues/681: it never was again.

    https://github.com/smallrye/smallrye-reactive-messaging/issues/1403
    """
    got = Collected()
    first = worker_of(streams, got)
    with running(first):
        owns(first, 4)
        for _ in range(2):
            second = worker_of(streams, got)
            with running(second):
                owns(second, 2)
                send(streams, 40)
                second.leave()
            owns(first, 4)
        send(streams, 40)
        eventually(lambda: lag(streams) == 0, "all are committed")


def test_commits_during_a_rebalance_do_not_start_another(streams):
    """https://github.com/confluentinc/librdkafka/issues/4059: rebalances without end."""
    stop = threading.Event()

    def feed():
        while not stop.wait(0.05):
            send(streams, 8)

    got = Collected()
    workers = [worker_of(streams, got) for _ in range(3)]
    feeder = threading.Thread(target=feed)
    with running(*workers[:2]):
        owns(workers[0], 2)
        feeder.start()
        try:
            with running(workers[2]):
                for worker in workers:
                    eventually(lambda each=worker: each.assigned(), "it owns partitions")
                tokens = [dict(worker.assigned()) for worker in workers]
                seen = got.count
                eventually(lambda: got.count > seen + 200, "commits continue")
                assert [dict(worker.assigned()) for worker in workers] == tokens
        finally:
            stop.set()
            feeder.join()


def test_pause_of_all_partitions_does_not_hold_up_a_rebalance(streams):
    """https://github.com/Farfetch/kafkaflow/pull/736: a deadlock.

    https://github.com/spring-projects/spring-kafka/issues/2222: a rebalance resumed what was
    paused. https://github.com/confluentinc/confluent-kafka-go/issues/193: what moves and comes back
    stayed paused.
    """
    mine, others = Collected(), Collected()
    first, second = worker_of(streams, mine), worker_of(streams, others)
    with running(first):
        owns(first, 4)
        for partition in range(4):
            first.pause(partition)
        with running(second):
            owns(second, 2)
            owns(first, 2)
            kept = set(first.assigned())
            send(streams, 40)
            eventually(lambda: others.count == 20, "the other worker handles what it has")
            assert mine.count == 0
            second.leave()
        owns(first, 4)
        send(streams, 40)
        eventually(lambda: mine.count == 20, "what came back is handled")
        assert not kept & mine.records.keys()
        for partition in kept:
            first.resume(partition)
        eventually(lambda: mine.count == 60, "what was paused is handled")


def test_workers_that_start_together_skip_nothing(streams):
    """https://github.com/platformatic/kafka/issues/267: from the end, behind what was committed."""
    got = Collected()
    send(streams, 40)
    worker_of(streams, got).run(until_idle=0.5)
    send(streams, 400)
    workers = [worker_of(streams, got, start=Start.LATEST) for _ in range(4)]
    with ExitStack() as leaving:
        threads = [threading.Thread(target=each.start) for each in workers]
        for thread in threads:
            thread.start()
        for thread, worker in zip(threads, workers, strict=True):
            thread.join()
            leaving.callback(worker.leave, 0)
        eventually(lambda: lag(streams) == 0, "all are committed")
    assert got.count >= 440
    offsets = {(each, record.offset) for each, records in got.records.items() for record in records}
    assert len(offsets) == 440


def test_leave_does_not_wait_for_the_next_attempt(streams):
    """https://github.com/spring-projects/spring-kafka/issues/1480: it waited for the pause."""
    tried = threading.Event()

    def fails(batch):
        tried.set()
        raise ValueError("bad cents")

    hour = RetryPolicy(attempts=5, backoff_ms=3_600_000, max_backoff_ms=3_600_000)
    worker = worker_of(streams, fails, retry=hour)
    with running(worker):
        send(streams, 4)
        assert tried.wait(WAIT_S)
        assert worker.leave(WAIT_S).unfinished == {}
