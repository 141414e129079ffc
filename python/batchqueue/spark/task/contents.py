"""The contents of an epoch as a number: the same for a replay, another one for other rows.

It is a sum of hashes modulo 2^64, so neither the order of rows nor their tasks matter. If a job has
only aggregations, tasks and Spark SQL compute it from their groups: the hash of a key times its
counts and its sums of integers, which is the sum over the rows of that key. Otherwise it is
computed from the rows. Floats do not count: a sum of floats that another query made may differ in
its last bits.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchqueue.aggregation import Count, Sum
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.steps import ArrowAggregation
from batchqueue.spark.task.arrow import plain
from batchqueue.spark.task.groups import ROWS, needs_rows

Hashes = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""The factors of splitmix64."""
_HALF = np.uint64(32)
_NULL = np.uint64(0x9E3779B97F4A7C15)
"""The hash of null."""
_WORD = 8
_LONG = 4_096
"""The length of a text, in bytes, from which on it is hashed separately."""
_KEPT = np.array([(1 << (8 * size)) - 1 for size in range(_WORD + 1)], np.uint64)
"""The mask of a word for each number of its bytes."""


@dataclass(frozen=True)
class Contents:
    """The contents of some rows.

    Attributes:
        kind: The source of the number: rows or groups, and which columns. Only equal kinds compare.
        number: The sum of the hashes.
    """

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number:016x}"


def total(parts: Iterable[Contents | None]) -> Contents | None:
    """Return the contents of all parts; None if there are none, or they do not compare."""
    kind, number = None, 0
    for part in parts:
        if part is None or kind not in (None, part.kind):
            return None
        kind, number = part.kind, number + part.number
    return None if kind is None else Contents(kind, number & _MASK)


def differ(recorded: object, now: Contents | None) -> bool:
    """Return whether rows are known to have other contents than the ledger has recorded."""
    if not isinstance(recorded, str) or now is None:
        return False
    return recorded.startswith(f"{now.kind}:") and recorded != str(now)


def contents_of_rows(batch: pa.RecordBatch, columns: Sequence[str] = ()) -> Contents:
    """Return the contents of rows as they come from Spark.

    Args:
        batch: The rows.
        columns: The columns that count; all by default.
    """
    batch = batch.select(list(columns)) if columns else batch
    number = 0
    for position, column in enumerate(batch.columns, 1):
        number += position * _sum_of_hashes(column)
    schema = ", ".join(f"{field.name} {field.type}" for field in batch.schema)
    return Contents(_kind("rows", schema), number & _MASK)


def are_of_groups(job: AggregationJob) -> bool:
    """Return whether the contents of a job's rows are computed from its groups."""
    plain_rows = job.items is None and job.prepare is None
    return plain_rows and all(isinstance(step, ArrowAggregation) for step in job.arrow)


def contents_of_groups(
    groups: Iterable[tuple[ArrowAggregation, pa.RecordBatch]], job: AggregationJob
) -> Contents:
    """Return the contents of the rows behind groups.

    Args:
        groups: Results of the job's aggregations over some of its rows, with their steps.
        job: The job, which has only aggregations.
    """
    declared = [
        (step.type_column, step.tags, step.key_columns, step.aggregation.window, _linear(step))
        for step in job.arrow
        if isinstance(step, ArrowAggregation)
    ]
    number = 0
    for step, batch in groups:
        number += (job.arrow.index(step) + 1) * _sum_of_groups(step, batch)
    return Contents(_kind("groups", repr(declared)), number & _MASK)


def _kind(of: str, columns: str) -> str:
    return f"{of}-{zlib.crc32(columns.encode(errors='backslashreplace')):08x}"


def _linear(step: ArrowAggregation) -> list[str]:
    """Return the measures that may be sums of integers over the rows, in any order."""
    measures = step.aggregation.measures.items()
    found = [name for name, measure in measures if isinstance(measure, Count | Sum)]
    return [*found, ROWS] if needs_rows(step) else found


