"""Rows are sent to a topic of a real broker of Kafka, each at least once."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchqueue import ConfigError
from batchqueue.groups import KafkaRefusedError
from batchqueue.pipeline import (
    FileSource,
    IterableSource,
    KafkaSink,
    KafkaSource,
    Pipeline,
    SinkError,
    StageFailedError,
)
from batchqueue.pipeline.testing import check_sink
from core_support.kafka_broker import new_kafka_broker
from core_support.kafka_rights import TOPIC, Rights
from core_support.waits import eventually
from groups_support.workers import send
from pipeline_support.kafka_topic import KafkaTopic
from pipeline_support.processes import killed_again_and_again
from pipeline_support.tables import numbers, read_on

__all__ = ["new_kafka_broker"]

pytestmark = pytest.mark.matrix(2, name="pipelines on Kafka")


@pytest.fixture
def topic(new_kafka_broker):
    return KafkaTopic(new_kafka_broker, 3)


def sink_of(topic, **settings):
    return KafkaSink(topic.name, bootstrap=topic.address, **settings)


def records(topic):
    source = topic.source()
    return read_on(source, source.initial())[0]


def objects(topic):
    return [json.loads(each["value"]) for each in records(topic)]


def origin_of(record):
    [header] = record["headers"]
    return header["value"]


def test_sink_keeps_the_contract(topic):
    check_sink(lambda: sink_of(topic), read=lambda: objects(topic))


def test_rows_are_json_objects_with_times_and_decimals_as_text(topic):
    row = {
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "cents": Decimal("1.50"),
        "tags": [{"name": "ä"}, None],
    }
    sink_of(topic).write([pa.RecordBatch.from_pylist([row])])
    assert objects(topic) == [
        {
            "at": "2026-01-02T03:04:05+00:00",
            "day": "2026-01-02",
            "cents": "1.50",
            "tags": [{"name": "ä"}, None],
        }
    ]


@pytest.mark.parametrize(
    ("keys", "sent", "other"),
    [
        (["a", "ä", None], b"a", "ä".encode()),
        ([b"a", b"\xff", None], b"a", b"\xff"),
        ([17, -3, None], b"17", b"-3"),
    ],
)
def test_columns_become_keys_and_values(topic, keys, sent, other):
    values = [b"x", None, b"y"]
    chunk = pa.record_batch({"k": keys, "v": pa.array(values, pa.binary())})
    sink_of(topic, key="k", value="v").write([chunk])
    found = {(each["key"], each["value"]) for each in records(topic)}
    as_sent = [
        each if each is None or isinstance(each, bytes) else str(each).encode() for each in keys
    ]
    assert found == set(zip(as_sent, values, strict=True))


def test_rows_of_a_key_keep_their_order_in_one_partition(topic):
    pipeline = Pipeline("orders")
    rows = [{"city": f"city {number % 7}", "n": number} for number in range(5_000)]
    pipeline.source(IterableSource(lambda: rows)).to(sink_of(topic, key="city"))
    assert pipeline.run().rows_written == 5_000
    places = {}
    for each in records(topic):
        row = json.loads(each["value"])
        places.setdefault(row["city"], []).append((each["partition"], row["n"]))
    for number, city in enumerate(sorted(places)):
        assert len({partition for partition, _ in places[city]}) == 1
        assert [n for _, n in places[city]] == list(range(number, 5_000, 7))


def test_origins_differ_and_are_the_same_when_rows_are_sent_again(topic, new_kafka_broker):
    again = KafkaTopic(new_kafka_broker)
    rows = [{"n": number} for number in range(3_000)]
    for each in (topic, again):
        pipeline = Pipeline("orders")
        pipeline.source(IterableSource(lambda: rows)).to(sink_of(each))
        pipeline.run()
    first, second = (
        {origin_of(record): record["value"] for record in records(each)} for each in (topic, again)
    )
    assert len(first) == len(rows)
    assert first == second
    assert all(origin.startswith(b"orders:") for origin in first)


def test_rows_are_sent_at_least_once_although_the_pipeline_is_killed(topic, tmp_path):
    rows = 60_000
    pq.write_table(numbers(0, rows), tmp_path / "rows.parquet", row_group_size=1_000)
    source = FileSource(str(tmp_path / "rows.parquet"))
    (tmp_path / "source.pickle").write_bytes(pickle.dumps(source))
    (tmp_path / "sink.pickle").write_bytes(pickle.dumps(sink_of(topic)))
    source = topic.source()
    begin = source.initial()
    killed_again_and_again(
        tmp_path, lambda: sum(each.records or 0 for each in source.lag(begin).values()), rows
    )
    found = records(topic)
    ids = [json.loads(each["value"])["id"] for each in found]
    assert set(ids) == set(range(rows))
    assert {origin: ids[at] for at, origin in enumerate(map(origin_of, found))} == {
        origin_of(each): json.loads(each["value"])["id"] for each in reversed(found)
    }, "a row that was sent again has the same origin"


def test_record_that_is_too_large_ends_the_run_with_the_remedy(new_kafka_broker):
    topic = KafkaTopic(new_kafka_broker, 1, **{"max.message.bytes": "2000"})
    pipeline = Pipeline("orders")
    pipeline.source(IterableSource(lambda: [{"text": "x" * 3_000}])).to(sink_of(topic))
    with pytest.raises(StageFailedError) as failed:
        pipeline.run()
    assert isinstance(failed.value.__cause__, KafkaRefusedError)
    assert "max.message.bytes of the topic" in str(failed.value.__cause__)


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"n": [1]}, {"key": "k"}, r"no column 'k'; they have \['n'\]"),
        ({"n": [1.5]}, {"key": "n"}, "column 'n' has the type double; give binary or string or a"),
        ({"n": [1]}, {"value": "n"}, "column 'n' has the type int64; give binary or string"),
        ({"n": [b"x"]}, {}, "the row .* is not JSON: b'x' is a bytes"),
        ({"n": [float("nan")]}, {}, r"the row .* is not JSON: Out of range float values"),
    ],
    ids=str,
)
def test_rows_that_cannot_be_sent_are_refused(columns, settings, message):
    sink = KafkaSink("orders", bootstrap="localhost:1", **settings)
    with pytest.raises(SinkError, match=message):
        sink.write([pa.record_batch(columns)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bootstrap": None}, "bootstrap is None"),
        ({"config": {"transactional.id": "x"}}, "leave it out: the sink uses no transactions"),
        ({"key": 1}, "key is 1, an int; give a column or None"),
        ({"batch_rows": 0}, "batch_rows is 0"),
        ({"partitions": 0}, "partitions"),
    ],
    ids=str,
)
def test_invalid_setting_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        KafkaSink("orders", **{"bootstrap": "localhost:1", **settings})


def test_topic_is_created_only_with_partitions(new_kafka_broker):
    topic = KafkaTopic(new_kafka_broker, 1)
    topic.delete()
    eventually(lambda: topic.name not in topic.admin.list_topics(timeout=10).topics, "it is gone")
    with pytest.raises(ConfigError, match="does not exist"):
        sink_of(topic).open("orders")
    sink_of(topic, partitions=5).open("orders")
    assert len(topic.admin.list_topics(timeout=10).topics[topic.name].partitions) == 5
    with pytest.raises(ConfigError, match="5"):
        sink_of(topic, partitions=4).open("orders")


def test_sending_needs_two_rights_on_the_topic_and_names_what_is_missing(new_kafka_broker):
    rights = Rights(new_kafka_broker)
    send(rights.open, 1)
    sink = KafkaSink(rights.name, **rights.login())
    rights.give((TOPIC, "DESCRIBE"))
    chunk = pa.record_batch({"n": [1]})
    with pytest.raises(KafkaRefusedError, match="WRITE on the topic"):
        sink.write([chunk])
    rights.give((TOPIC, "WRITE"))
    sink.open("orders")
    sink.write([chunk])
    source = KafkaSource(rights.name, bootstrap=new_kafka_broker.address, columns=["value"])
    values = {each["value"] for each in read_on(source, source.initial())[0]}
    assert values == {b"0", b'{"n": 1}'}
