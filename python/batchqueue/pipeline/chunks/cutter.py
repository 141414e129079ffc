"""`ChunkCutter`: makes chunks of record batches of any size."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from batchqueue.pipeline.chunks.memory import RowsMeter


class SizedBatch(NamedTuple):
    """A record batch, and the bytes that its rows take in memory."""

    batch: pa.RecordBatch
    size: int


class ChunkCutter:
    """Cuts large record batches, and joins small ones, in order.

    A cut copies nothing: the chunk is a slice, which keeps the memory of the whole batch alive. A
    row is never cut, so one that is larger than the bound is a separate chunk. A join copies. Only
    batches with equal schemas, including metadata, are joined, and only if their dictionaries and
    views together stay within the bound as well. Empty batches vanish.

    To measure a batch takes longer than to cut it. So rows that together stay within the bound are
    measured together, and each of their chunks has its share of that size, by rows.

    Example:
        >>> import pyarrow as pa
        >>> from batchqueue.pipeline.chunks.cutter import ChunkCutter
        >>> cutter = ChunkCutter(chunk_rows=3)
        >>> [chunk.batch.num_rows for chunk in cutter.add(pa.record_batch({"n": [1, 2, 3, 4]}))]
        [3]
        >>> [chunk.batch.num_rows for chunk in cutter.add(pa.record_batch({"n": [5]}))]
        []
        >>> [chunk.batch.num_rows for chunk in cutter.rest()]
        [2]
    """

    def __init__(self, chunk_rows: int, chunk_bytes: int = 1 << 20) -> None:
        """Begin without rows.

        Args:
            chunk_rows: The most rows of a chunk, at least 1.
            chunk_bytes: The most bytes of its rows in memory, at least 1. Default: 1 MB.
        """
        self._chunk_rows = chunk_rows
        self._chunk_bytes = chunk_bytes
        self._size_of = RowsMeter()
        self._pending: list[SizedBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def add(self, batch: pa.RecordBatch, size: int | None = None) -> list[SizedBatch]:
        """Take a batch, and return the chunks that are complete, with the bytes of each.

        Rows that might be joined with later ones stay until the next call, or `rest`.

        Args:
            batch: The batch.
            size: Its bytes, if they are known. Default: None, it is measured.
        """
        rows = batch.num_rows
        if rows and rows % self._chunk_rows == 0 and not self._pending:
            # Full chunks, which is most of them: there is nothing to join.
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

    def all_of(self, batch: pa.RecordBatch, size: int | None = None) -> list[SizedBatch]:
        """Return the chunks of a batch that no other one follows: as `add` and then `rest`.

        Args:
            batch: The batch.
            size: Its bytes, if they are known. Default: None, it is measured.
        """
        rows = batch.num_rows
        if 0 < rows <= self._chunk_rows and not self._pending:
            if size is None:
                size = self._size_of(batch)
            if size <= self._chunk_bytes:
                return [SizedBatch(batch, size)]
        return self.add(batch, size) + self.rest()

    def rest(self) -> list[SizedBatch]:
        """Return what `add` has kept: no chunk or one, seldom more."""
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

    def _joined(self, pieces: list[SizedBatch]) -> list[SizedBatch]:
        try:
            joined = pa.concat_batches([piece.batch for piece in pieces])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # For instance dictionaries that together have too many values for their index type.
            return pieces
        # A column without nulls has no bitmap and gets one beside a column with nulls.
        size = self._size_of(joined)
        return [SizedBatch(joined, size)] if size <= self._chunk_bytes else pieces

    def _pieces(self, batch: pa.RecordBatch, known: int | None) -> Iterator[SizedBatch]:
        """Cut a batch into chunks, of blocks whose rows together stay within the bound."""
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

    def _shares(self, block: pa.RecordBatch, size: int) -> list[SizedBatch]:
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
        """Return how many rows from the front fit, of a batch that does not; at least 1."""
        fewer = range(1, batch.num_rows)
        fitting = bisect_right(
            fewer, self._chunk_bytes, key=lambda rows: self._size_of(batch.slice(0, rows))
        )
        return max(fitting, 1)
