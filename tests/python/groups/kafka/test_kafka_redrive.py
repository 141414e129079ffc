"""`groups redrive` on a real broker: which dead letters go back, and that each goes once."""

import signal
import subprocess
import sys
from contextlib import closing
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from batchqueue import RetryPolicy
from batchqueue.cli import main
from batchqueue.groups import (
    KafkaRefusedError,
    KafkaStreams,
    OnFailure,
    StreamUnavailableError,
    Worker,
)
from batchqueue.groups.backend import Redriven
from batchqueue.groups.kafka.redrive import KafkaRedrive
from core_support.waits import WAIT_S, eventually
from groups_support.workers import Collected, send

pytestmark = pytest.mark.matrix(2, name="redrive on Kafka")


class Shop:
    """A topic of two partitions, its topic of dead letters, and groups that make them."""

    def __init__(self, broker):
        self.name = f"orders-{uuid4()}"
        self.address = broker.address
        self.streams = KafkaStreams(self.name, bootstrap=broker.address, partitions=2)
        self.streams.producer().close()
        self.admin = AdminClient({"bootstrap.servers": broker.address})

    def create_dead(self, partitions, **settings):
        config = {name.replace("_", "."): value for name, value in settings.items()}
        new = NewTopic(f"{self.name}.dead", partitions, 1, config=config)
        [made] = self.admin.create_topics([new]).values()
        made.result(WAIT_S)

    def alter(self, topic, **settings):
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        [made] = self.admin.incremental_alter_configs([resource]).values()
        made.result(WAIT_S)

    def forget(self, group):
        """Deletes a group, as brokers do after a week without commits."""
        [deleted] = self.admin.delete_consumer_groups([group]).values()
        deleted.result(WAIT_S)

    def remove(self, before):
        """Removes letters before an offset, -1 for all; returns the first offset that is left."""
        place = TopicPartition(f"{self.name}.dead", 0, before)
        [deleted] = self.admin.delete_records([place]).values()
        return deleted.result(WAIT_S).low_watermark

    def set_aside(self, count, *, partition, group="g", prefix="", expected=None, **headers):
        """Lets new records become dead letters of a group, but none that was sent back."""

        def fail(batch):
            if any(value.startswith(prefix) for value in batch.values):
                raise ValueError("no")

        send(self.streams, count, partition=partition, prefix=prefix, **headers)
        once = RetryPolicy(attempts=1)
        worker = Worker(
            group,
            self.streams,
            codec="utf8",
            retry=once,
            on_failure=OnFailure.DEAD_LETTER,
        )
        worker.handler(fail)
        assert worker.run(until_idle=0.2).dead == (expected or count)

    def letters(self, count, *, partition, group="g", origin=None, value=b"x", **more):
        """Writes dead letters as a worker does, into a partition of their topic."""
        producer = Producer({"bootstrap.servers": self.address, "enable.idempotence": True})
        headers = {
            "kind": b"x",
            "dead-stream": self.name.encode(),
            "dead-partition": str(partition if origin is None else origin).encode(),
            "dead-group": group.encode(),
            **more,
        }
        for number in range(count):
            about = {**headers, "dead-offset": str(number).encode()}
            text = value + str(number).encode() if value else value
            there = (f"{self.name}.dead", text, None, partition)
            producer.produce(*there, headers=list(about.items()))
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0

    def records(self, **settings):
        """Returns what the topic has: value, partition and headers of each record."""
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "none", "enable.partition.eof": True}
        )
        count = KafkaStreams(self.name, bootstrap=self.address).open_writer().partitions(None)
        places = [TopicPartition(self.name, each, 0) for each in range(count)]
        consumer.assign(places)
        found, ends = [], set()
        while len(ends) < count:
            message = consumer.poll(1)
            if message is not None and message.error() is not None:
                ends.add(message.partition())
            elif message is not None:
                found.append((message.value().decode(), message.partition(), message.headers()))
        consumer.close()
        return found


