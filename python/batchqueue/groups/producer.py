"""`Producer`: adds values to a stream."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from batchqueue import _core
from batchqueue.base.checks import check_whole, require
from batchqueue.base.words import counted
from batchqueue.exceptions import BatchQueueError, ConfigError, QueueClosedError
from batchqueue.groups.backend import NewRecord
from batchqueue.groups.errors import CodecError, RecordTooLargeError, StreamFullError, shortened

if TYPE_CHECKING:
    from batchqueue.groups.backend import StreamSource


# Codecs: how values become the bytes of records, and come back.
#
# Streams are untrusted input. So no codec unpickles, a record is measured before it is decoded, and
# whatever a codec raises arrives as a `CodecError`, which concerns that record alone.


MAX_RECORD_BYTES = 16 << 20
"""The bytes that a record may have, unless its codec says otherwise: 16 MiB."""


@dataclass(frozen=True)
class Codec:
    """How values are written as records, and read. It can be pickled if its functions can.

    Attributes:
        encode: Takes a value and returns bytes. What it raises becomes a `CodecError`.
        decode: Takes bytes and returns a value. What it raises becomes a `CodecError`.
        name: What errors call it. Default: "custom".
        max_record_bytes: The most bytes of a record; a larger one is neither sent nor decoded.
            Default: 16 MiB.

    Raises:
        ConfigError: An attribute cannot be used; the message names it.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    name: str = "custom"
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        for name in ("encode", "decode"):
            if not callable(function := getattr(self, name)):
                raise ConfigError(f"Codec: {name} is {function!r}; give a function")
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"Codec: name is {self.name!r}; give a text that errors can quote")
        least = "an int of at least 1"
        check_whole("Codec: max_record_bytes", self.max_record_bytes, 1, give=least)

    @property
    def plain(self) -> int | None:
        """The most bytes of a value that decoding leaves as it is; None if it leaves none so."""
        return self.max_record_bytes if self.decode is _decode_bytes else None

    def encoded(self, value: Any) -> bytes:
        """Encode a value.

        Raises:
            CodecError: `encode` raised, or returned something else than bytes.
            RecordTooLargeError: The bytes are too many to be decoded again.
            MissingPackageError: The package behind the codec is not installed.
        """
        try:
            data = self.encode(value)
        except BatchQueueError:
            raise
        except Exception as error:
            raise CodecError(self.name, _reason(error), encoding=True) from error
        if not isinstance(data, bytes):
            kind = type(data).__name__
            raise CodecError(self.name, f"encode returned {kind}, not bytes", encoding=True)
        if len(data) > self.max_record_bytes:
            raise RecordTooLargeError(self.name, len(data), self.max_record_bytes, encoding=True)
        return data

    def decoded(self, data: bytes, offset: int | None = None) -> Any:
        """Decode a record.

        Args:
            data: Its bytes.
            offset: Its offset, for the error.

        Raises:
            CodecError: `decode` raised.
            RecordTooLargeError: The record has too many bytes; it was not decoded.
            MissingPackageError: The package behind the codec is not installed.
        """
        if len(data) > self.max_record_bytes:
            raise RecordTooLargeError(self.name, len(data), self.max_record_bytes, offset)
        try:
            return self.decode(data)
        except BatchQueueError:
            raise
        except Exception as error:
            raise CodecError(self.name, _reason(error), offset) from error


