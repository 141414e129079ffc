"""A topic of Kafka is read from any offset, each record once, by a real broker."""

import json
import os
import pickle
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, pairwise

import pyarrow as pa
import pytest

from batchqueue import ConfigError
from batchqueue.base.background_log import flush_log
from batchqueue.groups import KafkaRefusedError
from batchqueue.groups.kafka import reader
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import (
    FunctionSink,
    KafkaSource,
    MetricsSink,
    Pipeline,
    PositionError,
    SourceChangedError,
    SourceDataError,
    StageFailedError,
)
from batchqueue.pipeline.testing import check_source
from core_support.kafka_rights import TOPIC, Rights
from core_support.waits import eventually
from groups_support.workers import send
from pipeline_support.kafka_topic import COUNTS, TOTALS, KafkaTopic, metrics_of
from pipeline_support.processes import killed_again_and_again, paused
from pipeline_support.tables import ALL, ids, read_on, restarted_before_every_split, rows_of

pytestmark = pytest.mark.matrix(2, name="pipelines on Kafka")

ORDERS = pa.schema([("id", pa.int64()), ("city", pa.string())])


@pytest.fixture
def topic(new_kafka_broker):
    return KafkaTopic(new_kafka_broker)


def orders(first, behind):
    return [json.dumps({"id": each, "city": "Rome"}) for each in range(first, behind)]


def texts(rows):
    return [row["value"].decode() for row in rows]


def all_rows(source):
    return read_on(source, source.initial())[0]


# Each record once


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({}, (2_500, 30)),
        ({"watch": False}, (2_500, 30)),
        ({"schema": ORDERS, "columns": ["offset", "key"]}, (10, 1_200)),
        ({"columns": ["value"], "start": datetime(2020, 1, 1, tzinfo=UTC)}, (700, 0)),
    ],
    ids=str,
)
def test_source_keeps_the_contract(topic, settings, sent):
    for partition, count in enumerate(sent):
        topic.send(orders(0, count), partition)
    check_source(topic.source(**settings), rows=sum(sent))


def test_record_has_its_key_headers_offset_and_time(topic):
    topic.send([b"7"], 1, key=b"ann", headers=[("who", b"me"), ("who", None)], timestamp=1_000)
    topic.send([None], 1)
    first, second = all_rows(topic.source())
    assert first == {
        "key": b"ann",
        "value": b"7",
        "partition": 1,
        "offset": 0,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "headers": [{"key": "who", "value": b"me"}, {"key": "who", "value": None}],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, None, [])


def test_rows_are_those_sent_with_a_restart_before_every_split(topic):
    for partition in range(2):
        topic.send(orders(partition * 3_000, partition * 3_000 + 2_300), partition)
    rows = list(restarted_before_every_split(topic.source(schema=ORDERS)))
    sent = [*range(2_300), *range(3_000, 5_300)]
    assert sorted(row["id"] for row in rows) == sent


def planned(source, at):
    """Returns a plan that has splits: a client may not know the leaders of a new topic yet."""
    plans = []

    def has_splits():
        plans.append(source.plan(at, ALL))
        return bool(plans[-1].splits)

    eventually(has_splits, "the source has found the records")
    return plans[-1]


def test_partitions_take_turns_and_a_long_one_keeps_none_waiting(topic):
    topic.send(orders(0, 10_000), 0)
    topic.send(orders(0, 10), 1)
    source = topic.source()
    at, turns = source.initial(), []
    for _ in range(6):
        plan = planned(source, at)
        turns.append((plan.splits[0].partition, len(rows_of(source, plan.splits[0]))))
        at = plan.end
    assert turns == [*[("0", 1_000)] * 4, ("1", 10), ("0", 1_000)]


def test_records_that_come_later_are_read_and_a_bounded_source_ends_before_them(topic):
    topic.send([b"a"])
    endless, bounded = topic.source(), topic.source(watch=False)
    begin = bounded.initial()
    rows, at = read_on(endless, endless.initial())
    topic.send([b"b"])
    rows += read_on(endless, at)[0]
    assert texts(rows) == ["a", "b"]
    assert texts(read_on(bounded, begin)[0]) == ["a"]


def test_aborted_records_are_left_out_and_open_ones_awaited(topic):
    producer = topic.producer(**{"transactional.id": topic.name})
    producer.init_transactions(60)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(1_500):
            producer.produce(topic.name, f"{end.__name__} {number}", partition=0)
        producer.flush(60)
        end(60)
    topic.send([b"last"])
    source = topic.source()
    check_source(source, rows=1_501)
    producer.begin_transaction()
    producer.produce(topic.name, b"open", partition=0)
    producer.flush(60)
    rows, at = read_on(source, source.initial())
    assert texts(rows)[-1] == "last"
    producer.commit_transaction(60)
    eventually(lambda: texts(read_on(source, at)[0]) == ["open"], "the transaction has ended")


