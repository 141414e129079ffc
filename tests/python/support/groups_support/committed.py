"""What groups have committed, as their broker keeps it: neither offset nor token goes back.

The broker keeps each commit as a record of an internal topic, in the order in which it took them.
The forms are those of `OffsetCommitKey.json` and `OffsetCommitValue.json` of Apache Kafka.
"""

import struct
import time
from collections import Counter
from contextlib import closing
from typing import NamedTuple

from batchqueue.groups.kafka.ownership import token_in
from core_support.waits import WAIT_S

TOPIC = "__consumer_offsets"

_KEY_VERSIONS = (0, 1)
"""Other keys are those of records about groups and their members."""

_COMPACT = 4
"""The first version of a value whose text is preceded by a varint."""

_PATIENCE_S = 3 * WAIT_S
"""A transaction of a worker that was killed is open until it times out, and hides what follows."""


class Commit(NamedTuple):
    """A commit that the broker took.

    Attributes:
        place: Its offset in the internal topic.
        group: The group.
        topic: The topic of the records.
        partition: Their partition.
        offset: The offset of the next record; None if the broker forgot the partition.
        metadata: What the consumer wrote beside it.
    """

    place: int
    group: str
    topic: str
    partition: int
    offset: int | None
    metadata: str

    @property
    def token(self):
        """The token in the metadata; 0 if another program made the commit."""
        return token_in(self.metadata)

    def __str__(self):
        return f"offset {self.offset}, {self.metadata!r} (at {self.place} of {TOPIC})"


class Reader:
    """Reads fields of a record of the broker."""

    def __init__(self, data):
        self._data = data
        self._at = 0

    def number(self, form):
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return number

    def varint(self):
        number = shift = 0
        while True:
            byte = self.number(">B")
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def text(self, *, is_compact=False):
        size = self.varint() - 1 if is_compact else self.number(">h")
        self._at += size
        return self._data[self._at - size : self._at].decode()


def decoded(place, key, value):
    """Returns the commit in a record of the internal topic, or None for a record about a group."""
    reader = Reader(key)
    if reader.number(">h") not in _KEY_VERSIONS:
        return None
    about = place, reader.text(), reader.text(), reader.number(">i")
    if value is None:
        return Commit(*about, None, "")
    reader = Reader(value)
    version = reader.number(">h")
    assert version <= _COMPACT, f"the value of a commit has version {version}"
    offset = reader.number(">q")
    if version >= 3:
        reader.number(">i")  # the epoch of the leader
    metadata = reader.text(is_compact=version == _COMPACT)
    return Commit(*about, offset, metadata.removesuffix("\0"))  # confluent-kafka sends C's end


def commits_of(bootstrap, group):
    """Returns the commits of a group in the order of the broker, without those that were aborted.

    Args:
        bootstrap: Host and port of the broker.
        group: The group.

    Returns:
        The commits up to now, by topic and partition.
    """
    found = {}
    for message in _records(bootstrap):
        commit = decoded(message.offset(), message.key(), message.value())
        if commit is not None and commit.group == group:
            found.setdefault((commit.topic, commit.partition), []).append(commit)
    return found


def _records(bootstrap):
    """Returns the committed records of the internal topic, each partition up to its end of now."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    settings = {"bootstrap.servers": bootstrap, "log_level": 2}
    reading = {
        "group.id": "none",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",  # the first records are there
        "fetch.queue.backoff.ms": 10,
    }
    admin = AdminClient(settings)
    numbers = admin.list_topics(TOPIC, WAIT_S).topics[TOPIC].partitions
    places = [TopicPartition(TOPIC, each, 0) for each in numbers]
    asked = admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest()))
    left = {place.partition: each.result(WAIT_S).offset for place, each in asked.items()}
    found = []
    deadline = time.monotonic() + _PATIENCE_S
    with closing(Consumer({**settings, **reading})) as consumer:
        consumer.assign(places)
        while left:
            assert time.monotonic() < deadline, "a transaction does not end"
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    found.append(message)
                    continue
                assert error.code() == KafkaError._PARTITION_EOF, error
                if message.offset() >= left.get(message.partition(), 0):
                    left.pop(message.partition(), None)
    return found


def check_commits(bootstrap, group, resets=()):
    """Checks that no commit of a group took an offset or a token back.

    A broker that forgets a partition ends what its offset is compared with; tokens grow all the
    same, because they follow the clock.

    Args:
        bootstrap: Host and port of the broker.
        group: The group.
        resets: Partition and offset of each reset. A commit of exactly that offset may be below the
            one before, once, and keeps its token.

    Returns:
        The number of commits.

    Raises:
        AssertionError: One did. It names the partition and both commits.
    """
    left = Counter(resets)
    found = commits_of(bootstrap, group)
    for (topic, partition), commits in found.items():
        offset, token = None, 0
        before = None
        for commit in commits:
            if commit.offset is None:
                offset, before = None, commit
                continue
            where = f"{topic}/{partition} of group {group}: {before}, then {commit}"
            assert commit.token >= token, f"the token of {where}"
            if offset is not None and commit.offset < offset:
                is_reset = left[partition, commit.offset] > 0 and commit.token == token
                assert is_reset, f"the offset of {where}"
                left[partition, commit.offset] -= 1
            offset, token, before = commit.offset, commit.token, commit
    return sum(map(len, found.values()))