def codec_of(codec: str | Codec, max_record_bytes: int | None = None) -> Codec:
    """Return a codec by its name, or the given one.

    >>> codec_of("json").encoded({"id": 1})
    b'{"id":1}'

    - "bytes" leaves bytes as they are; it also encodes `bytearray` and `memoryview`.
    - "utf8" is for str. Invalid bytes are an error, and so is half of a surrogate pair.
    - "json" is JSON in UTF-8. NaN and Infinity are errors both ways: they are not JSON, and other
      programs could not read them. A number that is too large for a float is valid JSON, and
      becomes infinity.
    - "msgpack" has no extension types, not even the one for times. Keys of maps are str or bytes.
      Needs the extra `msgpack`.
    - "arrow" is for a `pyarrow.RecordBatch`: an IPC stream with one batch, which must not be
      compressed, because a small record could fill the memory then. Needs pyarrow.

    Args:
        codec: A name, or a codec.
        max_record_bytes: The most bytes of a record; None leaves it as it is.

    Raises:
        ConfigError: No codec has that name, or `max_record_bytes` is not an int of at least 1.
        MissingPackageError: The package behind the codec is not installed.
    """
    if not isinstance(codec, Codec):
        if codec not in _CODECS:
            known = ", ".join(f'"{name}"' for name in sorted(_CODECS))
            raise ConfigError(f"codec is {codec!r}; give {known} or a Codec(encode, decode)")
        if codec in _PACKAGES:
            require(*_PACKAGES[codec])
        codec = _CODECS[codec]
    return codec if max_record_bytes is None else replace(codec, max_record_bytes=max_record_bytes)


def _reason(error: Exception) -> str:
    # Not its repr: that of a UnicodeDecodeError contains all bytes of the record.
    return shortened(f"{type(error).__name__}: {error}")


def _encode_bytes(value: bytes | bytearray | memoryview) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):  # bytes(5) would be five zeros
        raise TypeError(f"{type(value).__name__} is not bytes")
    return bytes(value)


def _decode_bytes(data: bytes) -> bytes:
    return data


def _encode_utf8(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not str")
    return value.encode()


def _decode_utf8(data: bytes) -> str:
    return data.decode()


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _decode_json(data: bytes) -> Any:
    # Decoded here, because `json.loads` takes UTF-16 and UTF-32 as well, and surrogates.
    return json.loads(data.decode(), parse_constant=_reject_constant)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@cache
def _package(codec: str) -> Any:
    """The package behind a codec; looked up once, because this is on the way of each record."""
    require(*_PACKAGES[codec])
    return import_module(_PACKAGES[codec][0])


def _encode_msgpack(value: Any) -> bytes:
    data: bytes = _package("msgpack").packb(value)
    # It packs extension types, and keys of any kind. Consumers would refuse such a record, and it
    # would block its partition.
    _decode_msgpack(data)
    return data


def _decode_msgpack(data: bytes) -> Any:
    # A timestamp never reaches `ext_hook`; the limit of length 0 rejects it.
    return _package("msgpack").unpackb(data, ext_hook=_reject_extension, max_ext_len=0)


def _reject_extension(code: int, data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code} is not allowed")


def _encode_arrow(value: Any) -> bytes:
    pyarrow = _package("arrow")
    if not isinstance(value, pyarrow.RecordBatch):
        raise TypeError(f"{type(value).__name__} is not a pyarrow.RecordBatch")
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, value.schema) as writer:
        writer.write_batch(value)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _decode_arrow(data: bytes) -> Any:
    pyarrow = _package("arrow")
    messages = list(_ipc_messages(data))
    batches = sum(message.type == "record batch" for message in messages)
    if batches != 1:
        raise ValueError(f"the IPC stream has {batches} record batches, not 1")
    # Arrow before 1.0 noted a compression elsewhere.
    if any(message.metadata_version != pyarrow.ipc.MetadataVersion.V5 for message in messages):
        raise ValueError("the IPC stream is older than version 5, that of Arrow 1.0")
    if any(map(_is_compressed, messages)):
        raise ValueError("the record batch is compressed; write it without compression")
    batch = pyarrow.ipc.open_stream(data).read_next_batch()
    # Offsets in the record could point outside of its buffers, and end the process when used.
    batch.validate(full=True)
    return batch


