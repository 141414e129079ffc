"""Records as entries of Redis streams, and the entries of dead letters.

The value is the field `v`, the key the field `k`, and a header `name` the field `h:name`. Every
other field is a header under its own name, so that programs without this package can write records
with `XADD`. An entry without `v` has an empty value. `src/entries` reads what `XREAD` returns.
"""

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
