"""`Record`: a record of a stream as handlers get it; a `Codec` decodes its value.

`Assignment` is a partition that a worker owns.
"""

import enum
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from batchqueue.base.checks import check_whole, is_whole, require
from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.errors import CodecError, OffsetError, RecordTooLargeError, shortened

T = TypeVar("T")


# A tuple, because one is made per record: three times as fast as a frozen dataclass.
class Record(NamedTuple, Generic[T]):
    """A record of a partition.

    Attributes:
        value: The value that the codec decoded.
        key: The key that the producer gave it, or None.
        offset: Its position: larger than that of all records before it in the partition. On Redis,
            offsets have gaps.
        timestamp_ms: When it was added to the stream, in milliseconds since 1970.
        headers: Pairs of a name and a value, in the producer's order; a name may occur twice.
    """

    value: T
    key: bytes | None
    offset: int
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition that a worker owns, from its assignment until it is given up.

    Attributes:
        partition: The number of the partition, from 0.
        token: Larger than the token of each earlier assignment of the partition. A sink that
            remembers the largest token and refuses smaller ones stores nothing from a former owner.
        position: The offset of the last record done before; the worker continues after it.
        since: When it was assigned, in seconds since 1970.
    """

    partition: int
    token: int
    position: int
    since: float


Decode = Callable[[bytes, int], Any]
"""Decodes the bytes of a record, given its offset; raises CodecError."""


class Entries(Protocol):
    """Records of one partition, as the backend has read them, by ascending offset."""

    @property
    def first(self) -> int:
        """The offset of the first record."""
        ...

    @property
    def last(self) -> int:
        """The offset of the last record."""
        ...

    def values(
        self, decode: Decode, plain: int | None = None
    ) -> tuple[list[Any], BaseException | None]:
        """Decode the values up to the first record that cannot be decoded.

        Args:
            decode: Decodes the bytes of a value.
            plain: Values of at most this many bytes stay bytes. Default: None, all are decoded.

        Returns:
            The values before that one, and its error, a BatchQueueError; None if all were decoded.
        """
        ...

    def records(self, values: list[Any]) -> list[Record[Any]]:
        """Return the first records, with the given values, as `values` has returned them."""
        ...

    def entry(self, offset: int) -> tuple[int, bytes, bytes | None, tuple[tuple[str, bytes], ...]]:
        """Return the fields of the `Entry` with this offset, as the stream has it."""
        ...

    def __getitem__(self, places: slice, /) -> "Entries":
        """Return a slice of the records."""
        ...

    def __len__(self) -> int:
        """Return the number of records."""
        ...


class Decoded:
    """Entries and their values. Records are made on demand, because most handlers need only values.

    Attributes:
        entries: The entries.
        values: Their values.
    """

    __slots__ = ("entries", "values")

    def __init__(self, entries: Entries, values: list[Any]) -> None:
        self.entries = entries
        self.values = values

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self.entries.first

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self.entries.last

    def records(self) -> list[Record[Any]]:
        """Return new records."""
        return self.entries.records(self.values)

    def __getitem__(self, places: slice) -> "Decoded":
        """Return a slice of the records."""
        return Decoded(self.entries[places], self.values[places])

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.values)


class Chosen:
    """Records that are made already, for instance because a header decides on their handler."""

    __slots__ = ("_records",)

    def __init__(self, records: list[Record[Any]]) -> None:
        self._records = records

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self._records[0].offset

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self._records[-1].offset

    @property
    def values(self) -> list[Any]:
        """The values of the records."""
        return [record.value for record in self._records]

    def records(self) -> list[Record[Any]]:
        """Return the records."""
        return self._records

    def __getitem__(self, places: slice) -> "Chosen":
        """Return a slice of the records."""
        return Chosen(self._records[places])

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)


class Start(enum.Enum):
    """Where a group begins in a partition in which it has no position yet.

    The first owner stores the position before it reads, so the choice is made once per group and
    partition. After that the group continues from its position, whatever its workers specify.
    """

    EARLIEST = "earliest"
    """With the oldest record that the partition still has: the group gets all of them. The default.
    """

    LATEST = "latest"
    """With the first record added after the first owner has opened the partition.

    This group never reads older records.
    """


# Offsets of Redis streams: an id `milliseconds-sequence` as one int, in the same order.
#
# The upper 43 bits are the milliseconds, the lower 20 the sequence number, so that an offset fits
# into 63 bits: a bigint of SQL, an int64 of Arrow. Offsets of Kafka are ints already.


SEQUENCE_BITS = 20
MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1
MAX_MILLISECONDS = (1 << 43) - 1
"""The latest time that fits, in the year 2248."""
MAX_OFFSET = MAX_MILLISECONDS << SEQUENCE_BITS | MAX_SEQUENCE

# Redis keeps both numbers in 64 bits.
_LONGEST_ID = 2 * len(str(2**64)) + 1


def parse_id(text: bytes | str) -> int:
    """Return the offset for a record id.

    >>> parse_id(b"1760000000000-3")
    1845493760000000003

    Args:
        text: An id as Redis writes it, with both numbers.

    Raises:
        OffsetError: The text is not an id, or one of its numbers is too large for an offset.
    """
    raw = text.encode("ascii", "replace") if isinstance(text, str) else text
    first, _, second = raw.partition(b"-")
    # `isdigit` rejects signs, spaces and underscores, which `int` accepts. The length is checked
    # first, because `int` raises ValueError for thousands of digits.
    if len(raw) > _LONGEST_ID or not (first.isdigit() and second.isdigit()):
        raise OffsetError(text, "is not of the form ms-seq; give one such as 1760000000000-0")
    milliseconds, sequence = int(first), int(second)
    if sequence > MAX_SEQUENCE:
        raise OffsetError(
            text,
            f"has the sequence number {sequence}, and the largest is {MAX_SEQUENCE}; let Redis "
            "make the ids, and check whether the clock of its host was set back",
        )
    if milliseconds > MAX_MILLISECONDS:
        raise OffsetError(
            text,
            f"has {milliseconds} ms, and the most is {MAX_MILLISECONDS}; let Redis make the ids, "
            "or begin yours with milliseconds since 1970",
        )
    return milliseconds << SEQUENCE_BITS | sequence


def format_id(offset: int) -> str:
    """Return the record id for an offset, as Redis writes it.

    >>> format_id(1845493760000000003)
    '1760000000000-3'

    Args:
        offset: An offset from `parse_id`.

    Raises:
        OffsetError: The offset is negative, or too large for an id.
    """
    if not 0 <= offset <= MAX_OFFSET:
        raise OffsetError(offset, f"is not an id of Redis; give an int from 0 to {MAX_OFFSET}")
    return f"{offset >> SEQUENCE_BITS}-{offset & MAX_SEQUENCE}"


# The number of partitions of a stream, and the names that streams and groups may have.


# A Redis cluster has this many hash slots; further partitions would share slots.
_MAX_PARTITIONS = 16_384

# Braces delimit the hash tag of a Redis key, and the bar separates stream and group inside it.
_RESERVED = "{}|"


def partition_count(partition_count: int | None = None, max_workers: int = 1) -> int:
    """Return the number of partitions of a new stream.

    The current number of workers does not matter: each of up to `max_workers` workers gets at least
    one partition, without a change of the stream.

    Args:
        partition_count: An explicit number, 1 to 16,384. Default: None, it follows from
            `max_workers`.
        max_workers: The most workers that will share the stream, at most 16,384. 1 or less means a
            single worker and one partition. Default: 1.

    Returns:
        `partition_count` if given, else 1 for a single worker, else `max_workers`.

    Raises:
        ConfigError: A number is not an int, or out of range.

    Example:
        >>> partition_count(max_workers=8), partition_count(64, max_workers=8)
        (8, 64)
    """
    _check_int("max_workers", max_workers, "or partition_count")
    if partition_count is None:
        return max(1, max_workers)
    _check_int("partition_count", partition_count, "or leave it out for one per worker")
    if partition_count < 1:
        raise ConfigError(
            f"partition_count is {partition_count}; give 1 to {_MAX_PARTITIONS:_} partitions, or "
            "leave it out for one per worker"
        )
    return partition_count


def check_partitions(stream: str, count: int, given: int | None) -> None:
    """Raise ConfigError if the given number of partitions differs from that of the stream."""
    if given not in (None, count):
        raise ConfigError(
            f'stream "{stream}" has {counted(count, "partition")}, partitions={given} was given: '
            "leave it out, or use another stream"
        )


def group_id(job: str, stage: str) -> str:
    """Return the name of the group that runs a stage of a job: `job`, an underscore, `stage`.

    Two pairs that differ only in where the underscore is give the same name: ("a_b", "c") and
    ("a", "b_c"). Workers of both would share one group.

    Args:
        job: The job's name.
        stage: The stage's name.

    Raises:
        ConfigError: `check_name` rejects one of them.

    Example:
        >>> group_id("billing", "store")
        'billing_store'
    """
    return f"{check_name('the job', job)}_{check_name('the stage', stage)}"


KeyValue = str | bytes | int
Headers = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]]


def key_bytes(key: KeyValue | None) -> bytes | None:
    """Return a key as it is stored."""
    if key is None or isinstance(key, bytes):
        return key
    return str(key).encode()


def checked_headers(headers: Headers) -> tuple[tuple[str, bytes], ...]:
    """Return headers as they are stored.

    Raises:
        ConfigError: A name is not a str, or a value is neither bytes nor a str.
    """
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


def check_name(owner: str, name: object) -> str:
    """Return the name of a stream, a group or a worker if it can be part of a key.

    Args:
        owner: What has the name, for the message, for instance "the stream".
        name: Must be a nonempty str of printable characters, without spaces, braces and bars.

    Raises:
        ConfigError: The name is invalid.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{owner}'s name is {name!r}, {a_type(name)}; give a str")
    if not name:
        raise ConfigError(f"{owner}'s name is empty; give at least one printable character")
    for character in name:
        if not character.isprintable() or character == " " or character in _RESERVED:
            raise ConfigError(
                f"{owner}'s name is {name!r} with {character!r}; give printable characters without "
                "spaces, braces and bars, for instance a hyphen or a dot instead"
            )
    return name


