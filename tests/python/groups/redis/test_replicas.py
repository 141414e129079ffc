"""`wait_replicas`: a server with one replica, which confirms what is written or is stopped."""

import itertools
import logging

import pytest

from batchqueue import ConfigError
from batchqueue.base.background_log import flush_log
from batchqueue.groups import RedisStreams
from batchqueue.groups.backend import CommitRequest, NewRecord, Opening, SetAside
from batchqueue.groups.messages import Commit, Entry
from batchqueue.groups.record import Start
from core_support.waits import WAIT_S, eventually
from groups_support.redis_server import RedisServer, skip_without_server
from groups_support.workers import Collected, running, send, worker_of


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A primary and its replica."""
    skip_without_server()
    options = ("--repl-diskless-sync-delay", "0")
    primary = RedisServer(tmp_path_factory.mktemp("primary"), *options)
    primary.start()
    where = ("127.0.0.1", str(primary.port))
    replica = RedisServer(tmp_path_factory.mktemp("replica"), "--replicaof", *where)
    replica.start()
    yield primary, replica
    replica.stop()
    primary.stop()


@pytest.fixture
def servers(pair):
    primary, replica = pair
    replica.resume()
    with primary.client() as client:
        client.flushall()
        eventually(lambda: client.wait(1, 100) == 1, "the replica has everything")
    yield pair
    replica.resume()


@pytest.fixture
def connection(servers):
    streams = RedisStreams(servers[0].url, "orders", partitions=4, wait_replicas=1)
    connection = streams.connect("g", lease_ms=20_000, name="a")
    connection.partitions(4)
    connection.open([Opening(0, 1, "s")], Start.EARLIEST)
    yield connection
    connection.close()


def fence_of(server):
    with server.client() as client:
        return client.hget("bq:{orders/0}:f:g", "n")


def confirmed(replicas, write):
    """Writes until a write is confirmed in time, for which a busy machine may need another one."""
    for number in itertools.count(1):
        missed = replicas.missed
        write(number)
        if replicas.missed == missed:
            return number
    raise AssertionError("an endless count has no end")


def commit(connection, offset):
    assert connection.commit([CommitRequest(0, 1, "s", offset, offset)]) == [Commit.STORED]


def test_replica_has_what_was_committed(servers, connection):
    last = confirmed(connection._committer.replicas, lambda number: commit(connection, number))
    assert fence_of(servers[1]) == str(last).encode()


def test_replica_has_what_a_producer_sent(servers):
    streams = RedisStreams(servers[0].url, "orders", partitions=1, wait_replicas=1)
    writer = streams.open_writer()
    replicas = writer._link.replicas
    sent = confirmed(replicas, lambda _: writer.add([NewRecord(0, b"x")], None))
    sent += confirmed(replicas, lambda _: writer.add([NewRecord(0, b"y")], 100))
    with servers[1].client() as client:
        assert client.xlen("bq:{orders/0}:s") == sent
    servers[1].pause()
    missed = replicas.missed
    writer.add([NewRecord(0, b"z")], None)
    assert replicas.missed == missed + 1
    writer.add([NewRecord(0, b"z")], 100)
    assert replicas.missed == missed + 2
    writer.close()


def test_commit_holds_when_the_replica_is_stopped(servers, connection, caplog):
    commit(connection, 4)  # the server knows the scripts from here
    connection.set_aside([SetAside(0, 1, "s", ())])
    replicas = connection._committer.replicas
    missed = replicas.missed
    servers[1].pause()

    commit(connection, 5)
    assert connection.set_aside([SetAside(0, 1, "s", (Entry(6, b"x"),))]) == [1]
    assert replicas.missed == missed + 2
    assert fence_of(servers[0]) == b"5"
    assert flush_log(WAIT_S)
    [message] = [each for each in caplog.messages if "replicas" in each]
    assert "0 of 1 replicas confirmed a write within 500 ms" in message
    servers[1].resume()
    confirmed(replicas, lambda number: commit(connection, 7 + number))


def test_worker_continues_without_the_replica(servers, caplog):
    caplog.set_level(logging.WARNING, "batchqueue")
    streams = RedisStreams(servers[0].url, "orders", partitions=4, wait_replicas=1)
    handler = Collected()
    with running(worker_of(streams, handler)):
        send(streams, 40)
        eventually(lambda: handler.count == 40)
        servers[1].pause()
        with streams.producer(codec="utf8") as producer:
            producer.send("late")
        eventually(lambda: handler.count == 41)
    assert handler.is_in_order()


@pytest.mark.parametrize("count", [-1, 1.5, True, "1"])
def test_invalid_number_is_named(count):
    with pytest.raises(ConfigError, match=r"wait_replicas is .*; give an int from 0 on"):
        RedisStreams("redis://localhost", "orders", wait_replicas=count)