def test_values_of_a_megabyte(topic):
    sent = [bytes([number]) * 900_000 for number in range(40)]
    topic.send(sent)
    assert [row["value"] for row in all_rows(topic.source())] == sent


def test_start_at_the_end_and_at_a_time(topic):
    topic.send([b"old"], timestamp=1_000)
    topic.send([b"new"], timestamp=2_000)
    latest = topic.source(start="latest")
    begin = latest.initial()
    topic.send([b"newer"], 1, timestamp=3_000)
    assert texts(read_on(latest, begin)[0]) == ["newer"]
    at_2_s = topic.source(start=datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC))
    assert sorted(texts(all_rows(at_2_s))) == ["new", "newer"]
    assert all_rows(topic.source(start=datetime(1970, 1, 1, 1, tzinfo=UTC))) == []


def test_topic_without_records_is_an_empty_plan(topic):
    for watch in (True, False):
        source = topic.source(watch=watch)
        at = source.initial()
        assert source.plan(at, ALL) == ((), at)


def test_200_partitions(new_kafka_broker):
    topic = KafkaTopic(new_kafka_broker, 200)
    producer = topic.producer()
    for number in range(20_000):
        producer.produce(topic.name, str(number), partition=number % 200)
    producer.flush(120)
    rows = all_rows(topic.source(columns=["value", "partition"]))
    by_partition = {}
    for row in rows:
        by_partition.setdefault(row["partition"], []).append(int(row["value"]))
    assert sorted(chain(*by_partition.values())) == list(range(20_000))
    assert all(a < b for each in by_partition.values() for a, b in pairwise(each))


def test_lag_counts_down_to_0(topic):
    topic.send(orders(0, 1_500), 0)
    topic.send(orders(0, 3), 1)
    for watch in (True, False):
        source = topic.source(watch=watch)
        at = source.initial()
        assert {name: lag.records for name, lag in source.lag(at).items()} == {"0": 1_500, "1": 3}
        _, end = read_on(source, at)
        assert {lag.records for lag in source.lag(end).values()} == {0}


# Values of JSON


def test_json_fields_are_null_where_the_object_lacks_them(topic):
    topic.send(["null", '{"id": 1}', '{\n"city": "Oslo",\n"more": [1]}', None])
    assert all_rows(topic.source(schema=ORDERS)) == [
        {"id": None, "city": None},
        {"id": 1, "city": None},
        {"id": None, "city": "Oslo"},
        {"id": None, "city": None},
    ]


@pytest.mark.parametrize(
    "values",
    [
        ["{"],
        [""],
        ['{"id": "x"}'],
        ['{"id": 1.5}'],
        ["[1]"],
        [b"\xff\xfe"],
        ['{"id": 1}{"id": 2}', ""],
        ['{"id": 1} {"id": 2}', '{"id":', "4}"],
        ['{"id": 1}}\n{"v": {"id": 2}', "{"],
    ],
    ids=str,
)
def test_bad_json_is_named_by_its_offset(topic, values):
    topic.send([*orders(0, 3), *values, *orders(3, 6)], 1)
    source = topic.source(schema=ORDERS)
    with pytest.raises(SourceDataError, match=rf"{topic.name}/1 at offset 3 .*without schema"):
        all_rows(source)


def test_a_field_that_must_not_be_null_is_refused_where_it_is(topic):
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    topic.send(['{"id": 1}', "{}"])
    with pytest.raises(SourceDataError, match="at offset 1"):
        all_rows(topic.source(schema=strict))


# Changes of the topic


def test_added_partitions_are_read_from_their_start(topic):
    topic.send([b"a"])
    source = topic.source()
    rows, at = read_on(source, source.initial())
    topic.enlarge(4)
    topic.send([b"d"], 3)
    eventually(lambda: bool(source.plan(at, ALL).splits), "the partition is found")
    more, end = read_on(source, at)
    assert texts(rows + more) == ["a", "d"]
    assert texts(rows_of(topic.source(), source.between(at, end)[0])) == ["d"]


