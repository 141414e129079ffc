"""The versions of a Lance dataset: opened, compared with one another, and tagged."""

from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from batchqueue._background_log import BackgroundLog
from batchqueue.pipeline.errors import SourceChangedError, SourceDataError
from batchqueue.pipeline.sources._tables import OnChange

if TYPE_CHECKING:
    import pyarrow as pa

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
        """Whether all values of an earlier version are still there, and no other rows."""
        if self.deletions != earlier.deletions:
            return False
        if self.files == earlier.files:
            return True
        before, after = (
            {field: path for path, fields in each.files for field in fields}
            for each in (earlier, self)
        )
        # A field that is missing was dropped; a column that is cast gets a new field.
        return all(after.get(field, path) == path for field, path in before.items() if field >= 0)


class Version(NamedTuple):
    """A version of a dataset."""

    number: int
    written: str
    """When it was written: another dataset at the same place differs in it."""
    dataset: Any
    fragments: dict[int, Fragment]
    """By id, ascending."""

    @property
    def age_s(self) -> float:
        """Seconds since it was written."""
        now = datetime.now(UTC)
        return max(0.0, (now - datetime.fromisoformat(self.written)).total_seconds())

    def added_since(self, earlier: "Version") -> list[int] | None:
        """Return the fragments that were appended since; None if other rows changed as well."""
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
            SourceChangedError: It is gone.
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
    ) -> "pa.RecordBatchReader":
        """Read a range of the rows of a fragment that are not deleted, and nothing ahead of it."""
        piece = version.dataset.get_fragment(fragment)
        return piece.scanner(
            columns=columns, offset=start, limit=rows, batch_size=rows, batch_readahead=1
        ).to_reader()

    def check_change(self, before: Version, after: Version, on_change: OnChange) -> None:
        """Refuse a version that changed rows, unless it may be passed over.

        Raises:
            SourceChangedError: It may not, or it is not known what else was changed before it.
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
        """Move a tag to a version, or log why it cannot be."""
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
        """Remove a tag, if it is there."""
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

    def __init__(self, version: Version, schema: "pa.Schema") -> None:
        self.schema = schema
        self._version = version.number
        self._ids = {field.name(): field.id() for field in version.dataset.lance_schema.fields()}

    def conform(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return a batch of another version with the schema of this one."""
        import pyarrow as pa

        from batchqueue._exact_cast import exact_cast

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
            SourceChangedError: A column has been renamed or dropped since one of both versions.
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
