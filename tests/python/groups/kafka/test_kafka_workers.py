"""Workers on a real broker, in one process."""

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from batchqueue import ConfigError, RetryPolicy
from batchqueue.groups import (
    GroupMonitor,
    KafkaRefusedError,
    KafkaStreams,
    OnFailure,
    Start,
    StreamUnavailableError,
    TruncatedError,
    Worker,
)
from batchqueue.groups.control import Phase
from batchqueue.groups.kafka.connection import KafkaConnection
from batchqueue.groups.kafka.ownership import Owned, metadata_of
from batchqueue.groups.kafka.server import KafkaAdmin, KafkaMembership
from batchqueue.groups.messages import Beaten
from core_support.waits import WAIT_S, eventually
from groups_support.chaos import set_session
from groups_support.workers import Blocker, Collected, owns, running, send

QUICK = RetryPolicy(attempts=2, backoff_ms=1, max_backoff_ms=2)


pytestmark = pytest.mark.matrix(4, name="groups on Kafka")


@pytest.fixture(params=["consumer", "classic"])
def streams(new_kafka_broker, request):
    return topic_on(new_kafka_broker, protocol=request.param)


def topic_on(broker, partitions=2, protocol="consumer", config=(), **settings):
    config = {"topic.metadata.refresh.interval.ms": 200, **dict(config)}
    if protocol == "classic":
        config["session.timeout.ms"] = 30_000
    return KafkaStreams(
        f"orders-{uuid4()}",
        bootstrap=broker.address,
        partitions=partitions,
        protocol=protocol,
        config=config,
        **settings,
    )


def worker_of(streams, handler, **settings):
    """Returns a worker of a group that is named by its topic, as all topics share the names."""
    worker = Worker(streams.stream, streams, **{"codec": "utf8", **settings})
    worker.handler(handler)
    return worker


def phases(worker):
    return {each.phase for each in worker.metrics().partitions.values()}


def committed(streams, partition):
    """Returns how many records of a partition its group has done."""
    with closing(streams.open_administration(streams.stream)) as administration:
        return administration.infos([partition])[0].done


def test_records_are_handled_in_order_and_their_offsets_committed(streams):
    got = Collected()
    send(streams, 1_000, h=b"1")
    summary = worker_of(streams, got).run(until_idle=0.2)
    assert (summary.handled, summary.dropped, summary.lost) == (1_000, 0, 0)
    assert got.is_in_order()
    assert sorted(map(int, got.values)) == list(range(1_000))
    assert [committed(streams, each) for each in (0, 1)] == [500, 500]
    record = got.records[0][0]
    assert (record.offset, record.headers) == (0, (("h", b"1"),))
    assert record.timestamp_ms > 1_700_000_000_000


def test_next_worker_continues_behind_what_is_committed(streams):
    send(streams, 10, partition=0)
    worker_of(streams, Collected()).run(until_idle=0.2)
    send(streams, 5, partition=0, prefix="new ")
    got = Collected()
    worker_of(streams, got).run(until_idle=0.2)
    assert got.values == [f"new {number}" for number in range(5)]


def test_tokens_grow_and_are_kept_beside_the_offset(streams):
    tokens = []
    for _ in range(3):
        send(streams, 1, partition=0)
        worker_of(streams, lambda batch: tokens.append(batch.token)).run(until_idle=0.2)
    assert tokens == sorted(set(tokens))
    with closing(streams.open_administration(streams.stream)) as administration:
        assert administration.infos([0])[0].token == tokens[-1]


def test_token_is_above_the_stored_one(streams):
    """As if the worker that stored it had a clock that is ahead."""
    ahead = time.time_ns() // 1_000 + 3_600_000_000
    send(streams, 1, partition=0)
    settings = {"bootstrap.servers": streams._server.bootstrap, "group.id": streams.stream}
    with closing(Consumer(settings)) as consumer:
        place = TopicPartition(
            streams.stream, 0, 0, metadata_of(Owned(0, token=ahead, began=2), "another")
        )
        consumer.commit(offsets=[place], asynchronous=False)
    tokens = []
    worker_of(streams, lambda batch: tokens.append(batch.token)).run(until_idle=0.2)
    assert tokens[0] > ahead