def _check_int(setting: str, value: object, otherwise: str) -> None:
    if not is_whole(value):
        raise ConfigError(
            f"{setting} is {value!r}, {a_type(value)}; give an int up to "
            f"{_MAX_PARTITIONS:_}, {otherwise}"
        )
    if value > _MAX_PARTITIONS:
        raise ConfigError(f"{setting} is {value}; give at most {_MAX_PARTITIONS:_}, {otherwise}")


# Codecs convert values to the bytes of records, and back.
#
# Streams are untrusted input, so no codec unpickles, the size of a record is checked before it is
# decoded, and any error of a codec arrives as a `CodecError`, which concerns that record alone.


MAX_RECORD_BYTES = 16 << 20
"""The most bytes of a record, unless its codec sets another limit: 16 MiB."""


@dataclass(frozen=True)
class Codec:
    """How values are written to records, and read back. It can be pickled if its functions can.

    Attributes:
        encode: Takes a value and returns bytes. Its errors become a `CodecError`.
        decode: Takes bytes and returns a value. Its errors become a `CodecError`.
        name: The name in errors. Default: "custom".
        max_record_bytes: The most bytes of a record; a larger one is neither sent nor decoded.
            Default: 16 MiB.

    Raises:
        ConfigError: An attribute is invalid; the message names it.
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
        """The most bytes of a value that decoding leaves unchanged; None if it decodes all."""
        return self.max_record_bytes if self.decode is _decode_bytes else None

    def encoded(self, value: Any) -> bytes:
        """Encode a value.

        Raises:
            CodecError: `encode` raised, or returned something other than bytes.
            RecordTooLargeError: There are too many bytes to be decoded again.
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


