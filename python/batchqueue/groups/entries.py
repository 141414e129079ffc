"""`Entries`: records as a backend has read them, before they are decoded."""

from collections.abc import Callable
from typing import Any, Protocol

from batchqueue.groups.record import Record

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
