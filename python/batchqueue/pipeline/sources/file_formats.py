"""The file formats of `FileSource`, and how to detect the format of a file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
from pyarrow import fs, ipc

from batchqueue.base.exact_cast import exact_cast
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import SourceChangedError, SourceDataError
from batchqueue.pipeline.sources.file_scan import FileEntry, entry_of

# Fits the columns of a file to the schema of the source, or says which column does not fit.


class Fit(NamedTuple):
    """The schema that all batches of a source have, and how strictly files must match it."""

    schema: pa.Schema
    given: bool
    """Whether the user gave the schema: then values are cast, and missing columns are null."""
    all_columns: bool
    """Whether the user asked for all columns: then a file must not have others."""

    def check(self, file: pa.Schema, path: str) -> None:
        """Refuse a file whose columns do not fit.

        Raises:
            SourceDataError: A column is missing, unexpected, of another type, or duplicated.
        """
        for field in self.schema:
            places = file.get_all_field_indices(field.name)
            if len(places) > 1:
                raise SourceDataError(
                    f"{path} has {len(places)} columns named {field.name!r}; rename them"
                )
            if not places:
                if self.given and field.nullable:
                    continue
                raise SourceDataError(
                    f"{path} has no column {field.name!r}; it has "
                    f"{', '.join(map(repr, file.names)) or 'none'}; leave the column out of "
                    "`columns`, or give `schema`, with which it reads as null"
                )
            found = file.field(places[0]).type
            if found != field.type and not self.given:
                raise SourceDataError(
                    f"{path}: column {field.name!r} is {found} and that of the source is "
                    f"{field.type}; give `schema` to cast it"
                )
        self.check_names(file.names, path)

    def check_names(self, names: list[str], path: str) -> None:
        """Refuse columns that would be dropped although all were asked for.

        Raises:
            SourceDataError: A column would be dropped.
        """
        more = [name for name in names if name not in self.schema.names]
        if self.all_columns and more:
            raise SourceDataError(
                f"{path} has a column {more[0]!r}, which the first file does not have; give "
                "`columns` to leave it out, or `schema` to take it"
            )

    def is_exact(self, batches: pa.Schema) -> bool:
        """Return whether `apply` would leave batches of a schema unchanged."""
        has_all = self.schema.equals(batches, check_metadata=True)
        return has_all and all(field.nullable for field in self.schema)

    def apply(self, batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
        """Return a batch of a file, converted to the schema of the source.

        Raises:
            SourceDataError: A value cannot be cast to the type that was given, or is null where
                the schema forbids it.
        """
        columns = []
        for field in self.schema:
            place = batch.schema.get_field_index(field.name)
            if place < 0:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(place)
            if column.type != field.type:
                try:
                    column = exact_cast(column, field.type)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                    raise SourceDataError(
                        f"{path}: column {field.name!r} cannot be cast from {column.type} to "
                        f"{field.type}: {error}; give another `schema`"
                    ) from error
            if not field.nullable and column.null_count:
                raise SourceDataError(
                    f"{path}: column {field.name!r} has nulls, which the schema forbids; give a "
                    "`schema` in which it is nullable"
                )
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def choose(schema: pa.Schema, columns: tuple[str, ...] | None, path: str) -> pa.Schema:
    """Return the columns of a schema in the order of their names, without metadata.

    Args:
        schema: The schema of a file, or as the user gave it.
        columns: Names; None for all.
        path: Where the schema is from, for the error.

    Raises:
        ConfigError: A column is missing or duplicated.
    """
    names = schema.names if columns is None else columns
    for name in names:
        count = len(schema.get_all_field_indices(name))
        if count != 1:
            raise ConfigError(
                f"{path} has {count or 'no'} column{'s' * (count > 1)} named {name!r}; it has "
                f"{', '.join(map(repr, schema.names)) or 'none'}"
            )
    return pa.schema([schema.field(name).remove_metadata() for name in names])


_SUFFIXES = {
    "parquet": (".parquet", ".pq", ".parq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "csv": (".csv",),
    "json": (".json", ".jsonl", ".ndjson"),
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
FORMATS = tuple(_SUFFIXES)


class Piece(NamedTuple):
    """A part of a file that is read as a whole: a row group, a record batch or the file."""

    rows: int | None
    """Its rows; None if not known before it is read."""
    bytes: int | None
    """Its bytes in memory, roughly; None if not known before it is read."""


def format_of(files: Sequence[FileEntry]) -> str:
    """Return the format that the names of files indicate.

    Raises:
        ConfigError: A name does not indicate a format, or the formats differ.
    """
    formats: dict[str, str] = {}
    for file in files:
        name = file.path.lower()
        for suffix in _COMPRESSED:
            name = name.removesuffix(suffix)
        found = next((each for each, ends in _SUFFIXES.items() if name.endswith(ends)), None)
        if found is None:
            known = ", ".join(suffix for ends in _SUFFIXES.values() for suffix in ends)
            raise ConfigError(
                f"the name of {file.path} does not say its format, as {known} do; give `format`, "
                f"one of {', '.join(FORMATS)}, or leave the file out of the paths"
            )
        formats.setdefault(found, file.path)
        if len(formats) > 1:
            paths = " and ".join(f"{path} ({each})" for each, path in formats.items())
            raise ConfigError(f"the files have several formats: {paths}; give each its own source")
    return next(iter(formats))


# Arrow IPC files: a piece is a record batch, which is found without reading the others.


@dataclass(frozen=True)
class ArrowFormat:
    """Reads record batches."""

    def schema(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """Return the columns of a file, from its footer."""
        with reading(path), filesystem.open_input_file(path) as file:
            return ipc.open_file(file).schema

    def pieces(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> Sequence[Piece]:
        """Return the record batches of a file; their sizes are not in its footer."""
        with reading(path), filesystem.open_input_file(path) as file:
            reader = ipc.open_file(file)
            fit.check(reader.schema, path)
            return (Piece(None, None),) * reader.num_record_batches or (Piece(0, 0),)

    def open(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> "OpenArrowFile":
        """Open a file, and check its columns."""
        return OpenArrowFile(filesystem, path, fit)


class OpenArrowFile:
    """An open Arrow IPC file: its footer, which lists all record batches, is read once."""

    def __init__(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> None:
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

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
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


# Parquet: a piece is a row group, and batches are small regardless of the width of its rows.


_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 2_000
"""As many rows as a stage of a pipeline takes from its source together.

