"""`Record`: what a handler gets of a stream. `Assignment`: a partition that a worker owns."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

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
