"""Records in a topic of Kafka: what brokers refuse, restarts and outages; sent = stored + dead."""

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple

import pytest

from batchqueue import BatchQueue, ConfigError, RetryPolicy
from batchqueue.exceptions import MissingPackageError
from batchqueue.exporters import ExportFailed, KafkaTopic, NotDelivered, check_exporter
from batchqueue.exporters.kafka_topic import in_order
from batchqueue.groups import Codec, KafkaRefusedError, KafkaStreams, StreamUnavailableError
from core_support.kafka_broker import running_new_broker
from core_support.kafka_rights import TOPIC, Rights
from core_support.queues import config
from core_support.waits import HANG_S, WAIT_S, eventually
from exporters_support.kafka_records import Topic, records_of
from exporters_support.queues import QUICK, exporting, send

pytestmark = [
    pytest.mark.matrix(2, name="exporters to Kafka"),
    pytest.mark.timeout(2 * HANG_S),
]


@dataclass(frozen=True)
class Trade:
    """An item."""

    id: int
    city: str = "oslo"
    price: object = None


class Pair(NamedTuple):
    """Another one."""

    id: int
    name: str


@pytest.fixture
def topic(steady_kafka_broker):
    """A topic with three partitions."""
    return Topic(steady_kafka_broker, 3)


@pytest.fixture(scope="module")
def own_broker():
    """A broker that tests may kill; on a busy machine, its heartbeats may be six seconds late."""
    with running_new_broker("broker.session.timeout.ms=6000\n") as broker:
        yield broker


def exporter_to(topic, **settings):
    return KafkaTopic(topic.name, bootstrap=topic.address, **settings)


def ids_of(topic):
    """The ids of all records that have a value, by partition and offset."""
    return [json.loads(record.value)["id"] for record in records_of(topic)]


def by_key(topic):
    """The ids of each key, in the order of the topic."""
    found = {}
    for record in records_of(topic):
        found.setdefault(record.key, []).append(json.loads(record.value)["id"])
    return found


# What a record is made of.


@pytest.mark.parametrize(
    ("items", "options", "found"),
    [
        ([Trade(1), Trade(2)], {"key": "id"}, {(b"1", 1), (b"2", 2)}),
        (
            [{"id": 1, "k": "a"}, {"id": 2, "k": "\u00e4"}],
            {"key": "k"},
            {(b"a", 1), (b"\xc3\xa4", 2)},
        ),
        (
            [Pair(1, "a"), Pair(2, "b")],
            {"key": lambda pair: pair.name.encode()},
            {(b"a", 1), (b"b", 2)},
        ),
        ([Trade(1), Trade(2)], {"key": lambda trade: None}, {(None, 1), (None, 2)}),
        ([Trade(1), Trade(2)], {}, {(None, 1), (None, 2)}),
        ([7, 8], {"row": lambda number: {"id": number}}, {(None, 7), (None, 8)}),
    ],
)
def test_keys_and_values_come_from_the_item_or_a_function(topic, items, options, found):
    assert not send(type(items[0]), exporter_to(topic, **options), items)
    records = records_of(topic)
    assert {(record.key, json.loads(record.value)["id"]) for record in records} == found


def test_json_has_the_fields_of_the_item_with_dates_and_decimals_as_text(topic):
    at = datetime(2024, 2, 29, tzinfo=UTC)
    send(Trade, exporter_to(topic), [Trade(1, "\u00e5", [at, Decimal("1.10")])])
    (record,) = records_of(topic)
    price = '["2024-02-29T00:00:00+00:00","1.10"]'
    assert record.value.decode() == f'{{"id":1,"city":"\u00e5","price":{price}}}'


@pytest.mark.parametrize(
    ("codec", "item", "value"),
    [
        ("bytes", b"\xff", b"\xff"),
        ("utf8", "\u00e4", b"\xc3\xa4"),
        ("msgpack", Trade(1), b"\x83\xa2id\x01\xa4city\xa4oslo\xa5price\xc0"),
        (Codec(lambda trade: trade.city.encode(), bytes), Trade(1), b"oslo"),
        (Codec(lambda pair: pair.name.encode(), bytes), Pair(1, "x"), b"x"),
    ],
)
def test_codec_encodes_the_value(topic, codec, item, value):
    send(type(item), exporter_to(topic, codec=codec), [item])
    assert [record.value for record in records_of(topic)] == [value]


