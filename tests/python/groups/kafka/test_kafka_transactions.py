"""Records that handlers send are stored once, together with the offsets of their batches."""

import os
import signal
import threading
from collections import Counter, defaultdict
from contextlib import closing
from functools import partial
from typing import ClassVar
from uuid import uuid4

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from batchqueue import ConfigError, RetryPolicy
from batchqueue.groups import (
    GroupMonitor,
    KafkaRefusedError,
    KafkaStreams,
    OnFailure,
    Worker,
)
from core_support.waits import WAIT_S, eventually
from groups_support.chaos import read_committed
from groups_support.workers import Blocker, Collected, owns, running, send

QUICK = RetryPolicy(attempts=None, backoff_ms=1, max_backoff_ms=20)

pytestmark = pytest.mark.matrix(4, name="groups on Kafka")


@pytest.fixture
def streams(new_kafka_broker):
    """Streams whose workers send to the topic `<stream>.out`, which has three partitions."""
    streams = exactly_once(new_kafka_broker)
    create(streams, out(streams), 3)
    streams.producer().close()
    return streams


def exactly_once(broker, **settings):
    return KafkaStreams(
        f"orders-{uuid4()}",
        bootstrap=broker.address,
        partitions=2,
        exactly_once=True,
        **{"config": {"transaction.timeout.ms": 3_000}, **settings},
    )


def out(streams):
    return f"{streams.stream}.out"


def create(streams, topic, partitions):
    admin = AdminClient({"bootstrap.servers": streams._server.bootstrap})
    [made] = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
    made.result(WAIT_S)
    eventually(lambda: len(admin.list_topics(topic).topics[topic].partitions) == partitions)


def read(streams, topic=None):
    """Returns what consumers of committed records see of a topic, by partition."""
    return read_committed(KafkaStreams(topic or out(streams), bootstrap=streams._server.bootstrap))


def values(streams, topic=None):
    return [each.value().decode() for run in read(streams, topic).values() for each in run]


def worker_of(streams, handler, **settings):
    worker = Worker(streams.stream, streams, **{"codec": "utf8", "retry": QUICK, **settings})
    worker.handler(handler)
    return worker


def forwarding(streams):
    """Returns a handler that sends each value to the other topic, with its partition as the key."""

    def forward(batch):
        for value in batch.values:
            batch.send(out(streams), value, key=f"{batch.partition}")

    return forward


def check_once(streams, count):
    """All values from 0 up are there once, in the order of their partition."""
    found = read(streams)
    messages = [each for run in found.values() for each in run]
    assert Counter(int(each.value()) for each in messages) == Counter(range(count))
    for run in found.values():
        by_key = defaultdict(list)
        for each in run:
            by_key[each.key()].append(int(each.value()))
        assert all(each == sorted(each) for each in by_key.values())


def committed(streams):
    """Returns how many records the group has done."""
    with closing(streams.open_administration(streams.stream)) as administration:
        return sum(each.done for each in administration.infos([0, 1]))


def test_records_are_stored_with_the_offsets(streams):
    send(streams, 1_000)
    summary = worker_of(streams, forwarding(streams)).run(until_idle=0.5)
    assert (summary.handled, summary.lost) == (1_000, 0)
    check_once(streams, 1_000)
    assert committed(streams) == 1_000


def test_value_key_and_headers_are_kept(streams):
    def forward(batch):
        batch.send(out(streams), "text", key=7, headers={"a": "1"})
        batch.send(out(streams), b"bytes", key=b"key", headers=[("a", b"1"), ("a", b"2")])
        batch.send(out(streams), None, key="gone")

    send(streams, 1, partition=0)
    worker_of(streams, forward).run(until_idle=0.5)
    found = [
        (each.key(), each.value(), each.headers()) for run in read(streams).values() for each in run
    ]
    assert sorted(found) == [
        (b"7", b"text", [("a", b"1")]),
        (b"gone", None, None),
        (b"key", b"bytes", [("a", b"1"), ("a", b"2")]),
    ]


def test_attempt_that_raises_sends_nothing(streams):
    def forward(batch):
        for value in batch.values:
            batch.send(out(streams), f"{value} in attempt {batch.attempt}")
        if batch.attempt < 3:
            raise ValueError("not yet")

    send(streams, 5, partition=0)
    worker_of(streams, forward, max_batch_items=1).run(until_idle=0.5)
    assert sorted(values(streams)) == [f"{number} in attempt 3" for number in range(5)]


