"""`FileSource`: Parquet, Arrow, CSV and JSON files, local or on any filesystem of pyarrow."""

import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from batchqueue.base.checks import LocalPath, check_finite, check_switch, local_path
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Lag, Limit, Plan, Position, PositionError, Split
from batchqueue.pipeline.sources.file_formats import (
    FORMATS,
    ArrowFormat,
    CsvFormat,
    FileFormat,
    Fit,
    JsonFormat,
    OpenFile,
    ParquetFormat,
    Piece,
    check_unchanged,
    choose,
    format_of,
)
from batchqueue.pipeline.sources.file_listings import (
    FilePlace,
    FrozenListings,
    Listing,
    Listings,
    WatchedListing,
    place_of,
    position_of,
)
from batchqueue.pipeline.sources.file_scan import FileEntry, Paths, as_list, resolve
from batchqueue.pipeline.sources.splits import within

__all__ = ["FileSource"]


_PARTITION = "files"
_MOST_SPLITS = 1_024


class FilePiece(NamedTuple):
    """What `FileSource.read` needs to find a piece."""

    entry: FileEntry
    number: int


class FileSource:
    """Reads Parquet, Arrow, CSV and JSON files, each row once and in the order of their paths.

    A split is a row group of Parquet, a record batch of Arrow, or a whole CSV or JSON file. Only
    one is read at a time and nothing ahead of it, and no file is opened before it is reached.

    The list of files is made once, and positions hold a digest of it. After a restart it is
    recreated: files that arrived later are left out and logged, and `SourceChangedError` names
    files that changed. With `watch` there is no end: new files are recorded in `listing` and read.

    Attributes:
        name: The name in statistics and positions.
        bounded: Whether it ends.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        format: str | None = None,
        columns: Sequence[str] | None = None,
        schema: pa.Schema | None = None,
        name: str | None = None,
        watch: bool = False,
        listing: LocalPath | None = None,
        watch_interval_s: float = 1.0,
        filesystem: fs.FileSystem | None = None,
        read_options: Any = None,
        parse_options: Any = None,
        convert_options: Any = None,
    ) -> None:
        """Describe the files. Nothing is opened before the first plan.

        Args:
            paths: A path, directory, URI or pattern with `*`, `?`, `[0-9]` or `**`, or a list of
                them. In directories and patterns, names that start with `.` or `_` are hidden, and
                files of zero bytes are skipped.
            format: "parquet", "arrow" (IPC files), "csv" or "json" (lines). Default: None, as the
                names of the files indicate; they must agree.
            columns: The columns to read, in this order; other columns of Parquet and Arrow are not
                fetched. Default: None, those of the first file, and a file with more is refused.
            schema: The names and types of the columns: values are cast, and a column that a file
                lacks is null; a value that the type cannot hold is an error, and floats are
                rounded. Default: None, that of the first file, which the others must have, too.
            name: The name in positions; a position is refused by a source of another name.
                Default: None, the paths as given.
            watch: Whether to wait for more files when all are read. Default: False.
            listing: Where to record the files that were found, a local path for this source alone;
                keep it as long as the checkpoint. Required with `watch`. Default: None.
            watch_interval_s: Seconds between two scans for files, at least 0. A file is taken once
                two scans have found it unchanged. Default: 1.
            filesystem: A `pyarrow.fs.FileSystem` that the paths are on. Default: None, the local
                one, or that of the URI.
            read_options: `ReadOptions` of `pyarrow.csv` or `pyarrow.json`. Default: None.
            parse_options: `ParseOptions` of either. Default: None; quoted line breaks are allowed.
            convert_options: `ConvertOptions` of `pyarrow.csv`. Default: None.

        Raises:
            ConfigError: A setting is invalid.

        Example:
            >>> import pyarrow as pa
            >>> import pyarrow.parquet as pq
            >>> from batchqueue.pipeline import Limit
            >>> pq.write_table(pa.table({"n": range(100)}), "n.parquet", row_group_size=40)
            >>> source = FileSource("n.parquet")
            >>> plan = source.plan(source.initial(), Limit(rows=80, bytes=1 << 20))
            >>> [batch.num_rows for split in plan.splits for batch in source.read(split)]
            [40, 40]
        """
        given = as_list(paths)
        filesystem, found = resolve(given, filesystem)
        more = f" and {len(given) - 1} more" if len(given) > 1 else ""
        self.name = name if name is not None else given[0] + more
        self.bounded = not watch
        names = ("read_options", "parse_options", "convert_options")
        values = (read_options, parse_options, convert_options)
        options = checked_options(format, dict(zip(names, values, strict=True)))
        check_schema(schema)
        chosen = checked_columns(columns)
        log = checked_listing(watch, listing, watch_interval_s)
        self._listings: Listings = (
            FrozenListings(self.name, filesystem, found, format is None)
            if log is None
            else WatchedListing(filesystem, found, format is None, log, watch_interval_s)
        )
        self._reader = FileReader(filesystem, format, chosen, schema, options)

    def schema(self) -> pa.Schema:
        """Return the schema that was given, or else that of the first file."""
        return self._reader.fit(self._listings).schema

    def initial(self) -> Position:
        """Return the position before the first file."""
        return self._position(self._listings.current(), 0, 0)

    def plan(self, start: Position, limit: Limit) -> Plan:
        """Return the next pieces of files."""
        place, listing = self._place(start)
        if place.file == len(listing.files):
            self._listings.extend()
        return within(islice(self._splits(listing, place), _MOST_SPLITS), start, limit)

    def between(self, start: Position, end: Position) -> Sequence[Split]:
        """Return the pieces from one position to a later one."""
        (first, listing), (last, other) = self._place(start), self._place(end)
        if other is not listing or last.order < first.order:
            raise PositionError(
                f"source {self.name!r}: {end!r} does not follow {start!r}; give positions of one "
                "listing, in their order"
            )
        return list(self._splits(listing, first, last))

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Read a piece of a file, and nothing ahead of it."""
        entry, number = split.what
        return self._reader.read(entry, number, self._listings)

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return the rows that follow, if all their files have been opened, and the seconds behind.

        The seconds are the age of the next file, and known with `watch` only.
        """
        place, listing = self._place(at)
        rows: int | None = 0
        for number in range(place.file, len(listing.files)):
            piece = place.piece if number == place.file else 0
            more = self._reader.known_rows(listing.files[number], piece)
            if rows is None or more is None:
                rows = None
                break
            rows += more
        seconds = None
        if not self.bounded:
            following = listing.files[place.file : place.file + 1]
            since = [time.time() - (file.mtime_ns or 0) / 1e9 for file in following]
            seconds = max(0.0, sum(since))
        return {_PARTITION: Lag(rows, seconds)}

    def commit(self, end: Position) -> None:
        """Do nothing: files stay where they are."""

    def __repr__(self) -> str:
        return f"FileSource({self.name!r})"

    def _place(self, position: Position) -> tuple[FilePlace, Listing]:
        place = place_of(self.name, position)
        listing = self._listings.find(place)
        if place.file > len(listing.files) or place.at != listing.at(place.file, place.piece):
            raise PositionError(
                f"source {self.name!r}: {position!r} does not fit the list of its files; begin "
                "with a new checkpoint"
            )
        return place, listing

    def _position(self, listing: Listing, file: int, piece: int) -> Position:
        return position_of(self.name, FilePlace(listing.mark, file, piece, listing.at(file, piece)))

    def _splits(
        self, listing: Listing, first: FilePlace, last: FilePlace | None = None
    ) -> Iterator[Split]:
        for number in range(first.file, len(listing.files)):
            entry = listing.files[number]
            if last is not None and (number, 0) >= last.order:
                return
            pieces = self._reader.pieces(entry, self._listings)
            begin = first.piece if number == first.file else 0
            if begin >= len(pieces):
                raise PositionError(
                    f"source {self.name!r}: there is no piece {begin} in {entry.path}, which has "
                    f"{len(pieces)}; begin with a new checkpoint"
                )
            for index in range(begin, len(pieces)):
                if last is not None and (number, index) >= last.order:
                    return
                following = (number, index + 1) if index + 1 < len(pieces) else (number + 1, 0)
                yield Split(
                    _PARTITION,
                    self._position(listing, number, index),
                    self._position(listing, *following),
                    *pieces[index],
                    FilePiece(entry, index),
                )


# Checks of the settings of `FileSource`.


def checked_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names of columns as a tuple; None for all.

    Raises:
        ConfigError: There are no names, or one is repeated or not a str.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not columns:
        raise ConfigError(f"columns is {columns!r}; give a list of names, or None for all")
    names = tuple(columns)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"columns is {columns!r}; give each column once, as a str")
    return names


def check_schema(schema: object) -> None:
    """Refuse what is neither a schema nor None.

    Raises:
        ConfigError: `schema` is neither.
    """
    if not (schema is None or isinstance(schema, pa.Schema)):
        raise ConfigError(f"schema is {schema!r}; give a pyarrow.Schema, or None")


def checked_options(format: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, which must be those of the format.

    Args:
        format: The format of the files; None if it is not known yet.
        given: The options by name; None where not given.

    Raises:
        ConfigError: The format is invalid or not given, or it has no such options.
    """
    import pyarrow.csv
    import pyarrow.json

    if not (format is None or format in FORMATS):
        raise ConfigError(f"format is {format!r}; give one of {', '.join(FORMATS)}, or None")
    options = {name: value for name, value in given.items() if value is not None}
    module = {"csv": pyarrow.csv, "json": pyarrow.json}.get(format or "")
    for name, value in options.items():
        expected = name.title().replace("_", "")
        if module is None:
            raise ConfigError(f'{name} is for CSV and JSON; give format="csv" or "json" with it')
        if not isinstance(value, getattr(module, expected, ())):
            raise ConfigError(
                f"{name} is {value!r}; give pyarrow.{format}.{expected}"
                if hasattr(module, expected)
                else f"{name} is not for {format}; leave it out"
            )
    return options