def test_row_of_none_gives_a_record_without_a_value(topic):
    exporter = exporter_to(topic, key="id", row=lambda trade: None if trade.id == 2 else trade.city)
    send(Trade, exporter, [Trade(1), Trade(2)])
    assert {(record.key, record.value) for record in records_of(topic)} == {
        (b"1", b'"oslo"'),
        (b"2", None),
    }


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (None, []),
        ({"type": "trade", "raw": b"\xff"}, [("type", b"trade"), ("raw", b"\xff")]),
        ([("a", "1"), ("a", "2")], [("a", b"1"), ("a", b"2")]),
        (lambda trade: {"city": trade.city}, [("city", b"oslo")]),
        (lambda trade: [("id", str(trade.id))], [("id", b"1")]),
    ],
)
def test_headers_are_given_or_made_from_the_item(topic, headers, found):
    send(Trade, exporter_to(topic, headers=headers), [Trade(1)])
    assert [record.headers for record in records_of(topic)] == [found]


@pytest.mark.parametrize(
    ("options", "good", "bad", "words"),
    [
        ({"key": "id"}, Trade(7), Trade(1.5), "the key is 1.5, a float; give a str, bytes, an int"),
        ({"key": "k"}, {"k": 7}, {"id": 1}, "k"),
        ({"key": "price"}, Trade(7), "x", "no attribute 'price'"),
        ({}, Trade(7), Trade(float("nan")), "codec json cannot encode the value"),
        ({"headers": lambda n: {n: "x"}, "row": str}, "7", 1, "the headers have (1, 'x')"),
        ({"row": lambda n: 1 / n}, 7, 0, "division by zero"),
    ],
)
def test_item_without_a_record_is_refused_alone(topic, options, good, bad, words):
    outcomes = exporter_to(topic, **options).export([good, bad, good])
    assert [outcomes[0], outcomes[2]] == [None, None]
    assert not outcomes[1].retry
    assert words in str(outcomes[1].error)
    assert len(records_of(topic)) == 2


# Order.


def test_records_of_a_key_are_in_the_order_of_the_queue(topic):
    items = [Trade(number, f"city {number % 7}") for number in range(5_000)]
    with exporting(Trade, exporter_to(topic, key="city"), max_batch_items=700) as (queue, letters):
        queue.produce_many(items)
    assert not letters
    assert by_key(topic) == {
        f"city {number}".encode(): list(range(number, 5_000, 7)) for number in range(7)
    }


def test_keys_go_to_the_partitions_that_producers_choose(steady_kafka_broker):
    topic = Topic(steady_kafka_broker, 16)
    keys = [f"order-{number}" for number in range(50)]
    send(str, exporter_to(topic, key=lambda key: key, codec="utf8"), keys)
    ours = {record.key: record.partition for record in records_of(topic)}
    streams = KafkaStreams(topic.name, bootstrap=topic.address)
    with streams.producer(codec="utf8", key=lambda key: key) as producer:
        producer.send_many(keys)
    places = {(record.key, record.partition) for record in records_of(topic)}
    assert places == set(ours.items())
    assert len(set(ours.values())) > 8


def test_what_follows_an_item_that_is_tried_again_is_sent_again():
    again, dead = NotDelivered(OSError()), NotDelivered(OSError(), retry=False)
    partitions = [0, 1, 0, 1, 0, 2, -1, 2]
    assert in_order(partitions[:6], [None, again, dead, None, None, None]) == [
        *(None, again, dead, again, None, None),
    ]
    outcomes = [dead, None, None, None, None, None, again, None]
    assert in_order(partitions, outcomes) == [*outcomes[:7], again]


# What brokers refuse.


def too_large(topic, **settings):
    """Sends a record that is too large between others; returns its letter."""
    items = [Trade(number, "x" * (3_000 if number == 70 else 30)) for number in range(150)]
    (letter,) = send(Trade, exporter_to(topic, key="id", **settings), items)
    assert letter.item is items[70]
    assert letter.attempts == 1
    assert isinstance(letter.error, KafkaRefusedError)
    assert "send smaller records" in str(letter.error)
    return letter


def test_record_that_the_client_refuses_is_a_dead_letter_and_its_neighbours_arrive(topic):
    too_large(topic, config={"message.max.bytes": 2_000})
    assert sorted(ids_of(topic)) == [number for number in range(150) if number != 70]


def test_record_that_the_topic_refuses_is_a_dead_letter_and_its_neighbours_arrive(
    steady_kafka_broker,
):
    """The broker refuses the whole request, and so all others in it."""
    topic = Topic(steady_kafka_broker, 1, **{"max.message.bytes": "2000"})
    too_large(topic)
    assert ids_of(topic) == [number for number in range(150) if number != 70]


def test_record_without_a_key_in_a_compacted_topic_is_a_dead_letter_alone(steady_kafka_broker):
    topic = Topic(steady_kafka_broker, 1, **{"cleanup.policy": "compact"})
    items = [Trade(number, None if number == 7 else "oslo") for number in range(20)]
    letters = send(Trade, exporter_to(topic, key="city"), items)
    assert [letter.item.id for letter in letters] == [7]
    assert "give each record a key" in str(letters[0].error)
    assert ids_of(topic) == [number for number in range(20) if number != 7]