def test_records_of_the_mark_are_stored(streams):
    """The third record is handled before the first one, and waits for the second one."""
    forward, blocker = forwarding(streams), Blocker()
    worker = Worker(streams.stream, streams, codec="utf8", max_batch_items=1)

    def first(batch):
        eventually(lambda: worker.metrics().handled == 1, "the third one is handled")
        forward(batch)

    def second(batch):
        blocker(batch)
        forward(batch)

    for kind, handler in (("a", first), ("b", second), ("c", forward)):
        worker.add_handler(kind, handler)
    with streams.producer(codec="utf8") as producer:
        for number, kind in enumerate("abc"):
            producer.send(str(number), partition=0, headers={"type": kind})
    with running(worker):
        eventually(lambda: committed(streams) == 1, "the first one is committed")
        assert values(streams) == ["0"]
        blocker.release()
        eventually(lambda: committed(streams) == 3, "all is committed")
    assert sorted(values(streams)) == ["0", "1", "2"]


def test_token_is_stored_beside_the_offset(streams):
    tokens = []
    send(streams, 1, partition=0)
    worker_of(streams, lambda batch: tokens.append(batch.token)).run(until_idle=0.5)
    with closing(streams.open_administration(streams.stream)) as administration:
        assert administration.infos([0])[0].token == tokens[0]


def test_partitions_move_between_workers_that_send(streams):
    first, second = (worker_of(streams, forwarding(streams)) for _ in range(2))
    sent, stop = [], threading.Event()

    def feed():
        with streams.producer(codec="utf8") as producer:
            while not stop.is_set():
                producer.send(str(len(sent)), partition=len(sent) % 2)
                sent.append(None)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        with running(first):
            owns(first, 2)
            for _ in range(2):
                with running(second):
                    owns(first, 1)
                    owns(second, 1)
                    assert not second.leave().unfinished
                owns(first, 2)
                second = worker_of(streams, forwarding(streams))
            stop.set()
            feeder.join()
            eventually(lambda: committed(streams) >= len(sent), "all is committed")
    finally:
        stop.set()
    check_once(streams, len(sent))


class Faulty(Producer):
    """A producer of transactions whose calls a test fails, once each, before or after they work."""

    faults: ClassVar = {}

    def __init__(self, settings):
        super().__init__(settings)
        self.name = settings.get("transactional.id")

    def _call(self, name, call, *arguments):
        fault = self.faults.pop(name, None)
        return call(*arguments) if fault is None else fault(self, partial(call, *arguments))

    def send_offsets_to_transaction(self, *arguments):
        return self._call("offsets", super().send_offsets_to_transaction, *arguments)

    def commit_transaction(self, *arguments):
        return self._call("commit", super().commit_transaction, *arguments)


@pytest.fixture
def faults(monkeypatch):
    """The faults of calls, by name."""
    monkeypatch.setattr(confluent_kafka, "Producer", Faulty)
    monkeypatch.setattr(Faulty, "faults", {})
    return Faulty.faults


def raising(code, *, after=False, **flags):
    """Returns a fault that raises an error, before or after the call was made."""

    def fault(producer, call):
        if after:
            call()
        raise KafkaException(KafkaError(code, "as a test wants it", **flags))

    return fault


@pytest.fixture
def sending(streams):
    """Returns a running worker that has handled the first values, and what sends the others."""
    worker = worker_of(streams, forwarding(streams))
    with running(worker):
        send(streams, 10)
        eventually(lambda: committed(streams) == 10, "it is at work")
        yield worker


def send_more(streams, worker, count):
    """Sends the values from 10 up, and waits until they are committed."""
    with streams.producer(codec="utf8") as producer:
        for number in range(10, count):
            producer.send(str(number), partition=number % 2)
    eventually(lambda: committed(streams) == count, "all is committed")
    check_once(streams, count)


def test_transaction_that_is_aborted_is_sent_again(streams, faults, sending):
    generation = KafkaError.ILLEGAL_GENERATION
    faults["offsets"] = raising(generation, after=True, txn_requires_abort=True)
    send_more(streams, sending, 30)
    assert not faults
    assert sending.metrics().lost == 0


def test_commit_that_must_be_aborted_is_sent_again(streams, faults, sending):
    faults["commit"] = raising(KafkaError._INCONSISTENT, txn_requires_abort=True)
    send_more(streams, sending, 30)
    assert not faults
    assert sending.metrics().lost == 0


