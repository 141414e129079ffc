"""An Iceberg table: opened through its catalog, its history, and the data files of snapshots."""

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchqueue._iceberg_catalog import CatalogHandle
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.errors import (
    SourceChangedError,
    SourceDataError,
    SourcePickleError,
)
from batchqueue.pipeline.sources._tables import OnChange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

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
            SourceChangedError: It is not in the catalog.
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
        except Exception as error:  # each kind of catalog has its own
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
            SourceChangedError: It has expired.
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
        """Whether rows of a snapshot are to be read; False if it is passed over.

        Raises:
            SourceChangedError: It changed rows that came before it, and may not be passed over.
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

    def content(self, number: int) -> "list[FileScanTask]":
        """Return all data files of a snapshot, by path, with the delete files that apply."""

        def plan() -> "list[FileScanTask]":
            self.snapshot(number)
            return list(self.table.scan(snapshot_id=number).plan_files())

        return self._listing(number, "table", plan)

    def appended(self, number: int) -> "list[FileScanTask]":
        """Return the data files that a snapshot appended, by path."""

        def plan() -> "list[FileScanTask]":
            before = self.snapshot(number).parent_snapshot_id
            scan = self.table.incremental_append_scan(
                from_snapshot_id_exclusive=before, to_snapshot_id_inclusive=number
            )
            return list(scan.plan_files())

        return self._listing(number, "append", plan)

    def read(
        self, task: "FileScanTask", columns: "Schema", names: Sequence[str]
    ) -> "Iterator[pa.RecordBatch]":
        """Read the rows of one data file that are not deleted, and no other file."""
        import pyarrow as pa
        from pyiceberg.exceptions import ResolveError
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        # With one task per call, since each call submits all of its tasks to a pool, which reads
        # them to the end whether or not anybody asks for them.
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

    def _listing(self, number: int, kind: str, plan: Any) -> "list[FileScanTask]":
        key = (number, kind)
        if key not in self._listings:
            try:
                tasks = sorted(plan(), key=lambda task: task.file.file_path)
            except FileNotFoundError as error:
                raise self._expired(f"snapshot {number}") from error
            except (OSError, EOFError, ValueError) as error:
                raise SourceDataError(
                    f"source {self._source!r}: snapshot {number} of table "
                    f"{self._handle.identifier} cannot be read ({error}); where it has equality "
                    "deletes, rewrite its data files first, which applies them"
                ) from error
            self._listings[key] = tasks
            while len(self._listings) > _KEPT_LISTINGS:
                self._listings.popitem(last=False)
        return self._listings[key]

    def _expired(self, what: str) -> SourceChangedError:
        return SourceChangedError(
            f"source {self._source!r}: {what} of table {self._handle.identifier} is gone, because "
            "it expired or its files were removed; keep snapshots longer than the pipeline needs, "
            f"and {_NEW_CHECKPOINT}"
        )


def _release_file(expected_bytes: int, most_s: float) -> None:
    """Return to the system what a file was read into, which the allocator would keep.

    Threads of Arrow free it shortly after the last row is decoded. This waits until no more than
    the expected bytes are allocated, or for the given seconds: other threads may allocate, too.
    """
    import pyarrow as pa

    until = time.monotonic() + most_s
    while pa.total_allocated_bytes() > expected_bytes + _SLACK_BYTES and time.monotonic() < until:
        time.sleep(0.001)
    pa.default_memory_pool().release_unused()


def _is_first(snapshot: "Snapshot") -> bool:
    """Whether a snapshot without a parent had none when it was made.

    Some tools clear the parent when that expires.
    """
    number: int = snapshot.sequence_number or 0
    if number:  # 0 in tables of format 1
        return number == 1
    counts: dict[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
    return counts.get("total-records") == counts.get("added-records")
