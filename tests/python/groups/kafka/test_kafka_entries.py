"""Records of a partition of Kafka, against records that were made one by one."""

import itertools

import confluent_kafka
import pytest
from confluent_kafka import Message

from batchqueue.groups import Codec, CodecError, Record
from batchqueue.groups.kafka.connection import KafkaEntries
from batchqueue.groups.record import codec_of

FIELDS = [
    (b"1", None, None),
    (b"22", b"key", [("type", b"order"), ("type", b""), ("none", None)]),
    (None, b"removed", None),
    (b"", b"", []),
    (b"\xff", None, [("h", b"1")]),
    (b"333", None, None),
]


def messages(*places):
    return [
        Message(
            topic="orders",
            partition=0,
            offset=10 + 3 * place,
            value=FIELDS[place][0],
            key=FIELDS[place][1],
            headers=FIELDS[place][2],
            timestamp=(1, 1_000 + place),
        )
        for place in places
    ]


def expected(decode, places):
    """Returns the records up to the first that cannot be decoded, and its offset."""
    records = []
    for place in places:
        data, key, headers = FIELDS[place]
        try:
            value = data if data is None else decode(data)
        except ValueError:
            return records, 10 + 3 * place
        pairs = tuple((name, value or b"") for name, value in headers or ())
        records.append(Record(value, key, 10 + 3 * place, 1_000 + place, pairs))
    return records, None


@pytest.mark.parametrize("name", ["bytes", "utf8", "length"])
def test_records_are_those_made_one_by_one(name):
    codec = Codec(bytes, len, "length") if name == "length" else codec_of(name)
    for begin, end in itertools.combinations(range(len(FIELDS) + 1), 2):
        places = range(begin, end)
        whole = KafkaEntries(messages(*range(len(FIELDS))))
        for entries in (KafkaEntries(messages(*places)), whole[begin:end]):
            values, error = entries.values(codec.decoded, codec.plain)
            records, bad = expected(codec.decode, places)
            assert entries.records(values) == records
            assert values == [record.value for record in records]
            assert (error and error.offset) == bad
            assert (entries.first, entries.last, len(entries)) == (
                10 + 3 * begin,
                10 + 3 * (end - 1),
                end - begin,
            )


def test_value_that_is_too_large_ends_the_plain_ones():
    codec = Codec(codec_of("bytes").encode, codec_of("bytes").decode, "bytes", max_record_bytes=2)
    values, error = KafkaEntries(messages(0, 1, 2, 5, 3)).values(codec.decoded, codec.plain)
    assert values == [b"1", b"22", None]
    assert error.offset == 25


def test_error_of_a_codec_that_is_not_its_own_comes_out():
    def interrupted(data, offset):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        KafkaEntries(messages(0)).values(interrupted)


class BadlyNamed(Message):
    """The second of these has a header whose name is not UTF-8."""

    def headers(self):
        if self.offset() == 11:
            raise UnicodeDecodeError("utf8", b"\xff", 0, 1, "invalid start byte")
        return [("h", b"1")]


def test_record_with_a_bad_header_cannot_be_decoded_and_is_kept_without_headers(monkeypatch):
    monkeypatch.setattr(confluent_kafka, "Message", BadlyNamed)
    entries = KafkaEntries([BadlyNamed(offset=10 + n, value=b"v", key=b"k") for n in range(3)])
    values, error = entries.values(codec_of("bytes").decoded, 1_000)
    assert values == [b"v"]
    assert isinstance(error, CodecError)
    assert error.offset == 11
    [record] = entries[1:2].records([error])
    assert (record.value, record.key, record.headers) == (error, b"k", ())
    assert entries.entry(11) == (11, b"v", b"k", ())