def codec_of(codec: str | Codec) -> Codec:
    """Return the codec with a name, or the given codec.

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
      compressed, because then a small record could fill the memory.

    Args:
        codec: A name, or a codec.

    Raises:
        ConfigError: No codec has that name.
        MissingPackageError: The package behind the codec is not installed.
    """
    if isinstance(codec, Codec):
        return codec
    if codec not in _CODECS:
        known = ", ".join(f'"{name}"' for name in sorted(_CODECS))
        raise ConfigError(f"codec is {codec!r}; give {known} or a Codec(encode, decode)")
    if codec in _PACKAGES:
        require(*_PACKAGES[codec])
    return _CODECS[codec]


def _reason(error: Exception) -> str:
    # Not its repr: the repr of a UnicodeDecodeError contains all bytes of the record.
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
    # Decoded here, because `json.loads` also accepts UTF-16, UTF-32 and surrogates.
    return json.loads(data.decode(), parse_constant=_reject_constant)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@cache
def _package(codec: str) -> Any:
    """The package behind a codec; looked up once, because this runs for each record."""
    require(*_PACKAGES[codec])
    return import_module(_PACKAGES[codec][0])


def _encode_msgpack(value: Any) -> bytes:
    data: bytes = _package("msgpack").packb(value)
    # msgpack packs extension types, and keys of any kind. Consumers would refuse such a record, and
    # it would block its partition.
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
    messages = list(pyarrow.ipc.MessageReader.open_stream(data))
    batches = sum(message.type == "record batch" for message in messages)
    if batches != 1:
        raise ValueError(f"the IPC stream has {batches} record batches, not 1")
    # Arrow before 1.0 recorded a compression elsewhere.
    if any(message.metadata_version != pyarrow.ipc.MetadataVersion.V5 for message in messages):
        raise ValueError("the IPC stream is older than version 5, that of Arrow 1.0")
    if any(map(_is_compressed, messages)):
        raise ValueError("the record batch is compressed; write it without compression")
    batch = pyarrow.ipc.open_stream(data).read_next_batch()
    # Offsets in the record could point outside its buffers, and crash the process when used.
    batch.validate(full=True)
    return batch


