"""Parquet: the piece is a row group, and batches are small whatever the width of its rows."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchqueue.pipeline.sources.files.failing import reading
from batchqueue.pipeline.sources.files.fit import Fit
from batchqueue.pipeline.sources.files.format import Piece

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 2_000
"""As many as a stage of a pipeline takes from its source together.

A batch is decoded without the interpreter, while the stages work on the batch before it. To decode
a whole row group takes 7 % less time, but the stages would wait for it.
"""
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class ParquetFormat:
    """Reads row groups."""

    def schema(self, filesystem: "fs.FileSystem", path: str) -> "pa.Schema":
        """Return the columns of a file, from its footer."""
        with reading(path), _open(filesystem, path) as file:
            return file.schema_arrow

    def pieces(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> Sequence[Piece]:
        """Return the row groups of a file, from its footer."""
        with reading(path), _open(filesystem, path) as file:
            fit.check(file.schema_arrow, path)
            names, metadata = set(fit.schema.names), file.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            return tuple(_piece(group, names, fit) for group in groups) or (Piece(0, 0),)

    def open(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> "OpenParquetFile":
        """Open a file, and check its columns."""
        return OpenParquetFile(filesystem, path, fit)


class OpenParquetFile:
    """A Parquet file that is open: its footer, which lists all row groups, is read once."""

    def __init__(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> None:
        self._path = path
        self._fit = fit
        with reading(path), ExitStack() as opened:
            self._file = opened.enter_context(_open(filesystem, path))
            schema = self._file.schema_arrow
            fit.check(schema, path)
            present = set(schema.names)
            self._names = [name for name in fit.schema.names if name in present]
            opened.pop_all()

    def read(self, number: int) -> "Iterator[pa.RecordBatch]":
        """Read a row group."""
        with reading(self._path):
            file, fit = self._file, self._fit
            if not file.metadata.num_row_groups:
                return
            piece = _piece(file.metadata.row_group(number), set(fit.schema.names), fit)
            rows, size = piece.rows or 1, piece.bytes or 1
            batch_rows = min(max(_BATCH_BYTES * rows // size, 1), _BATCH_ROWS)
            batches = file.iter_batches(
                batch_rows, row_groups=[number], columns=self._names, use_threads=False
            )
            is_exact: bool | None = None
            for batch in batches:
                if is_exact is None:
                    is_exact = fit.is_exact(batch.schema)
                if batch.num_rows:
                    yield batch if is_exact else fit.apply(batch, self._path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open(filesystem: Any, path: str) -> Any:
    import pyarrow.parquet as pq

    # Without pre_buffer, and with a buffer, pages are fetched as they are decoded. Otherwise all of
    # a row group is in memory as soon as its first batch is.
    return pq.ParquetFile(path, filesystem=filesystem, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def _piece(group: Any, names: set[str], fit: Fit) -> Piece:
    """Returns the size of the columns that are read.

    Encodings may store repeated values in next to nothing, so a value counts at least what its type
    needs in memory.
    """
    size = sum(
        column.total_uncompressed_size
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema.partition(".")[0] in names
    )
    return Piece(group.num_rows, max(size, group.num_rows * _row_bytes(fit.schema)))


def _row_bytes(schema: "pa.Schema") -> int:
    total = 0
    for field in schema:
        try:
            total += max(field.type.bit_width // 8, 1)
        except ValueError:  # of variable width: its offset
            total += 4
    return total
