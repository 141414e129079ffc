"""Opens files for `FileSource`: their schema, their pieces and their rows."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from batchqueue.pipeline.sources.files.arrow import ArrowFormat
from batchqueue.pipeline.sources.files.failing import check_unchanged
from batchqueue.pipeline.sources.files.fit import Fit, choose
from batchqueue.pipeline.sources.files.format import FileFormat, OpenFile, Piece, format_of
from batchqueue.pipeline.sources.files.listings import Listings
from batchqueue.pipeline.sources.files.parquet import ParquetFormat
from batchqueue.pipeline.sources.files.scan import FileEntry
from batchqueue.pipeline.sources.files.text import CsvFormat, JsonFormat

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

_MOST_FOOTERS = 1_024

_KEEP_S = 60.0
"""A connection behind an open file may be closed by the other side after a longer pause."""


class FileReader:
    """Reads files of one format, or of the one that each name says. It pickles."""

    def __init__(
        self,
        filesystem: "fs.FileSystem",
        format: str | None,
        columns: tuple[str, ...] | None,
        schema: "pa.Schema | None",
        options: dict[str, Any],
    ) -> None:
        self._filesystem = filesystem
        self._format = format
        self._columns = columns
        self._given = schema
        self._options = options
        self._fit: Fit | None = None
        self._footers: dict[FileEntry, Sequence[Piece]] = {}
        # One at most, and since when; taken out while it is read.
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

    def _schema(self, entry: FileEntry) -> "pa.Schema":
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
        """Return the rows of a file from a piece on, if it has been opened; None if not known."""
        rows = [each.rows for each in self._footers.get(entry, [Piece(None, None)])[piece:]]
        return None if None in rows else sum(filter(None, rows))

    def read(self, entry: FileEntry, number: int, listings: Listings) -> "Iterator[pa.RecordBatch]":
        """Read a piece of a file.

        The file stays open for its next piece: to open it reads its footer, on an object store with
        several requests.
        """
        file = self._take_kept(entry)
        try:
            # Before and after: a file that is replaced while it is read would give rows of both.
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
        """Take out the file that is kept, and return it if it is the one; others are closed."""
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
