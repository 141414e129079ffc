"""Connections of workers and producers to Redis: what they read, and what they raise."""

import logging
import re
import threading

import pytest
import redis
from redis.sentinel import Sentinel

from batchqueue import ConfigError
from batchqueue.base.background_log import flush_log
from batchqueue.groups import GroupMonitor, RedisStreams, StreamUnavailableError
from batchqueue.groups.backend import CommitRequest, Fetch, NewRecord, Opening, SetAside
from batchqueue.groups.control import Control
from batchqueue.groups.messages import CallKind, Commit, Entry, Fenced, Joined
from batchqueue.groups.record import Start, parse_id
from batchqueue.groups.redis.node import Server
from core_support.waits import WAIT_S, eventually
from groups_support.redis_server import RedisServer, skip_without_server
from groups_support.workers import Collected, running, send, worker_of

LEASE_MS = 60_000


def keep(data, offset):
    return data


def read_all(connection, partition=0, after=0, wait_ms=0):
    fetched = connection.read([Fetch(partition, after, 100)], wait_ms)
    found = [each.entries for each in fetched]
    return [record for each in found for record in each.records(each.values(keep)[0])]


def call(control, connection, kind):
    """Makes the calls of a control side up to one of a kind, and returns its reply."""
    while True:
        eventually(lambda: control.due_ms(connection.now_ms()) <= connection.now_ms())
        now = connection.now_ms()
        made = control.next_call(now)
        reply = connection.perform(control, control.planned(made))
        control.reply(made, reply, now)
        if made.kind is kind:
            return reply


class TestRecords:
    def test_records_come_back_as_they_were_sent(self, connection, writer):
        sent = [
            NewRecord(0, b"\x00\xff\r\n", None, ()),
            NewRecord(0, b"", b"", (("type", b"order"), ("type", b""), ("ü \udcff", b"\xff"))),
            NewRecord(0, b"x" * 3_000_000, b"key", ()),
        ]
        offsets = writer.add(sent, None)

        records = read_all(connection)
        assert [(0, each.value, each.key, each.headers) for each in records] == sent
        assert [each.offset for each in records] == offsets
        assert all(each.timestamp_ms == each.offset >> 20 for each in records)

    def test_entries_are_kept_for_dead_letters(self, connection, writer):
        [offset] = writer.add([NewRecord(2, b"v", b"k", (("h", b"1"),))], None)

        [fetched] = connection.read([Fetch(2, 0, 10)], 0)
        entries = fetched.entries
        assert (fetched.partition, len(entries), fetched.size) == (2, 1, 4)
        assert (entries.first, entries.last) == (offset, offset)
        assert entries.entry(offset) == Entry(offset, b"v", b"k", (("h", b"1"),))

    def test_entries_of_other_programs(self, connection, client):
        client.xadd("bq:{orders/0}:s", {"v": "1", "type": "order"})
        client.xadd("bq:{orders/0}:s", {"cents": "5"})

        first, second = read_all(connection)
        assert (first.value, first.headers) == (b"1", (("type", b"order"),))
        assert (second.value, second.headers) == (b"", (("cents", b"5"),))

    def test_ids_above_the_doubles_of_lua(self, connection, client):
        largest = f"{2**43 - 1}-{2**20 - 2}"
        for name in (f"{2**43 - 1}-9", f"{2**43 - 1}-10", largest):
            client.xadd("bq:{orders/0}:s", {"v": name}, id=name)
        first, second, last = (each.offset for each in read_all(connection))

        assert last == parse_id(largest) > 2**62
        connection.open([Opening(0, 1, "s")], Start.EARLIEST)
        for offset in (first, second, last):
            assert connection.commit([CommitRequest(0, 1, "s", offset, 1)]) == [Commit.STORED]
            assert connection.commit([CommitRequest(0, 1, "s", first, 1)]) == [Commit.OLD]
        assert connection.infos([0])[0].offset == last
        assert read_all(connection, after=last) == []

    def test_each_partition_has_its_own_limit(self, connection, writer):
        writer.add([NewRecord(number % 3, b"%d" % number) for number in range(30)], None)

        fetched = connection.read([Fetch(0, 0, 2), Fetch(1, 0, 5), Fetch(2, 0, 2)], 0)
        assert sorted((each.partition, len(each.entries)) for each in fetched) == [
            *((0, 2), (1, 5), (2, 2))
        ]

    def test_large_records_are_read_in_small_replies(self, connection, writer):
        for _ in range(4):
            writer.add([NewRecord(0, b"x" * 2_000_000) for _ in range(10)], None)

        counts, after = [], 0
        while fetched := connection.read([Fetch(0, after, 10_000 if counts else 5)], 0):
            counts.append(len(fetched[0].entries))
            after = fetched[0].entries.last
        assert sum(counts) == 40
        assert max(counts) <= 32

    def test_read_waits_for_a_record(self, connection, writer):
        thread = threading.Timer(0.7, writer.add, ([NewRecord(1, b"late")], None))
        thread.start()

        fetches = [Fetch(number, 0, 5 + number) for number in range(4)]
        [fetched] = connection.read(fetches, 30_000)
        thread.join()
        assert fetched.partition == 1

    def test_full_partition_takes_no_record(self, writer):
        records = [NewRecord(number % 2, b"x") for number in range(6)]

        offsets = writer.add(records, 2)
        assert [offset is None for offset in offsets] == [False] * 4 + [True] * 2
        assert offsets[0] < offsets[2]
        assert writer.add(records[:1], 2) == [None]
        assert writer.add(records[:1], 3) != [None]


