"""`LanceSource`: a Lance dataset, by ranges of rows, at one version after the other."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.checks import check_choice, check_whole, require
from batchqueue.base.exact_cast import exact_cast
from batchqueue.base.words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import (
    Lag,
    Position,
    PositionError,
    SourceChangedError,
    SourceDataError,
    Split,
)
from batchqueue.pipeline.sources.splits import (
    OnChange,
    Step,
    TableSource,
    at_first_run,
    check_position,
    row_bytes,
    selected,
)

_FIELDS: dict[str, tuple[type, ...]] = {
    "version": (int,),
    "written": (str,),
    "fragment": (int,),
    "row": (int,),
}


class LanceSource(TableSource["LanceHistory"]):
    """The rows of a Lance dataset: those of one version, and new ones, too, with `watch=True`.

    A version never changes, so it is read exactly as it is, regardless of concurrent writes; rows
    deleted in it are left out. With `watch=True`, the fragments that each later version appended
    come next. A split is a range of `split_rows` rows of one fragment, and nothing is read ahead of
    it.

    While it is in use, the version of the last cut is tagged, so that `cleanup_old_versions`
    cannot remove it (it raises by default if it would have to). Where tags cannot be written, a
    warning is logged and the version is not protected.

    Example:
        ```python
        pipeline.source(LanceSource("orders.lance", columns=["city", "cents"]))
        ```
    """

    def __init__(
        self,
        uri: str,
        *,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        start: Literal["table", "latest"] = "table",
        watch: bool = False,
        on_change: OnChange = "error",
        split_rows: int = 1000,
        tag: str | None = "batchqueue",
        storage_options: dict[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        """Describe what to read. The dataset is opened later, in the process that reads.

        Args:
            uri: The path or URI of the dataset.
            columns: The columns to read, in this order. Default: None, all.
            version: The version to begin with. Default: None, the newest one at the first run.
            start: Where the first run begins: with the rows of that version (`"table"`), or after
                them (`"latest"`, for `watch=True`). Default: `"table"`.
            watch: Whether to continue with later appends, indefinitely. Default: False.
            on_change: What to do with a later version that changed, deleted or moved rows of an
                earlier one, as updates, deletes, overwriting and compaction do: raise
                `SourceChangedError` (`"error"`), or pass over that version with everything that it
                added (`"skip"`), which is exact for compaction. Default: `"error"`.
            split_rows: The rows of a split, at least 1. A split is held in memory as a whole: use
                fewer where rows are large. Default: 1000.
            tag: The tag that protects the version in use. Give each pipeline that reads the dataset
                its own. None makes no tag. Default: `"batchqueue"`.
            storage_options: Credentials and settings of the object store. Default: None.
            name: The name in statistics and errors. Default: None, the last part of the URI.

        Raises:
            ConfigError: A setting is invalid.
            MissingPackageError: pylance is not installed.
        """
        require("lance", "LanceSource", "lance")
        if not isinstance(uri, str) or not uri:
            raise ConfigError(f"uri is {uri!r}; give the path or URI of a Lance dataset")
        check_whole("version", version, 1, give="an int of at least 1", is_optional=True)
        check_whole("split_rows", split_rows, 1, give="an int of at least 1")
        check_choice("start", start, ("table", "latest"))
        self._uri = uri
        self._version = version
        self._start = start
        self._split_rows = split_rows
        self._tag = tag
        self._storage_options = storage_options
        self._found_columns: LanceColumns | None = None
        super().__init__(
            name or PurePath(uri.rstrip("/")).stem or uri,
            columns=columns,
            start=start,
            watch=watch,
            on_change=on_change,
        )

    def _opened(self) -> "LanceHistory":
        return LanceHistory(self._uri, self._storage_options, self.name)

    def __repr__(self) -> str:
        return f"LanceSource({self._uri!r})"

    def schema(self) -> pa.Schema:
        """Return the columns of the dataset, as of when it is first opened here."""
        return self._columns_found().schema

    def initial(self) -> Position:
        """Return the position before the rows of the first version, or after them."""
        version = self._first_version()
        if self._tag is not None:
            self._history.protect(self._tag, version.number)
        return _position(version, -1, 0) if self._start == "table" else self._behind(version)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Read one range of rows."""
        number, fragment, row, rows = split.what
        version = self._history.at(number)
        columns = self._columns_found()
        names = columns.present(version, self.name)
        seen = 0
        try:
            for batch in self._history.read(version, fragment, names, row, rows):
                seen += batch.num_rows
                yield columns.conform(batch)
        except (OSError, ValueError, RuntimeError) as error:
            what = f"fragment {fragment} of version {number} of {self._uri}"
            raise unreadable(self.name, what, error) from error
        if seen != rows:
            raise SourceChangedError(
                f"source {self.name!r}: fragment {fragment} of version {number} of {self._uri} "
                f"has {counted(seen, 'row')} from row {row} on, and {rows} were planned; begin "
                "with a new checkpoint"
            )

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return the rows that follow, and the age of the oldest version with such rows."""
        history = self._history_of_lag
        self._check(at, history)
        version = history.at(at["version"])
        pieces = self._pieces(version, at["fragment"], at["row"])
        records: int | None = sum(rows for _, _, rows in pieces)
        oldest = version if records else None
        try:
            later = [] if self.bounded else list(self._later(version, history))
        except SourceChangedError:  # the next plan raises it, once the rest has been read
            later, records = [], None
        for each, fragments in later:
            added = sum(each.fragments[number].rows for number in fragments)
            records = added + (records or 0)
            oldest = oldest or (each if added else None)
        return {self.name: Lag(records, 0.0 if oldest is None else oldest.age_s)}

    def commit(self, end: Position) -> None:
        """Move the tag to the version where the next run would begin; remove it at the end."""
        self._check(end)
        if self._tag is None:
            return
        version = self._history.at(end["version"])
        if not self.bounded or next(self._pieces(version, end["fragment"], end["row"]), None):
            self._history.protect(self._tag, version.number)
        else:
            self._history.release(self._tag)

    def _first_version(self) -> "Version":
        with at_first_run():
            return self._history.at(self._version or self._history.newest())

    def _columns_found(self) -> "LanceColumns":
        if self._found_columns is None:
            version = self._first_version()
            schema = selected(version.dataset.schema, self._columns, self._uri)
            self._found_columns = LanceColumns(version, schema)
        return self._found_columns

    def _check(self, position: Position, history: "LanceHistory | None" = None) -> None:
        check_position(position, self.name, _FIELDS)
        if position["row"] < 0:
            raise PositionError(
                f"source {self.name!r}: {position!r} is not one of its positions: row is at least "
                "0; use the checkpoint of this source"
            )
        version = (history or self._history).at(position["version"])
        if version.written != position["written"]:
            raise SourceChangedError(
                f"source {self.name!r}: version {version.number} of {self._uri} was written at "
                f"{version.written}, and the position is of one from {position['written']}; the "
                "dataset was removed and made again, so begin with a new checkpoint"
            )

    def _steps(self, start: Position) -> Iterator[Step]:
        """Yield all splits from a position on, as far as versions exist now."""
        version = self._history.at(start["version"])
        pieces = self._pieces(version, start["fragment"], start["row"])
        yield from self._of(version, pieces)
        for later, added in () if self.bounded else self._later(version, self._history):
            yield from self._of(later, self._ranges(later, added))
            yield self._behind(later)  # even if it added nothing, so that it may be removed

    def _of(self, version: "Version", pieces: Iterator[tuple[int, int, int]]) -> Iterator[Split]:
        width = row_bytes(self.schema())
        for fragment, row, rows in pieces:
            start = _position(version, fragment, row)
            end = _position(version, fragment, row + rows)
            what = (version.number, fragment, row, rows)
            yield Split(self.name, start, end, rows, rows * width, what)

    def _behind(self, version: "Version") -> Position:
        if not version.fragments:
            return _position(version, -1, 0)
        last = max(version.fragments)
        return _position(version, last, version.fragments[last].rows)

    def _pieces(
        self, version: "Version", fragment: int, row: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges of a version after a row: fragment, first row, rows."""
        if fragment in version.fragments:
            yield from self._ranges(version, [fragment], row)
        yield from self._ranges(version, [each for each in version.fragments if each > fragment])

    def _ranges(
        self, version: "Version", fragments: list[int], row: int = 0
    ) -> Iterator[tuple[int, int, int]]:
        """Yield ranges that end at multiples of `split_rows`, wherever they begin."""
        for fragment in fragments:
            rows = version.fragments[fragment].rows
            while row < rows:
                end = min(rows, row - row % self._split_rows + self._split_rows)
                yield fragment, row, end - row
                row = end
            row = 0

    def _later(
        self, version: "Version", history: "LanceHistory"
    ) -> "Iterator[tuple[Version, list[int]]]":
        """Yield the later versions, each with the fragments that it appended."""
        newest = history.newest()
        while (later := history.after(version.number, newest)) is not None:
            added = later.added_since(version)
            if added is None:
                history.check_change(version, later, self._on_change)
            yield later, added or []
            version = later