def test_topic_that_is_missing_makes_dead_letters_that_say_so(steady_kafka_broker, topic):
    exporter = KafkaTopic(f"{topic.name}-typo", bootstrap=topic.address, timeout=4)
    letters = send(Trade, exporter, [Trade(1), Trade(2)])
    assert [letter.item for letter in letters] == [Trade(1), Trade(2)]
    assert {letter.attempts for letter in letters} == {1}
    assert "typo: the broker refused" in str(letters[0].error)
    assert "create the topic, or check its name" in str(letters[0].error)
    assert f"{topic.name}-typo" not in topic.admin.list_topics(timeout=WAIT_S).topics


def test_topic_that_is_deleted_makes_dead_letters_until_it_is_there_again(steady_kafka_broker):
    topic = Topic(steady_kafka_broker, 1)
    with exporting(Trade, exporter_to(topic, timeout=4), max_batch_items=1) as (queue, letters):
        queue.produce(Trade(1))
        assert queue.flush(WAIT_S)
        topic.delete()
        eventually(lambda: topic.name not in topic.admin.list_topics(timeout=WAIT_S).topics)
        queue.produce(Trade(2))
        assert queue.flush(2 * WAIT_S)
        assert [letter.item for letter in letters] == [Trade(2)]
        assert "create the topic, or check its name" in str(letters[0].error)
        topic.create(1)
        eventually(lambda: topic.name in topic.admin.list_topics(timeout=WAIT_S).topics)
        sent = [Trade(3)]
        while True:  # until the client has learned of it
            queue.produce(sent[-1])
            assert queue.flush(2 * WAIT_S)
            if letters[-1].item is not sent[-1]:
                break
            assert len(sent) < 100
            sent.append(Trade(sent[-1].id + 1))
    assert ids_of(topic) == [sent[-1].id]


def test_user_without_a_right_gets_dead_letters_that_name_it(steady_kafka_broker):
    rights = Rights(steady_kafka_broker)
    assert rights.open.producer().partitions == 2  # so it exists
    login = rights.login()
    exporter = KafkaTopic(rights.name, timeout=20, **login)
    letters = send(Trade, exporter, [Trade(1), Trade(2)])
    assert len(letters) == 2
    assert isinstance(letters[0].error, KafkaRefusedError)
    assert "give this user WRITE on the topic" in str(letters[0].error)
    rights.give((TOPIC, "WRITE"))
    assert not send(Trade, exporter, [Trade(3)])


def test_wrong_password_is_named_and_tried_again(steady_kafka_broker):
    rights = Rights(steady_kafka_broker)
    exporter = KafkaTopic(rights.name, timeout=1, **rights.login("wrong"))
    with pytest.raises(ExportFailed) as failed:
        exporter.consume([Trade(1)])
    (failure,) = failed.value.failures
    assert failure.retry
    assert "Authentication failed" in str(failure.error)
    assert "wrong" not in repr(exporter)


# Outages.


def test_topic_keeps_the_contract(own_broker):
    topic = Topic(own_broker, 1)

    @contextmanager
    def outage():
        own_broker.stop()
        try:
            yield
        finally:
            own_broker.restart()

    check_exporter(
        lambda: exporter_to(topic, key="id", timeout=10),
        lambda: ids_of(topic),
        make_item=Trade,
        key=lambda trade: trade.id,
        make_bad_item=lambda number: Trade(number, "x" * 2_000_000),
        outage=outage,
    )