def _sum_of_groups(step: ArrowAggregation, groups: pa.RecordBatch) -> int:
    """Return the sum over the rows of the hashes of their groups, with each measure."""
    keys = np.full(groups.num_rows, _FIRST)  # not that of null, which would cancel it
    for key in step.key_columns:
        hashes = _hashes(groups.column(key))
        if hashes is not None:
            keys = _mixed(keys ^ hashes)
    number = 0
    for name in _linear(step):
        counts = _integers(groups.column(name))
        if counts is not None:
            keys = _mixed(keys)  # so that swapped measures differ
            number += int((keys * counts).sum(dtype=np.uint64))
    return number


def _integers(column: pa.Array) -> Hashes | None:
    """Return integers or unscaled decimals modulo 2^64, with 0 for null; None of other types."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        words = np.frombuffer(column.buffers()[1], np.uint64)[2 * column.offset :: 2]
        found = words[: len(column)].copy()
    elif pa.types.is_integer(kind):
        found = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    else:
        return None
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def _sum_of_hashes(column: pa.Array) -> int:
    """Return the sum of the hashes of a column; of those in it, if it is nested."""
    column = plain(column)
    kind, number = column.type, int(column.null_count)
    if pa.types.is_struct(kind):
        for position, values in enumerate(column.flatten(), 1):
            number += position * _sum_of_hashes(values)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        parts = _entries(column) if pa.types.is_map(kind) else [column.flatten()]
        number += len(parts[0])
        number += sum(position * _sum_of_hashes(part) for position, part in enumerate(parts, 1))
    else:
        hashes = _hashes(column)
        number += 0 if hashes is None else int(hashes.sum(dtype=np.uint64))
    return number


def _entries(maps: pa.MapArray) -> list[pa.Array]:
    """Return the keys and the items of maps; Arrow also returns those outside a slice."""
    if not len(maps):
        return [maps.keys[:0], maps.items[:0]]
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    return [maps.keys[first:last], maps.items[first:last]]


def _hashes(column: pa.Array) -> Hashes | None:
    """Return the hash of each value; None of types whose values do not count."""
    column = plain(column)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = _of_texts(column, np.int32)
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        found = _of_texts(column, np.int64)
    else:
        integers = _integers(_as_integers(column))
        if integers is None:
            return None
        found = _mixed(integers)
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return found


def _as_integers(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.uint8())
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return column.view(pa.int32())
    is_wide = pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind)
    return column.view(pa.int64()) if is_wide or pa.types.is_date64(kind) else column


def _of_texts(column: pa.Array, offset_type: type[np.signedinteger[Any]]) -> Hashes:
    _, offset_buffer, data = column.buffers()
    if not len(column) or data is None:
        return np.zeros(len(column), np.uint64)
    offsets = np.frombuffer(offset_buffer, offset_type)
    offsets = offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + _WORD, np.uint8)
    padded[: last - first] = np.frombuffer(data, np.uint8)[first:last]
    # The word that begins at each byte.
    words: Hashes = np.ndarray(last - first + 1, np.uint64, padded, strides=(1,))
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    hashes = words[starts] & _KEPT[np.minimum(lengths, _WORD)]
    hashes ^= lengths.astype(np.uint64) << _HALF
    hashes = _mixed(hashes)
    done = _WORD
    rows = np.flatnonzero((lengths > done) & (lengths <= _LONG))
    while len(rows):
        left = lengths[rows] - done
        word = words[starts[rows] + done] & _KEPT[np.minimum(left, _WORD)]
        hashes[rows] = _mixed(hashes[rows] ^ word)
        done += _WORD
        rows = rows[left > _WORD]
    for position in np.flatnonzero(lengths > _LONG):
        text = padded[starts[position] : starts[position] + lengths[position]].tobytes()
        hashes[position] ^= int.from_bytes(blake2b(text, digest_size=_WORD).digest())
    return hashes


def _mixed(numbers: Hashes) -> Hashes:
    found = numbers * _FIRST
    found ^= found >> _HALF
    found *= _SECOND
    found ^= found >> _HALF
    return found
