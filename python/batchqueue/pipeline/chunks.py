"""Chunks: how they are cut, measured, and traced back to their origin."""

import json
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Position


class ChunkCutter:
    """Cuts large record batches, and joins small ones, in order.

    Cutting copies nothing: a chunk is a slice that keeps the memory of the whole batch alive. Rows
    are never split, so a row larger than the bound is a chunk alone. Joining copies. Batches are
    joined only if their schemas, including metadata, are equal, and their dictionaries and views
    together stay within the bound, too. Empty batches are dropped.

    Measuring a batch takes longer than cutting it, so rows that together stay within the bound are
    measured together, and each of their chunks gets a share of that size in proportion to its rows.

    Example:
        >>> import pyarrow as pa
        >>> from batchqueue.pipeline.chunks import ChunkCutter
        >>> cutter = ChunkCutter(chunk_rows=3)
        >>> [chunk.batch.num_rows for chunk in cutter.add(pa.record_batch({"n": [1, 2, 3, 4]}))]
        [3]
        >>> [chunk.batch.num_rows for chunk in cutter.add(pa.record_batch({"n": [5]}))]
        []
        >>> [chunk.batch.num_rows for chunk in cutter.rest()]
        [2]
    """

    def __init__(self, chunk_rows: int, chunk_bytes: int = 1 << 20) -> None:
        """Start without rows.

        Args:
            chunk_rows: The most rows of a chunk, at least 1.
            chunk_bytes: The most bytes that its rows take in memory, at least 1. Default: 1 MB.
        """
        self._chunk_rows = chunk_rows
        self._chunk_bytes = chunk_bytes
        self._size_of = RowsMeter()
        self._pending: list[SizedBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def add(self, batch: pa.RecordBatch, size: int | None = None) -> "list[SizedBatch]":
        """Add a batch, and return the complete chunks with their sizes in bytes.

        Rows that may be joined with later ones are kept until the next call or `rest`.

        Args:
            batch: The batch.
            size: Its bytes, if known. Default: None, which measures it.
        """
        rows = batch.num_rows
        if rows and rows % self._chunk_rows == 0 and not self._pending:
            # The common case, full chunks: there is nothing to join.
            if size is None:
                size = self._size_of(batch)
            if size <= self._chunk_bytes:
                return self._shares(batch, size)
        chunks: list[SizedBatch] = []
        for piece in self._pieces(batch, size):
            if self._pending and not self._can_join(piece.batch):
                chunks += self.rest()
            if not self._pending:
                self._pending_bytes = piece.size
            self._pending.append(piece)
            self._pending_rows += piece.batch.num_rows
            if self._pending_rows >= self._chunk_rows or self._pending_bytes >= self._chunk_bytes:
                chunks += self.rest()
        return chunks

    def all_of(self, batch: pa.RecordBatch, size: int | None = None) -> "list[SizedBatch]":
        """Return the chunks of a last batch, like `add` followed by `rest`.

        Args:
            batch: The batch.
            size: Its bytes, if known. Default: None, which measures it.
        """
        rows = batch.num_rows
        if 0 < rows <= self._chunk_rows and not self._pending:
            if size is None:
                size = self._size_of(batch)
            if size <= self._chunk_bytes:
                return [SizedBatch(batch, size)]
        return self.add(batch, size) + self.rest()

    def rest(self) -> "list[SizedBatch]":
        """Return what `add` has kept: usually at most one chunk, rarely more."""
        pending, self._pending = self._pending, []
        self._pending_rows = self._pending_bytes = 0
        return pending if len(pending) < 2 else self._joined(pending)

    def _can_join(self, batch: pa.RecordBatch) -> bool:
        first = self._pending[0].batch
        if self._pending_rows + batch.num_rows > self._chunk_rows or not first.schema.equals(
            batch.schema, check_metadata=True
        ):
            return False
        # Joined batches share nothing, so whole dictionaries and views count here.
        if len(self._pending) == 1:
            self._pending_bytes = int(first.nbytes)
        size = int(batch.nbytes)
        if self._pending_bytes + size > self._chunk_bytes:
            return False
        self._pending_bytes += size
        return True

    def _joined(self, pieces: "list[SizedBatch]") -> "list[SizedBatch]":
        try:
            joined = pa.concat_batches([piece.batch for piece in pieces])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # For example, the merged dictionary has too many values for its index type.
            return pieces
        # A column without nulls has no bitmap, but gets one when joined with a column that has
        # nulls.
        size = self._size_of(joined)
        return [SizedBatch(joined, size)] if size <= self._chunk_bytes else pieces

    def _pieces(self, batch: pa.RecordBatch, known: int | None) -> "Iterator[SizedBatch]":
        """Cut a batch into chunks, by blocks whose rows together stay within the bound."""
        start, rows = 0, batch.num_rows
        block_rows = max(rows, self._chunk_rows)
        while start < rows:
            is_whole = start == 0 and block_rows >= rows
            block = batch if is_whole else batch.slice(start, block_rows)
            size = known if is_whole and known is not None else self._size_of(block)
            if size > self._chunk_bytes and block.num_rows > 1:
                if block.num_rows <= self._chunk_rows:
                    block = block.slice(0, self._fitting_rows(block))
                    size = self._size_of(block)
                else:
                    fitting = block.num_rows * self._chunk_bytes // size
                    fewer = fitting // self._chunk_rows * self._chunk_rows
                    block_rows = max(fewer, self._chunk_rows)
                    continue
            yield from self._shares(block, size)
            start += block.num_rows

    def _shares(self, block: pa.RecordBatch, size: int) -> "list[SizedBatch]":
        rows, step = block.num_rows, self._chunk_rows
        if rows <= step:
            return [SizedBatch(block, size)]
        chunks = []
        done = 0
        for start in range(0, rows, step):
            end = start + step
            upto = size * end // rows if end < rows else size
            # The last slice ends with the block.
            chunks.append(SizedBatch(block.slice(start, step), upto - done))
            done = upto
        return chunks

    def _fitting_rows(self, batch: pa.RecordBatch) -> int:
        """Return how many leading rows of an oversized batch fit; at least 1."""
        fewer = range(1, batch.num_rows)
        fitting = bisect_right(
            fewer, self._chunk_bytes, key=lambda rows: self._size_of(batch.slice(0, rows))
        )
        return max(fitting, 1)


class SizedBatch(NamedTuple):
    """A record batch, and the bytes that its rows take in memory."""

    batch: pa.RecordBatch
    size: int


# The memory that the rows of a record batch take, even if the batch is a slice.
#
# `RecordBatch.nbytes` counts only the rows of a slice, with three exceptions: a dictionary, the
# data of a string view and the values of a list view count in full for each slice. With a large
# dictionary, every slice of a batch would look too large, however few its rows. Here a slice counts
# its share of a dictionary, and only the values that its views refer to.


class RowsMeter:
    """Measures the rows of record batches in bytes, as if they shared no memory.

    Most batches should have the same schema. Dictionaries inside unions and run-end encoded columns
    count as a whole.
    """

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._shares = False

    def __call__(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of the rows of a batch."""
        schema = batch.schema
        if self._schema is None or not self._schema.equals(schema):
            self._schema = schema
            self._shares = any(map(_shares, schema.types))
        return sum(map(_array_bytes, batch.columns)) if self._shares else int(batch.nbytes)


@lru_cache(maxsize=1024)
def _shares(data_type: pa.DataType) -> bool:
    """Return whether slices of arrays of a type share data that `nbytes` counts in each of them."""
    if types.is_dictionary(data_type) or _is_view(data_type) or _is_list_view(data_type):
        return True
    if isinstance(data_type, pa.BaseExtensionType):
        return _shares(data_type.storage_type)
    # pyarrow does not slice the children of these, so their rows cannot be counted here.
    if types.is_union(data_type) or types.is_run_end_encoded(data_type):
        return False
    return any(_shares(data_type.field(index).type) for index in range(data_type.num_fields))


def _array_bytes(array: pa.Array) -> int:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if not _shares(array.type):
        return int(array.nbytes)
    rows = len(array)
    nulls = (rows + 7) // 8 if array.null_count else 0
    if types.is_dictionary(array.type):
        values = _array_bytes(array.dictionary)
        share = -(-values * rows // max(len(array.dictionary), 1))
        return int(array.indices.nbytes) + min(values, share)
    if _is_view(array.type):
        is_text = types.is_string_view(array.type)
        copied = array.cast(pa.large_string() if is_text else pa.large_binary())
        return int(copied.nbytes) + 8 * rows  # a view has 16 bytes, an offset 8
    return nulls + _place_bytes(array.type) * rows + sum(map(_array_bytes, _children(array)))


def _children(array: pa.Array) -> list[pa.Array]:
    """Return the values of the rows of a struct, list or map."""
    if types.is_struct(array.type):
        return list(array.flatten())
    if types.is_map(array.type):
        first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        return [part.slice(first, last - first) for part in (array.keys, array.items)]
    return [array.flatten()]


def _place_bytes(data_type: pa.DataType) -> int:
    """Return the bytes per row that locate its values."""
    if types.is_struct(data_type) or types.is_fixed_size_list(data_type):
        return 0
    offset = 8 if types.is_large_list(data_type) or types.is_large_list_view(data_type) else 4
    return 2 * offset if _is_list_view(data_type) else offset


def _is_view(data_type: pa.DataType) -> bool:
    return bool(types.is_string_view(data_type) or types.is_binary_view(data_type))


def _is_list_view(data_type: pa.DataType) -> bool:
    return bool(types.is_list_view(data_type) or types.is_large_list_view(data_type))


_KEY = b"batchqueue.origin"


class ChunkOrigin(NamedTuple):
    """Where a chunk came from.

    A chunk that is delivered again after a crash has the same pipeline, source, partition,
    position, number, part and rows, provided that the operators are deterministic and hold nothing
    back. Its cut may differ. A chunk that an operator emitted at a cut, as `aggregate` does, has no
    position, and its rows may differ.
    """

    pipeline: str
    """The name of the pipeline."""
    source: str
    """The name of the source."""
    cut: int
    """The number of the cut that will include the chunk."""
    partition: str
    """The partition of the split; the stage and worker for a chunk emitted at a cut."""
    position: Position | None
    """The start of the split; None for a chunk emitted at a cut."""
    number: int
    """The number of the chunk in the split, from 0."""
    part: str
    """The part of the chunk, such as "1.0", if operators made several; else ""."""


class Origin(NamedTuple):
    """The part of a chunk's origin that the runner carries along."""

    cut: int
    partition: str
    position: str | None
    number: int
    part: str = ""

    def child(self, number: int) -> "Origin":
        """Return the origin of one of several parts."""
        part = f"{self.part}.{number}" if self.part else str(number)
        return Origin(self.cut, self.partition, self.position, self.number, part)

    def __str__(self) -> str:
        if self.position is None:
            return f"what {self.partition} emitted at cut {self.cut}"
        part = f", part {self.part}" if self.part else ""
        return f"chunk {self.number}{part} of {self.partition!r} at {self.position}"


def with_origin(
    chunk: pa.RecordBatch, pipeline: str, source: str, origin: Origin
) -> pa.RecordBatch:
    """Return a chunk with its origin in the metadata of its schema; no data is copied."""
    cut, partition, position, number, part = origin
    # A part consists of digits and dots.
    text = f'{_beginning(pipeline, source, cut, partition, position)}, {number}, "{part}"]'
    return chunk.replace_schema_metadata({**(chunk.schema.metadata or {}), _KEY: text.encode()})


@lru_cache(maxsize=256)
def _beginning(pipeline: str, source: str, cut: int, partition: str, position: str | None) -> str:
    """Return the part of the JSON that all chunks of a split share."""
    return json.dumps([pipeline, source, cut, partition, position])[:-1]


def chunk_origin(chunk: pa.RecordBatch) -> ChunkOrigin:
    """Return the origin of a chunk that a sink was given.

    Args:
        chunk: The chunk, as passed to `Sink.write` or to the function of a `FunctionSink`.

    Raises:
        ConfigError: The chunk carries no origin.

    Example:
        >>> import pyarrow as pa
        >>> from batchqueue.pipeline import FunctionSink, IterableSource, Pipeline, chunk_origin
        >>> def show(chunks):
        ...     for chunk in chunks:
        ...         origin = chunk_origin(chunk)
        ...         print(origin.position, origin.number, chunk.num_rows)
        >>> orders = IterableSource(lambda: ({"cents": cents} for cents in range(3)), split_rows=2)
        >>> flow = Pipeline("orders")
        >>> flow.source(orders).to(FunctionSink(show, batch_rows=1))
        >>> _ = flow.run()
        {'rows': 0} 0 2
        {'rows': 2} 0 1
    """
    text = (chunk.schema.metadata or {}).get(_KEY)
    if text is None:
        raise ConfigError(
            "the chunk has no origin in the metadata of its schema; give a chunk as the sink got "
            "it, not a batch that was made of it"
        )
    pipeline, source, cut, partition, position, number, part = json.loads(text)
    at: Any = None if position is None else json.loads(position)
    return ChunkOrigin(pipeline, source, cut, partition, at, number, part)


# Selects rows of a record batch by mask or index, which pyarrow does not support for all types.


pc: Any = pyarrow.compute  # untyped: it creates its functions on import


def filtered(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """Return the rows where a mask is true; the batch itself if it is true everywhere."""
    if mask.true_count == batch.num_rows:
        return batch
    try:
        return batch.filter(mask)
    except pa.ArrowNotImplementedError:
        return taken(batch, pc.indices_nonzero(mask.fill_null(False)))


def taken(batch: pa.RecordBatch, indices: pa.Array) -> pa.RecordBatch:
    """Return the rows at some indices, in that order, as a copy.

    Args:
        batch: The batch.
        indices: Integers without nulls.
    """
    try:
        return batch.take(indices)
    except pa.ArrowNotImplementedError:
        # pyarrow 26 cannot take from views and run-end encoded columns, but slice and join them.
        rows = [batch.slice(index, 1) for index in indices.to_pylist()]
        return pa.concat_batches(rows) if rows else batch.slice(0, 0)