def test_new_group_begins_at_the_end_if_it_is_to(streams):
    send(streams, 5)
    got = Collected()
    worker = worker_of(streams, got, start=Start.LATEST)
    with running(worker):
        owns(worker, 2)
        send(streams, 4, prefix="new ")
        eventually(lambda: got.count == 4, "the new ones are handled")
    assert all(value.startswith("new ") for value in got.values)


def test_new_group_of_two_workers_begins_at_the_end_of_all_partitions(new_kafka_broker):
    """The second one opens its partition when the first has committed another."""
    streams = topic_on(new_kafka_broker)
    send(streams, 6)
    got = [Collected(), Collected()]
    first, second = (worker_of(streams, each, start=Start.LATEST) for each in got)
    with running(first, second):
        owns(first, 1)
        owns(second, 1)
        send(streams, 2, prefix="new ")
        eventually(lambda: sum(each.count for each in got) >= 2, "the new ones are handled")
    assert sorted(got[0].values + got[1].values) == ["new 0", "new 1"]


def test_partition_goes_to_another_worker_behind_the_handler_that_is_inside(streams):
    blocker, got = Blocker(), Collected()
    first, second = Worker(streams.stream, streams, codec="utf8"), worker_of(streams, got)
    first.handler_factory(lambda assignment: blocker.of())  # inside both partitions
    send(streams, 2, partition=0)
    send(streams, 2, partition=1)
    with running(first):
        owns(first, 2)
        eventually(lambda: len(blocker.inside) == 2, "a handler is inside each")
        with running(second):
            eventually(lambda: Phase.DRAINING in phases(first), "a partition waits for its handler")
            assert second.assigned() == {}
            blocker.release()
            owns(second, 1)
            owns(first, 1)
            eventually(
                lambda: committed(streams, 0) + committed(streams, 1) == 4, "all are committed"
            )
    inside = sum(len(batch.records) for (batch,) in blocker.inside)
    assert inside + got.count == 4


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_calm_joins_and_leaves_of_busy_workers_repeat_nothing(new_kafka_broker, protocol):
    """With the classic protocol, commits wait at the broker while the group is balanced anew."""
    streams = topic_on(new_kafka_broker, partitions=6, protocol=protocol)
    streams.producer().close()
    set_session(streams, 30_000)
    handled, sent, stop = Counter(), [], threading.Event()

    def handler_of(assignment):
        def handler(batch):
            time.sleep(0.02)
            handled.update((batch.partition, each.offset) for each in batch.records)

        return handler

    def feed():
        with streams.producer(codec="utf8") as producer:
            while not stop.is_set():
                for partition in range(6):
                    sent.append((partition, producer.send("x", partition=partition)))

    workers = [Worker(streams.stream, streams, codec="utf8") for _ in range(3)]
    for worker in workers:
        worker.handler_factory(handler_of)
    feeder = threading.Thread(target=feed)
    with running(*workers[:2]):
        owns(workers[0], 3)
        owns(workers[1], 3)
        feeder.start()
        try:
            for _ in range(2):
                with running(workers[2]):
                    for worker in workers:
                        owns(worker, 2)
                    assert not workers[2].leave().unfinished
                owns(workers[0], 3)
                owns(workers[1], 3)
                workers[2] = Worker(streams.stream, streams, codec="utf8")
                workers[2].handler_factory(handler_of)
        finally:
            stop.set()
            feeder.join()
        eventually(lambda: len(handled) == len(sent), "all are handled")
        assert [worker.metrics().lost for worker in workers[:2]] == [0, 0]
    assert set(handled) == set(sent)
    assert max(handled.values()) == 1