@pytest.mark.parametrize("watch", [True, False])
def test_removed_records_end_the_run_or_are_skipped(topic, watch, caplog):
    topic.send(orders(0, 2_000))
    topic.send(orders(5_000, 5_010), 1)
    at = topic.source(watch=watch).initial()
    topic.remove_before(0, 1_500)
    with pytest.raises(SourceChangedError, match=r"/0: the 1,500 offsets from 0 on .*on_gap"):
        read_on(topic.source(watch=watch), at)
    rows, _ = read_on(topic.source(watch=watch, on_gap="skip", schema=ORDERS), at)
    assert sorted(row["id"] for row in rows) == [*range(1_500, 2_000), *range(5_000, 5_010)]
    eventually(lambda: "1,500 offsets from 0 on were removed" in caplog.text, "it is logged")


def test_partition_that_was_emptied_is_skipped_once(topic, caplog):
    topic.send(orders(0, 700))
    source = topic.source(on_gap="skip")
    begin = source.initial()
    topic.remove_before(0, 700)
    plan = topic.source(on_gap="skip").plan(begin, ALL)
    assert (plan.splits, plan.end["offsets"]) == ((), [700, 0])
    eventually(lambda: "700 offsets from 0 on were removed" in caplog.text, "it is logged")
    caplog.clear()
    assert source.plan(plan.end, ALL) == ((), plan.end)
    assert {each.records for each in source.lag(plan.end).values()} == {0}
    flush_log()
    assert "removed" not in caplog.text


def test_records_that_are_removed_between_plan_and_read(topic):
    topic.send(orders(0, 900))
    skipping = topic.source(on_gap="skip", schema=ORDERS)
    [split] = skipping.plan(skipping.initial(), ALL).splits
    topic.remove_before(0, 500)
    assert [row["id"] for row in rows_of(skipping, split)] == list(range(500, 900))
    with pytest.raises(SourceChangedError, match="500 offsets"):
        rows_of(topic.source(), split)


@pytest.mark.parametrize("watch", [True, False])
def test_topic_that_was_created_again_is_another_one(topic, watch):
    topic.send(orders(0, 20))
    source = topic.source(schema=ORDERS, watch=watch)
    begin = source.initial()
    assert ids(rows_of(source, source.plan(begin, ALL).splits[0])) == list(range(20))
    topic.delete()
    eventually(lambda: topic.name not in topic.admin.list_topics(timeout=10).topics, "it is gone")
    topic.create(2)
    topic.send(orders(100, 130))
    fresh = topic.source(schema=ORDERS, watch=watch)
    eventually(lambda: fresh.initial()["topic"] != begin["topic"], "the new topic is known")
    for refuse in (
        lambda: fresh.plan(begin, ALL),
        lambda: rows_of(topic.source(), fresh.between(begin, begin | {"offsets": [9, 0]})[0]),
    ):
        with pytest.raises(SourceChangedError, match="deleted and created again"):
            refuse()
    # The source of before holds records of the former topic.
    found, _ = read_on(source, source.initial())
    assert ids(found) == list(range(100, 130))


def test_position_beyond_the_end_is_not_read_on(topic):
    topic.send([b"a"])
    source = topic.source()
    at = source.initial() | {"offsets": [5, 0]}
    assert source.plan(at, ALL).splits == ()
    forged = source.between(at, at | {"offsets": [7, 0]})[0]
    with pytest.raises(SourceChangedError, match="ends at offset 1, and was to be read from 5"):
        rows_of(source, forged)


def test_split_whose_end_is_gone_is_an_error_and_not_awaited_forever(topic, monkeypatch):
    topic.send([b"a"])
    source = topic.source()
    begin = source.initial()
    [split] = source.between(begin, begin | {"offsets": [7, 0]})
    batches = source.read(split)
    next(batches)
    monkeypatch.setattr(reader, "_SILENCE_S", 1)  # not before: the first record may take longer
    with pytest.raises(
        SourceChangedError, match="ends at offset 1, and was to be read from 1 to 7"
    ):
        list(batches)


@pytest.mark.parametrize(
    "change", [{"offsets": [-1]}, {"offsets": ["1"]}, {"turn": True}, {"until": 3}], ids=str
)
def test_position_of_another_form_is_refused(topic, change):
    source = topic.source()
    with pytest.raises(PositionError):
        source.plan(source.initial() | change, ALL)


