"""Entries of Redis streams as records, and records as entries.

The value is the field `v`, the key the field `k`, and a header `name` the field `h:name`. Every
other field is a header under its own name, so that programs without this package can write records
with `XADD`. An entry without `v` has an empty value.
"""

from typing import Any

from batchqueue.groups.backend import Decode
from batchqueue.groups.messages import Entry
from batchqueue.groups.offsets import MAX_SEQUENCE, SEQUENCE_BITS, parse_id
from batchqueue.groups.record import Record

Item = list[Any]
"""An entry as Redis returns it: its id, and a list of its fields and their values by turns."""

_HEADER = b"h:"

Headers = tuple[tuple[str, bytes], ...]


def fields_of(value: bytes, key: bytes | None, headers: Headers) -> list[bytes]:
    """Return the fields of a record and their values, by turns."""
    fields = [b"v", value]
    if key is not None:
        fields += (b"k", key)
    for name, data in headers:
        fields += (_HEADER + name.encode("utf8", "surrogateescape"), data)
    return fields


def record_of(item: Item, decode: Decode) -> Record[Any]:
    """Return the record of an entry.

    Raises:
        CodecError: What `decode` raised.
    """
    name, fields = item
    first, _, second = name.partition(b"-")
    timestamp_ms, sequence = int(first), int(second)
    offset = timestamp_ms << SEQUENCE_BITS | sequence
    if sequence > MAX_SEQUENCE:
        offset = parse_id(name)  # which raises
    if len(fields) == 2 and fields[0] == b"v":
        # Quicker than `Record(...)`, and this runs for each record.
        return tuple.__new__(Record, (decode(fields[1], offset), None, offset, timestamp_ms, ()))
    value, key, headers = parts_of(fields)
    return Record(decode(value, offset), key, offset, timestamp_ms, headers)


def entry_of(item: Item) -> Entry:
    """Return an entry as the scripts of all backends know it."""
    return Entry(parse_id(item[0]), *parts_of(item[1]))


def parts_of(fields: list[bytes]) -> tuple[bytes, bytes | None, Headers]:
    """Return value, key and headers."""
    value = key = None
    headers = []
    for name, data in zip(fields[::2], fields[1::2], strict=True):
        if name == b"v" and value is None:
            value = data
        elif name == b"k" and key is None:
            key = data
        else:
            header = name.removeprefix(_HEADER).decode("utf8", "surrogateescape")
            headers.append((header, data))
    return b"" if value is None else value, key, tuple(headers)


def size_of(items: list[Item]) -> int:
    """Return the bytes of entries: values, keys and headers."""
    size = 0
    for _, fields in items:
        if len(fields) == 2:
            size += len(fields[1])
        else:
            size += sum(map(len, fields[1::2]))
            size += sum(len(name) - 2 for name in fields[::2] if name.startswith(_HEADER))
    return size