def _ipc_messages(data: bytes) -> Iterator[Any]:
    reader = _package("arrow").ipc.MessageReader.open_stream(data)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _is_compressed(message: Any) -> bool:
    """Return whether a message of an IPC stream has compressed buffers.

    pyarrow does not show it, so this reads the Flatbuffers of Message.fbs, in the format of Arrow:
    field 2 of a Message is its header. Field 3 of a RecordBatch is the compression, and field 1 of
    a DictionaryBatch is a RecordBatch.
    """
    if message.type == "schema":
        return False
    metadata = memoryview(message.metadata)
    batch = _table(metadata, _field(metadata, _table(metadata, 0), 2))
    if message.type == "dictionary":
        batch = _table(metadata, _field(metadata, batch, 1))
    return _field(metadata, batch, 3) != 0


def _table(buffer: memoryview, place: int) -> int:
    return place + int.from_bytes(buffer[place : place + 4], "little")


def _field(buffer: memoryview, table: int, number: int) -> int:
    """Return where a field of a table is; 0 if the table does not have it."""
    directory = table - int.from_bytes(buffer[table : table + 4], "little", signed=True)
    entry = 4 + 2 * number
    if entry >= int.from_bytes(buffer[directory : directory + 2], "little"):
        return 0
    distance = int.from_bytes(buffer[directory + entry : directory + entry + 2], "little")
    return table + distance if distance else 0


_PACKAGES = {
    "msgpack": ("msgpack", "the codec msgpack", "msgpack"),
    # The extra with nothing but pyarrow.
    "arrow": ("pyarrow", "the codec arrow", "parquet"),
}
_CODECS = {
    "bytes": Codec(_encode_bytes, _decode_bytes, "bytes"),
    "utf8": Codec(_encode_utf8, _decode_utf8, "utf8"),
    "json": Codec(_encode_json, _decode_json, "json"),
    "msgpack": Codec(_encode_msgpack, _decode_msgpack, "msgpack"),
    "arrow": Codec(_encode_arrow, _decode_arrow, "arrow"),
}


KeyValue = str | bytes | int
Key = Callable[[Any], KeyValue | None]
Headers = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]]

_RUN = 100
"""Records without a key that go to one partition before the next one gets some."""

_BLOCK = 1_000
"""Records that are added with one call of the server."""


