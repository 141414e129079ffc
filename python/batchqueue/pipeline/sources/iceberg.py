"""`IcebergSource`: an Iceberg table, by data files, one snapshot after the other."""

import time
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from batchqueue.base.checks import check_choice, is_whole, require
from batchqueue.base.exact_cast import exact_cast_batch
from batchqueue.base.iceberg_catalog import CatalogHandle
from batchqueue.base.words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import (
    Lag,
    Position,
    PositionError,
    SourceChangedError,
    SourceDataError,
    SourcePickleError,
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

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot


_FIELDS: dict[str, tuple[type, ...]] = {
    "table": (str,),
    "snapshot": (int, type(None)),
    "part": (str,),
    "file": (int,),
    "until": (int, type(None)),
}
_PARTS = ("table", "append", "none")
"""What to read of a snapshot: all of its rows, those that it appended, or nothing."""


class IcebergSource(TableSource["IcebergTable"]):
    """The rows of an Iceberg table: those of one snapshot, and new ones, too, with `watch=True`.

    A snapshot never changes, so it is read exactly as it is, regardless of concurrent writes; rows
    deleted in it are left out. With `watch=True`, the rows that each later snapshot appended come
    next, in history order, and by path within a snapshot. A split is one data file, which is held
    in memory as a whole; nothing is read ahead of it.

    Columns are matched by id, so files from before a column was renamed are read under its new
    name, and are null in a column that was added later. The columns are those of the table when it
    is first opened.

    Example:
        ```python
        pipeline.source(IcebergSource("shop.orders", catalog="production", watch=True))
        ```
    """

    def __init__(
        self,
        table: "str | Table",
        *,
        catalog: str | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        start: Literal["table", "latest"] | int = "table",
        watch: bool = False,
        on_change: OnChange = "error",
        name: str | None = None,
    ) -> None:
        """Describe what to read. The table is opened later, in the process that reads.

        Args:
            table: Its identifier, such as `"shop.orders"`, or a `pyiceberg.table.Table`, which is
                reopened through its catalog.
            catalog: The name of a catalog in pyiceberg's configuration; or the catalog's
                properties, with its `name` among them. Default: None, the default catalog.
            columns: The columns to read, in this order. Default: None, all.
            start: Where the first run begins: with all rows of the current snapshot (`"table"`),
                after them (`"latest"`, for `watch=True`), or after the snapshot with this id.
                Default: `"table"`.
            watch: Whether to continue with later appends, indefinitely. Default: False, up to the
                snapshot that is current at the first run.
            on_change: What to do with a later snapshot that deleted or overwrote rows: raise
                `SourceChangedError` (`"error"`), or pass over that snapshot with everything that it
                added (`"skip"`). Snapshots that only rewrote files, as compaction does, are always
                passed over, since they have the same rows. Default: `"error"`.
            name: The name in statistics and errors. Default: None, the identifier.

        Raises:
            ConfigError: A setting is invalid.
            MissingPackageError: pyiceberg is not installed.
        """
        require("pyiceberg", "IcebergSource", "iceberg")
        if not is_whole(start):
            check_choice("start", start, ("table", "latest"))
        self._start = start
        self._handle = TableHandle(table, catalog)
        self._found_columns: tuple[Schema, pa.Schema] | None = None
        super().__init__(
            name or self._handle.identifier,
            columns=columns,
            start=start,
            watch=watch,
            on_change=on_change,
        )

    def _opened(self) -> "IcebergTable":
        return IcebergTable(self._handle, self.name)

    def __repr__(self) -> str:
        return f"IcebergSource({self._handle.identifier!r})"

    def schema(self) -> pa.Schema:
        """Return the columns of the table, as of when it is first opened here."""
        return self._columns_found()[1]

    def initial(self) -> Position:
        """Return the position of the first run, by `start`; it includes the current snapshot."""
        with at_first_run():
            current = self._history.refresh().metadata.current_snapshot_id
            if isinstance(self._start, int):
                self._history.after(self._start)
        last = current if self.bounded else None
        if isinstance(self._start, int):
            return self._position(self._start, "none", 0, last)
        part = "table" if self._start == "table" and current is not None else "none"
        return self._position(current, part, 0, last)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Read one data file."""
        columns, schema = self._columns_found()
        seen = 0
        for batch in self._history.read(split.what, columns, schema.names):
            seen += batch.num_rows
            yield exact_cast_batch(batch, schema)
        if split.rows not in (None, seen):
            raise SourceChangedError(
                f"source {self.name!r}: data file {split.what.file.file_path} has "
                f"{counted(seen, 'row')}, and the table says {split.rows}; begin with a new "
                "checkpoint"
            )

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return the rows that follow, and the age of the oldest snapshot with such rows."""
        table = self._history_of_lag
        self._check(at, table)
        rest = table.files(at["snapshot"], at["part"])[at["file"] :]
        records: int | None = sum(task.file.record_count for task in rest)
        oldest = table.snapshot(at["snapshot"]).timestamp_ms if rest else None
        try:
            later = self._later(at, table)
        except SourceChangedError:  # the next plan raises it, once the rest has been read
            later, records = [], None
        for snapshot in later:
            counts = snapshot.summary.additional_properties if snapshot.summary else {}
            added = counts.get("added-records")
            records = None if added is None or records is None else records + int(added)
            oldest = oldest or snapshot.timestamp_ms
        seconds = 0.0 if oldest is None else max(0.0, time.time() - oldest / 1000)
        return {self.name: Lag(records, seconds)}

    def commit(self, end: Position) -> None:
        """Do nothing: snapshots expire by the rules of the table."""

    def _columns_found(self) -> "tuple[Schema, pa.Schema]":
        if self._found_columns is None:
            from pyiceberg.io.pyarrow import schema_to_pyarrow

            with at_first_run():
                whole = self._history.table.schema()
            schema = selected(
                schema_to_pyarrow(whole, include_field_ids=False),
                self._columns,
                f"table {self._handle.identifier}",
            )
            self._found_columns = (whole.select(*schema.names), schema)
        return self._found_columns

    def _position(self, snapshot: int | None, part: str, file: int, last: int | None) -> Position:
        return {
            "table": str(self._history.table.metadata.table_uuid),
            "snapshot": snapshot,
            "part": part,
            "file": file,
            "until": last,
        }

    def _check(self, position: Position, table: "IcebergTable | None" = None) -> None:
        check_position(position, self.name, _FIELDS)
        if position["part"] not in _PARTS or position["file"] < 0:
            raise PositionError(
                f"source {self.name!r}: {position!r} is not one of its positions: part is one of "
                f"{', '.join(_PARTS)} and file at least 0; use the checkpoint of this source"
            )
        uuid = str((table or self._history).table.metadata.table_uuid)
        if position["table"] != uuid:
            raise SourceChangedError(
                f"source {self.name!r}: the position is of the table with the uuid "
                f"{position['table']}, and that of {self._handle.identifier} is {uuid}; it was "
                "removed and made again, so begin with a new checkpoint"
            )

    def _steps(self, start: Position) -> Iterator[Step]:
        """Yield all splits from a position on, as far as snapshots exist now."""
        last = start["until"] if self.bounded else None
        yield from self._of(start["snapshot"], start["part"], start["file"], last)
        if self.bounded:
            if last not in (None, start["snapshot"]):
                yield from self._following(start["snapshot"], last)
            return
        known = yield from self._following(start["snapshot"], None)
        self._history.refresh()
        yield from self._following(known, None)

    def _later(self, at: Position, table: "IcebergTable") -> "list[Snapshot]":
        """Return the snapshots after a position that appended rows, as they are now."""
        last = at["until"] if self.bounded else None
        if not self.bounded:
            table.refresh()
        elif last in (None, at["snapshot"]):
            return []
        later = table.after(at["snapshot"], last)
        return [snapshot for snapshot in later if table.appends(snapshot, self._on_change)]

    def _following(
        self, snapshot: int | None, last: int | None
    ) -> Generator[Step, None, int | None]:
        """Yield the steps of the snapshots after one; return the last of them."""
        for later in self._history.after(snapshot, last):
            snapshot = later.snapshot_id
            if self._history.appends(later, self._on_change):
                yield from self._of(snapshot, "append", 0, last)
            # After the snapshot, even if it has no files, so that it may expire.
            yield self._position(snapshot, "none", 0, last)
        return snapshot

    def _of(self, snapshot: int | None, part: str, first: int, last: int | None) -> Iterator[Split]:
        for number, task in enumerate(self._history.files(snapshot, part)[first:], first):
            start = self._position(snapshot, part, number, last)
            end = self._position(snapshot, part, number + 1, last)
            yield Split(self.name, start, end, *self._size(task), task)

    def _size(self, task: "FileScanTask") -> tuple[int | None, int | None]:
        """Return the rows of a file and roughly its bytes in memory; None if rows are deleted."""
        if task.delete_files:
            return None, None
        columns, schema = self._columns_found()
        rows = task.file.record_count
        sizes = task.file.column_sizes or {}
        stored = {
            field.name: sizes[field.field_id] / max(1, rows)
            for field in columns.fields
            if field.field_id in sizes
        }
        return rows, rows * row_bytes(schema, stored)


# An Iceberg table: opened through its catalog, its history, and the data files of snapshots.


_KEPT_LISTINGS = 4
_LARGE_FILE_BYTES = 8 << 20
_SLACK_BYTES = 1 << 20
_NEW_CHECKPOINT = "begin with a new checkpoint"


class TableHandle:
    """How to open a table in any process, and the open table in this one."""

    def __init__(self, table: "str | Table", catalog: str | Mapping[str, Any] | None) -> None:
        if isinstance(table, str):
            if not table:
                raise ConfigError("table is ''; give its identifier, as 'shop.orders'")
            self.identifier = table
            self._catalog = CatalogHandle(catalog)
            return
        if catalog is not None:
            raise ConfigError("both a table and a catalog are given; give the catalog with a name")
        from pyiceberg.table import StaticTable, Table

        if not isinstance(table, Table) or isinstance(table, StaticTable):
            raise ConfigError(
                f"table is {table!r}; give an identifier, as 'shop.orders', or a table of a catalog"
            )
        self.identifier = ".".join(table.name())
        self._catalog = CatalogHandle.of(table.catalog)

    def __getstate__(self) -> dict[str, Any]:
        if self._catalog.is_in_memory:
            raise SourcePickleError(
                f"table {self.identifier} cannot be sent to another process: its catalog is in the "
                "memory of this one; use a catalog that other processes reach, for instance a REST "
                "catalog or an SQL catalog in a file"
            )
        return self.__dict__

    def load(self) -> "Table":
        """Return the table as it is now.

        Raises:
            SourceChangedError: The table is not in the catalog.
            SourceDataError: The catalog cannot be reached, or the table cannot be read.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table: Table = self._catalog.open().load_table(self.identifier)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise SourceChangedError(
                f"table {self.identifier} is not in its catalog ({error}); correct `table` and "
                f"`catalog`, or if the table was removed, {_NEW_CHECKPOINT}"
            ) from error
        except Exception as error:  # each kind of catalog raises its own
            raise SourceDataError(
                f"table {self.identifier} cannot be loaded from its catalog ({error}); check the "
                "properties of the catalog, and whether it can be reached"
            ) from error
        return table


class IcebergTable:
    """The history of a table as far as it is known, the files of its snapshots, and their rows."""

    def __init__(self, handle: TableHandle, source: str) -> None:
        self._handle = handle
        self._source = source
        self._table: Table | None = None
        self._listings: OrderedDict[tuple[int, str], list[FileScanTask]] = OrderedDict()

    @property
    def table(self) -> "Table":
        """The table as it was when it was last loaded."""
        return self._table if self._table is not None else self.refresh()

    def refresh(self) -> "Table":
        """Load the table again."""
        self._table = self._handle.load()
        return self._table

    def snapshot(self, number: int) -> "Snapshot":
        """Return a snapshot.

        Raises:
            SourceChangedError: The snapshot has expired.
        """
        found = self.table.snapshot_by_id(number) or self.refresh().snapshot_by_id(number)
        if found is None:
            raise self._expired(f"snapshot {number}")
        return found

    def after(self, number: int | None, last: int | None = None) -> "list[Snapshot]":
        """Return the snapshots that follow one in the history, oldest first.

        Args:
            number: The snapshot that they follow; None for all of the history.
            last: The last of them. Default: None, the current one of the table.

        Raises:
            SourceChangedError: One of them has expired, or the table was rolled back.
        """
        known = {snapshot.snapshot_id: snapshot for snapshot in self.table.snapshots()}
        current = self.table.metadata.current_snapshot_id if last is None else last
        found: list[Snapshot] = []
        while current is not None and current != number:
            if current not in known:
                raise self._expired(f"a snapshot after {number} ({current})")
            found.append(known[current])
            current = known[current].parent_snapshot_id
        if number is None and found and not _is_first(found[-1]):
            raise self._expired(f"what came before snapshot {found[-1].snapshot_id}")
        if current != number:
            raise SourceChangedError(
                f"source {self._source!r}: snapshot {number} is not in the history of the current "
                f"snapshot {last or self.table.metadata.current_snapshot_id} of table "
                f"{self._handle.identifier}, which was rolled back, or has expired; "
                f"{_NEW_CHECKPOINT}"
            )
        return found[::-1]

    def appends(self, snapshot: "Snapshot", on_change: OnChange) -> bool:
        """Return whether to read rows of a snapshot; False if it is passed over.

        Raises:
            SourceChangedError: The snapshot changed earlier rows, and must not be passed over.
        """
        from pyiceberg.table.snapshots import Operation

        operation = snapshot.summary.operation if snapshot.summary else None
        if operation == Operation.APPEND:
            return True
        if operation != Operation.REPLACE and on_change != "skip":
            kind = "unknown" if operation is None else operation.value
            raise SourceChangedError(
                f"source {self._source!r}: snapshot {snapshot.snapshot_id} of table "
                f"{self._handle.identifier} is of the kind {kind!r}, which changes rows that came "
                f"before it; {_NEW_CHECKPOINT}, or pass over such snapshots with on_change='skip'"
            )
        return False

    def files(self, number: int | None, part: str) -> "list[FileScanTask]":
        """Return the data files of a part of a snapshot, by path, with their delete files.

        Raises:
            SourceChangedError: The snapshot has expired.
            SourceDataError: It cannot be read.
        """
        if number is None or part == "none":
            return []
        if (number, part) not in self._listings:
            try:
                tasks = sorted(self._planned(number, part), key=lambda task: task.file.file_path)
            except FileNotFoundError as error:
                raise self._expired(f"snapshot {number}") from error
            except (OSError, EOFError, ValueError) as error:
                raise SourceDataError(
                    f"source {self._source!r}: snapshot {number} of table "
                    f"{self._handle.identifier} cannot be read ({error}); where it has equality "
                    "deletes, rewrite its data files first, which applies them"
                ) from error
            self._listings[number, part] = tasks
            while len(self._listings) > _KEPT_LISTINGS:
                self._listings.popitem(last=False)
        return self._listings[number, part]

    def _planned(self, number: int, part: str) -> "Iterable[FileScanTask]":
        snapshot = self.snapshot(number)
        if part == "table":
            return self.table.scan(snapshot_id=number).plan_files()
        return self.table.incremental_append_scan(
            from_snapshot_id_exclusive=snapshot.parent_snapshot_id, to_snapshot_id_inclusive=number
        ).plan_files()

    def read(
        self, task: "FileScanTask", columns: "Schema", names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of one data file that are not deleted, and no other file."""
        from pyiceberg.exceptions import ResolveError
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        # One task per call, since each call submits all of its tasks to a pool, which reads them to
        # the end whether or not the results are consumed.
        scan = ArrowScan(self.table.metadata, self.table.io, columns, AlwaysTrue())
        path = task.file.file_path
        allocated, start = pa.total_allocated_bytes(), time.monotonic()
        try:
            batches = list(scan.to_record_batches([task]))  # it decodes all before the first
        except FileNotFoundError as error:
            raise self._expired(f"data file {path}") from error
        except (OSError, EOFError, ValueError, ResolveError) as error:
            raise SourceDataError(
                f"source {self._source!r}: data file {path} cannot be read ({error}); repair it, "
                "or delete its rows from the table"
            ) from error
        if task.file.file_size_in_bytes >= _LARGE_FILE_BYTES:
            decoded = sum(batch.nbytes for batch in batches)
            _release_file(allocated + decoded, most_s=(time.monotonic() - start) / 10)
        for batch in batches:
            yield batch.select(names)

    def _expired(self, what: str) -> SourceChangedError:
        return SourceChangedError(
            f"source {self._source!r}: {what} of table {self._handle.identifier} is gone, because "
            "it expired or its files were removed; keep snapshots longer than the pipeline needs, "
            f"and {_NEW_CHECKPOINT}"
        )


def _release_file(expected_bytes: int, most_s: float) -> None:
    """Release the memory that a file was read into to the system; the allocator would keep it.

    Threads of Arrow free it shortly after the last row is decoded. This waits until no more than
    the expected bytes are allocated, or for the given seconds: other threads may allocate, too.
    """
    until = time.monotonic() + most_s
    while pa.total_allocated_bytes() > expected_bytes + _SLACK_BYTES and time.monotonic() < until:
        time.sleep(0.001)
    pa.default_memory_pool().release_unused()


def _is_first(snapshot: "Snapshot") -> bool:
    """Return whether a snapshot without a parent had none when it was made.

    Some tools clear the reference to the parent when the parent expires.
    """
    number: int = snapshot.sequence_number or 0
    if number:  # 0 in tables of format 1
        return number == 1
    counts: dict[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
    return counts.get("total-records") == counts.get("added-records")
