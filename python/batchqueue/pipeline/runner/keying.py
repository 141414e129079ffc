"""Keys, and the partitions that they assign to rows."""

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from math import isnan
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from batchqueue import _core
from batchqueue.base.words import with_article
from batchqueue.pipeline.chunks import taken
from batchqueue.pipeline.contract import OperatorError
from batchqueue.pipeline.operators import row_values

pc: Any = pyarrow.compute  # untyped: it creates its functions on import


_HASHES = 1_500_450_271
"""Hashes are taken modulo this prime first. Their low bits alone decide the partition of a stream,
and cancel out where a key has the same value twice. A prime close to a power of two mixes worse."""


class Partitioner:
    """Splits chunks by key.

    A key has the same partition in every process and version, for a given number of partitions. It
    differs from the partition that `groups.Producer` assigns: a process that owns some partitions
    of a stream gets only their keys, and has to spread them over all of its workers.

    Values are compared as by `Aggregation`: null is a value like any other, all NaN are equal, and
    -0.0 equals 0.0. Types of a kind agree: an int32 with an int64, a string with a dictionary of
    strings, a timestamp in seconds with one in nanoseconds. Types of different kinds do not: 1, 1.0
    and True may have different partitions.

    Example:
        >>> import pyarrow as pa
        >>> from batchqueue.pipeline.runner.keying import Partitioner
        >>> batch = pa.record_batch({"city": ["Rome", "Oslo", "Rome"], "n": [1, 2, 3]})
        >>> for partition, rows in Partitioner(["city"], partitions=4).split(batch):
        ...     print(partition, rows["n"].to_pylist())
        1 [1, 3]
        2 [2]
    """

    def __init__(
        self,
        columns: Sequence[str],
        partitions: int,
        partition: Callable[[pa.RecordBatch], Any] | None = None,
    ) -> None:
        """Make a partitioner, which is stateless.

        Args:
            columns: The columns of the key; empty if `partition` is given.
            partitions: How many partitions there are, at least 1.
            partition: A function that returns the partition of each row, as an array of integers of
                any size and sign; they are taken modulo `partitions`, so that -1 is the last one.
                Default: None, a stable hash of the key.
        """
        self._columns = tuple(columns)
        self._partitions = partitions
        self._partition = partition
        shown = ", ".join(columns) or getattr(partition, "__name__", type(partition).__name__)
        self._name = f"key_by({shown})"

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows of each non-empty partition, by ascending partition.

        Rows keep their order. If all are in one partition, the batch itself is returned, otherwise
        copies, so that a slow partition does not keep the memory of the others alive.

        Raises:
            OperatorError: A column is missing or cannot be a key, or the function raised or
                returned anything but an integer for each row.
        """
        keys = self._key_columns(batch)
        if batch.num_rows == 0:
            return []
        if self._partitions == 1:
            return [(0, batch)]
        if self._partition is None:
            of_rows = self._hashed(keys)
        else:
            of_rows = self._given(self._partition, batch)
        return _split(batch, of_rows)

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        names = batch.schema.names
        for column in self._columns:
            if names.count(column) != 1:
                problem = "is missing" if column not in names else "occurs twice"
                raise self._error(f"found that {column!r} {problem}; the columns are {names}")
        return [batch.column(column) for column in self._columns]

    def _hashed(self, columns: list[pa.Array]) -> pa.Array:
        """Return the partition of each row. Only distinct keys are hashed."""
        is_single = len(columns) == 1
        keys, of_rows = self._keys(self._columns[0], columns[0], is_single)
        for name, column in zip(self._columns[1:], columns[1:], strict=True):
            more, of_more = self._keys(name, column, is_single)
            # Neither has more keys than the chunk has rows, so the numbers of pairs fit in 64 bits.
            numbers = pc.add(pc.multiply(of_rows, len(more)), of_more).dictionary_encode()
            pairs = [divmod(number, len(more)) for number in numbers.dictionary.to_pylist()]
            keys = [keys[first] + more[second] for first, second in pairs]
            of_rows = numbers.indices.cast(pa.int64())
        partitions = [_core.partition_of_key(key, _HASHES) % self._partitions for key in keys]
        return pa.array(partitions, pa.int64()).take(of_rows)

    def _keys(self, name: str, column: pa.Array, is_single: bool) -> tuple[list[bytes], pa.Array]:
        try:
            return keys_of(column, is_single=is_single)
        except KeyTypeError as error:
            raise self._error(
                f"column {name!r} is {with_article(str(error))}, which cannot be a key; "
                "map it to a string or number, or give key_by a function with partition="
            ) from None

    def _given(self, function: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch) -> pa.Array:
        """Return the partition of each row, as the function returns it."""
        try:
            given = function(batch)
        except Exception as error:
            message = f"{self._name} raised {type(error).__name__}: {error}"
            raise OperatorError(message, self._name) from error
        wanted = f"return an integer for each of the {batch.num_rows} rows"
        numbers = row_values(self._name, given, batch.num_rows, wanted)
        if not pa.types.is_integer(numbers.type):
            raise self._error(f"returned values of type {numbers.type}; {wanted}")
        if numbers.null_count:
            row = pc.index(numbers.is_null(), True).as_py()
            raise self._error(f"returned null for row {row} of the chunk; {wanted}")
        encoded = numbers.dictionary_encode()
        partitions = [number % self._partitions for number in encoded.dictionary.to_pylist()]
        return pa.array(partitions, pa.int64()).take(encoded.indices)

    def _error(self, problem: str) -> OperatorError:
        return OperatorError(f"{self._name} {problem}", self._name)


def _split(batch: pa.RecordBatch, of_rows: pa.Array) -> list[tuple[int, pa.RecordBatch]]:
    counts = {count["values"]: count["counts"] for count in of_rows.value_counts().to_pylist()}
    if len(counts) == 1:
        return [(of_rows[0].as_py(), batch)]
    order = pc.array_sort_indices(of_rows)  # a stable sort
    result, start = [], 0
    for partition, rows in sorted(counts.items()):
        result.append((partition, taken(batch, order.slice(start, rows))))
        start += rows
    return result


# Keys as bytes: equal bytes for equal values, in every process and version.
#
# Changing an encoding sends keys to other partitions than before; stored state relies on them.


_NULL = b"n"
_NAN = struct.pack("<d", float("nan"))
_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY_NS = 86_400_000_000_000


class KeyTypeError(TypeError):
    """A column of this type cannot be a key."""


def keys_of(column: pa.Array, *, is_single: bool) -> tuple[list[bytes], pa.Int64Array]:
    """Return the keys of a column, and the index of each row's key among them.

    Two indices may have the same key.

    Args:
        column: The values, at least one.
        is_single: Whether the column is the whole key. Otherwise all encodings are self-delimiting,
            so that those of several columns can be joined unambiguously.

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
        # As bytes, so that text need be neither decoded nor valid.
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
        raise KeyTypeError(str(kind))
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
    # All NaN are equal, and adding 0.0 turns -0.0 into 0.0.
    return b"f" + (_NAN if isnan(value) else struct.pack("<d", value + 0.0))


def _bool(value: bool) -> bytes:
    return b"b\1" if value else b"b\0"


def _sized(value: bytes) -> bytes:
    return b"s" + len(value).to_bytes(8, "little") + value


def _decimal(value: Decimal) -> bytes:
    """Return the digits without trailing zeros; `normalize` would round to 28 digits."""
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