class Producer:
    """Adds values to a stream. It may be used by several threads.

    The partition of a record is the one that `send` names; else that of its key, which is the same
    in every process as long as the number of partitions is; else they take turns, a hundred records
    each. The order of the records of a partition is that in which they were sent.

    Attributes:
        partitions: The partitions of the stream.
    """

    def __init__(
        self,
        source: "StreamSource",
        *,
        codec: str | Codec = "bytes",
        key: Key | None = None,
        max_len: int | None = None,
        partitions: int | None = None,
    ) -> None:
        """Connect to a stream; `source.producer(...)` does the same.

        Args:
            source: The stream.
            codec: Makes bytes of the values; the name of a codec, or a `Codec`. Default: "bytes".
            key: Returns the key of a value, a str, bytes or int, or None. Default: no keys.
            max_len: The records that a partition may hold which some group has not done. Default:
                None, any number.
            partitions: The partitions of a new stream, which an existing one must have. Default:
                None, those of the source.

        Raises:
            ConfigError: A setting is invalid, or the stream has another number of partitions.
            StreamUnavailableError: The server cannot be reached.
        """
        check_whole("max_len", max_len, 1, give="an int from 1 up, or None", is_optional=True)
        if key is not None and not callable(key):
            raise ConfigError(f"key is {key!r}; give a function that returns the key of a value")
        self._stream = source.stream
        self._codec = codec_of(codec)
        self._key = key
        self._max_len = max_len
        self._writer = source.open_writer()
        given = source.partition_count if partitions is None else partitions
        self.partitions = self._writer.partitions(given)
        self._sent = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def send(
        self,
        value: Any,
        *,
        key: KeyValue | None = None,
        partition: int | None = None,
        headers: Headers = (),
    ) -> int:
        """Add a value, and return its offset.

        Args:
            value: What the codec takes.
            key: Its key. Default: None, what the function `key` of the producer returns.
            partition: Its partition, from 0. Default: None, by its key, or in turns.
            headers: Names and values, or pairs of both; a str becomes UTF-8. A record whose header
                `type` is the tag of a handler goes to that handler.

        Raises:
            QueueClosedError: The producer is closed.
            CodecError: The codec cannot encode the value.
            ConfigError: The partition does not exist, or the key or a header is invalid.
            StreamFullError: The partition holds `max_len` records that are not done.
            StreamUnavailableError: The server cannot be reached; the record may be added.
        """
        record = self._record(value, key, partition, headers)
        [offset] = self._writer.add([record], self._max_len)
        if offset is None:
            raise self._full(record.partition, 0)
        return offset

    def send_many(
        self, values: Iterable[Any], *, partition: int | None = None, headers: Headers = ()
    ) -> int:
        """Add values in order, a thousand at a time, and return how many.

        Args:
            values: The values; an iterator is read as it is sent.
            partition: As in `send`, for all of them.
            headers: As in `send`, for all of them.

        Raises:
            CodecError: As `send`. The thousands before are added.
            ConfigError: As `send`.
            StreamFullError: A partition is full. `accepted` values were added: those of other
                partitions in the last thousand as well, so check the keys before you repeat it.
            StreamUnavailableError: As `send`.
        """
        added, rest = 0, iter(values)
        while block := list(islice(rest, _BLOCK)):
            records = [self._record(value, None, partition, headers) for value in block]
            offsets = self._writer.add(records, self._max_len)
            added += sum(offset is not None for offset in offsets)
            for record, offset in zip(records, offsets, strict=True):
                if offset is None:
                    raise self._full(record.partition, added)
        return added

    def close(self) -> None:
        """Close the connection. Nothing can be sent any more."""
        self._is_closed = True
        self._writer.close()

    def __enter__(self) -> Self:
        """Return the producer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()

    def __repr__(self) -> str:
        """Say which stream it is for."""
        return f"<Producer of {self._stream!r} with {counted(self.partitions, 'partition')}>"

    def _record(
        self, value: Any, key: KeyValue | None, partition: int | None, headers: Headers
    ) -> NewRecord:
        if self._is_closed:
            raise QueueClosedError(f"the producer of {self._stream} is closed; make another one")
        if key is None and self._key is not None:
            key = self._key(value)
        if partition is None:
            partition = (
                self._turn() if key is None else _core.partition_of_key(key, self.partitions)
            )
        elif not isinstance(partition, int) or not 0 <= partition < self.partitions:
            raise ConfigError(
                f"partition is {partition!r}; give an int from 0 to {self.partitions - 1}, or "
                "leave it out"
            )
        data = self._codec.encoded(value)
        return NewRecord(partition, data, _key_bytes(key), _checked(headers) if headers else ())

    def _turn(self) -> int:
        with self._lock:
            self._sent += 1
            return (self._sent - 1) // _RUN % self.partitions

    def _full(self, partition: int, accepted: int) -> StreamFullError:
        assert self._max_len is not None
        return StreamFullError(self._stream, partition, self._max_len, accepted)


def _key_bytes(key: KeyValue | None) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    return str(key).encode()


def _checked(headers: Headers) -> tuple[tuple[str, bytes], ...]:
    given: Any = headers.items() if isinstance(headers, Mapping) else headers
    checked: list[tuple[str, bytes]] = []
    for pair in given:
        match pair:
            case (str(name), bytes(value)):
                checked.append((name, value))
            case (str(name), str(text)):
                checked.append((name, text.encode()))
            case _:
                raise ConfigError(
                    f"the headers have {pair!r}; give names as str with values as bytes or str"
                )
    return tuple(checked)
