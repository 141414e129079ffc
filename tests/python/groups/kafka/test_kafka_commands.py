"""The commands of `batchqueue groups` on a real broker."""

import sys
import types
from uuid import uuid4

import pytest

from batchqueue.cli import main
from batchqueue.groups import GroupMonitor, KafkaStreams, Worker
from batchqueue.groups.prometheus import samples_of
from core_support.waits import eventually
from groups_support.workers import Collected, owns, running, send

pytestmark = pytest.mark.matrix(2, name="commands on Kafka")


@pytest.fixture
def got():
    return Collected()


@pytest.fixture
def worker(new_kafka_broker, got, monkeypatch):
    """A worker of a group that is named by its topic; the commands find it in the module `shop`."""
    new = KafkaStreams(f"orders-{uuid4()}", bootstrap=new_kafka_broker.address, partitions=2)
    send(new, 10)
    streams = KafkaStreams(new.stream, bootstrap=new_kafka_broker.address)
    shop = types.ModuleType("shop")
    shop.worker = Worker(streams.stream, streams, codec="utf8", name="here")
    shop.worker.handler(got)
    monkeypatch.setitem(sys.modules, "shop", shop)
    return shop.worker


@pytest.fixture
def groups(capsys, worker):
    """Runs a command of `batchqueue groups`; returns its exit code, output and errors."""

    def run(command, *arguments):
        code = main(["groups", command, "--worker", "shop:worker", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def by_url(capsys, worker, new_kafka_broker):
    """Runs a command for the same group, named by the brokers, the topic and itself."""

    def run(command, *arguments):
        url, name = f"kafka://{new_kafka_broker.address}", worker.source.stream
        where = ("--source", url, "--stream", name, "--group", name)
        code = main(["groups", command, *where, *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def again(worker, got):
    """Returns the values that the group gets now."""
    got.records.clear()
    another = Worker(worker.source.stream, worker.source, codec="utf8")
    another.handler(got)
    another.run(until_idle=0.2)
    return sorted(map(int, got.values))


def test_reset_to_the_start(groups, worker, got):
    worker.run(until_idle=0.2)
    with GroupMonitor(worker.source.stream, worker.source) as monitor:
        before = monitor.metrics().partitions[0]
        code, out, _ = groups("reset", "--to", "earliest", "--yes")
        assert (code, "10 records will be handled again" in out) == (0, True)
        after = monitor.metrics().partitions[0]
    assert (before.done, after.done) == (4, -1)
    assert before.token == after.token > 0
    assert again(worker, got) == list(range(10))


def test_reset_to_an_offset(groups, worker, got):
    worker.run(until_idle=0.2)
    code, out, _ = groups("reset", "--to", "2", "--yes")
    assert (code, "4 records will be handled again" in out) == (0, True)
    assert again(worker, got) == [6, 7, 8, 9]  # offsets 3 and 4 of both partitions


def test_reset_to_the_end(groups, worker, got):
    code, out, _ = groups("reset", "--to", "latest", "--yes")
    assert (code, "10 records will be skipped" in out) == (0, True)
    assert again(worker, got) == []


def test_lag_and_members(groups, worker, got):
    with running(worker):
        owns(worker, 2)
        eventually(lambda: groups("lag", "--max", "0")[0] == 0, "all is done")
        code, out, _ = groups("top", "--once")
        assert code == 0
        assert out.splitlines()[2].split() == ["MEMBER", "HOST", "PARTITIONS"]
        assert out.splitlines()[3].split()[0::2] == ["here", "0-1"]
        code, _, err = groups("reset", "--to", "earliest", "--yes")
        assert (code, "has members: here; end the worker with SIGTERM" in err) == (2, True)


def test_lag_while_no_worker_runs(groups, worker, got):
    code, _, err = groups("lag")
    assert (code, "has no position yet" in err) == (0, True)
    worker.run(until_idle=0.2)
    assert groups("lag", "--max", "0")[::2] == (0, "")


def test_metrics_have_no_values_that_brokers_do_not_know(worker):
    with running(worker), GroupMonitor(worker.source.stream, worker.source) as monitor:
        owns(worker, 2)
        eventually(lambda: len(monitor.metrics().members) == 1, "the brokers list the worker")
        # A lag takes an unknown time, except that of 0.
        eventually(lambda: {p.lag for p in monitor.metrics().partitions.values()} == {0}, "done")
        names = {each.value.name for each, _, _ in samples_of(monitor.metrics())}
    known = {"up", "members", "skew_ratio", "partition_owned", "partition_hot", "partition_lag"}
    known.add("partition_lag_seconds")
    assert names == {f"batchqueue_group_{each}" for each in known}


def test_commands_find_a_group_by_its_brokers(by_url, worker, got):
    code, out, err = by_url("lag")
    assert (code, out.split()[-2:], "has no position yet" in err) == (0, ["total", "10"], True)
    with running(worker):
        owns(worker, 2)
        eventually(lambda: by_url("lag", "--max", "0")[0] == 0, "all is done")
        _, out, _ = by_url("top", "--once")
        assert out.splitlines()[3].split()[0::2] == ["here", "0-1"]
    code, out, _ = by_url("reset", "--to", "earliest", "--yes")
    assert (code, "10 records will be handled again" in out) == (0, True)
    assert again(worker, got) == list(range(10))
    code, out, _ = by_url("resize", "--partitions", "3")
    assert (code, "has 3 partitions, 2 before" in out) == (0, True)


def test_topic_that_does_not_exist_is_rejected(by_url, worker):
    code, _, err = by_url("lag", "--stream", "none")
    assert (code, 'stream "none" does not exist' in err) == (2, True)


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("log", "see the log of the broker"),
        ("trim", "set the retention of the topic"),
    ],
)
def test_command_that_brokers_cannot_serve_says_what_to_do(groups, command, remedy):
    code, _, err = groups(command)
    assert code == 2
    assert f"{command} is not possible on this stream: {remedy}" in err


def test_drain_says_what_to_do(groups, worker):
    with running(worker):
        owns(worker, 2)
        code, _, err = groups("drain", "--name", "here")
    assert (code, "end the worker with SIGTERM" in err) == (2, True)


def test_resize(groups, worker, got):
    code, _, _ = groups("resize", "--partitions", "3")
    assert code == 0
    with running(worker):
        owns(worker, 3)
