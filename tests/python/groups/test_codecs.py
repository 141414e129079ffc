"""Codecs: values come back, bad input is an error of one class, and no input costs much memory."""

import base64
import itertools
import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue import BatchQueueError, ConfigError
from batchqueue.exceptions import MissingPackageError
from batchqueue.groups import record as codecs
from batchqueue.groups.errors import CodecError, RecordTooLargeError
from batchqueue.groups.record import MAX_RECORD_BYTES, Codec, codec_of

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
BATCH = pa.RecordBatch.from_pydict(
    {
        "id": [1, 2, None],
        "word": ["a", "bb", "ccc"],
        "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
    }
)


def came_back(codec, value):
    return codec.decoded(codec.encoded(value))


def stream(*batches, **options):
    """Returns the bytes of an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCH.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def messages(data):
    """Returns the messages of an IPC stream by their type."""
    reader = pa.ipc.MessageReader.open_stream(data)
    found = [reader.read_next_message() for _ in range(3)]
    return {message.type: message.serialize().to_pybytes() for message in found}


@given(value=st.binary())
def test_bytes_come_back(value):
    codec = codec_of("bytes")
    assert came_back(codec, value) == value
    assert came_back(codec, bytearray(value)) == value
    assert came_back(codec, memoryview(value)) == value
    assert type(codec.encoded(bytearray(value))) is bytes


@given(value=st.text())
def test_text_comes_back(value):
    assert came_back(codec_of("utf8"), value) == value


@given(value=JSON)
def test_json_comes_back(value):
    assert came_back(codec_of("json"), value) == value
    assert json.loads(codec_of("json").encoded(value)) == value


@given(value=JSON | st.binary() | st.lists(st.binary()))
def test_msgpack_comes_back(value):
    pytest.importorskip("msgpack")
    assert came_back(codec_of("msgpack"), value) == value


@pytest.mark.parametrize("batch", [BATCH, BATCH.slice(1, 1), BATCH.slice(0, 0)])
def test_record_batch_comes_back(batch):
    found = came_back(codec_of("arrow"), batch)
    assert found.equals(batch)
    assert found.schema == batch.schema


def test_json_is_utf8_without_spaces():
    assert codec_of("json").encoded({"a": [1, "ä"]}) == '{"a":[1,"ä"]}'.encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *(("utf8", data) for data in (b"\xff", b"\xed\xa0\x80", b"\xc0\x80")),
        *(
            ("json", data)
            for data in (b"", b"{", b"1 2", b"NaN", b"[-Infinity]", b'{"a":Infinity}')
        ),
        *(("json", data) for data in ("1".encode("utf-16"), b"\xef\xbb\xbf1", b"9" * 5_000)),
        ("json", b"[" * 100_000),
        *(("arrow", data) for data in (b"", b"x" * 100, stream(BATCH)[:-20])),
    ],
)
def test_bad_record_is_an_error_with_codec_offset_and_cause(name, data):
    with pytest.raises(CodecError, match=f"codec {name} cannot decode .* at offset 42: ") as raised:
        codec_of(name).decoded(data, 42)
    error = raised.value
    assert (error.codec, error.offset, error.encoding) == (name, 42, False)
    assert error.__cause__ is not None
    assert type(error.__cause__).__name__ in str(error)
    assert len(str(error)) < 400


def test_bad_record_without_an_offset_is_an_error_that_does_not_name_any():
    with pytest.raises(CodecError, match=r"cannot decode the record: JSONDecodeError: "):
        codec_of("json").decoded(b"{")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("bytes", value) for value in ("text", 5, None, [1])),
        *(("utf8", value) for value in (b"bytes", 5, "\ud800")),
        *(("json", value) for value in (object(), b"x", math.nan, [math.inf], "\ud800")),
        *(("arrow", value) for value in (1, pa.table({"a": [1]}))),
    ],
)
def test_value_that_the_codec_does_not_take_is_an_error(name, value):
    with pytest.raises(CodecError, match=f"codec {name} cannot encode the value: ") as raised:
        codec_of(name).encoded(value)
    assert raised.value.encoding
    assert raised.value.__cause__ is not None


def test_number_too_large_for_a_float_is_valid_json():
    assert codec_of("json").decoded(b"1e999") == math.inf


def test_msgpack_has_no_extension_types():
    msgpack = pytest.importorskip("msgpack")
    for code, size in itertools.product((0, 5, -128, -1), (0, 1, 2, 3, 4, 8, 16, 200)):
        records = [b"\xc7" + bytes([size, code % 256]) + b"\0" * size]
        if code >= 0:
            records.append(msgpack.packb([{"a": msgpack.ExtType(code, b"\0" * size)}]))
        for data in records:
            with pytest.raises(CodecError, match=r"codec msgpack cannot decode"):
                codec_of("msgpack").decoded(data)


def test_msgpack_has_no_timestamps():
    msgpack = pytest.importorskip("msgpack")
    for seconds in (1, 2**33, 2**40):  # they are of three sizes
        moment = msgpack.Timestamp(seconds, 5)
        with pytest.raises(CodecError, match=r"codec msgpack cannot decode"):
            codec_of("msgpack").decoded(msgpack.packb([moment]))
        with pytest.raises(CodecError, match=r"codec msgpack cannot encode"):
            codec_of("msgpack").encoded([moment])


def test_msgpack_does_not_send_what_it_does_not_read():
    msgpack = pytest.importorskip("msgpack")
    for value in (msgpack.ExtType(5, b"x"), {1: 2}):
        with pytest.raises(CodecError, match=r"codec msgpack cannot encode"):
            codec_of("msgpack").encoded(value)


def test_msgpack_does_not_allocate_what_a_record_only_announces():
    pytest.importorskip("msgpack")
    for data in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91",
    ):
        with pytest.raises(CodecError, match=r"codec msgpack cannot decode"):
            codec_of("msgpack").decoded(data)


@pytest.mark.parametrize("batches", [0, 2])
def test_arrow_record_holds_exactly_one_batch(batches):
    with pytest.raises(CodecError, match=f"has {batches} record batches, not 1"):
        codec_of("arrow").decoded(stream(*[BATCH] * batches))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_arrow_record_is_rejected(compression):
    """Some thousand bytes could hold gigabytes."""
    data = stream(BATCH, compression=compression)
    with pytest.raises(CodecError, match=r"is compressed; write it without compression"):
        codec_of("arrow").decoded(data)
    plain, compressed = messages(stream(BATCH)), messages(data)
    for kind in ("dictionary", "record batch"):
        mixed = {**plain, kind: compressed[kind]}
        with pytest.raises(CodecError, match=r"is compressed"):
            codec_of("arrow").decoded(b"".join(mixed.values()))
    assert codec_of("arrow").decoded(b"".join(plain.values())).equals(BATCH)


def test_arrow_record_of_the_old_format_is_rejected():
    """It may be compressed in a way that the check does not see."""
    data = stream(BATCH, metadata_version=pa.ipc.MetadataVersion.V4)
    with pytest.raises(CodecError, match=r"is older than version 5"):
        codec_of("arrow").decoded(data)


def test_arrow_record_whose_offsets_point_outside_is_rejected():
    data = bytearray(codec_of("arrow").encoded(pa.RecordBatch.from_pydict({"word": ["aaaa", "b"]})))
    offsets = b"".join(number.to_bytes(4, "little") for number in (0, 4, 5))
    (place,) = (at for at in range(len(data)) if data.startswith(offsets, at))
    data[place + 4 : place + 8] = (2**30).to_bytes(4, "little")
    with pytest.raises(CodecError, match=r"codec arrow cannot decode the record: ArrowInvalid"):
        codec_of("arrow").decoded(bytes(data))


def test_size_is_checked_before_decoding():
    decoded = []
    codec = Codec(bytes, decoded.append, name="mine", max_record_bytes=4)
    codec.decoded(b"1234", 1)
    with pytest.raises(RecordTooLargeError) as raised:
        codec.decoded(b"12345", 2)
    assert decoded == [b"1234"]
    assert isinstance(raised.value, CodecError)
    assert str(raised.value) == (
        "codec mine: the record at offset 2 has 5 bytes, and max_record_bytes is 4: "
        "send smaller records, or raise max_record_bytes"
    )


def test_record_that_could_not_be_read_again_is_not_sent():
    codec = replace(codec_of("utf8"), max_record_bytes=4)
    assert codec.encoded("1234") == b"1234"
    with pytest.raises(RecordTooLargeError, match=r"the record has 5 bytes") as raised:
        codec.encoded("12345")
    assert (raised.value.size, raised.value.limit, raised.value.encoding) == (5, 4, True)


def test_limit_is_16_mib_unless_another_is_given():
    assert MAX_RECORD_BYTES == 16 * 1024 * 1024
    assert codec_of("bytes").decoded(bytes(MAX_RECORD_BYTES)) == bytes(MAX_RECORD_BYTES)
    larger = bytes(MAX_RECORD_BYTES + 1)
    with pytest.raises(RecordTooLargeError, match=r"has 16,777,217 bytes"):
        codec_of("bytes").decoded(larger)
    assert replace(codec_of("bytes"), max_record_bytes=len(larger)).decoded(larger) == larger


def test_own_codec_is_used_as_it_is():
    codec = Codec(base64.b64encode, base64.b64decode)
    assert codec_of(codec) is codec
    assert came_back(codec, b"value") == b"value"
    with pytest.raises(CodecError, match=r"codec custom cannot decode .* Incorrect padding"):
        codec.decoded(b"xx")
    with pytest.raises(CodecError, match=r"cannot encode the value: encode returned str, not byt"):
        Codec(str, str).encoded(5)


def test_error_of_the_package_from_a_codec_is_left_as_it_is():
    def refuse(data):
        raise BatchQueueError("mine")

    with pytest.raises(BatchQueueError, match=r"^mine$"):
        Codec(bytes, refuse).decoded(b"x")


@pytest.mark.parametrize("name", ["bytes", "utf8", "json", "arrow"])
def test_codec_can_be_pickled(name):
    assert pickle.loads(pickle.dumps(codec_of(name))) == codec_of(name)


@pytest.mark.parametrize("name", ["pickle", "JSON", "", None, 5])
def test_unknown_name_is_rejected_with_the_known_ones(name):
    with pytest.raises(ConfigError) as raised:
        codec_of(name)
    assert str(raised.value) == (
        f'codec is {name!r}; give "arrow", "bytes", "json", "msgpack", "utf8" or a '
        "Codec(encode, decode)"
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"encode": None}, "encode is None; give a function"),
        ({"decode": "json"}, "decode is 'json'; give a function"),
        ({"name": ""}, "name is ''"),
        *(
            (
                {"max_record_bytes": limit},
                f"max_record_bytes is {limit!r}; give an int of at least 1",
            )
            for limit in (0, -1, 1.5, True, "1")
        ),
    ],
)
def test_wrong_argument_is_named(arguments, named):
    with pytest.raises(ConfigError, match=named):
        Codec(**{"encode": bytes, "decode": bytes, **arguments})


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("msgpack", "msgpack", "msgpack"), ("arrow", "pyarrow", "parquet")],
)
def test_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch, name, package, extra
):
    unchecked = codecs._CODECS[name]  # as unpickled on a host without the package
    codecs._package.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    for use in (
        lambda: codec_of(name),
        lambda: unchecked.encoded(b"x"),
        lambda: unchecked.decoded(b"x"),
    ):
        with pytest.raises(MissingPackageError) as raised:
            use()
        assert str(raised.value).startswith(f"the codec {name} needs {package}")
        assert str(raised.value).endswith(f": pip install 'batchqueue-rs[{extra}]'")


def test_packages_of_codecs_are_not_loaded_before_they_are_used():
    script = (
        "import sys\nfrom batchqueue.groups.record import codec_of\ncodec_of('json').encoded(1)\n"
        "print(sorted({'msgpack', 'pyarrow'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"
