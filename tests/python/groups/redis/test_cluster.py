"""Groups on a Redis Cluster of three nodes: workers, moved slots, and a node that is down."""

import logging
import threading

import pytest
import redis

from batchqueue.base.background_log import flush_log
from batchqueue.cli import main
from batchqueue.groups import GroupMonitor, RedisStreams, StreamUnavailableError
from batchqueue.groups.backend import CommitRequest, Fetch, NewRecord, Opening
from batchqueue.groups.messages import Commit, Fenced
from batchqueue.groups.record import Start
from batchqueue.groups.redis.scripts import PartitionKeys, control_keys
from core_support.waits import WAIT_S, eventually
from groups_support.redis_cluster import Migration
from groups_support.workers import Collected, owns, running, send, worker_of

PARTITIONS = 16


@pytest.fixture
def streams(redis_cluster):
    return RedisStreams(redis_cluster.url, "orders", partitions=PARTITIONS)


@pytest.fixture
def connection(streams):
    connection = streams.connect("g", lease_ms=20_000, name="a")
    connection.partitions(PARTITIONS)
    yield connection
    connection.close()


@pytest.fixture
def writer(streams):
    writer = streams.open_writer()
    yield writer
    writer.close()


@pytest.fixture
def moving(redis_cluster):
    """Returns a migration of the slot of a key, which is taken back at the end of the test."""
    begun = []

    def move(key):
        source = redis_cluster.node_of(key)
        target = next(node for node in redis_cluster.nodes if node is not source)
        migration = Migration(redis_cluster, key, target)
        begun.append((migration, key, source))
        return migration

    yield move
    for migration, key, source in begun:
        migration.end()
        # Only a node that imports a slot gets it under a number that all others accept.
        back = Migration(redis_cluster, key, source)
        for step in (back.begin, back.move_keys, back.end):
            step()


def records_key(partition):
    return PartitionKeys("orders", partition).records


def lag(streams):
    return GroupMonitor("g", streams).metrics().lag


def elsewhere(cluster, key):
    """Returns a partition whose node is another one than that of a key."""
    node = cluster.node_of(key)
    return next(n for n in range(PARTITIONS) if cluster.node_of(records_key(n)) is not node)


class TestWorkers:
    def test_everything_is_handled_once_and_in_order(self, streams, capsys):
        handler = Collected()
        with running(worker := worker_of(streams, handler)):
            owns(worker, PARTITIONS)
            send(streams, 800)
            eventually(lambda: handler.count >= 800)
            eventually(lambda: lag(streams) == 0)
        assert sorted(handler.values) == sorted(map(str, range(800)))
        assert handler.is_in_order()
        url = streams._server.address
        assert main(["groups", "lag", "--source", url, "--stream", "orders", "--group", "g"]) == 0
        assert capsys.readouterr().out.split()[-2:] == ["total", "0"]

    def test_records_are_trimmed_and_the_group_is_forgotten(self, streams):
        handler = Collected()
        send(streams, 100)
        with running(worker := worker_of(streams, handler)):
            eventually(lambda: handler.count == 100)
            eventually(lambda: lag(streams) == 0)
            assert worker.leave().unfinished == {}
        administration = streams.open_administration("g")
        assert administration.trim() == 100
        assert administration.resize(PARTITIONS + 4) == PARTITIONS + 4
        assert administration.infos([0])[0].token > 0
        administration.delete()
        assert administration.infos([0])[0].token == 0
        administration.close()

    def test_bounded_producer_fills_each_partition(self, writer, connection):
        records = [NewRecord(number % PARTITIONS, b"x") for number in range(3 * PARTITIONS)]

        offsets = writer.add(records, 2)
        assert [offset is None for offset in offsets] == [False] * 32 + [True] * 16

    def test_address_may_be_a_function(self, redis_cluster):
        port = redis_cluster.nodes[1].port
        clients = [
            lambda: redis.Redis(port=port),
            lambda: redis.RedisCluster(host="127.0.0.1", port=port),
        ]
        for client in clients:
            assert RedisStreams(client, "lines").open_writer().partitions(None) == 1

    def test_each_node_is_checked(self, redis_cluster, caplog):
        caplog.set_level(logging.WARNING, "batchqueue")
        node = redis_cluster.nodes[2]
        with node.client() as client:
            client.config_set("appendonly", "no")
        try:
            RedisStreams(redis_cluster.url, "lines").open_writer().partitions(1)
        finally:
            with node.client() as client:
                client.config_set("appendonly", "yes")
        assert flush_log(WAIT_S)
        [message] = caplog.messages
        assert "append-only file" in message
        assert message.endswith(f"(at 127.0.0.1:{node.port})")