def test_end_before_the_start_is_refused(topic):
    topic.send([b"a"])
    source = topic.source()
    begin = source.initial()
    _, end = read_on(source, begin)
    with pytest.raises(PositionError, match="is not behind"):
        source.between(end, begin)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bootstrap": ""}, "bootstrap is ''"),
        ({"config": {"group.id": "x"}}, "'group.id'; leave it out: positions are in the check"),
        ({"config": {"error_cb": print}}, "errors are raised or logged"),
        ({"config": "x"}, "config is a str"),
        ({"start": "first"}, "start is 'first'; give 'earliest' or 'latest'"),
        ({"start": datetime(2020, 1, 1)}, "give it a time zone"),
        ({"start": datetime(1960, 1, 1, tzinfo=UTC)}, "give a time from 1970 on"),
        ({"start": "latest", "watch": False}, "no record follows"),
        ({"watch": 1}, "watch is 1"),
        ({"on_gap": "error"}, "give 'fail' or 'skip'"),
        ({"columns": ["text"]}, r"KafkaSource has no columns \['text'\]"),
        ({"columns": []}, r"columns is \[\]"),
        ({"schema": pa.schema([])}, "at least one column"),
        ({"schema": {"id": int}}, "give a pyarrow.Schema"),
        ({"schema": pa.schema([("n", pa.float16())])}, "does not read from JSON"),
        ({"schema": pa.schema([("key", pa.int8())]), "columns": ["key"]}, r"both have \['key'\]"),
    ],
    ids=str,
)
def test_invalid_setting_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        KafkaSource("orders", **{"bootstrap": "localhost:1", **settings})


@pytest.mark.parametrize("name", ["", "a b", "..", "x" * 250])
def test_invalid_topic_is_refused(name):
    with pytest.raises(ConfigError, match="topic"):
        KafkaSource(name, bootstrap="localhost:1")


def test_missing_topic_is_named(new_kafka_broker):
    source = KafkaSource("missing", bootstrap=new_kafka_broker.address)
    with pytest.raises(ConfigError, match='"missing" does not exist: create'):
        source.initial()


def test_password_is_neither_in_the_repr_nor_lost_in_a_pickle():
    source = KafkaSource("orders", bootstrap="localhost:1", config={"sasl.password": "secret"})
    assert "secret" not in repr(source)
    assert pickle.loads(pickle.dumps(source))._server.config == {"sasl.password": "secret"}


# In a run


