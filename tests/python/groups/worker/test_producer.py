"""What producers add, and to which partition."""

import pytest

from batchqueue import ConfigError, QueueClosedError, RetryPolicy
from batchqueue.groups import (
    MemoryStreams,
    StreamFullError,
)
from groups_support.workers import Collected, worker_of

QUICK = RetryPolicy(attempts=1, backoff_ms=1, max_backoff_ms=2)


@pytest.fixture
def streams():
    return MemoryStreams("orders", partitions=2)


class TestProducer:
    def test_a_key_has_one_partition_and_its_records_are_in_order(self):
        streams = MemoryStreams("orders", partitions=8)
        got = Collected()
        with streams.producer(codec="json", key=lambda value: value[0]) as producer:
            assert producer.send_many([f"k{n % 20}", n] for n in range(1_000)) == 1_000
        worker_of(streams, got, codec="json").run(until_idle=0.05)
        places, numbers = {}, {}
        for partition, records in got.records.items():
            for record in records:
                key, number = record.value
                places.setdefault(key, set()).add(partition)
                numbers.setdefault(key, []).append(number)
                assert record.key == key.encode()
        assert all(len(each) == 1 for each in places.values())
        assert all(each == sorted(each) for each in numbers.values())
        assert len(numbers) == 20

    def test_str_bytes_and_int_are_keys(self, streams):
        got = Collected()
        with streams.producer(codec="utf8") as producer:
            producer.send("a", key="é")
            producer.send("b", key="é".encode())
            producer.send("c", key=-5)
            with pytest.raises(ConfigError, match="cannot be hashed the same way"):
                producer.send("d", key=1.5)
        worker_of(streams, got).run(until_idle=0.05)
        keys = {record.value: record.key for each in got.records.values() for record in each}
        assert keys == {"a": "é".encode(), "b": "é".encode(), "c": b"-5"}
        [place] = {p for p, each in got.records.items() for r in each if r.value in "ab"}
        assert place in (0, 1)

    def test_without_keys_all_partitions_get_their_share(self):
        streams = MemoryStreams("orders", partitions=4)
        with streams.producer() as producer:
            producer.send_many([b"x"] * 1_000)
        assert [streams.script(each).state.added for each in range(4)] == [300, 300, 200, 200]

    def test_a_full_partition_is_an_error_that_says_how_much_was_added(self, streams):
        with streams.producer(codec="utf8", max_len=5) as producer:
            with pytest.raises(StreamFullError, match="orders/0 holds 5 unread records") as raised:
                producer.send_many(["x"] * 9, partition=0)
            assert raised.value.accepted == 5
            with pytest.raises(StreamFullError):
                producer.send("x", partition=0)
            worker_of(streams, Collected()).run(until_idle=0.05)
            producer.send("x", partition=0)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"partition": 2}, "partition is 2; give an int from 0 to 1"),
            ({"partition": "0"}, "partition is '0'"),
            ({"headers": {"a": 1}}, r"the headers have \('a', 1\); give names as str"),
        ],
    )
    def test_bad_arguments_add_nothing(self, streams, arguments, message):
        with streams.producer(codec="utf8") as producer, pytest.raises(ConfigError, match=message):
            producer.send("x", **arguments)
        assert all(streams.script(each).state.added == 0 for each in range(2))

    def test_a_closed_producer_sends_nothing(self, streams):
        producer = streams.producer()
        producer.close()
        with pytest.raises(QueueClosedError, match="the producer of orders is closed"):
            producer.send(b"x")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"max_len": 0}, "max_len is 0"),
            ({"key": "id"}, "key is 'id'"),
            ({"partitions": 3}, 'stream "orders" has 2 partitions, partitions=3 was given'),
        ],
    )
    def test_bad_settings(self, streams, settings, message):
        with pytest.raises(ConfigError, match=message):
            streams.producer(**settings)