@pytest.fixture
def shop(new_kafka_broker):
    return Shop(new_kafka_broker)


@pytest.fixture
def redrive(capsys, shop):
    """Runs the command; returns its exit code, output and errors."""

    def run(*arguments, group="g"):
        where = ("--source", f"kafka://{shop.address}", "--stream", shop.name, "--group", group)
        code = main(["groups", "redrive", *where, *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def sent(count, shop, group="g"):
    letters = "1 dead letter" if count == 1 else f"{count:,} dead letters"
    return (0, f"{letters} of group {group} on {shop.name} sent back\n", "")


def values(shop):
    return [value for value, _, _ in shop.records()]


def test_letters_go_back_once_to_their_partition_without_their_headers(shop, redrive):
    shop.set_aside(3, partition=1, kind=b"x")
    assert redrive() == sent(3, shop)
    back = shop.records()[3:]
    assert back == [(str(number), 1, [("kind", b"x")]) for number in range(3)]
    assert redrive() == sent(0, shop)
    assert len(shop.records()) == 6


def test_worker_gets_what_was_sent_back(shop, redrive):
    shop.set_aside(3, partition=0)
    redrive()
    got = Collected()
    worker = Worker("g", shop.streams, codec="utf8")
    worker.handler(got)
    worker.run(until_idle=0.2)
    assert got.values == ["0", "1", "2"]


def test_letters_that_come_later_go_back_the_next_time(shop, redrive):
    shop.set_aside(2, partition=0)
    assert redrive() == sent(2, shop)
    shop.set_aside(2, partition=0, prefix="new")
    assert redrive() == sent(2, shop)


def test_without_a_topic_of_dead_letters_nothing_is_sent(shop, redrive):
    assert redrive() == sent(0, shop)


def test_without_letters_nothing_is_sent(shop, redrive):
    shop.create_dead(2)
    assert redrive() == sent(0, shop)


def test_letters_of_other_groups_and_other_records_are_skipped(shop, redrive):
    shop.create_dead(1)
    shop.letters(2, partition=0, group="other")
    shop.letters(2, partition=0)
    send(KafkaStreams(f"{shop.name}.dead", bootstrap=shop.address), 2, partition=0)
    shop.letters(1, partition=0, group="g2")
    assert redrive() == sent(2, shop)
    assert redrive() == sent(0, shop)
    assert redrive(group="other") == sent(2, shop, "other")


def test_partition_and_limit(shop, redrive):
    """With a single partition of dead letters, those of both partitions are mixed."""
    shop.create_dead(1)
    for origin in (0, 1, 0, 1):
        shop.letters(2, partition=0, origin=origin, value=f"{origin}-".encode())
    assert redrive("--partition", 1, "--limit", 1) == sent(1, shop)
    assert values(shop) == ["1-0"]
    assert redrive("--partition", 1, "--limit", 2) == sent(2, shop)
    assert redrive("--partition", 1) == sent(1, shop)
    assert redrive("--partition", 1) == sent(0, shop)
    assert redrive("--limit", 3) == sent(3, shop)
    assert redrive("--partition", 0) == sent(1, shop)
    assert redrive() == sent(0, shop)
    assert sorted(values(shop)) == ["0-0", "0-0", "0-1", "0-1", "1-0", "1-0", "1-1", "1-1"]


def test_letters_stay_in_order(shop, redrive):
    shop.create_dead(2)
    shop.letters(1_200, partition=0)
    assert redrive("--limit", 700) == sent(700, shop)
    assert redrive() == sent(500, shop)
    assert values(shop) == [f"x{number}" for number in range(1_200)]


def test_20_000_letters(shop, redrive):
    shop.create_dead(2)
    shop.letters(10_000, partition=0)
    shop.letters(10_000, partition=1)
    assert redrive() == sent(20_000, shop)
    assert len(values(shop)) == 20_000


def test_letter_of_a_partition_that_is_gone_goes_by_its_key(shop, redrive):
    shop.create_dead(1)
    shop.letters(2, partition=0, origin=7)
    assert redrive() == sent(2, shop)
    assert sorted(values(shop)) == ["x0", "x1"]


def test_letters_without_their_value_are_left_and_reported(shop, redrive):
    shop.create_dead(1, max_message_bytes="4000")
    with shop.streams.producer() as producer:
        producer.send(b"l" * 5_000, partition=0)
    shop.set_aside(1, partition=0, expected=2)
    code, out, err = redrive()
    assert (code, out) == (1, f"1 dead letter of group g on {shop.name} sent back\n")
    assert f"1 dead letter of {shop.name}.dead/0 left, because the topic had refused" in err
    assert err.endswith("say where the record was: offset 0\n")
    assert redrive() == sent(0, shop)


def test_topic_that_takes_small_batches_only_gets_letter_by_letter(shop, redrive):
    shop.create_dead(1)
    shop.letters(20, partition=0, value=b"l" * 1_000)
    shop.alter(shop.name, max_message_bytes="4000")
    assert redrive() == sent(20, shop)


def test_letter_that_the_topic_refuses_ends_the_redrive_there(shop, redrive):
    shop.create_dead(1)
    shop.letters(3, partition=0)
    shop.letters(1, partition=0, value=b"l" * 5_000)
    shop.letters(2, partition=0, value=b"y")
    shop.alter(shop.name, max_message_bytes="4000")
    code, out, err = redrive()
    assert (code, out) == (1, f"3 dead letters of group g on {shop.name} sent back\n")
    assert "raise message.max.bytes in config and max.message.bytes of the topic" in err
    shop.alter(shop.name, max_message_bytes="8000")
    assert redrive() == sent(3, shop)
    assert [value[:2] for value in values(shop)] == ["x0", "x1", "x2", "ll", "y0", "y1"]


# --- What is left of earlier redrives


@pytest.fixture
def at_call(monkeypatch):
    """Lets a method of a redrive do something else first, when it is called for the n-th time."""

    def install(name, number, action):
        calls, method = [], getattr(KafkaRedrive, name)

        def call(*arguments):
            calls.append(None)
            if len(calls) == number:
                action(arguments[0])
            return method(*arguments)

        monkeypatch.setattr(KafkaRedrive, name, call)

    return install


def is_complete(shop, count):
    return sorted(values(shop)) == sorted(f"x{number}" for number in range(count))


def test_second_redrive_ends_the_first_one(shop, redrive, at_call):
    shop.create_dead(1)
    shop.letters(1_200, partition=0)
    second = Redriven()

    def begin(first):
        with closing(shop.streams.open_administration("g")) as administration:
            administration.redrive(None, None, second)

    at_call("_commit", 2, begin)
    code, out, err = redrive()
    assert (code, out) == (1, f"500 dead letters of group g on {shop.name} sent back\n")
    assert "another redrive of this group has begun, and ended this one" in err
    assert second == Redriven(700)
    assert is_complete(shop, 1_200)


def test_second_redrive_ends_the_first_one_while_the_topic_refuses_a_letter(shop, redrive, at_call):
    shop.create_dead(1)
    shop.letters(600, partition=0)
    shop.letters(1, partition=0, value=b"l" * 70_000)
    shop.alter(shop.name, max_message_bytes="60000")
    second = Redriven()

    def begin(first):
        first._producer.flush()
        with (
            closing(shop.streams.open_administration("g")) as administration,
            pytest.raises(KafkaRefusedError, match=r"max\.message\.bytes"),
        ):
            administration.redrive(None, None, second)

    at_call("_produce", 600, begin)
    code, out, err = redrive()
    assert (code, out) == (1, f"500 dead letters of group g on {shop.name} sent back\n")
    assert "another redrive of this group has begun, and ended this one" in err
    assert second == Redriven(100)
    assert is_complete(shop, 600)


def test_redrive_that_learns_between_two_records_that_another_has_begun(shop, redrive, at_call):
    shop.create_dead(1)
    shop.letters(20, partition=0)

    def begin(first):
        with closing(shop.streams.open_administration("g")) as administration:
            administration.redrive(None, None, Redriven())
        first._producer.produce(shop.name, b"too late")
        with pytest.raises(KafkaException, match="fenced"):
            first._producer.flush()

    at_call("_produce", 10, begin)
    code, _, err = redrive()
    assert code == 1
    assert "another redrive of this group has begun, and ended this one" in err
    assert is_complete(shop, 20)


def test_redrive_that_is_killed_sends_nothing_twice(shop, redrive):
    shop.create_dead(1)
    shop.letters(1_200, partition=0)
    program = (
        "import os, sys; from batchqueue.cli import main\n"
        "from batchqueue.groups.kafka.redrive import KafkaRedrive\n"
        "produce, calls = KafkaRedrive._produce, iter(range(700))\n"
        "def call(*arguments):\n"
        "    if next(calls, None) is None:\n"
        "        arguments[0]._producer.flush()\n"
        "        os.kill(os.getpid(), 9)\n"
        "    produce(*arguments)\n"
        "KafkaRedrive._produce = call\n"
        "main(sys.argv[1:])\n"
    )
    where = ("--source", f"kafka://{shop.address}", "--stream", shop.name, "--group", "g")
    command = [sys.executable, "-c", program, "groups", "redrive", *where]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert redrive() == sent(700, shop)
    assert is_complete(shop, 1_200)


def test_redrive_that_is_interrupted_sends_nothing_twice(shop, redrive, at_call):
    shop.create_dead(1)
    shop.letters(1_200, partition=0)

    def interrupt(interrupted):
        interrupted._producer.flush()
        raise KeyboardInterrupt

    at_call("_produce", 700, interrupt)
    assert redrive()[:2] == (130, sent(500, shop)[1])
    send(shop.streams, 1, partition=0, prefix="new")
    assert values(shop)[-1] == "new0"  # an open transaction would hide it
    assert redrive() == sent(700, shop)
    assert len(set(values(shop))) == len(values(shop)) == 1_201


def test_restart_of_the_broker_sends_nothing_twice(shop, redrive, at_call, new_kafka_broker):
    shop.create_dead(1)
    shop.letters(1_200, partition=0)
    at_call("_commit", 2, lambda _: new_kafka_broker.restart())
    done = Redriven()

    def is_done():
        with closing(shop.streams.open_administration("g")) as administration:
            try:
                administration.redrive(None, None, done)
            except StreamUnavailableError:
                return False
        return True

    eventually(is_done, "the broker is back")
    assert is_complete(shop, 1_200)


def test_broker_that_is_away_ends_the_redrive(
    shop, redrive, at_call, monkeypatch, new_kafka_broker
):
    shop.create_dead(1)
    shop.letters(1_200, partition=0)
    broker = new_kafka_broker

    def hang(_):
        broker.signal(signal.SIGSTOP)
        monkeypatch.setattr("batchqueue.groups.kafka.redrive.CALL_S", 1.0)

    at_call("_commit", 2, hang)
    try:
        code, out, err = redrive()
    finally:
        broker.signal(signal.SIGCONT)
        broker.wait_for_groups()
    assert (code, out) == (1, sent(500, shop)[1])
    assert "check whether its server runs" in err
    monkeypatch.undo()
    assert redrive() == sent(700, shop)
    assert is_complete(shop, 1_200)


def test_progress_outlives_the_offsets_that_brokers_forget(shop, redrive):
    shop.create_dead(1)
    shop.letters(4, partition=0, origin=0)
    shop.letters(2, partition=0, origin=1, value=b"y")
    shop.letters(2, partition=0, origin=0, value=b"z")
    assert redrive("--limit", 3) == sent(3, shop)
    assert redrive("--partition", 0) == sent(3, shop)
    shop.forget("g.redrive")
    assert redrive("--partition", 0) == sent(0, shop)
    shop.forget("g.redrive")
    assert redrive() == sent(2, shop)
    assert values(shop)[:6] == ["x0", "x1", "x2", "x3", "z0", "z1"]


def test_reset_lets_letters_go_back_again(shop, redrive, capsys):
    shop.create_dead(1)
    shop.letters(2, partition=0, origin=0)
    shop.letters(2, partition=0, origin=1)
    assert redrive("--partition", 1) == sent(2, shop)
    where = ("--source", f"kafka://{shop.address}", "--stream", f"{shop.name}.dead")
    again = ("groups", "reset", *where, "--group", "g.redrive", "--to", "earliest", "--yes")
    assert main(again) == 0
    capsys.readouterr()
    assert redrive() == sent(4, shop)


def test_offset_that_another_program_sets_counts(shop, redrive):
    shop.create_dead(1)
    shop.letters(2, partition=0, origin=0)
    shop.letters(2, partition=0, origin=1)
    assert redrive("--partition", 1) == sent(2, shop)
    with closing(Consumer({"bootstrap.servers": shop.address, "group.id": "g.redrive"})) as other:
        [place] = other.committed([TopicPartition(f"{shop.name}.dead", 0)], WAIT_S)
        assert "1:" in place.metadata
        place.offset = 1
        other.commit(offsets=[place], asynchronous=False)
    assert redrive() == sent(3, shop)


def test_letters_that_retention_removed_are_mentioned(shop, redrive):
    shop.create_dead(1)
    shop.letters(3, partition=0)
    shop.remove(2)
    assert redrive() == sent(1, shop)  # it is not known whether those were letters of the group
    shop.letters(4, partition=0)
    end = shop.remove(-1)
    shop.letters(2, partition=0)
    code, out, err = redrive()
    assert (code, out) == sent(2, shop)[:2]
    assert f"to {end - 1} of {shop.name}.dead/0 were removed by its retention" in err
    assert redrive() == sent(0, shop)


def test_topic_of_dead_letters_may_be_created_anew(shop, redrive):
    shop.create_dead(1)
    shop.letters(20, partition=0)
    redrive()
    [deleted] = shop.admin.delete_topics([f"{shop.name}.dead"]).values()
    deleted.result(WAIT_S)
    eventually(lambda: redrive() == sent(0, shop), "it is gone")
    shop.create_dead(1)
    shop.letters(3, partition=0)
    assert redrive() == sent(3, shop)


def test_progress_behind_the_end_of_a_partition_is_forgotten(shop, redrive):
    shop.create_dead(1)
    shop.letters(3, partition=0)
    consumer = Consumer({"bootstrap.servers": shop.address, "group.id": "g.redrive"})
    place = TopicPartition(f"{shop.name}.dead", 0, 20)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()
    code, out, err = redrive()
    assert (code, out) == sent(3, shop)[:2]
    assert "as if the topic had been created anew: all of its letters are sent" in err
    assert redrive() == sent(0, shop)


def test_markers_of_transactions_and_aborted_letters_are_passed_over(shop, redrive):
    shop.create_dead(1)
    producer = Producer({"bootstrap.servers": shop.address, "transactional.id": shop.name})
    producer.init_transactions(WAIT_S)
    about = [("dead-group", b"g"), ("dead-partition", b"0")]
    for value in (b"x0", b"no", b"x1", b"no"):
        producer.begin_transaction()
        producer.produce(f"{shop.name}.dead", value, None, 0, headers=about)
        assert producer.flush(WAIT_S) == 0
        producer.abort_transaction() if value == b"no" else producer.commit_transaction()
    assert redrive() == sent(2, shop)
    assert redrive() == sent(0, shop)
    assert is_complete(shop, 2)
