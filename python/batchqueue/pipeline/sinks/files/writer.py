"""Writes a file of record batches, in row groups of a good size whatever the size of the chunks."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchqueue.pipeline.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = {"parquet": ".parquet", "arrow": ".arrow", "csv": ".csv"}

_GROUP_ROWS = 128 * 1_024
_GROUP_BYTES = 16 << 20


class FileWriter:
    """A file that is being written.

    Attributes:
        schema: Its columns.
    """

    def __init__(
        self, path: Path, format: str, schema: "pa.Schema", compression: str | None
    ) -> None:
        """Create the file.

        Args:
            path: Where; what is there is overwritten.
            format: One of `SUFFIXES`.
            schema: The columns.
            compression: Of Parquet and Arrow; None for the default of pyarrow.

        Raises:
            SinkError: The format has no type for a column.
        """
        check_types(schema, format, str(path.parent.parent))
        self.schema = schema
        self._path = path
        self._writer = _open(path, format, schema, compression)
        self._kept: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, chunk: "pa.RecordBatch") -> None:
        """Take a chunk, which must have the columns of the file.

        Raises:
            SinkError: It has others.
        """
        import pyarrow as pa

        check_columns(chunk.schema, self.schema, str(self._path.parent.parent))
        # Not the chunk: its schema may carry metadata, which differs from chunk to chunk.
        self._kept.append(pa.RecordBatch.from_arrays(chunk.columns, schema=self.schema))
        self._rows += chunk.num_rows
        self._bytes += chunk.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        """Write what is kept, and the end of the file."""
        self._write_group()
        self._writer.close()

    def abort(self) -> None:
        """Close the file, which is incomplete; what goes wrong is of no interest any more."""
        import pyarrow as pa

        self._kept.clear()
        with suppress(OSError, pa.ArrowException):
            self._writer.close()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._kept:
            table = pa.Table.from_batches(self._kept, self.schema).combine_chunks()
            self._kept, self._rows, self._bytes = [], 0, 0
            self._writer.write_table(table)


def _open(path: Path, format: str, schema: "pa.Schema", compression: str | None) -> Any:
    import pyarrow.csv
    import pyarrow.parquet
    from pyarrow import ipc

    match format:
        case "parquet":
            return pyarrow.parquet.ParquetWriter(path, schema, compression=compression or "snappy")
        case "arrow":
            codec = None if compression == "none" else compression
            return ipc.new_file(path, schema, options=ipc.IpcWriteOptions(compression=codec))
        case _:
            return pyarrow.csv.CSVWriter(path, schema)


def check_types(schema: "pa.Schema", format: str, directory: str) -> None:
    """Refuse columns that a format has no type for.

    Raises:
        SinkError: There is one.
    """
    import pyarrow as pa

    for field in schema:
        if format == "csv" and pa.types.is_nested(field.type):
            raise SinkError(
                f"sink {directory}: column {field.name!r} is {field.type}, and CSV has no such "
                "type; leave it out in a step before, or write another format"
            )


def check_columns(found: "pa.Schema", expected: "pa.Schema", directory: str) -> None:
    """Refuse columns that differ from those of a directory.

    Raises:
        SinkError: A name or a type differs.
    """
    if found.names != expected.names:
        raise SinkError(
            f"sink {directory}: a chunk has the columns {found.names} and the files have "
            f"{expected.names}; select them in a step before, or use another directory"
        )
    for field, wanted in zip(found, expected, strict=True):
        if field.type != wanted.type:
            raise SinkError(
                f"sink {directory}: column {field.name!r} is {field.type} in a chunk and "
                f"{wanted.type} in the files; cast it in a step before, or use another directory"
            )