def _position(version: "Version", fragment: int, row: int) -> Position:
    return {
        "version": version.number,
        "written": version.written,
        "fragment": fragment,
        "row": row,
    }


# The versions of a Lance dataset: opened, compared with one another, and tagged.


_KEPT_VERSIONS = 4
_METADATA_CACHE_BYTES = 16 << 20
_log = BackgroundLog("batchqueue.pipeline")


class Fragment(NamedTuple):
    """A fragment in the manifest of a version."""

    rows: int
    """Rows that are not deleted."""
    deletions: int
    files: tuple[tuple[str, tuple[int, ...]], ...]
    """The data files, each with the ids of its fields; negative ones are not in use."""

    def has_rows_of(self, earlier: "Fragment") -> bool:
        """Return whether it has all values of an earlier version, and no other rows."""
        if self.deletions != earlier.deletions:
            return False
        if self.files == earlier.files:
            return True
        before, after = (
            {field: path for path, fields in each.files for field in fields}
            for each in (earlier, self)
        )
        # A missing field was dropped; a cast column gets a new field.
        return all(after.get(field, path) == path for field, path in before.items() if field >= 0)


class Version(NamedTuple):
    """A version of a dataset."""

    number: int
    written: str
    """When it was written, which distinguishes it from another dataset at the same place."""
    dataset: Any
    fragments: dict[int, Fragment]
    """By id, ascending."""

    @property
    def age_s(self) -> float:
        """Seconds since it was written."""
        now = datetime.now(UTC)
        return max(0.0, (now - datetime.fromisoformat(self.written)).total_seconds())

    def added_since(self, earlier: "Version") -> list[int] | None:
        """Return the fragments that were appended since; None if other rows changed, too."""
        for number, before in earlier.fragments.items():
            after = self.fragments.get(number)
            if after is None or not after.has_rows_of(before):
                return None
        return [number for number in self.fragments if number not in earlier.fragments]


