"""Offsets of Redis streams: an id `milliseconds-sequence` as one int, in the same order.

The upper 43 bits are the milliseconds, the lower 20 the sequence number, so that an offset fits
into 63 bits: a bigint of SQL, an int64 of Arrow. Offsets of Kafka are ints already.
"""

from batchqueue.groups.errors import OffsetError

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
