"""`IcebergSource`: an Iceberg table, by data files, one snapshot after the other."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from batchqueue._requirements import require
from batchqueue._words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Lag, Limit, Plan, Position, Split
from batchqueue.pipeline.errors import PositionError, SourceChangedError
from batchqueue.pipeline.sources._iceberg_table import IcebergTable, TableHandle
from batchqueue.pipeline.sources._tables import (
    OnChange,
    at_first_run,
    check_choice,
    check_columns,
    check_position,
    row_bytes,
    selected,
)
from batchqueue.pipeline.sources.planning import Step, until, within

if TYPE_CHECKING:
    import pyarrow as pa
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
"""What is read of a snapshot: all of its rows, those that it appended, or nothing."""


class IcebergSource:
    """The rows of an Iceberg table: those of one snapshot, or with `watch=True` new ones as well.

    A snapshot never changes, so it is read exactly as it is, whatever is written meanwhile; rows
    that are deleted in it are left out. With `watch=True`, what each later snapshot has appended
    comes next, in the order of the history, and within a snapshot by path. A split is one data
    file, which is held in memory as a whole; nothing else is read ahead of it.

    Columns are found by their ids, so that files from before a column was renamed are read under
    its new name, and are null in a column that was added later. The columns are those of the table
    when it is first opened.

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
            table: Its identifier, as `"shop.orders"`, or a `pyiceberg.table.Table`, which is opened
                through its catalog again.
            catalog: The name of a catalog in pyiceberg's configuration; or the catalog's
                properties, with its `name` among them. Default: None, the default catalog.
            columns: The columns to read, in this order. Default: None, all.
            start: Where the first run begins: with all rows of the current snapshot (`"table"`),
                behind them (`"latest"`, for `watch=True`), or behind the snapshot with this id.
                Default: `"table"`.
            watch: Whether to continue with what is appended later, without an end. Default: False,
                up to the snapshot that is current at the first run.
            on_change: What to do with a later snapshot that deleted or overwrote rows: raise
                `SourceChangedError` (`"error"`), or pass over that snapshot with all that it added
                (`"skip"`). Snapshots that only rewrote files, as compaction does, are always passed
                over, since they have the same rows. Default: `"error"`.
            name: The name in statistics and errors. Default: None, the identifier.

        Raises:
            ConfigError: A setting is invalid.
            MissingPackageError: pyiceberg is not installed.
        """
        require("pyiceberg", "IcebergSource", "iceberg")
        if isinstance(start, bool) or not isinstance(start, int):
            check_choice("start", start, ("table", "latest"))
        if start == "latest" and not watch:
            raise ConfigError(
                "start is 'latest' and watch is False: no row follows; set watch=True"
            )
        check_choice("on_change", on_change, ("error", "skip"))
        self._columns = check_columns(columns)
        self._start = start
        self._watch = watch
        self._on_change: OnChange = on_change
        self._handle = TableHandle(table, catalog)
        self._name = name or self._handle.identifier
        self._found_columns: tuple[Schema, pa.Schema] | None = None
        self._open_tables()

    def _open_tables(self) -> None:
        self._table = IcebergTable(self._handle, self._name)
        # For the thread that reads the lag, which loads the table while the other one plans.
        self._table_of_lag = IcebergTable(self._handle, self._name)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open tables. The schema goes along."""
        tables = ("_table", "_table_of_lag")
        return {name: value for name, value in self.__dict__.items() if name not in tables}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_tables()

    def __repr__(self) -> str:
        return f"IcebergSource({self._handle.identifier!r})"

    @property
    def name(self) -> str:
        """Its name in statistics and errors."""
        return self._name

    @property
    def bounded(self) -> bool:
        """Whether it ends: unless `watch` was set."""
        return not self._watch

    def schema(self) -> "pa.Schema":
        """Return the columns of the table, as they are when it is first opened here."""
        return self._columns_found()[1]

    def initial(self) -> Position:
        """Return the position of the first run, by `start`; the current snapshot is kept in it."""
        with at_first_run():
            current = self._table.refresh().metadata.current_snapshot_id
            if isinstance(self._start, int):
                self._table.after(self._start)
        last = None if self._watch else current
        if isinstance(self._start, int):
            return self._position(self._start, "none", 0, last)
        part = "table" if self._start == "table" and current is not None else "none"
        return self._position(current, part, 0, last)

    def plan(self, start: Position, limit: Limit) -> Plan:
        """Return the next data files."""
        self._check(start, self._table)
        return within(self._steps(start), start, limit)

    def between(self, start: Position, end: Position) -> list[Split]:
        """Return the data files between two positions."""
        self._check(start, self._table)
        self._check(end, self._table)
        return until(self._steps(start), start, end, self._name)

    def read(self, split: Split) -> "Iterator[pa.RecordBatch]":
        """Read one data file."""
        import pyarrow as pa

        from batchqueue._exact_cast import exact_cast

        columns, schema = self._columns_found()
        seen = 0
        for batch in self._table.read(split.what, columns, schema.names):
            seen += batch.num_rows
            arrays = [
                exact_cast(array, field.type)
                for array, field in zip(batch.columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        if split.rows not in (None, seen):
            raise SourceChangedError(
                f"source {self._name!r}: data file {split.what.file.file_path} has "
                f"{counted(seen, 'row')}, and the table says {split.rows}; begin with a new "
                "checkpoint"
            )

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return the rows that follow, and the age of the oldest snapshot with such rows."""
        table = self._table_of_lag
        self._check(at, table)
        rest = _files(table, at["snapshot"], at["part"])[at["file"] :]
        records: int | None = sum(task.file.record_count for task in rest)
        oldest = table.snapshot(at["snapshot"]).timestamp_ms if rest else None
        try:
            later = self._later(at, table)
        except SourceChangedError:  # which the next plan raises, once the rest has been read
            later, records = [], None
        for snapshot in later:
            counts = snapshot.summary.additional_properties if snapshot.summary else {}
            added = counts.get("added-records")
            records = None if added is None or records is None else records + int(added)
            oldest = oldest or snapshot.timestamp_ms
        seconds = 0.0 if oldest is None else max(0.0, time.time() - oldest / 1000)
        return {self._name: Lag(records, seconds)}

    def commit(self, end: Position) -> None:
        """Do nothing: snapshots expire by the rules of the table."""

    def _columns_found(self) -> "tuple[Schema, pa.Schema]":
        if self._found_columns is None:
            from pyiceberg.io.pyarrow import schema_to_pyarrow

            with at_first_run():
                whole = self._table.table.schema()
            schema = selected(
                schema_to_pyarrow(whole, include_field_ids=False),
                self._columns,
                f"table {self._handle.identifier}",
            )
            self._found_columns = (whole.select(*schema.names), schema)
        return self._found_columns

    def _position(self, snapshot: int | None, part: str, file: int, last: int | None) -> Position:
        return {
            "table": str(self._table.table.metadata.table_uuid),
            "snapshot": snapshot,
            "part": part,
            "file": file,
            "until": last,
        }

    def _check(self, position: Position, table: IcebergTable) -> None:
        check_position(position, self._name, _FIELDS)
        if position["part"] not in _PARTS or position["file"] < 0:
            raise PositionError(
                f"source {self._name!r}: {position!r} is not one of its positions: part is one of "
                f"{', '.join(_PARTS)} and file at least 0; use the checkpoint of this source"
            )
        uuid = str(table.table.metadata.table_uuid)
        if position["table"] != uuid:
            raise SourceChangedError(
                f"source {self._name!r}: the position is of the table with the uuid "
                f"{position['table']}, and that of {self._handle.identifier} is {uuid}; it was "
                "removed and made again, so begin with a new checkpoint"
            )

    def _steps(self, start: Position) -> Iterator[Step]:
        """Yield all splits from a position on, as far as snapshots exist now."""
        last = None if self._watch else start["until"]
        yield from self._of(start["snapshot"], start["part"], start["file"], last)
        if not self._watch:
            if last not in (None, start["snapshot"]):
                yield from self._following(start["snapshot"], last)
            return
        known = yield from self._following(start["snapshot"], None)
        self._table.refresh()
        yield from self._following(known, None)

    def _later(self, at: Position, table: IcebergTable) -> "list[Snapshot]":
        """Return the snapshots after a position that appended rows, as they are now."""
        last = None if self._watch else at["until"]
        if self._watch:
            table.refresh()
        elif last in (None, at["snapshot"]):
            return []
        later = table.after(at["snapshot"], last)
        return [snapshot for snapshot in later if table.appends(snapshot, self._on_change)]

    def _following(
        self, snapshot: int | None, last: int | None
    ) -> Generator[Step, None, int | None]:
        """Yield the steps of the snapshots after one; return the last of them."""
        for later in self._table.after(snapshot, last):
            snapshot = later.snapshot_id
            if self._table.appends(later, self._on_change):
                yield from self._of(snapshot, "append", 0, last)
            # Behind the snapshot, also if it has no files, so that it may expire.
            yield self._position(snapshot, "none", 0, last)
        return snapshot

    def _of(self, snapshot: int | None, part: str, first: int, last: int | None) -> Iterator[Split]:
        for number, task in enumerate(_files(self._table, snapshot, part)[first:], first):
            start = self._position(snapshot, part, number, last)
            end = self._position(snapshot, part, number + 1, last)
            yield Split(self._name, start, end, *self._size(task), task)

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


def _files(table: IcebergTable, snapshot: int | None, part: str) -> "list[FileScanTask]":
    if snapshot is None or part == "none":
        return []
    return table.content(snapshot) if part == "table" else table.appended(snapshot)