def test_broker_that_is_killed_and_restarted_gets_every_item(own_broker):
    topic = Topic(own_broker, 3)
    count = 6_000
    items = [Trade(number, f"city {number % 11}") for number in range(count)]
    settings = {"max_batch_items": 100, "shutdown_timeout": HANG_S}
    with exporting(Trade, exporter_to(topic, key="city", timeout=5), **settings) as (
        queue,
        letters,
    ):
        queue.produce_many(items[: count // 3])
        eventually(lambda: queue.stats().consumed, "some are delivered", HANG_S)
        own_broker.restart()  # in the middle of a batch
        queue.produce_many(items[count // 3 : count // 3 * 2])
        eventually(lambda: queue.stats().consumed > count // 3, "more are", HANG_S)
        own_broker.stop()
        queue.produce_many(items[count // 3 * 2 :])
        eventually(lambda: queue.stats().held, "a batch is tried again", HANG_S)
        own_broker.restart()
    assert not letters
    found = by_key(topic)
    assert sum(len(set(ids)) for ids in found.values()) == count
    for ids in found.values():
        # The first copies of the records of a key are in order, and the last one is the newest.
        assert list(dict.fromkeys(ids)) == sorted(set(ids))
        assert ids[-1] == max(ids)


def test_broker_that_is_away_is_tried_again_and_named():
    exporter = KafkaTopic("trades", bootstrap="127.0.0.1:9", timeout=1)
    with pytest.raises(ExportFailed) as failed:
        exporter.consume([Trade(1), Trade(2)])
    assert failed.value.items == [Trade(1), Trade(2)]
    assert all(failure.retry for failure in failed.value.failures)
    (error,) = {failure.error for failure in failed.value.failures}
    assert isinstance(error, StreamUnavailableError)
    assert "Connection refused" in str(error)
    assert exporter.close(0) == []


def test_network_that_is_silent_is_tried_again(own_broker):
    topic = Topic(own_broker, 1)
    exporter = KafkaTopic(topic.name, bootstrap=own_broker.proxied_address, timeout=3)
    with exporting(Trade, exporter, shutdown_timeout=HANG_S) as (queue, letters):
        queue.produce(Trade(1))
        assert queue.flush(HANG_S)
        own_broker.proxy.stall()
        try:
            queue.produce(Trade(2))
            eventually(lambda: queue.stats().held, "the item is tried again", HANG_S)
        finally:
            own_broker.proxy.wake()
    assert not letters
    assert set(ids_of(topic)) == {1, 2}


def test_batch_that_is_larger_than_the_queue_of_the_client_arrives_in_order(steady_kafka_broker):
    topic = Topic(steady_kafka_broker, 1)
    exporter = exporter_to(topic, config={"queue.buffering.max.messages": 10})
    assert not send(Trade, exporter, [Trade(number) for number in range(500)])
    assert ids_of(topic) == list(range(500))


def test_batch_that_is_larger_than_the_queue_of_the_client_fails_when_brokers_are_away():
    """Each record would wait for its own timeout, if the first one did not end the attempt."""
    exporter = KafkaTopic(
        "trades",
        bootstrap="127.0.0.1:9",
        timeout=1,
        config={"queue.buffering.max.messages": 1},
    )
    with pytest.raises(ExportFailed) as failed:
        exporter.consume([Trade(number) for number in range(1_000)])
    assert len(failed.value.items) == 1_000


# Processes and threads.


def test_child_of_a_fork_uses_its_own_connection(topic):
    exporter = exporter_to(topic)
    exporter.consume([Trade(1)])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            exporter.consume([Trade(2)])
            exporter.close()
            code = 7
        finally:
            os._exit(code)
    _, code = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(code) == 7
    exporter.consume([Trade(3)])
    exporter.close()
    assert sorted(ids_of(topic)) == [1, 2, 3]


def test_exporters_side_by_side_send_each_item_once(topic):
    with BatchQueue("side by side", config(4, max_batch_items=50, retry=QUICK)) as queue:
        queue.add_handler_factory(Trade, lambda: exporter_to(topic), partitions=4)
        queue.produce_many(Trade(number) for number in range(2_000))
    assert sorted(ids_of(topic)) == list(range(2_000))


def test_attempts_that_are_used_up_make_dead_letters():
    exporter = KafkaTopic("trades", bootstrap="127.0.0.1:9", timeout=1)
    letters = send(Trade, exporter, [Trade(1)], retry=RetryPolicy(attempts=2, backoff_ms=1))
    assert [letter.attempts for letter in letters] == [2]
    assert isinstance(letters[0].error, StreamUnavailableError)


# Arguments.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "a b"}, "a b"),
        ({"bootstrap": ""}, "bootstrap is ''"),
        ({"key": 1}, "key is 1; give the name of an attribute, or a function"),
        ({"key": ""}, "key is ''"),
        ({"codec": "xml"}, "codec is 'xml'"),
        ({"row": 1}, "row is 1"),
        ({"headers": {"a": 1}}, "the headers have"),
        ({"timeout": 0.5}, "timeout is 0.5; give seconds from 1 up"),
        ({"config": [1]}, "config is a list"),
        ({"config": {"acks": 1}}, "config has 'acks'; leave it out: all replicas"),
        ({"config": {"delivery.timeout.ms": 1}}, "config has 'delivery.timeout.ms'; use timeout"),
        ({"config": {"bootstrap.servers": "x"}}, "use bootstrap"),
        ({"config": {"linger.hours": 1}}, "linger.hours"),
        ({"config": {"compression.type": "zip"}}, "zip"),
    ],
)
def test_invalid_argument_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        KafkaTopic(**{"topic": "trades", "bootstrap": "127.0.0.1:9", **options})


def test_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
    with pytest.raises(MissingPackageError, match=r"batchqueue-rs\[kafka\]"):
        KafkaTopic("trades", bootstrap="127.0.0.1:9")
