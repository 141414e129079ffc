"""Worker processes whose network is cut, or stalls. Each record is stored once, and in order."""

import threading
from contextlib import contextmanager
from uuid import uuid4

import pytest

from batchqueue.groups import KafkaStreams, Worker
from core_support.waits import HANG_S, WAIT_S, eventually
from groups_support.chaos import (
    KafkaGroup,
    KafkaMetricsGroup,
    KafkaTransactionsGroup,
    once_there,
)
from groups_support.workers import Collected, running, send

pytestmark = [pytest.mark.timeout(2 * HANG_S), pytest.mark.matrix(8, name="Kafka network")]

KINDS = [
    pytest.param(kind, protocol, id=f"{name}-{protocol}")
    for name, kind in (("fence", KafkaGroup), ("metrics", KafkaMetricsGroup))
    for protocol in ("consumer", "classic")
] + [pytest.param(KafkaTransactionsGroup, "consumer", id="exactly_once")]


@pytest.fixture
def network(new_kafka_broker):
    """The network of the workers that are started behind the proxy."""
    yield new_kafka_broker.proxy
    new_kafka_broker.proxy.restore()
    new_kafka_broker.proxy.wake()


@pytest.fixture
def make_group(tmp_path, new_kafka_broker, network):
    """Returns groups, whose members end before their network is there again."""
    made = []

    def make(kind, protocol, **settings):
        if kind is not KafkaTransactionsGroup:
            settings["protocol"] = protocol
        made.append(kind(new_kafka_broker, tmp_path, **settings))
        return made[-1]

    yield make
    for group in made:
        group.close()


def is_at_work(group):
    group.send(8_000)
    eventually(once_there(lambda: group.count() > 500), "the workers are at work")


@contextmanager
def without(group, name):
    """Lets the others do all work; the worker is at work again behind it."""
    process = group.processes.pop(name)
    try:
        group.settles()
        group.send(4_000)
        yield
    finally:
        group.processes[name] = process
    group.settles()


@pytest.mark.parametrize(("kind", "protocol"), KINDS)
def test_worker_that_is_cut_off_for_longer_than_its_session(make_group, network, kind, protocol):
    group = make_group(kind, protocol, handler_s=0.2)
    group.start_behind_proxy("a")
    group.start("b")
    is_at_work(group)
    network.cut()
    with without(group, "a"):
        network.restore()
    group.check()


@pytest.mark.parametrize(("kind", "protocol"), KINDS)
def test_worker_whose_network_stalls_for_longer_than_its_session(
    make_group, network, kind, protocol
):
    """What it sent before arrives late: the broker has given its partitions away."""
    group = make_group(kind, protocol, handler_s=0.2)
    group.start_behind_proxy("a")
    group.start("b")
    is_at_work(group)
    network.stall()
    with without(group, "a"):
        network.wake()
    group.check()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
@pytest.mark.parametrize("way", ["cut", "stall"])
def test_group_without_a_network_for_longer_than_its_sessions(make_group, network, way, protocol):
    group = make_group(KafkaGroup, protocol, handler_s=0.2)
    group.start_behind_proxy("a", "b")
    is_at_work(group)
    (network.cut if way == "cut" else network.stall)()
    eventually(lambda: not group.monitor.metrics().members, "the sessions are over")
    group.send(1_000)
    (network.restore if way == "cut" else network.wake)()
    group.settles()
    group.check()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_worker_whose_commit_gets_no_reply_joins_anew(new_kafka_broker, network, protocol, caplog):
    """A commit of librdkafka may wait for a minute; the network is silent for a lease only."""
    streams = KafkaStreams(
        f"orders-{uuid4()}",
        bootstrap=new_kafka_broker.proxied_address,
        partitions=2,
        protocol=protocol,
        config={"session.timeout.ms": 6_000} if protocol == "classic" else {},
    )
    worker, got = Worker(streams.stream, streams, codec="utf8"), Collected()
    worker.handler(got)
    with running(worker):
        send(streams, 10)
        eventually(lambda: got.count == 10, "the worker is at work")
        network.stall()
        eventually(lambda: "the worker joins anew" in caplog.text, "the lease is over")
        network.wake()
        send(streams, 10, prefix="late ")
        eventually(lambda: len(set(got.values)) == 20, "the worker is back")


@contextmanager
def cut_again_and_again(network, times=33, pause_s=0.3):
    """Ends all connections once in a while; the block ends after the last time."""
    is_over = threading.Event()

    def cut():
        for _ in range(times):
            if is_over.wait(pause_s):
                return
            network.cut()
            network.restore()

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
        thread.join(WAIT_S)
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_network_that_is_cut_again_and_again_while_a_worker_joins_and_leaves(
    make_group, network, protocol
):
    group = make_group(KafkaGroup, protocol, handler_s=0.05, partitions=8)
    group.start_behind_proxy("a")
    with cut_again_and_again(network):
        for number in range(2):
            group.send(2_000)
            group.start_behind_proxy(f"b{number}")
            group.end(f"b{number}")
    group.settles()
    group.check()
