"""`Record`: what a handler gets of a stream. `Assignment`: a partition that a worker owns."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from batchqueue.base.checks import is_whole
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.groups.errors import OffsetError

T = TypeVar("T")


# A tuple, because one is made for each record: three times as fast as a frozen dataclass.
class Record(NamedTuple, Generic[T]):
    """A record of a partition.

    Attributes:
        value: What the codec made of it.
        key: The key that the producer gave it, or None.
        offset: Its position: larger than that of all records before it in the partition. On Redis,
            offsets have gaps.
        timestamp_ms: When it was added to the stream, in milliseconds since 1970.
        headers: Pairs of a name and a value, in the order of the producer; a name may come twice.
    """

    value: T
    key: bytes | None
    offset: int
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition that a worker owns, from the moment it was assigned until it is given up.

    Attributes:
        partition: The number of the partition, from 0.
        token: Larger than the token of each earlier assignment of the partition. A sink that
            remembers the largest and refuses smaller ones stores nothing of a former owner.
        position: The offset of the last record that was done before; the worker continues after it.
        since: When it was assigned, in seconds since 1970.
    """

    partition: int
    token: int
    position: int
    since: float


Decode = Callable[[bytes, int], Any]
"""Makes a value of the bytes of a record and its offset; raises CodecError."""


def undecoded(data: bytes, offset: int) -> bytes:
    """Return the bytes of a record, for those that no codec is to decode."""
    del offset
    return data


class Entries(Protocol):
    """Records of one partition as the backend has read them, by ascending offset."""

    @property
    def first(self) -> int:
        """The offset of the first one."""
        ...

    @property
    def last(self) -> int:
        """The offset of the last one."""
        ...

    def records(
        self, decode: Decode, plain: int | None = None
    ) -> tuple[list[Record[Any]], BaseException | None]:
        """Decode them, up to the first one that cannot be decoded.

        Args:
            decode: Makes a value of the bytes.
            plain: Values of at most so many bytes stay bytes. Default: None, all are decoded.

        Returns:
            The records before that one, and its error, a BatchQueueError; None if there is none.
        """
        ...

    def entry(self, offset: int) -> tuple[int, bytes, bytes | None, tuple[tuple[str, bytes], ...]]:
        """Return the fields of the `Entry` with this offset, as it is in the stream."""
        ...

    def __getitem__(self, places: slice, /) -> "Entries":
        """Return some of them."""
        ...

    def __len__(self) -> int:
        """Return how many there are."""
        ...


class Start(enum.Enum):
    """Where a group begins in a partition in which it has no position yet.

    The first owner stores the position before it reads, so the choice is made once per group and
    partition. After that the group continues where it was, whatever a worker is given.
    """

    EARLIEST = "earliest"
    """With the oldest record that the partition still has: the group gets all of them. The default.
    """

    LATEST = "latest"
    """With the first record that is added after the first owner has opened the partition.

    Older records are not read by this group.
    """


# Offsets of Redis streams: an id `milliseconds-sequence` as one int, in the same order.
#
# The upper 43 bits are the milliseconds, the lower 20 the sequence number, so that an offset fits
# into 63 bits: a bigint of SQL, an int64 of Arrow. Offsets of Kafka are ints already.


SEQUENCE_BITS = 20
MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1
MAX_MILLISECONDS = (1 << 43) - 1
"""A moment in the year 2248."""
MAX_OFFSET = MAX_MILLISECONDS << SEQUENCE_BITS | MAX_SEQUENCE

# Redis keeps both numbers in 64 bits.
_LONGEST_ID = 2 * len(str(2**64)) + 1


def parse_id(text: bytes | str) -> int:
    """Return the offset of a record id.

    >>> parse_id(b"1760000000000-3")
    1845493760000000003

    Args:
        text: An id as Redis writes it, with both of its numbers.

    Raises:
        OffsetError: It is not an id, or one of its numbers is too large for an offset.
    """
    raw = text.encode("ascii", "replace") if isinstance(text, str) else text
    first, _, second = raw.partition(b"-")
    # `isdigit` rejects signs, spaces and underscores, which `int` takes. The length comes first:
    # `int` raises ValueError for thousands of digits.
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
    """Return the record id of an offset, as Redis writes it.

    >>> format_id(1845493760000000003)
    '1760000000000-3'

    Args:
        offset: What `parse_id` returned.

    Raises:
        OffsetError: The offset is negative, or too large for an id.
    """
    if not 0 <= offset <= MAX_OFFSET:
        raise OffsetError(offset, f"is not an id of Redis; give an int from 0 to {MAX_OFFSET}")
    return f"{offset >> SEQUENCE_BITS}-{offset & MAX_SEQUENCE}"


# How many partitions a stream gets, and which names streams and groups may have.


# A Redis cluster has as many hash slots; partitions beyond that would share slots.
_MAX_PARTITIONS = 16_384

# Braces delimit the hash tag of a Redis key, and the bar separates stream and group inside it.
_RESERVED = "{}|"


def partition_count(partition_count: int | None = None, max_workers: int = 1) -> int:
    """Return the number of partitions of a new stream.

    The number of workers that run now does not matter: each worker up to `max_workers` gets at
    least one partition, without a change of the stream.

    Args:
        partition_count: The number of your choice, 1 to 16,384. Default: None, it follows from
            `max_workers`.
        max_workers: The most workers that will share the stream, at most 16,384. Up to 1 means a
            single worker, and one partition. Default: 1.

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


def group_id(job: str, stage: str) -> str:
    """Return the name of the group that runs a stage of a job: `job`, an underscore, `stage`.

    Two pairs give the same name if only the place of an underscore differs: ("a_b", "c") and
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


def check_name(owner: str, name: object) -> str:
    """Return the name of a stream, a group or a worker if it can be part of a key.

    Args:
        owner: What bears the name, for the message, for instance "the stream".
        name: Must be a str of printable characters, at least one, without spaces, braces and bars.

    Raises:
        ConfigError: It is not.
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