def _is_compressed(message: Any) -> bool:
    """Return whether a message of an IPC stream has compressed buffers.

    pyarrow does not expose this, so it is read from the Flatbuffers of Message.fbs, in the format
    of Arrow: field 2 of a Message is its header. Field 3 of a RecordBatch is the compression, and
    field 1 of a DictionaryBatch is a RecordBatch.
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
    """Return the position of a field of a table; 0 if the table does not have it."""
    directory = table - int.from_bytes(buffer[table : table + 4], "little", signed=True)
    entry = 4 + 2 * number
    if entry >= int.from_bytes(buffer[directory : directory + 2], "little"):
        return 0
    distance = int.from_bytes(buffer[directory + entry : directory + entry + 2], "little")
    return table + distance if distance else 0


_PACKAGES = {
    "msgpack": ("msgpack", "the codec msgpack", "msgpack"),
    # The extra that contains only pyarrow.
    "arrow": ("pyarrow", "the codec arrow", "parquet"),
}
_CODECS = {
    "bytes": Codec(_encode_bytes, _decode_bytes, "bytes"),
    "utf8": Codec(_encode_utf8, _decode_utf8, "utf8"),
    "json": Codec(_encode_json, _decode_json, "json"),
    "msgpack": Codec(_encode_msgpack, _decode_msgpack, "msgpack"),
    "arrow": Codec(_encode_arrow, _decode_arrow, "arrow"),
}