def test_run_reads_what_comes_and_stops(topic, tmp_path):
    seen = []
    pipeline = Pipeline("orders", checkpoint=tmp_path)
    source = pipeline.source(topic.source(schema=ORDERS), name="orders")
    source.to(FunctionSink(lambda chunks: [seen.extend(each["id"].to_pylist()) for each in chunks]))
    run = pipeline.start()
    for first in range(0, 3_000, 1_000):
        topic.send(orders(first, first + 1_000), first // 1_000 % 2)
        eventually(lambda behind=first + 1_000: len(seen) >= behind, "they arrive")
    assert run.stop().rows_written == 3_000
    assert sorted(seen) == list(range(3_000))
    topic.send(orders(3_000, 3_001))
    run = pipeline.start()
    eventually(lambda: len(seen) > 3_000, "it continues")
    run.stop()
    assert sorted(seen) == list(range(3_001))


def test_metrics_count_each_record_once_although_the_pipeline_is_killed(topic, tmp_path):
    rows = 20_000
    for partition in range(2):
        topic.send(orders(partition * rows // 2, (partition + 1) * rows // 2), partition)
    source = topic.source(schema=ORDERS, watch=False)
    store = SqliteStore(tmp_path / "totals.db")
    sink = MetricsSink(store, metrics_of)
    (tmp_path / "source.pickle").write_bytes(pickle.dumps(source))
    (tmp_path / "sink.pickle").write_bytes(pickle.dumps(sink))

    def counts():
        return store.read(COUNTS) if store.path.exists() else []

    killed_again_and_again(tmp_path, lambda: sum(each.count for each in counts()), rows)
    assert {each.entity: each.count for each in store.read(COUNTS)} == dict.fromkeys(
        map(str, range(20)), rows // 20
    )
    assert {each.entity: each.total for each in store.read(TOTALS)} == {
        str(n): sum(range(n, rows, 20)) for n in range(20)
    }


def test_broker_that_is_killed_and_comes_back_is_waited_for(topic, new_kafka_broker, tmp_path):
    seen = []

    def slowly(chunks):
        seen.extend(each for chunk in chunks for each in chunk["id"].to_pylist())
        time.sleep(0.05)

    topic.send(orders(0, 20_000))
    pipeline = Pipeline("orders", checkpoint=tmp_path)
    pipeline.source(topic.source(schema=ORDERS)).to(FunctionSink(slowly))
    run = pipeline.start()
    eventually(lambda: len(seen) > 1_000, "it reads")
    new_kafka_broker.restart()
    topic.send(orders(20_000, 20_100), 1)
    eventually(lambda: len(seen) >= 20_100, "it reads on")
    run.stop()
    assert sorted(seen) == list(range(20_100))


def test_run_stops_while_the_broker_hangs(topic, new_kafka_broker, tmp_path):
    topic.send(orders(0, 10))
    seen = []
    pipeline = Pipeline("orders", checkpoint=tmp_path)
    pipeline.source(topic.source(columns=["offset"])).to(FunctionSink(seen.extend))
    run = pipeline.start()
    eventually(lambda: sum(map(len, seen)) == 10, "it reads")
    new_kafka_broker.signal(signal.SIGSTOP)
    try:
        assert run.stop(60).rows_written == 10
    finally:
        new_kafka_broker.signal(signal.SIGCONT)


def large_values():
    return ({"value": os.urandom(10_000)} for _ in range(20_000))


def compressed_values():
    return ({"value": f"{number:8}" * 100 + os.urandom(50).hex()} for number in range(200_000))


def large_keys():
    return ({"value": None, "key": os.urandom(2_500).hex()} for _ in range(40_000))


def small_values():
    return ({"value": f"{number:16}" + os.urandom(5).hex()} for number in range(200_000))


# A fetch has most records if several batches fit into the share of a partition. The size of the
# batches of a producer that lingers does not depend on the speed of the machine.
@pytest.mark.parametrize(
    ("records", "partitions", "batch_bytes"),
    [
        (large_values, 2, 1_000_000),
        (compressed_values, 64, 180_000),
        (small_values, 64, 40_000),
        (large_keys, 2, 1_000_000),
    ],
)
def test_paused_source_holds_at_most_64_mb_above_a_split(
    new_kafka_broker, tmp_path, records, partitions, batch_bytes
):
    topic = KafkaTopic(new_kafka_broker, partitions)
    settings = {"compression.type": "zstd", "batch.size": batch_bytes, "linger.ms": 10_000}
    producer = topic.producer(**settings)
    for number, record in enumerate(records()):
        while True:
            try:
                producer.produce(topic.name, partition=number % partitions, **record)
                break
            except BufferError:
                producer.poll(1)
    assert producer.flush(120) == 0
    memory = paused(topic.source(columns=["value"]), tmp_path)
    assert memory["paused"] - memory["before"] <= memory["split"] + (64 << 20)


def test_source_is_read_again_after_a_run_that_failed(new_kafka_broker, tmp_path):
    topic = KafkaTopic(new_kafka_broker, 12)
    value = orders(0, 1)[0].replace("Rome", "R" * 2_000)
    for partition in range(12):
        topic.send([value] * 3_000, partition)
    source = topic.source(watch=False, columns=["partition", "offset"])
    seen = []

    def sink(chunks):
        seen.extend(row for chunk in chunks for row in chunk.to_pylist())
        if len(seen) == 20_000:
            raise OSError("the disk is full")

    for _ in range(2):
        pipeline = Pipeline("orders", checkpoint=tmp_path, cut_interval_s=0.1)
        pipeline.source(source).to(FunctionSink(sink))
        with suppress(StageFailedError):
            pipeline.run()
    found = {(row["partition"], row["offset"]) for row in seen}
    assert found == {(partition, offset) for partition in range(12) for offset in range(3_000)}


def test_run_stops_in_the_middle_of_a_split_while_the_broker_hangs(topic, new_kafka_broker):
    topic.send([os.urandom(100_000) for _ in range(1_000)])
    seen = []

    def slowly(chunks):
        seen.extend(chunks)
        time.sleep(0.05)

    pipeline = Pipeline("orders")
    pipeline.source(topic.source(columns=["value"])).to(FunctionSink(slowly))
    run = pipeline.start()
    eventually(lambda: len(seen) > 3, "it reads")
    new_kafka_broker.signal(signal.SIGSTOP)
    try:
        assert not run.stop(1).complete
    finally:
        new_kafka_broker.signal(signal.SIGCONT)


def test_reading_needs_two_rights_on_the_topic_and_names_what_is_missing(new_kafka_broker, caplog):
    rights = Rights(new_kafka_broker)
    send(rights.open, 3)

    def rows():
        return all_rows(KafkaSource(rights.name, **rights.login(), watch=False))

    with pytest.raises(KafkaRefusedError, match="DESCRIBE on the topic"):
        rows()
    rights.give((TOPIC, "DESCRIBE"))
    with pytest.raises(KafkaRefusedError, match="READ on the topic"):
        rows()
    rights.give((TOPIC, "READ"))
    assert len(rows()) == 3
    flush_log()
    assert "authorization failed" not in caplog.text