class LanceHistory:
    """Opens the versions of one dataset, and keeps the last few open."""

    def __init__(self, uri: str, storage_options: dict[str, str] | None, source: str) -> None:
        self._uri = uri
        self._storage_options = storage_options
        self._source = source
        self._any: Any = None
        self._tagged: int | None = None
        self._versions: OrderedDict[int, Version] = OrderedDict()

    def newest(self) -> int:
        """Return the number of the newest version."""
        try:
            return int(self._opened().latest_version)
        except (OSError, ValueError) as error:
            raise self._gone(f"dataset {self._uri} cannot be opened", error) from error

    def at(self, number: int) -> Version:
        """Return a version.

        Raises:
            SourceChangedError: The version is gone.
        """
        if number not in self._versions:
            try:
                dataset = self._opened().checkout_version(number)
                version = _described(dataset)
            except (OSError, ValueError) as error:
                raise self._gone(
                    f"version {number} of dataset {self._uri} cannot be opened", error
                ) from error
            self._versions[number] = version
            while len(self._versions) > _KEPT_VERSIONS:
                self._versions.popitem(last=False)
        self._versions.move_to_end(number)
        return self._versions[number]

    def after(self, number: int, newest: int) -> Version | None:
        """Return the next version that still exists; None if there is none."""
        for following in range(number + 1, newest + 1):
            try:
                return self.at(following)
            except SourceChangedError:
                if following == newest:
                    raise
        return None

    def _opened(self) -> Any:
        import lance

        if self._any is None:
            self._any = lance.dataset(
                self._uri,
                storage_options=self._storage_options,
                metadata_cache_size_bytes=_METADATA_CACHE_BYTES,
            )
        return self._any

    def _gone(self, what: str, error: Exception) -> SourceChangedError:
        return SourceChangedError(
            f"source {self._source!r}: {what} ({_first_line(error)}); if it has been removed, "
            "begin with a new checkpoint, and protect the versions in use with `tag`"
        )

    def read(
        self, version: Version, fragment: int, columns: list[str], start: int, rows: int
    ) -> pa.RecordBatchReader:
        """Read a range of the rows of a fragment that are not deleted, and nothing ahead of it."""
        piece = version.dataset.get_fragment(fragment)
        return piece.scanner(
            columns=columns, offset=start, limit=rows, batch_size=rows, batch_readahead=1
        ).to_reader()

    def check_change(self, before: Version, after: Version, on_change: OnChange) -> None:
        """Refuse a version that changed rows, unless it may be passed over.

        Raises:
            SourceChangedError: It must not be passed over, or it is unknown what else changed
                before it.
        """
        if on_change == "skip" and after.number == before.number + 1:
            return
        if on_change == "skip":
            remedy = (
                "the versions in between have been removed, so what they added is not known; begin "
                "with a new checkpoint"
            )
        else:
            remedy = (
                "begin with a new checkpoint, or pass over such versions with on_change='skip', "
                "which is exact for compaction"
            )
        raise SourceChangedError(
            f"source {self._source!r}: version {after.number} of {self._uri} changed, deleted or "
            f"moved rows of version {before.number}; {remedy}"
        )

    def protect(self, tag: str, number: int) -> None:
        """Move a tag to a version, or log why that failed."""
        if self._tagged == number:
            return
        self._tagged = number
        try:
            tags = self._opened().tags
            if tag in tags.list():
                tags.update(tag, number)
            else:
                tags.create(tag, number)
        except (OSError, ValueError, RuntimeError) as error:
            _log.warning(
                "%s: version %d of %s cannot be tagged %r, so cleaning up may remove it while it "
                "is read (%s); allow writing to the dataset, or give tag=None",
                *(self._source, number, self._uri, tag, _first_line(error)),
            )

    def release(self, tag: str) -> None:
        """Remove a tag, if it exists."""
        self._tagged = None
        try:
            tags = self._opened().tags
            if tag in tags.list():
                tags.delete(tag)
        except (OSError, ValueError, RuntimeError) as error:
            _log.warning(
                "%s: tag %r of %s cannot be removed (%s)",
                *(self._source, tag, self._uri, _first_line(error)),
            )