@pytest.mark.parametrize("after", [False, True], ids=["not stored", "stored"])
def test_transaction_whose_end_is_unknown(streams, faults, sending, after):
    """The worker reads which of both it was from the broker, once the transaction has ended."""
    faults["commit"] = raising(KafkaError._FENCED, after=after, fatal=True)
    send_more(streams, sending, 30)
    assert not faults


def test_call_that_may_be_repeated_is_repeated(streams, faults, sending):
    for name in ("offsets", "commit"):
        faults[name] = raising(KafkaError._TIMED_OUT, retriable=True)
    send_more(streams, sending, 30)
    assert not faults
    assert sending.metrics().lost == 0


def test_producer_that_was_fenced_is_replaced(streams, faults, sending):
    def fence(producer, call):
        settings = {"bootstrap.servers": streams._server.bootstrap}
        other = Producer({**settings, "transactional.id": producer.name})
        other.init_transactions(WAIT_S)
        call()

    faults["offsets"] = fence
    send_more(streams, sending, 30)
    assert not faults


@pytest.fixture
def faulty_commit(streams, faults, sending, new_kafka_broker):
    """Returns a function that handles one more record, with a fault in its transaction."""

    def handle(name, fault):
        for partition in (0, 1):
            sending.pause(partition)
        with streams.producer(codec="utf8") as producer:
            producer.send("10", partition=0)
        faults[name] = fault
        for partition in (0, 1):
            sending.resume(partition)
        eventually(lambda: not faults, "it is in the transaction")

    yield handle
    eventually(lambda: committed(streams) == 11, "it is committed")
    check_once(streams, 11)


def test_broker_that_does_not_answer_for_longer_than_the_transaction(
    faulty_commit, new_kafka_broker
):
    thawed = threading.Event()

    def thaw():
        new_kafka_broker.signal(signal.SIGCONT)
        thawed.set()

    def freeze(producer, call):
        new_kafka_broker.signal(signal.SIGSTOP)
        threading.Timer(5, thaw).start()
        call()

    faulty_commit("commit", freeze)
    assert thawed.wait(WAIT_S)


@pytest.mark.parametrize("call", ["offsets", "commit"])
def test_broker_that_restarts_in_a_transaction(faulty_commit, new_kafka_broker, call):
    restarted = threading.Event()

    def restart(producer, call):
        new_kafka_broker.restart()
        restarted.set()
        call()

    faulty_commit(call, restart)
    assert restarted.wait(WAIT_S)
    new_kafka_broker.wait_for_groups()


def test_no_offset_is_stored_without_a_transaction(streams, monkeypatch):
    """It would take the place of one that is pending in a transaction."""
    commits = []

    class Watched(Consumer):
        def commit(self, *arguments, **settings):
            commits.append(settings)
            return super().commit(*arguments, **settings)

    monkeypatch.setattr(confluent_kafka, "Consumer", Watched)
    worker = worker_of(streams, forwarding(streams))
    with running(worker):
        send(streams, 10)
        eventually(lambda: committed(streams) == 10, "all is committed")
        connection = worker._member.connection
        connection.beat(connection._ownership.session, 9, 5_000)
    assert commits == []
    check_once(streams, 10)  # the heartbeat has not sent the records again


def pending(streams, place):
    """Returns a producer whose transaction holds an offset of the group, as that of a worker."""
    settings = {"bootstrap.servers": streams._server.bootstrap}
    producer = Producer({**settings, "transactional.id": f"{uuid4()}"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    with closing(Consumer({**settings, "group.id": streams.stream})) as consumer:
        # Brokers do not check the membership if none is given.
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), WAIT_S)
    return producer


def test_partition_waits_for_a_transaction_that_holds_its_offset(streams, caplog):
    """As after a crash, until the transaction of the dead worker has ended."""
    send(streams, 10, partition=0)
    producer = pending(streams, TopicPartition(streams.stream, 0, 4))
    got = Collected()
    worker = worker_of(streams, got)
    with running(worker):
        eventually(lambda: "a transaction is open" in caplog.text, "the log says why it waits")
        producer.commit_transaction(WAIT_S)
        eventually(lambda: got.count == 6, "it begins behind the offset")
    assert [record.offset for record in got.records[0]] == list(range(4, 10))


def test_monitor_does_not_wait_for_transactions(streams):
    send(streams, 10, partition=0)
    producer = pending(streams, TopicPartition(streams.stream, 0, 4))
    with GroupMonitor(streams.stream, streams) as monitor:
        assert monitor.metrics().lag == 10
        producer.commit_transaction(WAIT_S)
        eventually(lambda: monitor.metrics().lag == 6, "its offset is stored")


