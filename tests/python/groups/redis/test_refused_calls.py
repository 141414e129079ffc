"""What Redis refuses for one partition is the reply of that partition; the others have theirs."""

import pytest
import redis

from batchqueue import ConfigError
from batchqueue.groups import CallRefusedError, GroupMonitor, RedisStreams, StreamUnavailableError
from batchqueue.groups.backend import (
    CommitRequest,
    Fetch,
    Fetched,
    NewRecord,
    Opening,
    SetAside,
    Unreadable,
)
from batchqueue.groups.messages import Commit, Entry, Failed
from batchqueue.groups.record import Start

LEASE_MS = 60_000


def test_command_that_fails_stores_no_offset_of_its_partition(connection, writer, client):
    [offset] = writer.add([NewRecord(0, b"x")], None)
    connection.open([Opening(0, 1, "s"), Opening(1, 1, "s")], Start.EARLIEST)
    n = "bq:{orders/0}:n"
    commands = (("INCR", n), ("INCR", "bq:{orders/0}:s"), ("INCR", n))
    wrong = CommitRequest(0, 1, "s", offset, 1, commands)

    failed, other = connection.commit([wrong, CommitRequest(1, 1, "s", offset, 1)])
    assert (failed.ran, other) == (1, Commit.STORED)
    assert str(failed.error) == (
        "orders/0: the server refused the command ('INCR', 'bq:{orders/0}:s') of commit_with: "
        "WRONGTYPE Operation against a key holding the wrong kind of value: "
        "repair the key, or fix the command"
    )
    assert [each.offset for each in connection.infos([0, 1])] == [0, offset]
    assert client.get(n) == b"1"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("RPUSH", "k", *range(8_000)), r"8,002 words; give at most 7,000"),
        (("SET", "k", "\udcff"), r"has a word that UTF-8 cannot hold .*; give bytes"),
    ],
)
def test_command_that_cannot_be_sent_fails_alone(connection, writer, command, message):
    [offset] = writer.add([NewRecord(1, b"x")], None)
    connection.open([Opening(0, 1, "s"), Opening(1, 1, "s")], Start.EARLIEST)
    requests = [CommitRequest(0, 1, "s", 1, 1, (command,)), CommitRequest(1, 1, "s", offset, 1)]

    failed, other = connection.commit(requests)
    assert (failed.ran, other) == (0, Commit.STORED)
    with pytest.raises(ConfigError, match=message):
        raise failed.error


def test_words_of_a_command_are_bytes_texts_and_ints(connection, writer, client):
    [offset] = writer.add([NewRecord(0, b"x")], None)
    connection.open([Opening(0, 1, "s")], Start.EARLIEST)
    key = "bq:{orders/0}:words"

    connection.commit(
        [CommitRequest(0, 1, "s", offset, 1, (("RPUSH", key, b"\xff", "ü", -5, True),))]
    )
    assert client.lrange(key, 0, -1) == [b"\xff", "ü".encode(), b"-5", b"1"]


def test_command_that_a_full_server_refuses_is_not_its_partition_s_failure(
    connection, writer, client
):
    [offset] = writer.add([NewRecord(0, b"x")], None)
    connection.open([Opening(0, 1, "s")], Start.EARLIEST)
    request = CommitRequest(0, 1, "s", offset, 1, (("SET", "bq:{orders/0}:k", 1),))
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StreamUnavailableError, match="maxmemory"):
            connection.commit([request])
    finally:
        client.config_set("maxmemory", 0)
    assert connection.commit([request]) == [Commit.STORED]


def test_dead_letter_that_was_refused_is_stored_by_the_next_try(connection, writer, client):
    offsets = writer.add([NewRecord(number, b"x") for number in range(2)], None)
    connection.open([Opening(0, 1, "s"), Opening(1, 1, "s")], Start.EARLIEST)
    dead = "bq:{orders/0}:dead:g"
    client.set(dead, "of another type")
    requests = [
        SetAside(number, 1, "s", (Entry(offset, b"x"),)) for number, offset in enumerate(offsets)
    ]

    failed, other = connection.set_aside(requests)
    assert (type(failed), other) == (Failed, 1)
    client.delete(dead)
    assert connection.set_aside(requests) == [1, 0]


def test_partition_whose_records_are_of_another_type_fails_alone(connection, writer, client):
    writer.add([NewRecord(1, b"x"), NewRecord(2, b"y")], None)
    client.set("bq:{orders/0}:s", "of another type")

    opened = connection.open([Opening(n, 1, "s") for n in range(2)], Start.EARLIEST)
    infos = connection.infos([0, 1])
    read = connection.read([Fetch(0, 0, 9), Fetch(1, 0, 9), Fetch(2, 0, 7)], 0)
    assert [isinstance(each, Failed) for each in (*opened, *infos)] == [True, False] * 2
    assert [type(each) for each in read] == [Unreadable, Fetched, Fetched]
    assert "orders/0: the server refused to read the partition" in str(read[0].failure.error)


def test_monitor_names_the_partition_whose_records_are_of_another_type(connection, client):
    client.set("bq:{orders/3}:s", "of another type")
    server = f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}"

    with (
        GroupMonitor("g", RedisStreams(server, "orders")) as monitor,
        pytest.raises(CallRefusedError, match=r"^orders/3: the server refused .*WRONGTYPE"),
    ):
        monitor.metrics()


def test_missing_permission_is_raised(redis_server, client):
    client.execute_command(
        *("ACL", "SETUSER", "reader", "on", ">only-for-tests", "~bq:*", "+@all", "-xinfo")
    )
    url = f"redis://reader:only-for-tests@127.0.0.1:{redis_server.port}"
    connection = RedisStreams(url, "orders").connect("g", lease_ms=LEASE_MS, name="a")
    try:
        connection._committer.run([("PING",)])
        client.acl_setuser("reader", commands=["-evalsha", "-eval"])
        with pytest.raises(redis.exceptions.NoPermissionError):
            connection.open([Opening(0, 1, "s")], Start.EARLIEST)
    finally:
        connection.close()
        client.acl_deluser("reader")


def test_command_that_a_replica_refuses_is_of_all_partitions(durable_server):
    """The next connection may lead to the primary."""
    streams = RedisStreams(durable_server.url, "orders")
    connection = streams.connect("g", lease_ms=5_000, name="a")
    connection.partitions(1)
    connection.open([Opening(0, 1, "s")], Start.EARLIEST)
    with durable_server.client() as client:
        client.replicaof("127.0.0.1", "1")
    request = CommitRequest(0, 1, "s", 1 << 20, 1, (("SET", "bq:{orders/0}:k", 1),))

    with pytest.raises(StreamUnavailableError, match="read only replica"):
        connection.commit([request])
    connection.close()