def test_partition_that_moves_before_it_is_open_is_not_lost(streams, monkeypatch):
    """The first of several workers that start together gets what the others will have."""
    look_up, may_open = KafkaConnection._look_up, threading.Event()

    def look_up_later(connection, openings, start):
        assert may_open.wait(WAIT_S)
        return look_up(connection, openings, start)

    monkeypatch.setattr(KafkaConnection, "_look_up", look_up_later)
    got = Collected()
    first, second = worker_of(streams, got), worker_of(streams, got)
    with running(first):
        eventually(lambda: phases(first) == {Phase.OPENING}, "it is opening its partitions")
        with running(second):
            owned = first._member.connection._ownership.owned
            is_moving = "the broker takes one of them back"
            eventually(lambda: any(each.is_revoked for each in list(owned.values())), is_moving)
            may_open.set()
            owns(first, 1)
            owns(second, 1)
            assert (first.metrics().lost, second.metrics().lost) == (0, 0)


def test_handler_that_does_not_end_gives_its_partition_up_after_revoke_wait(new_kafka_broker):
    streams = topic_on(new_kafka_broker, revoke_wait=0.2)
    blocker, lost = Blocker(), []
    first = Worker(streams.stream, streams, codec="utf8", on_lost=lost.extend)
    first.handler_factory(lambda assignment: blocker.of())
    second = worker_of(streams, Collected())
    send(streams, 1, partition=0)
    send(streams, 1, partition=1)
    with running(first):
        owns(first, 2)
        eventually(lambda: len(blocker.inside) == 2, "a handler is inside each")
        with running(second):
            owns(second, 1)
            eventually(lambda: len(lost) == 1, "it is lost here")
            blocker.release()
    assert first.metrics().lost == 1


def test_dead_letters_go_to_their_topic_with_their_origin(streams):
    def handler(batch):
        if "2" in batch.values:
            raise ValueError("bad cents")

    send(streams, 4, partition=0)
    worker = worker_of(streams, handler, retry=QUICK, on_failure=OnFailure.DEAD_LETTER)
    summary = worker.run(until_idle=0.2)
    assert (summary.handled, summary.dead) == (3, 1)
    assert committed(streams, 0) == 4
    dead = KafkaStreams(f"{streams.stream}.dead", bootstrap=streams._server.bootstrap)
    got = Collected()
    worker_of(dead, got).run(until_idle=0.2)
    [letter] = got.records[0]
    headers = dict(letter.headers)
    assert letter.value == "2"
    assert (headers["dead-offset"], headers["dead-group"]) == (b"2", streams.stream.encode())
    assert b"bad cents" in headers["dead-error"]


def test_truncated_topic_is_noticed(streams):
    send(streams, 10, partition=0)
    worker_of(streams, Collected()).run(until_idle=0.2)
    send(streams, 10, partition=0)
    truncate(streams, 0, 15)
    with pytest.raises(TruncatedError, match="/0: 5 records after offset 9"):
        worker_of(streams, Collected()).run(max_seconds=WAIT_S)
    summary = worker_of(streams, Collected(), on_gap="skip").run(until_idle=0.2)
    assert (summary.handled, summary.lost_records) == (5, 5)
    assert committed(streams, 0) == 20


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_retention_that_overtakes_a_running_worker_is_noticed(
    new_kafka_broker, protocol, monkeypatch
):
    monkeypatch.setattr("batchqueue.groups.kafka.consumer._MOST_RECORDS", 5)
    small = {"queued.max.messages.kbytes": 1_024, "queued.min.messages": 1}
    streams = topic_on(new_kafka_broker, protocol=protocol, config=small)
    blocker, got = Blocker(), Collected()

    def handler(batch):
        if "wait 0" in batch.values:
            blocker(batch)
        got(batch)

    send(streams, 1, partition=0, prefix="wait ")
    worker = worker_of(streams, handler, on_gap="skip", prefetch=1, max_batch_items=1)
    with running(worker):
        assert blocker.entered.wait(WAIT_S)
        send_large(streams, 40)
        truncate(streams, 0, 35)
        blocker.release()
        eventually(lambda: committed(streams, 0) == 41, "what is left is handled")
    assert got.is_in_order()
    assert [record.offset for record in got.records[0]][-6:] == list(range(35, 41))
    # What was handled and not committed yet counts as lost, because it is gone as well.
    assert worker.metrics().lost_records >= 41 - got.count > 0


