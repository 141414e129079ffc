"""The check of what a broker has of a group finds each commit that goes back."""

import struct
from contextlib import closing
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from batchqueue.groups import KafkaStreams
from batchqueue.groups.kafka.ownership import Owned, metadata_of
from core_support.waits import WAIT_S
from groups_support.committed import Commit, check_commits, commits_of, decoded
from groups_support.workers import send

pytestmark = pytest.mark.matrix(4, name="commits on Kafka")


def metadata(token):
    return metadata_of(Owned(0, token=token, began=2), "here")


class Shop:
    """A group without members, whose offsets a plain consumer commits."""

    def __init__(self, broker):
        self.address = broker.address
        self.name = f"orders-{uuid4()}"
        self.streams = KafkaStreams(self.name, bootstrap=broker.address, partitions=2)
        send(self.streams, 20)
        settings = {"bootstrap.servers": broker.address, "group.id": self.name}
        self.consumer = Consumer(settings)

    def place(self, offset, token, partition=1):
        return TopicPartition(self.name, partition, offset, metadata(token))

    def commit(self, *place):
        self.consumer.commit(offsets=[self.place(*place)], asynchronous=False)

    def check(self, **settings):
        return check_commits(self.address, self.name, **settings)

    def fails(self, what, before, after):
        """Checks that the partition and both commits are named."""
        with pytest.raises(AssertionError) as raised:
            self.check()
        text = str(raised.value)
        assert text.startswith(f"the {what} of {self.name}/1 of group {self.name}: ")
        for offset, token in (before, after):
            assert f"offset {offset}, {metadata(token)!r} (at " in text


@pytest.fixture
def shop(new_kafka_broker):
    shop = Shop(new_kafka_broker)
    with closing(shop.consumer):
        yield shop


def test_commits_that_rise_or_stay_pass(shop):
    for place in ((3, 7), (3, 7), (5, 7), (5, 8), (2, 1, 0), (6, 8)):
        shop.commit(*place)
    assert shop.check() == 6


def test_offset_that_goes_back_under_its_token_is_found(shop):
    shop.commit(5, 7)
    shop.commit(9, 9, 0)  # another partition, between
    shop.commit(3, 7)
    shop.fails("offset", (5, 7), (3, 7))


def test_offset_that_goes_back_under_a_larger_token_is_found(shop):
    shop.commit(5, 7)
    shop.commit(4, 8)
    shop.fails("offset", (5, 7), (4, 8))


def test_token_that_goes_back_is_found(shop):
    shop.commit(5, 7)
    shop.commit(6, 6)
    shop.fails("token", (5, 7), (6, 6))


def test_going_back_that_another_commit_has_made_up_for_is_found(shop):
    for place in ((5, 7), (3, 7), (6, 7)):
        shop.commit(*place)
    shop.fails("offset", (5, 7), (3, 7))


def test_reset_may_go_back_once(shop):
    shop.commit(5, 7)
    with closing(shop.streams.open_administration(shop.name)) as administration:
        administration.reset(1, 1, 2)
    shop.fails("offset", (5, 7), (2, 7))
    assert shop.check(resets=[(1, 2)]) == 2
    shop.commit(4, 8)
    shop.commit(2, 8)
    with pytest.raises(AssertionError, match="the offset of"):
        shop.check(resets=[(1, 2)])


def test_group_that_is_forgotten_may_begin_anew_under_a_larger_token(shop):
    shop.commit(5, 7)
    admin = AdminClient({"bootstrap.servers": shop.address})
    [asked] = admin.delete_consumer_groups([shop.name]).values()
    asked.result(WAIT_S)
    shop.commit(1, 8)
    assert [each.offset for each in commits_of(shop.address, shop.name)[shop.name, 1]] == [
        *(5, None, 1)
    ]
    assert shop.check() == 3
    shop.commit(2, 7)
    with pytest.raises(AssertionError, match="the token of"):
        shop.check()


def test_commit_of_a_transaction_counts_unless_it_was_aborted(shop):
    producer = Producer({"bootstrap.servers": shop.address, "transactional.id": shop.name})
    producer.init_transactions(WAIT_S)
    for place, end in (
        ((5, 7), producer.commit_transaction),
        ((3, 7), producer.abort_transaction),
        ((6, 7), producer.commit_transaction),
    ):
        producer.begin_transaction()
        group = shop.consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([shop.place(*place)], group, WAIT_S)
        end(WAIT_S)
    assert [each.offset for each in commits_of(shop.address, shop.name)[shop.name, 1]] == [5, 6]
    assert shop.check() == 2


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_each_version_of_a_commit_is_read(version):
    def text(value, is_compact=False):
        data = value.encode()
        size = struct.pack(">h", len(data))
        if is_compact:  # two bytes of a varint
            size = bytes([(len(data) + 1) & 0x7F | 0x80, (len(data) + 1) >> 7])
        return size + data

    key = struct.pack(">h", 1) + text("g") + text("orders") + struct.pack(">i", 3)
    note = "ü" * 100
    value = struct.pack(">hq", version, 1 << 40)
    value += struct.pack(">i", 9) if version >= 3 else b""
    value += text(note, version == 4) + struct.pack(">q", 1)
    assert decoded(8, key, value) == Commit(8, "g", "orders", 3, 1 << 40, note)
    assert decoded(8, key, None) == Commit(8, "g", "orders", 3, None, "")


def test_record_about_a_group_is_not_a_commit():
    assert decoded(8, struct.pack(">h", 3) + b"whatever", b"") is None
