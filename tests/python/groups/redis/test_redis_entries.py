"""Records that were read from Redis, against the same records in memory."""

import gc
import itertools
import socket
import threading
import weakref
from dataclasses import replace

import pytest

from batchqueue._core import ReplyReader
from batchqueue.groups import CodecError, OffsetError, RedisStreams, StreamUnavailableError
from batchqueue.groups.backend import Fetch, NewRecord
from batchqueue.groups.memory import MemoryEntries
from batchqueue.groups.messages import Entry
from batchqueue.groups.record import codec_of

RECORDS = [
    (b"plain", None, ()),
    (b"", None, ()),
    (b"", b"", ()),
    (b"\r\n$5\r\n*1\r\n", b"k\r\n", ()),
    (b"value", b"key", (("type", b"order"), ("type", b""), ("", b"empty name"))),
    (b"value", None, (("ü \udcff", b"\xff"), ("v", b"not the value"), ("h:h:", b""))),
    ("12 ü".encode(), None, ()),
    (b"\xff", None, ()),
    (b"x" * 300_000, b"large", ()),
]


def as_it_is(data, offset):
    return data


@pytest.fixture
def pair(connection, writer):
    """The same records as Redis and memory hold them."""
    offsets = writer.add([NewRecord(0, *record) for record in RECORDS], None)
    [fetched] = connection.read([Fetch(0, 0, 100)], 0)
    entries = [Entry(offset, *record) for offset, record in zip(offsets, RECORDS, strict=True)]
    return fetched.entries, MemoryEntries(entries)


class TestEntries:
    def test_records_are_equal(self, pair):
        ours, model = pair
        for decode in (as_it_is, lambda data, offset: (offset, data[:3])):
            values, error = ours.values(decode)
            assert (values, error) == model.values(decode)
            assert ours.records(values) == model.records(values)
            assert ours.records(values[:3]) == ours.records(values)[:3]
        with pytest.raises(IndexError):
            ours.records([None] * (len(ours) + 1))

    def test_records_end_before_the_first_that_cannot_be_decoded(self, pair):
        decode = codec_of("utf8").decoded
        (ours, error), (model, expected) = (entries.values(decode) for entries in pair)
        assert ours == model
        assert len(ours) == 7
        assert isinstance(error, CodecError)
        assert (str(error), error.offset) == (str(expected), expected.offset)

    def test_only_longer_values_than_the_plain_ones_are_decoded(self, pair):
        codec = replace(codec_of("bytes"), max_record_bytes=5)
        (ours, error), (model, expected) = (
            entries.values(codec.decoded, codec.plain) for entries in pair
        )
        assert (ours, str(error)) == (model, str(expected))
        assert ours == [b"plain", b"", b""]

    def test_each_slice_is_that_of_a_list(self, pair):
        ours, model = pair
        values, _ = model.values(as_it_is)
        whole = model.records(values)
        ends = [None, *range(-len(RECORDS) - 1, len(RECORDS) + 2)]
        for begin, end in itertools.product(ends, ends):
            part = ours[begin:end]
            assert part.values(as_it_is) == (values[begin:end], None)
            assert part.records(values[begin:end]) == whole[begin:end]
            assert len(part) == len(whole[begin:end])

    def test_offsets_and_entries_of_slices(self, pair):
        ours, model = pair
        for begin, end in itertools.combinations(range(len(RECORDS) + 1), 2):
            part, expected = ours[begin:end], model[begin:end]
            assert (part.first, part.last) == (expected.first, expected.last)
            for offset in (part.first, part.last):
                assert part.entry(offset) == expected.entry(offset)

    def test_what_is_not_there_is_an_error(self, pair):
        ours, _ = pair
        for call in (
            lambda: ours.entry(ours.last + 1),
            lambda: ours[1:2].entry(ours.first),
            lambda: ours[:0].first,
            lambda: ours[:0].last,
        ):
            with pytest.raises(IndexError):
                call()
        with pytest.raises(TypeError, match="step"):
            ours[::2]

    def test_other_errors_of_decode_come_out(self, pair):
        def interrupted(data, offset):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pair[0].values(interrupted)

    def test_nothing_of_a_record_is_kept(self, pair):
        class Value:
            pass

        made, _ = pair[0].values(lambda data, offset: Value())
        values = [weakref.ref(value) for value in made]
        pair[0].records(made)
        del made
        gc.collect()
        assert not any(value() for value in values)


class TestReplies:
    def test_replies_are_found_however_they_are_cut(self):
        reply = b"*-1\r\n-ERR no\r\n*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-2\r\n*2\r\n"
        reply += b"$1\r\nv\r\n$4\r\n\r\n*1\r\n"
        for size in range(1, len(reply) + 1):
            reader = ReplyReader(3)
            pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
            assert [reader.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
            nothing, refused, [(key, entries, length)] = reader.take()
            assert (nothing, refused, key, length) == ([], "ERR no", b"s", 4)
            assert entries.entry(1 << 20 | 2) == (1 << 20 | 2, b"\r\n*1", None, ())

    def test_id_that_is_not_an_offset_is_named(self, connection, client):
        client.xadd("bq:{orders/0}:s", {"v": "x"}, id=f"7-{2**20}")
        with pytest.raises(OffsetError, match="has the sequence number 1048576"):
            connection.read([Fetch(0, 0, 10)], 0)
        client.delete("bq:{orders/0}:s")
        client.xadd("bq:{orders/0}:s", {"v": "x"})
        assert len(connection.read([Fetch(0, 0, 10)], 0)) == 1  # on a new connection

    def test_refused_partition_holds_up_no_other(self, connection, client):
        client.set("bq:{orders/0}:s", "no stream")
        client.xadd("bq:{orders/1}:s", {"v": "x"})
        refused, read = connection.read([Fetch(0, 0, 10), Fetch(1, 0, 10)], 0)
        assert (refused.partition, read.partition, len(read.entries)) == (0, 1, 1)
        assert "WRONGTYPE" in str(refused.failure.error)

    @pytest.mark.parametrize(
        ("reply", "message"),
        [
            (b"*1\r\n*2\r\n$1\r\n", "closed"),
            (b"-LOADING Redis is loading the dataset in memory\r\n", "loading"),
            (b":1\r\n", "another type"),
            (b"*-1\r\n*-1\r\n", "more follows"),
        ],
    )
    def test_server_that_does_not_answer_as_it_should_is_not_available(self, reply, message):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve():
                accepted, _ = server.accept()
                with accepted:
                    while b"XREAD" not in (received := accepted.recv(1 << 16)):
                        accepted.sendall(b"+OK\r\n" * received.count(b"*"))  # to the greeting
                    accepted.sendall(reply)

            thread = threading.Thread(target=serve)
            thread.start()
            url = f"redis://127.0.0.1:{server.getsockname()[1]}"
            connection = RedisStreams(url, "orders").connect("g", lease_ms=60_000, name="a")
            with pytest.raises(StreamUnavailableError, match=message):
                connection.read([Fetch(0, 0, 10)], 0)
            connection.close()
            thread.join()