def test_group_begins_at_the_start_of_a_topic_that_ends_before_its_offset(streams, caplog):
    send(streams, 5, partition=0)
    settings = {"bootstrap.servers": streams._server.bootstrap, "group.id": streams.stream}
    with closing(Consumer(settings)) as consumer:
        consumer.commit(offsets=[TopicPartition(streams.stream, 0, 1_000)], asynchronous=False)
    got = Collected()
    worker_of(streams, got).run(until_idle=0.2)
    assert (got.count, committed(streams, 0)) == (5, 5)
    assert "/0: the group had done 1000 records and the partition ends at 5" in caplog.text


def test_markers_of_transactions_count_as_done(streams):
    send(streams, 2, partition=0)
    producer = transactional(streams)
    for commits in (True, False):
        producer.begin_transaction()
        producer.produce(streams.stream, b"in a transaction", partition=0)
        producer.flush()
        producer.commit_transaction() if commits else producer.abort_transaction()
    got = Collected()
    worker = worker_of(streams, got)
    with running(worker), closing(GroupMonitor(streams.stream, streams)) as monitor:
        eventually(lambda: got.count == 3 and monitor.metrics().lag == 0, "all is done")
    end = committed(streams, 0)
    assert end == 6  # with two markers and the aborted record
    truncate(streams, 0, end)
    assert worker_of(streams, got).run(until_idle=0.2).lost_records == 0


def test_record_without_a_value_or_with_a_null_header(streams):
    producer = Producer({"bootstrap.servers": streams._server.bootstrap})
    send(streams, 1, partition=0)
    producer.produce(streams.stream, None, b"key", partition=0)
    producer.produce(streams.stream, b"value", partition=0, headers=[("type", None)])
    producer.flush()
    got = Collected()
    worker = Worker(streams.stream, streams, codec="utf8")
    worker.add_handler(str, got)
    worker.add_handler(type(None), got)
    worker.run(until_idle=0.2)
    assert [(each.value, each.key) for each in got.records[0]] == [
        ("0", None),
        (None, b"key"),
        ("value", None),
    ]
    assert got.records[0][2].headers == (("type", b""),)


def test_leave_does_not_wait_for_a_revoke(new_kafka_broker):
    streams = topic_on(new_kafka_broker, revoke_wait=600)
    blocker = Blocker()
    first, second = Worker(streams.stream, streams), worker_of(streams, Collected())
    first.handler_factory(lambda assignment: blocker.of())
    send(streams, 1, partition=0)
    send(streams, 1, partition=1)
    with running(first):
        eventually(lambda: len(blocker.inside) == 2, "a handler is inside each")
        with running(second):
            eventually(lambda: Phase.DRAINING in phases(first), "a partition waits for its handler")
            first.leave(0)
            owns(second, 2)
            blocker.release()


@pytest.mark.parametrize("start", Start)
def test_added_partition_is_handled_from_its_start(streams, start):
    got = Collected()
    worker = worker_of(streams, got, start=start)
    with running(worker), closing(streams.open_administration(streams.stream)) as administration:
        owns(worker, 2)
        assert administration.resize(3) == 3
        with closing(
            KafkaStreams(streams.stream, bootstrap=streams._server.bootstrap).producer(codec="utf8")
        ) as producer:
            producer.send("of the third", partition=2)
        owns(worker, 3)
        eventually(lambda: got.values == ["of the third"], "its record is handled")


def test_monitor_shows_members_owners_and_lag(streams):
    send(streams, 6)
    worker = worker_of(streams, Collected(), name="here")
    with running(worker), closing(GroupMonitor(streams.stream, streams)) as monitor:
        owns(worker, 2)
        eventually(lambda: monitor.metrics().lag == 0, "all is done")
        metrics = monitor.metrics()
        assert metrics.members.keys() == {"here"}
        assert metrics.members["here"].partitions == (0, 1)
        assert {each.owner for each in metrics.partitions.values()} == {"here"}