class TestCommits:
    def test_commands_run_with_the_offset(self, connection, writer, client):
        [offset] = writer.add([NewRecord(0, b"x")], None)
        connection.open([Opening(0, 1, "s")], Start.EARLIEST)
        commands = (("INCRBY", "bq:{orders/0}:total", 5), (b"SET", "bq:{orders/0}:raw", b"\xff"))

        for _ in range(2):
            connection.commit([CommitRequest(0, 1, "s", offset, 1, commands)])
        assert client.get("bq:{orders/0}:total") == b"5"
        assert client.get("bq:{orders/0}:raw") == b"\xff"

    def test_pipelines_reply_for_each_partition(self, connection, writer):
        offsets = writer.add([NewRecord(number, b"x") for number in range(4)], None)
        opened = connection.open([Opening(n, 5, "s") for n in range(4)], Start.LATEST)
        assert [each.offset for each in opened] == offsets

        requests = [CommitRequest(n, 5 - n % 2, "s", 1 << 62, 2) for n in range(4)]
        stored, fenced = Commit.STORED, Fenced(5)
        assert connection.commit(requests) == [stored, fenced, stored, fenced]
        letters = (Entry(offsets[1], b"x"),)
        aside = [SetAside(1, 5, "s", letters), SetAside(2, 4, "s", letters)]
        assert connection.set_aside(aside) == [0, fenced]  # it began after the record

    def test_forgotten_scripts_are_sent_again(self, connection, writer, client):
        connection.open([Opening(0, 1, "s")], Start.EARLIEST)
        client.script_flush()

        opened = connection.open([Opening(n, 2, "s") for n in range(4)], Start.EARLIEST)
        assert [each.offset for each in opened] == [0] * 4
        client.script_flush()
        assert None not in writer.add([NewRecord(n % 2, b"x") for n in range(6)], 10)
        assert [len(read_all(connection, n)) for n in range(2)] == [3, 3]


class TestGroup:
    def test_session_from_join_to_leave(self, connection):
        control = Control("a", nonce="1", lease_ms=LEASE_MS, partitions=4)

        assert call(control, connection, CallKind.JOIN).partitions == 4
        call(control, connection, CallKind.PLAN)
        assert set(call(control, connection, CallKind.SYNC).grants) == {0, 1, 2, 3}

    def test_wait_ends_with_a_change(self, connection):
        control = Control("a", nonce="1", lease_ms=LEASE_MS, partitions=4)
        joined = call(control, connection, CallKind.JOIN)
        assert isinstance(joined, Joined)
        assert connection.wait(0, 0) == joined.version
        assert connection.wait(joined.version, 0.01) == joined.version
        control.leave()
        thread = threading.Timer(0.2, call, (control, connection, CallKind.LEAVING))
        thread.start()

        assert connection.wait(joined.version, 30) > joined.version
        thread.join()

    def test_version_that_went_back_is_noticed(self, connection):
        control = Control("a", nonce="1", lease_ms=LEASE_MS, partitions=4)
        joined = call(control, connection, CallKind.JOIN)

        assert connection.wait(joined.version + 10**12, 30) == joined.version


