"""CSV and JSON lines: the piece is the file, which is read in a stream, compressed or not."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchqueue.pipeline.errors import SourceDataError
from batchqueue.pipeline.sources.files.failing import reading
from batchqueue.pipeline.sources.files.fit import Fit
from batchqueue.pipeline.sources.files.format import Piece

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

_CSV_REMEDY = (
    "types come from the first 1 MB of the first file: give `schema` for others, `parse_options` "
    "for another delimiter, and `read_options` with a larger `block_size` for rows above 1 MB"
)
_JSON_REMEDY = (
    "each line must be an object, and types come from the first 1 MB of the first file: give "
    "`schema` for others, and `read_options` with a larger `block_size` for objects above 1 MB"
)


class Stream:
    """A file that is read in one piece, and is open only meanwhile."""

    def __init__(self, read: "Callable[[], Iterator[pa.RecordBatch]]") -> None:
        self._read = read

    def read(self, number: int) -> "Iterator[pa.RecordBatch]":
        """Read the file."""
        del number
        return self._read()

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class CsvFormat:
    """Reads CSV files, with options of `pyarrow.csv`."""

    read_options: Any = None
    parse_options: Any = None
    convert_options: Any = None

    def schema(self, filesystem: "fs.FileSystem", path: str) -> "pa.Schema":
        """Return the columns of a file, with the types of its first block."""
        with reading(path, _CSV_REMEDY), self._reader(filesystem, path, None) as reader:
            return _with_strings(reader.schema)

    def pieces(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> Sequence[Piece]:
        """Return the file, which is not opened."""
        return (Piece(None, None),)

    def open(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> "Stream":
        """Return the file, which is opened when it is read."""
        return Stream(lambda: self._read(filesystem, path, fit))

    def _read(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> "Iterator[pa.RecordBatch]":
        with reading(path, _CSV_REMEDY), self._reader(filesystem, path, fit) as reader:
            fit.check(reader.schema, path)
            for batch in reader:
                if batch.num_rows:
                    yield fit.apply(batch, path)

    def _reader(self, filesystem: Any, path: str, fit: Fit | None) -> Any:
        from pyarrow import csv

        # Without newlines_in_values, a quoted line break at the end of a block splits a row.
        parse = self.parse_options or csv.ParseOptions(newlines_in_values=True)
        convert = copy(self.convert_options) or csv.ConvertOptions()
        if fit is not None:
            convert.column_types = fit.schema
            convert.include_missing_columns = fit.given
            if not fit.all_columns:
                convert.include_columns = fit.schema.names
        stream = filesystem.open_input_stream(path)
        return csv.open_csv(stream, self.read_options, parse, convert)


@dataclass(frozen=True)
class JsonFormat:
    """Reads JSON lines, with options of `pyarrow.json`."""

    read_options: Any = None
    parse_options: Any = None

    def schema(self, filesystem: "fs.FileSystem", path: str) -> "pa.Schema":
        """Return the fields of a file, with the types of its first block."""
        with reading(path, _JSON_REMEDY), self._reader(filesystem, path, None) as reader:
            return _with_strings(reader.schema)

    def pieces(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> Sequence[Piece]:
        """Return the file, which is not opened."""
        return (Piece(None, None),)

    def open(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> "Stream":
        """Return the file, which is opened when it is read."""
        return Stream(lambda: self._read(filesystem, path, fit))

    def _read(self, filesystem: "fs.FileSystem", path: str, fit: Fit) -> "Iterator[pa.RecordBatch]":
        """Read the file. A field that an object lacks is null."""
        try:
            with reading(path, _JSON_REMEDY), self._reader(filesystem, path, fit) as reader:
                for batch in reader:
                    if batch.num_rows:
                        yield fit.apply(batch, path)
        except SourceDataError as error:
            if "unexpected field" in str(error):  # pyarrow does not say which
                fit.check_names(self.schema(filesystem, path).names, path)
            raise

    def _reader(self, filesystem: Any, path: str, fit: Fit | None) -> Any:
        from pyarrow import json

        given = self.parse_options
        parse = json.ParseOptions(
            explicit_schema=None if fit is None else fit.schema,
            newlines_in_values=given is not None and given.newlines_in_values,
            unexpected_field_behavior=(
                "infer" if fit is None else "error" if fit.all_columns else "ignore"
            ),
        )
        return json.open_json(filesystem.open_input_stream(path), self.read_options, parse)


def _with_strings(schema: "pa.Schema") -> "pa.Schema":
    """Returns a schema in which a column without values so far is a string, not always null."""
    import pyarrow as pa

    return pa.schema(
        [
            # The name is decoded here, where an error of it names the file.
            pa.field(field.name, pa.string() if pa.types.is_null(field.type) else field.type)
            for field in schema
        ]
    )
