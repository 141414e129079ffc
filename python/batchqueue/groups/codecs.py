"""Codecs: how values become the bytes of records, and come back.

Streams are untrusted input. So no codec unpickles, a record is measured before it is decoded, and
whatever a codec raises arrives as a `CodecError`, which concerns that record alone.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

from batchqueue._requirements import require
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.errors import CodecError, RecordTooLargeError, shortened

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
        limit = self.max_record_bytes
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ConfigError(f"Codec: max_record_bytes is {limit!r}; give an int of at least 1")

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
