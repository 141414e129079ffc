"""`wait_replicas`: a server with one replica, which confirms what is written or is stopped."""

import logging

import pytest

from batchqueue import ConfigError
from batchqueue.groups import RedisStreams
from batchqueue.groups.backend import CommitRequest, Entry, NewRecord, Opening, SetAside
from batchqueue.groups.messages import Commit
from batchqueue.groups.start import Start
from core_support.waits import eventually
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


def test_replica_has_what_was_committed(servers, connection):
    assert connection.commit([CommitRequest(0, 1, "s", 5, 7)]) == [Commit.STORED]
    assert fence_of(servers[1]) == b"7"
    assert connection._committer.replicas.missed == 0


def test_replica_has_what_a_producer_sent(servers):
    streams = RedisStreams(servers[0].url, "orders", partitions=1, wait_replicas=1)
    writer = streams.open_writer()
    writer.add([NewRecord(0, b"x")], None)
    writer.add([NewRecord(0, b"y")], 10)
    with servers[1].client() as client:
        assert client.xlen("bq:{orders/0}:s") == 2
    servers[1].pause()
    writer.add([NewRecord(0, b"z")], None)
    assert writer._link.replicas.missed == 1
    writer.add([NewRecord(0, b"z")], 10)
    assert writer._link.replicas.missed == 2
    writer.close()


def test_commit_holds_when_the_replica_is_stopped(servers, connection, caplog):
    connection.commit([CommitRequest(0, 1, "s", 4, 6)])  # the server knows the scripts from here
    connection.set_aside([SetAside(0, 1, "s", ())])
    servers[1].pause()

    assert connection.commit([CommitRequest(0, 1, "s", 5, 7)]) == [Commit.STORED]
    assert connection.set_aside([SetAside(0, 1, "s", (Entry(6, b"x"),))]) == [1]
    assert connection._committer.replicas.missed == 2
    assert fence_of(servers[0]) == b"7"
    [message] = [each for each in caplog.messages if "replicas" in each]
    assert "0 of 1 replicas confirmed a write within 500 ms" in message
    servers[1].resume()
    connection.commit([CommitRequest(0, 1, "s", 8, 8)])
    assert connection._committer.replicas.missed == 2


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