class TestPartitions:
    def test_first_user_decides(self, redis_server, caplog):
        caplog.set_level(logging.INFO, "batchqueue")
        first = RedisStreams(redis_server.url, "orders").open_writer()

        assert first.partitions(64) == 64
        assert first.partitions(None) == 64
        assert flush_log(WAIT_S)
        assert caplog.messages.count("Created topic orders with 64 partition(s)") == 1
        with pytest.raises(
            ConfigError,
            match=r'^stream "orders" has 64 partitions, partitions=32 was given: '
            "leave it out, or use another stream$",
        ):
            first.partitions(32)
        first.close()

    def test_new_stream_has_one_partition(self, redis_server):
        writer = RedisStreams(redis_server.url, "lines").open_writer()

        assert writer.partitions(None) == 1
        writer.close()


class TestServers:
    def test_server_that_is_down(self, redis_server):
        url = "redis://:secret@127.0.0.1:1"
        connection = RedisStreams(url, "orders").connect("g", lease_ms=1_000, name="a")

        with pytest.raises(StreamUnavailableError, match=r"127\.0\.0\.1:1") as raised:
            connection.partitions(1)
        assert "secret" not in str(raised.value)

    def test_server_that_does_not_answer(self, tmp_path, durable_server):
        streams = RedisStreams(durable_server.url, "orders")
        connection = streams.connect("g", lease_ms=500, name="a")
        connection.partitions(1)
        durable_server.pause()

        with pytest.raises(StreamUnavailableError, match="Timeout"):
            connection.partitions(1)
        durable_server.resume()
        assert connection.partitions(1) == 1

    def test_restart_is_seen_by_each_thread_and_loses_nothing(self, durable_server):
        streams = RedisStreams(durable_server.url, "orders", partitions=1)
        connection = streams.connect("g", lease_ms=5_000, name="a")
        writer = streams.open_writer()
        connection.partitions(1)
        [offset] = writer.add([NewRecord(0, b"x")], None)
        connection.open([Opening(0, 1, "s")], Start.EARLIEST)
        read_all(connection)
        durable_server.restart()

        # Each link raises once, so that what it may have lost is dropped (R14).
        commit = [CommitRequest(0, 1, "s", offset, 1)]
        with pytest.raises(StreamUnavailableError):
            connection.commit(commit)
        with pytest.raises(StreamUnavailableError):
            read_all(connection)
        assert connection.commit(commit) == [Commit.STORED]
        assert [each.value for each in read_all(connection)] == [b"x"]
        # A producer has nothing to drop.
        assert writer.add([NewRecord(0, b"y")], None) > [offset]

    def test_close_ends_a_wait_for_a_server_that_does_not_answer(self, durable_server):
        streams = RedisStreams(durable_server.url, "orders")
        connection = streams.connect("g", lease_ms=60_000, name="a")
        read_all(connection)
        durable_server.pause()
        raised = []

        def wait():
            with pytest.raises(StreamUnavailableError, match="closed"):
                read_all(connection)
            raised.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(connection._reader._lock.locked, "the thread waits")
        connection.close()
        thread.join(30)
        assert raised == [True]
        with pytest.raises(StreamUnavailableError, match="closed"):
            connection.partitions(1)

    def test_key_of_something_else_is_named(self, connection, client):
        client.delete("bq:{orders}:meta")
        client.set("bq:{orders}:meta", "text")

        with pytest.raises(redis.ResponseError, match="WRONGTYPE") as raised:
            connection.partitions(4)
        assert "holds a value of another type" in raised.value.__notes__[0]

    def test_read_only_server_is_unavailable(self, durable_server):
        streams = RedisStreams(durable_server.url, "orders")
        connection = streams.connect("g", lease_ms=5_000, name="a")
        connection.partitions(1)
        with durable_server.client() as client:
            client.replicaof("127.0.0.1", "1")

        with pytest.raises(StreamUnavailableError):
            connection.open([Opening(0, 1, "s")], Start.EARLIEST)