class TestMovedSlots:
    def test_records_are_read_and_written_where_their_keys_went(self, connection, writer, moving):
        [first] = writer.add([NewRecord(3, b"1")], None)
        connection.read([Fetch(3, 0, 10)], 0)
        migration = moving(records_key(3))
        migration.begin()
        migration.move_keys()

        [second] = writer.add([NewRecord(3, b"2")], None)  # ASK
        [fetched] = connection.read([Fetch(3, 0, 10)], 0)
        assert (fetched.entries.first, fetched.entries.last) == (first, second)
        migration.end()
        [third] = writer.add([NewRecord(3, b"3")], None)  # MOVED
        assert first < second < third

    def test_partition_begins_anew_where_its_slot_went(self, connection, writer, moving):
        [offset] = writer.add([NewRecord(3, b"1")], None)
        fetches = [Fetch(3, 0, 10), Fetch(4, 0, 10)]
        connection.open([Opening(3, 1, "s"), Opening(4, 1, "s")], Start.EARLIEST)
        connection.read(fetches, 0)
        migration = moving(records_key(3))
        migration.begin()
        migration.move_keys()
        migration.end()

        commits = [CommitRequest(n, 1, "s", offset, 1) for n in (3, 4)]
        assert connection.commit(commits) == [Fenced(0), Commit.STORED]
        with pytest.raises(StreamUnavailableError) as raised:
            connection.read(fetches, 0)
        assert raised.value.partitions == (3,)
        connection.open([Opening(3, 2, "s")], Start.EARLIEST)
        assert connection.commit([CommitRequest(3, 2, "s", offset, 1)]) == [Commit.STORED]
        assert len(connection.read(fetches, 0)) == 1

    def test_other_slots_of_a_node_that_was_left_begin_anew_too(self, connection, redis_cluster):
        partitions = [
            number
            for number in range(PARTITIONS)
            if redis_cluster.node_of(records_key(number)) is redis_cluster.nodes[0]
        ][:2]
        connection.open([Opening(n, 1, "s") for n in partitions], Start.EARLIEST)
        first, second = [CommitRequest(n, 1, "s", 1, 1) for n in partitions]
        with redis_cluster.nodes[0].client() as client:
            client.client_kill_filter(_type="normal", skipme=True)

        assert connection.commit([first]) == [Fenced(0)]
        assert connection.commit([first, second]) == [Commit.STORED, Fenced(0)]
        assert connection.commit([second]) == [Commit.STORED]

    @pytest.mark.parametrize("key", [records_key(5), control_keys("orders", "g")[0]])
    def test_workers_continue_while_a_slot_moves(self, streams, moving, key):
        handler, over, sent = Collected(), threading.Event(), []

        def produce():
            with streams.producer(codec="utf8") as producer:
                while not over.wait(0.002):
                    producer.send(str(len(sent)), partition=len(sent) % PARTITIONS)
                    sent.append(str(len(sent)))

        with running(worker := worker_of(streams, handler)):
            owns(worker, PARTITIONS)
            thread = threading.Thread(target=produce)
            thread.start()
            migration = moving(key)
            for step in (migration.begin, migration.move_keys, migration.end):
                step()
                so_far = len(sent)
                eventually(lambda so_far=so_far: len(sent) > so_far + 50)
            over.set()
            thread.join()
            eventually(lambda: set(handler.values) == set(sent))
            eventually(lambda: lag(streams) == 0)
            assert not handler.entered_twice


class TestNodeThatIsDown:
    def test_partitions_of_other_nodes_continue(self, streams, redis_cluster):
        control = control_keys("orders", "g")[0]
        down = elsewhere(redis_cluster, control)
        node = redis_cluster.node_of(records_key(down))
        there = {n for n in range(PARTITIONS) if redis_cluster.node_of(records_key(n)) is node}
        handler = Collected()
        with running(worker := worker_of(streams, handler)):
            owns(worker, PARTITIONS)
            send(streams, 160)
            eventually(lambda: handler.count >= 160)
            producer = streams.producer(codec="utf8")
            node.kill()
            for number in set(range(PARTITIONS)) - there:
                producer.send(f"while down {number}", partition=number)
            expected = {f"while down {n}" for n in set(range(PARTITIONS)) - there}
            eventually(lambda: expected <= set(handler.values), "the others continue")
            with pytest.raises(StreamUnavailableError):
                producer.send("lost", partition=down)
            node.start()
            eventually(lambda: lag_or_none(streams) == 0)
            for number in range(PARTITIONS):
                producer.send(f"after {number}", partition=number)
            expected = {f"after {n}" for n in range(PARTITIONS)}
            eventually(lambda: expected <= set(handler.values), "all continue")
            eventually(lambda: lag(streams) == 0)
            producer.close()


def lag_or_none(streams):
    try:
        return lag(streams)
    except StreamUnavailableError:
        return None