A batch is decoded without the interpreter, while the stages work on the batch before it. Decoding a
whole row group takes 7 % less time, but the stages would wait for it.
"""
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class ParquetFormat:
    """Reads row groups."""

    def schema(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """Return the columns of a file, from its footer."""
        with reading(path), _open(filesystem, path) as file:
            return file.schema_arrow

    def pieces(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> Sequence[Piece]:
        """Return the row groups of a file, from its footer."""
        with reading(path), _open(filesystem, path) as file:
            fit.check(file.schema_arrow, path)
            names, metadata = set(fit.schema.names), file.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            return tuple(_piece(group, names, fit) for group in groups) or (Piece(0, 0),)

    def open(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> "OpenParquetFile":
        """Open a file, and check its columns."""
        return OpenParquetFile(filesystem, path, fit)


class OpenParquetFile:
    """An open Parquet file: its footer, which lists all row groups, is read once."""

    def __init__(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> None:
        self._path = path
        self._fit = fit
        with reading(path), ExitStack() as opened:
            self._file = opened.enter_context(_open(filesystem, path))
            schema = self._file.schema_arrow
            fit.check(schema, path)
            present = set(schema.names)
            self._names = [name for name in fit.schema.names if name in present]
            opened.pop_all()

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
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

    # Without pre_buffer, and with a buffer, pages are fetched as they are decoded. Otherwise a
    # whole row group is in memory as soon as its first batch is.
    return pq.ParquetFile(path, filesystem=filesystem, pre_buffer=False, buffer_size=_BUFFER_BYTES)


def _piece(group: Any, names: set[str], fit: Fit) -> Piece:
    """Return the size of the columns that are read.

    Encodings may store repeated values in next to nothing, so a value counts as at least what its
    type needs in memory.
    """
    size = sum(
        column.total_uncompressed_size
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema.partition(".")[0] in names
    )
    return Piece(group.num_rows, max(size, group.num_rows * _row_bytes(fit.schema)))


def _row_bytes(schema: pa.Schema) -> int:
    total = 0
    for field in schema:
        try:
            total += max(field.type.bit_width // 8, 1)
        except ValueError:  # of variable width: its offset
            total += 4
    return total


# CSV and JSON lines: a piece is a file, which is read as a stream, compressed or not.


class Stream:
    """A file that is read in one piece, and is open only while it is read."""

    def __init__(self, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self._read = read

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Read the file."""
        del number
        return self._read()

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class TextFormat:
    """Reads whole text files, with options of pyarrow."""

    remedy: ClassVar[str]

    read_options: Any = None
    parse_options: Any = None

    def schema(self, filesystem: fs.FileSystem, path: str) -> pa.Schema:
        """Return the columns of a file, with the types of its first block."""
        with reading(path, self.remedy), self._reader(filesystem, path, None) as reader:
            return _with_strings(reader.schema)

    def pieces(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> Sequence[Piece]:
        """Return the file as the only piece, without opening it."""
        return (Piece(None, None),)

    def open(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> Stream:
        """Return the file, which is opened when it is read."""
        return Stream(lambda: self._read(filesystem, path, fit))

    def _read(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> Iterator[pa.RecordBatch]:
        with reading(path, self.remedy), self._reader(filesystem, path, fit) as reader:
            fit.check(reader.schema, path)
            for batch in reader:
                if batch.num_rows:
                    yield fit.apply(batch, path)

    def _reader(self, filesystem: Any, path: str, fit: Fit | None) -> Any:
        """Open a file, for the columns of the source if these are known."""
        raise NotImplementedError


@dataclass(frozen=True)
class CsvFormat(TextFormat):
    """Reads CSV files, with options of `pyarrow.csv`."""

    remedy = (
        "types come from the first 1 MB of the first file: give `schema` for others, "
        "`parse_options` for another delimiter, and `read_options` with a larger `block_size` for "
        "rows above 1 MB"
    )

    convert_options: Any = None

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
class JsonFormat(TextFormat):
    """Reads JSON lines, with options of `pyarrow.json`. A field that an object lacks is null."""

    remedy = (
        "each line must be an object, and types come from the first 1 MB of the first file: give "
        "`schema` for others, and `read_options` with a larger `block_size` for objects above 1 MB"
    )

    def _read(self, filesystem: fs.FileSystem, path: str, fit: Fit) -> Iterator[pa.RecordBatch]:
        try:
            yield from super()._read(filesystem, path, fit)
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


FileFormat = ArrowFormat | ParquetFormat | TextFormat
"""How to read the files of a format. It pickles.

For a file, `schema` returns the columns, `pieces` the parts, at least one, and `open` an
`OpenFile`; the last two check its columns.
"""

OpenFile = OpenArrowFile | OpenParquetFile | Stream
"""A file whose parts are read one after the other, without reading ahead."""


def _with_strings(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which a column without values so far is a string, not always null."""
    return pa.schema(
        [
            # The name is decoded here, where an error in it names the file.
            pa.field(field.name, pa.string() if pa.types.is_null(field.type) else field.type)
            for field in schema
        ]
    )


# Errors that name the file, which cannot be read or has changed since it was listed.


_KEEP = (
    "files must not change while they are read: write new ones under a name that starts with '.' "
    "or '_' and rename them, or begin with a new checkpoint"
)


@contextmanager
def reading(path: str, remedy: str = "") -> Iterator[None]:
    """Make errors of pyarrow and of the system name the file.

    Args:
        path: The file.
        remedy: What to do about data that does not parse.

    Raises:
        SourceDataError: The file is corrupt or cannot be read.
        SourceChangedError: The file is gone.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(f"{path} was listed and is gone; {_KEEP}") from error
    except (MemoryError, pa.ArrowCancelled):
        raise
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        hint = remedy or "write it again, or leave it out of the paths"
        raise SourceDataError(f"{path} cannot be read: {error}; {hint}") from error


def check_unchanged(filesystem: fs.FileSystem, entry: FileEntry) -> None:
    """Refuse a file that differs from the one that was listed.

    Raises:
        SourceChangedError: Its size or time differs, or it is gone.
    """
    with reading(entry.path):
        info = filesystem.get_file_info(entry.path)
    if not info.is_file:
        raise SourceChangedError(f"{entry.path} was listed ({entry}) and is gone; {_KEEP}")
    now = entry_of(info)
    if now[1:] != entry[1:]:
        raise SourceChangedError(f"{entry.path} was {entry} and is {now}; {_KEEP}")