def test_reset_is_refused_while_the_group_has_members(streams):
    send(streams, 3, partition=0)
    worker = worker_of(streams, Collected())
    with closing(streams.open_administration(streams.stream)) as administration:
        with running(worker):
            owns(worker, 2)
            with pytest.raises(KafkaRefusedError):
                administration.reset(0, -1, 0)
        eventually(lambda: not administration.group().members, "it has left")
        administration.reset(0, -1, 0)
    got = Collected()
    worker_of(streams, got).run(until_idle=0.2)
    assert got.count == 3


def test_keys_go_to_the_partitions_of_java(new_kafka_broker):
    """As `Utils.toPositive(Utils.murmur2(key)) % partitions`, computed by Kafka's own class."""
    streams = topic_on(new_kafka_broker, partitions=16)
    with streams.producer(codec="utf8") as producer:
        for key in ("a", "kafka", "order-17", ""):
            producer.send(key, key=key)
    got = Collected()
    worker_of(streams, got).run(until_idle=0.2)
    found = {record.value: number for number, each in got.records.items() for record in each}
    assert found == {key: murmur2(key.encode()) % 16 for key in ("a", "kafka", "order-17", "")}


def murmur2(data):
    """MurmurHash2 by Austin Appleby, with Kafka's seed."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) - len(data) % 4
    for place in range(0, whole, 4):
        part = int.from_bytes(data[place : place + 4], "little") * factor & mask
        part = (part ^ part >> 24) * factor & mask
        value = (value * factor & mask) ^ part
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * factor & mask
    value = (value ^ value >> 13) * factor & mask
    return (value ^ value >> 15) & 0x7FFFFFFF


def test_auto_takes_the_classic_protocol_of_older_brokers(kafka_broker, caplog):
    streams = topic_on(kafka_broker, protocol="auto")
    got = Collected()
    send(streams, 10)
    with caplog.at_level(logging.INFO, "batchqueue"):
        summary = worker_of(streams, got).run(until_idle=0.2)
    assert (summary.handled, got.count) == (10, 10)
    assert "have the classic group protocol only; using it" in caplog.text


def test_new_protocol_is_refused_where_brokers_do_not_have_it(kafka_broker):
    streams = topic_on(kafka_broker)
    send(streams, 1)
    with pytest.raises(KafkaRefusedError, match="use protocol='classic'"):
        worker_of(streams, Collected()).run()


def test_typo_in_a_topic_does_not_create_it(kafka_broker):
    """As brokers do by default when a client lists the topic."""
    streams = KafkaStreams("no-such-topic", bootstrap=kafka_broker.address)
    with pytest.raises(ConfigError, match='topic "no-such-topic" does not exist on'):
        worker_of(streams, Collected()).run()
    assert (
        "no-such-topic"
        not in AdminClient({"bootstrap.servers": kafka_broker.address}).list_topics().topics
    )


def test_offset_behind_an_open_transaction_is_kept(streams):
    """As other consumers commit it, which read what is not committed."""
    send(streams, 3, partition=0)
    producer = transactional(streams)
    producer.begin_transaction()
    producer.produce(streams.stream, b"open", partition=0)
    producer.flush(WAIT_S)
    settings = {"bootstrap.servers": streams._server.bootstrap, "group.id": streams.stream}
    with closing(Consumer(settings)) as consumer:
        place = TopicPartition(streams.stream, 0, 4)
        consumer.commit(offsets=[place], asynchronous=False)
    got = Collected()
    worker = worker_of(streams, got)
    with running(worker):
        owns(worker, 2)
        producer.commit_transaction(WAIT_S)
        send(streams, 1, partition=0, prefix="after ")
        eventually(lambda: got.count > 0, "one is handled")
    assert got.values == ["after 0"]


def test_heartbeat_does_not_depend_on_the_broker_that_describes_topics(streams, monkeypatch):
    worker = worker_of(streams, Collected())
    with running(worker):
        owns(worker, 2)

        def unavailable(self, timeout_s=None):
            raise StreamUnavailableError(streams.stream, "it does not answer")

        monkeypatch.setattr(KafkaAdmin, "known_partitions", unavailable)
        connection = worker._member.connection
        assert isinstance(connection.beat(connection._ownership.session, 9, 5_000), Beaten)


def test_call_of_a_closed_connection_is_refused(streams):
    """As one that still waits for the brokers when the worker has left."""
    send(streams, 1)
    connection = streams.connect(streams.stream, lease_ms=5_000, name="here")
    connection.close()
    with pytest.raises(StreamUnavailableError, match="the connection is closed"):
        connection.infos([0])


def test_revoke_waits_at_most_for_half_of_a_session_for_which_all_members_wait():
    assert KafkaMembership("classic", 6_000, 1_000).revoke_wait_s(30) == 2.5
    assert KafkaMembership("classic", 6_000, 1_000).revoke_wait_s(1) == 1
    assert KafkaMembership("consumer", 6_000, 1_000).revoke_wait_s(30) == 30


@pytest.mark.parametrize("exactly_once", [False, True])
def test_forked_child_with_clients_of_its_parent_exits(new_kafka_broker, exactly_once):
    """librdkafka waits for the threads of a client that is deleted, and the child has none."""
    program = f"""