class TestRefusedRecords:
    def forward(self, streams, topic, value="bad"):
        """Returns a handler that sends what partition 0 has to a topic, and the rest as usual."""

        def forward(batch):
            for each in batch.values:
                bad = batch.partition == 0
                batch.send(topic if bad else out(streams), value if bad else each)

        return forward

    def test_missing_topic_holds_up_its_partition_only(self, streams, caplog):
        missing = f"{streams.stream}.missing"
        worker = worker_of(streams, self.forward(streams, missing))
        with running(worker):
            send(streams, 4)
            eventually(lambda: f"{missing}: the broker refused" in caplog.text, "the log names it")
            assert "create the topic" in caplog.text
            for number in range(3, 8):  # in transactions that are aborted, and made anew without it
                send(streams, 1, partition=1)
                eventually(lambda n=number: committed(streams) == n, "the other one continues")
            assert f"{streams.stream}/1: the partition waits" not in caplog.text
            create(streams, missing, 1)
            eventually(lambda: committed(streams) == 9, "it is committed")
        assert values(streams, missing) == ["bad", "bad"]
        assert sorted(values(streams)) == [*"00000", "1", "3"]

    def test_record_that_is_too_large(self, streams, caplog):
        forward = self.forward(streams, out(streams), "x" * 2_000_000)
        worker = worker_of(
            streams,
            forward,
            retry=RetryPolicy(attempts=2, backoff_ms=1),
            on_failure=OnFailure.STOP,
        )
        send(streams, 2)
        with pytest.raises(Exception, match="send smaller records"):
            worker.run(max_seconds=WAIT_S)
        assert committed(streams) <= 1

    def test_record_that_is_too_large_for_its_topic(self, new_kafka_broker, caplog):
        config = {"message.max.bytes": 4_000_000, "transaction.timeout.ms": 3_000}
        streams = exactly_once(new_kafka_broker, config=config)
        create(streams, out(streams), 3)
        large = os.urandom(1_500_000).hex()
        worker = worker_of(streams, self.forward(streams, out(streams), large))
        with running(worker):
            send(streams, 4)
            eventually(lambda: "send smaller records" in caplog.text, "the log says why")
            eventually(lambda: sorted(values(streams)) == ["1", "3"], "the other one continues")


class TestRefusals:
    def test_kafka_without_transactions(self, new_kafka_broker):
        errors = []

        def forward(batch):
            with pytest.raises(ConfigError, match="give KafkaStreams exactly_once=True"):
                batch.send("out", "x")
            errors.append(batch)

        streams = KafkaStreams(
            f"orders-{uuid4()}", bootstrap=new_kafka_broker.address, partitions=1
        )
        send(streams, 1)
        worker_of(streams, forward).run(until_idle=0.2)
        assert len(errors) == 1

    def test_commands(self, streams):
        def forward(batch):
            with pytest.raises(ConfigError, match="use a Fence"):
                batch.commit_with(("INCR", "key"))
            batch.send(out(streams), "refused")

        send(streams, 1, partition=0)
        worker_of(streams, forward).run(until_idle=0.5)
        assert values(streams) == ["refused"]

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {"protocol": "classic"},
                'protocol is "classic", with which .*use protocol="consumer"',
            ),
            (
                {"config": {"session.timeout.ms": 6_000}},
                "has 'session.timeout.ms', which only the classic protocol has; set consumer",
            ),
            ({"config": {"transactional.id": "x"}}, "use exactly_once"),
            ({"exactly_once": 1}, "exactly_once is 1"),
        ],
    )
    def test_settings(self, settings, message):
        with pytest.raises(ConfigError, match=message):
            KafkaStreams("orders", bootstrap="localhost:9092", **{"exactly_once": True, **settings})

    def test_brokers_with_the_classic_protocol_only(self, kafka_broker):
        streams = exactly_once(kafka_broker)
        send(streams, 1)
        with pytest.raises(KafkaRefusedError, match="'consumer', which exactly_once needs: use br"):
            worker_of(streams, Collected()).run()


def test_repr_names_the_mode():
    streams = KafkaStreams("orders", bootstrap="localhost:9092", exactly_once=True)
    assert repr(streams) == "KafkaStreams('orders', bootstrap='localhost:9092', exactly_once=True)"