class LanceColumns:
    """The columns to read: those of one version, found again in others."""

    def __init__(self, version: Version, schema: pa.Schema) -> None:
        self.schema = schema
        self._version = version.number
        self._ids = {field.name(): field.id() for field in version.dataset.lance_schema.fields()}

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of another version with the schema of this one."""
        columns = [
            exact_cast(batch.column(field.name), field.type)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def present(self, version: Version, source: str) -> list[str]:
        """Return the columns that a version has; the others were added after it, and are null.

        Raises:
            SourceChangedError: A column has been renamed or dropped between the two versions.
        """
        names = {field.id(): field.name() for field in version.dataset.lance_schema.fields()}
        stored = set(names.values())
        for name in self.schema.names:
            if name in stored:
                continue
            former = names.get(self._ids[name])
            if former is not None:
                what = f"is named {former!r} there"
            elif version.number > self._version:
                what = "is missing there"
            else:
                continue
            raise SourceChangedError(
                f"source {source!r}: the columns are those of version {self._version}, and column "
                f"{name!r} {what} in version {version.number}; name the columns with `columns`, "
                "or begin with a new checkpoint"
            )
        return [name for name in self.schema.names if name in stored]


def _described(dataset: Any) -> Version:
    fragments = {}
    for fragment in sorted(dataset.get_fragments(), key=lambda piece: piece.fragment_id):
        deletions = fragment.num_deletions
        fragments[fragment.fragment_id] = Fragment(
            fragment.physical_rows - deletions,
            deletions,
            tuple((file.path, tuple(file.fields)) for file in fragment.data_files()),
        )
    written = _written(dataset).astimezone(UTC).isoformat()
    return Version(dataset.version, written, dataset, fragments)


def _written(dataset: Any) -> datetime:
    if hasattr(dataset, "get_version"):
        found = dataset.get_version()
    else:  # older versions of pylance read all manifests for it
        versions = dataset.versions()
        found = next(each for each in versions if each["version"] == dataset.version)
    timestamp: datetime = found["timestamp"]
    return timestamp


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def unreadable(source: str, what: str, error: Exception) -> SourceChangedError | SourceDataError:
    """Return the error for a piece of a dataset that is gone or cannot be read."""
    text = _first_line(error)
    if isinstance(error, FileNotFoundError) or "not found" in text.lower():
        return SourceChangedError(
            f"source {source!r}: {what} is gone ({text}); begin with a new checkpoint"
        )
    return SourceDataError(f"source {source!r}: {what} cannot be read ({text}); repair it")