import os, sys
from batchqueue.groups import GroupMonitor, KafkaStreams, Worker

orders = KafkaStreams(
    "orders-{uuid4()}",
    bootstrap="{new_kafka_broker.address}",
    partitions=1,
    exactly_once={exactly_once},
)
producer = orders.producer()
producer.send(b"x")
monitor = GroupMonitor("billing", orders)
monitor.metrics()
worker = Worker("billing", orders)
worker.handler(print)
worker.start()
if os.fork() == 0:
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
worker.leave(0)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert "3" in done.stdout.splitlines(), done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_producer_of_a_parent_sends_in_a_forked_child(new_kafka_broker):
    streams = topic_on(new_kafka_broker)
    with streams.producer(codec="utf8") as producer:
        producer.send("of the parent")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                producer.send("of the child")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.send("of the parent")
    got = Collected()
    worker_of(streams, got).run(until_idle=0.2)
    assert sorted(got.values) == ["of the child", "of the parent", "of the parent"]


def test_threads_share_a_producer(new_kafka_broker):
    streams = topic_on(new_kafka_broker)
    with streams.producer(codec="utf8") as producer, ThreadPoolExecutor(8) as pool:
        offsets = list(pool.map(lambda n: producer.send(str(n), partition=0), range(200)))
    assert sorted(offsets) == list(range(200))


