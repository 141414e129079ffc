"""Keys as bytes: equal bytes for equal values, in every process and version.

Changing an encoding sends keys to other partitions than before; stored state relies on them.
"""

import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from math import isnan
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

pc: Any = pyarrow.compute  # untyped: it creates its functions on import

_NULL = b"n"
_NAN = struct.pack("<d", float("nan"))
_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY_NS = 86_400_000_000_000


class KeyTypeError(TypeError):
    """A column of this type cannot be a key."""

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(str(data_type))
        self.data_type = data_type


def keys_of(column: pa.Array, *, is_single: bool) -> tuple[list[bytes], pa.Int64Array]:
    """Return the different keys of a column, and for each row the place of its key among them.

    Two places may have the same key.

    Args:
        column: The values, at least one.
        is_single: Whether the column is the whole key. Otherwise all encodings say where they end,
            so that those of several columns can be joined without ambiguity.

    Raises:
        KeyTypeError: The type cannot be a key.
    """
    plain = _plain(column)
    if types.is_null(plain.type):
        return [_NULL], pa.array([0] * len(plain), pa.int64())
    values, encode = _encoding(plain, is_single)
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    keys = [_NULL if value is None else encode(value) for value in encoded.dictionary.to_pylist()]
    return keys, encoded.indices.cast(pa.int64())


def _plain(column: pa.Array) -> pa.Array:
    """Return the values without extension types, dictionaries and run-end encoding."""
    while True:
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        elif types.is_dictionary(column.type):
            column = column.dictionary_decode()
        elif types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        else:
            return column


def _encoding(column: pa.Array, is_single: bool) -> tuple[pa.Array, Callable[[Any], bytes]]:
    """Return values that `dictionary_encode` takes, and the function that encodes one of them."""
    kind = column.type
    encode: Callable[[Any], bytes]
    if _is_text(kind) or _is_binary(kind):
        # As bytes, so that text need not be decoded, nor be valid.
        values, encode = column.cast(pa.large_binary()), bytes if is_single else _sized
    elif types.is_integer(kind):
        values, encode = column, _int if is_single else _tagged_int
    elif types.is_floating(kind):
        values, encode = column, _float
    elif types.is_boolean(kind):
        values, encode = column, _bool
    elif types.is_decimal(kind):
        is_short = kind.bit_width < 128  # dictionary_encode does not take these
        values = column.cast(pa.decimal128(kind.precision, kind.scale)) if is_short else column
        encode = _decimal
    elif types.is_temporal(kind) and not types.is_interval(kind):
        values = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        encode = partial(_time, *_tick(kind))
    else:
        raise KeyTypeError(kind)
    return values, encode


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _int(value: int) -> bytes:
    return value.to_bytes(16, "little", signed=True)


def _tagged_int(value: int) -> bytes:
    return b"i" + _int(value)


def _float(value: float) -> bytes:
    # All NaN are equal, and adding 0.0 makes 0.0 of -0.0.
    return b"f" + (_NAN if isnan(value) else struct.pack("<d", value + 0.0))


def _bool(value: bool) -> bytes:
    return b"b\1" if value else b"b\0"


def _sized(value: bytes) -> bytes:
    return b"s" + len(value).to_bytes(8, "little") + value


def _decimal(value: Decimal) -> bytes:
    """Return the digits without trailing zeros; `normalize` would round to 28 of them."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    if not significant:
        return b"d0;"
    place = int(exponent) + len(text) - len(significant)
    return f"d{'-' if sign else ''}{significant}e{place};".encode()


def _tick(kind: pa.DataType) -> tuple[bytes, int]:
    """Return a tag for the kind of time, and the nanoseconds of its unit."""
    if types.is_date(kind):
        return b"a", _DAY_NS if types.is_date32(kind) else _UNIT_NS["ms"]
    tag = b"t" if types.is_timestamp(kind) else b"u" if types.is_duration(kind) else b"c"
    return tag, _UNIT_NS[kind.unit]


def _time(tag: bytes, unit_ns: int, value: int) -> bytes:
    return tag + _int(value * unit_ns)