def checked_listing(watch: bool, listing: LocalPath | None, watch_interval_s: float) -> str | None:
    """Return the path of the listing; None if the source is bounded.

    Raises:
        ConfigError: There is a listing without `watch` or vice versa, or its directory is missing.
    """
    check_finite("watch_interval_s", watch_interval_s, 0)
    check_switch("watch", watch)
    if not watch:
        if listing is not None:
            raise ConfigError(f"listing is {listing!r}, which is for watch=True; leave it out")
        return None
    if listing is None:
        raise ConfigError(
            "watch=True needs `listing`, the path of a file to note found files in; put it next to "
            "the checkpoint"
        )
    path = str(local_path("listing", listing))
    if not os.path.isdir(os.path.dirname(path)) or os.path.isdir(path):
        raise ConfigError(f"listing is {path}; give the path of a file in a directory that exists")
    return path


# Opens files for `FileSource`: their schema, their pieces and their rows.


_MOST_FOOTERS = 1_024

_KEEP_S = 60.0
"""After a longer pause, the other side may close the connection behind an open file."""


class FileReader:
    """Reads files of one format, or of the format that each name indicates. It pickles."""

    def __init__(
        self,
        filesystem: fs.FileSystem,
        format: str | None,
        columns: tuple[str, ...] | None,
        schema: pa.Schema | None,
        options: dict[str, Any],
    ) -> None:
        self._filesystem = filesystem
        self._format = format
        self._columns = columns
        self._given = schema
        self._options = options
        self._fit: Fit | None = None
        self._footers: dict[FileEntry, Sequence[Piece]] = {}
        # At most one file, and since when it is kept; taken out while it is read.
        self._kept: dict[FileEntry, tuple[OpenFile, float]] = {}

    def fit(self, listings: Listings) -> Fit:
        """Return the schema of the source: the one that was given, or that of the first file.

        Args:
            listings: Where the first file is, if no schema was given.
        """
        if self._fit is None:
            found, where = self._given, "the given schema"
            if found is None:
                found, where = listings.schema(self._schema)
            given = self._given is not None
            everything = self._columns is None and not given
            self._fit = Fit(choose(found, self._columns, where), given, everything)
        return self._fit

    def _schema(self, entry: FileEntry) -> pa.Schema:
        check_unchanged(self._filesystem, entry)
        return self._format_of(entry).schema(self._filesystem, entry.path)

    def pieces(self, entry: FileEntry, listings: Listings) -> Sequence[Piece]:
        """Return the pieces of a file. Its footer is read once, as long as it does not change."""
        check_unchanged(self._filesystem, entry)
        pieces = self._footers.get(entry)
        if pieces is None:
            form, fit = self._format_of(entry), self.fit(listings)
            pieces = form.pieces(self._filesystem, entry.path, fit)
            if len(self._footers) >= _MOST_FOOTERS:
                del self._footers[next(iter(self._footers))]
            self._footers[entry] = pieces
        return pieces

    def known_rows(self, entry: FileEntry, piece: int) -> int | None:
        """Return the rows of a file from a piece on, if it has been opened; else None."""
        rows = [each.rows for each in self._footers.get(entry, [Piece(None, None)])[piece:]]
        return None if None in rows else sum(filter(None, rows))

    def read(self, entry: FileEntry, number: int, listings: Listings) -> Iterator[pa.RecordBatch]:
        """Read a piece of a file.

        The file stays open for its next piece: opening it reads its footer, which takes several
        requests on an object store.
        """
        file = self._take_kept(entry)
        try:
            # Before and after: a file that is replaced while it is read would yield rows of both
            # versions.
            check_unchanged(self._filesystem, entry)
            if file is None:
                fit = self.fit(listings)
                file = self._format_of(entry).open(self._filesystem, entry.path, fit)
            yield from file.read(number)
            check_unchanged(self._filesystem, entry)
        except BaseException:
            if file is not None:
                file.close()
            raise
        pieces = self._footers.get(entry)
        self._take_kept(None)
        if pieces is None or number + 1 < len(pieces):
            self._kept[entry] = file, time.monotonic()
        else:
            file.close()

    def _take_kept(self, wanted: FileEntry | None) -> OpenFile | None:
        """Take out the kept file, and return it if it is the wanted one; otherwise close it."""
        found = None
        for entry in list(self._kept):
            # Another thread may read with the same source.
            file, since = self._kept.pop(entry, (None, 0.0))
            if entry == wanted and time.monotonic() - since < _KEEP_S:
                found = file
            elif file is not None:
                file.close()
        return found

    def _format_of(self, entry: FileEntry) -> FileFormat:
        match self._format or format_of([entry]):
            case "parquet":
                return ParquetFormat()
            case "arrow":
                return ArrowFormat()
            case "csv":
                return CsvFormat(**self._options)
            case _:
                return JsonFormat(**self._options)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_footers": {}, "_kept": {}}
