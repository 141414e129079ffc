"""Arrow IPC files: the piece is a record batch, which is found without reading the others."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchqueue.pipeline.sources.files.failing import reading
from batchqueue.pipeline.sources.files.fit import Fit
from batchqueue.pipeline.sources.files.format import Piece

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs


@dataclass(frozen=True)
class ArrowFormat:
    """Reads record batches."""

    def schema(self, filesystem: "fs.FileSystem", path: str) -> "pa.Schema":
        """Return the columns of a file, from its footer."""
        from pyarrow import ipc

        with reading(path), filesystem.open_input_file(path) as file:
            return ipc.open_file(file).schema

    def pieces(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> Sequence[Piece]:
        """Return the record batches of a file; their sizes are not in its footer."""
        from pyarrow import ipc

        with reading(path), filesystem.open_input_file(path) as file:
            reader = ipc.open_file(file)
            fit.check(reader.schema, path)
            return (Piece(None, None),) * reader.num_record_batches or (Piece(0, 0),)

    def open(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> "OpenArrowFile":
        """Open a file, and check its columns."""
        return OpenArrowFile(filesystem, path, fit)


class OpenArrowFile:
    """An Arrow IPC file that is open: its footer, which lists all record batches, is read once."""

    def __init__(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> None:
        from pyarrow import ipc

        self._path = path
        self._fit = fit
        with reading(path), ExitStack() as opened:
            self._file = opened.enter_context(filesystem.open_input_file(path))
            schema = ipc.open_file(self._file).schema
            fit.check(schema, path)
            wanted = [schema.get_field_index(name) for name in fit.schema.names]
            options = ipc.IpcReadOptions(included_fields=[at for at in wanted if at >= 0])
            self._reader = ipc.open_file(self._file, options=options)
            opened.pop_all()

    def read(self, number: int) -> "Iterator[pa.RecordBatch]":
        """Read a record batch."""
        with reading(self._path):
            if self._reader.num_record_batches:
                batch = self._reader.get_batch(number)
                # The format has no checksums: without this, damaged offsets would crash Python.
                batch.validate(full=True)
                if batch.num_rows:
                    yield self._fit.apply(batch, self._path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