class TestLogins:
    @pytest.fixture
    def guarded(self, tmp_path):
        skip_without_server()
        server = RedisServer(tmp_path, "--requirepass", "only-for-tests")
        server.start()
        yield server
        server.stop()

    def test_password(self, guarded):
        url = f"redis://:only-for-tests@127.0.0.1:{guarded.port}"

        assert RedisStreams(url, "orders").open_writer().partitions(2) == 2
        given = RedisStreams(guarded.url, "orders", password="only-for-tests")
        assert given.open_writer().partitions(2) == 2

    @pytest.mark.parametrize("options", [{}, {"password": "wrong-one"}])
    def test_wrong_password_surfaces(self, guarded, options):
        writer = RedisStreams(guarded.url, "orders", **options).open_writer()

        with pytest.raises(redis.AuthenticationError) as raised:
            writer.partitions(2)
        assert raised.value.__notes__ == [
            f"Redis at 127.0.0.1:{guarded.port}/0 refused the login: check user and password."
        ]
        assert "wrong-one" not in str(raised.value)

    def test_missing_right_surfaces(self, guarded):
        with guarded.client(password="only-for-tests") as client:
            client.acl_setuser("reader", enabled=True, nopass=True, commands=["+info"], keys=["*"])
        writer = RedisStreams(guarded.url, "orders", username="reader", password="x").open_writer()

        with pytest.raises(redis.exceptions.NoPermissionError) as raised:
            writer.partitions(2)
        assert "allow the user the keys and commands" in raised.value.__notes__[0]

    def test_rights_that_the_docs_list_are_enough(self, guarded):
        words = re.findall(r"`([A-Z]+)`", RedisStreams.__doc__)
        with guarded.client(password="only-for-tests") as client:
            client.acl_setuser(
                *("worker", True, True),
                commands=[f"+{word.lower()}" for word in words],
                keys=["bq:*"],
            )
        streams = RedisStreams(guarded.url, "orders", partitions=2, username="worker", password="x")
        handler = Collected()
        send(streams, 10)
        with streams.producer(max_len=1_000) as producer:
            producer.send(b"10")
        with GroupMonitor("g", streams) as monitor, running(worker_of(streams, handler)):
            eventually(lambda: handler.count == 11)
            eventually(lambda: monitor.metrics().lag == 0)
            assert monitor._administration.trim() == 11
            assert monitor._administration.resize(3) == 3
            monitor._administration.reset(2, 5, 1)
            assert monitor._administration.dead_letters(0, 10) == []
            assert monitor._administration.send_back(0, []) == 0
        administration = streams.open_administration("other")
        administration.delete()
        administration.close()


class TestOtherServers:
    def test_sentinel_names_the_server(self, tmp_path, redis_server):
        settings = tmp_path / "sentinel.conf"
        settings.write_text(f"sentinel monitor shop 127.0.0.1 {redis_server.port} 1\n")
        sentinel = RedisServer(tmp_path, sentinel=settings)
        sentinel.start()
        try:
            address = ("127.0.0.1", sentinel.port)
            streams = RedisStreams(lambda: Sentinel([address]).master_for("shop"), "orders")
            writer = streams.open_writer()
            assert writer.partitions(3) == 3
            assert writer.add([NewRecord(0, b"x")], None) != [None]
            writer.close()
        finally:
            sentinel.stop()


def test_a_connection_has_another_epoch_whichever_call_connects(redis_server):
    """A slot of a cluster is pinned to it: another connection may have lost what was sent."""
    node = Server(redis_server.url).connector(WAIT_S).node()
    node.connect()
    first = node.epoch
    node.connect()
    assert node.epoch == first
    node.disconnect()
    node.refresh()  # redis-py connects to see whether there is something to read
    assert node.ask([("PING",)]) == [b"PONG"]
    assert node.epoch > first
    node.disconnect()