class TestRefused:
    def test_missing_topic(self, new_kafka_broker):
        streams = KafkaStreams("no-such-topic", bootstrap=new_kafka_broker.address)
        with pytest.raises(ConfigError, match='topic "no-such-topic" does not exist on'):
            worker_of(streams, Collected()).run()

    def test_another_number_of_partitions(self, streams):
        send(streams, 1)
        other = KafkaStreams(streams.stream, bootstrap=streams._server.bootstrap, partitions=5)
        with pytest.raises(ConfigError, match="has 2 partitions, partitions=5 was given"):
            worker_of(other, Collected()).run()

    def test_lease(self, streams):
        send(streams, 1)
        with pytest.raises(ConfigError, match="lease_ms is 1000, and has no effect on Kafka"):
            worker_of(streams, Collected(), lease_ms=1_000).run()

    def test_record_that_is_too_large(self, new_kafka_broker):
        streams = topic_on(new_kafka_broker)
        with streams.producer(codec="bytes") as producer:
            with pytest.raises(KafkaRefusedError, match="send smaller records"):
                producer.send(b"x" * 2_000_000)
            assert producer.send(b"x", partition=0) == 0

    def test_record_that_is_too_large_for_its_topic(self, new_kafka_broker):
        streams = topic_on(new_kafka_broker, config={"message.max.bytes": 4_000_000})
        with streams.producer(codec="bytes") as producer:
            with pytest.raises(KafkaRefusedError, match="send smaller records"):
                producer.send(os.urandom(2_000_000))
            assert producer.send(b"x", partition=0) == 0

    def test_commands_in_the_commit(self, streams):
        errors = []

        def handler(batch):
            with pytest.raises(ConfigError, match="use a Fence") as raised:
                batch.commit_with(("INCR", "key"))
            errors.append(raised.value)

        send(streams, 1, partition=0)
        worker_of(streams, handler).run(until_idle=0.2)
        assert len(errors) == 1

    def test_length_of_a_topic(self, streams):
        with pytest.raises(ConfigError, match="set the retention of the topic"):
            streams.producer(max_len=5)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"bootstrap": ""}, 'give "host:port"'),
            ({"protocol": "eager"}, "protocol is 'eager'; give 'auto' or 'consumer' or 'classic'"),
            (
                {"protocol": "consumer", "config": {"session.timeout.ms": 6_000}},
                "config has 'session.timeout.ms', which only the classic protocol has",
            ),
            ({"revoke_wait": -1}, "revoke_wait is -1"),
            ({"revoke_wait": 4_000}, "revoke_wait is 4000 s; give at most 3600"),
            ({"config": {"group.id": "x"}}, "use the group of the worker"),
            ({"config": {"isolation.level": "read_uncommitted"}}, "config has 'isolation.level'"),
            ({"config": {"session.timeout.ms": "6s"}}, "session.timeout.ms is '6s'; give millisec"),
            (
                {"config": {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 9_000}},
                "heartbeat.interval.ms is 9000, and session.timeout.ms is 6000; give a third",
            ),
            (
                {"topic": "orders/eu"},
                "the topic is 'orders/eu'; a topic of Kafka has 1 to 249 lett",
            ),
            ({"topic": ".."}, r"the topic is '\.\.'"),
            ({"partitions": 0}, "partition_count is 0"),
        ],
    )
    def test_settings(self, settings, message):
        with pytest.raises(ConfigError, match=message):
            KafkaStreams(**{"topic": "orders", "bootstrap": "localhost:9092", **settings})


def test_setting_that_librdkafka_does_not_know_is_named(new_kafka_broker):
    streams = topic_on(new_kafka_broker, config={"sasl.pasword": "secret"})
    with pytest.raises(ConfigError, match="No such configuration property"):
        worker_of(streams, Collected()).run()


def test_reason_why_no_broker_answers_is_named(monkeypatch):
    monkeypatch.setattr("batchqueue.groups.kafka.server.CALL_S", 2.0)
    streams = KafkaStreams("orders", bootstrap="127.0.0.1:9")
    with pytest.raises(StreamUnavailableError, match=r"did not answer in 2 s .*Connection refused"):
        worker_of(streams, Collected()).run()


def test_stream_is_a_value_without_secrets_in_its_text():
    secret = {"sasl.password": "secret"}
    streams = KafkaStreams("orders", bootstrap="localhost:9092", config=secret)
    assert "secret" not in repr(vars(streams))
    assert repr(streams) == "KafkaStreams('orders', bootstrap='localhost:9092')"
    assert pickle.loads(pickle.dumps(streams)) == streams
    with pytest.raises(AttributeError, match="cannot be changed"):
        streams.stream = "other"


def send_large(streams, count):
    """Sends more than a consumer holds of a partition."""
    with streams.producer(codec="utf8") as producer:
        for number in range(count):
            producer.send(f"{number}" + "x" * 900_000, partition=0)


def transactional(streams):
    producer = Producer(
        {"bootstrap.servers": streams._server.bootstrap, "transactional.id": streams.stream}
    )
    producer.init_transactions(WAIT_S)
    return producer


def truncate(streams, partition, before):
    admin = AdminClient({"bootstrap.servers": streams._server.bootstrap})
    [asked] = admin.delete_records([TopicPartition(streams.stream, partition, before)]).values()
    asked.result()
