"""The Iceberg table of a sink: its columns, its partitions, and their rows.

One table has all metrics of a sink, because a catalog commits one table at a time. A row has values
in the columns of its metric's kind; those of the other kinds are null. If two kinds have columns of
the same name but of different types, the type is appended to the second name.
"""

import functools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    LessThan,
)
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
)

from batchqueue.base.exact_cast import exact_cast
from batchqueue.outputs.layout import (
    DECIMAL_DIGITS,
    DECIMAL_PLACES,
    Layout,
    arrow_types,
    schema_of,
    shown,
)
from batchqueue.outputs.partitioned import in_order
from batchqueue.outputs.reading import Selection, StoredMetric, stored_type
from batchqueue.outputs.store import Epoch, StoreError

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


TABLE = "batchqueue_table"
"""The column that distinguishes kinds of metrics: the table name of their layout."""

START = "time_bucket_start"
"""The partition field, whose name no column may have."""

SINK = "batchqueue.sink"
LAYOUTS = "batchqueue.tables"

ICEBERG_TYPES: dict[str, IcebergType] = {
    "int": LongType(),
    "float": DoubleType(),
    "str": StringType(),
    "bool": BooleanType(),
    "decimal": DecimalType(DECIMAL_DIGITS, DECIMAL_PLACES),
    "date": DateType(),
}
_TYPES = {shown(kind): kind for kind in arrow_types()}

_SCHEMA = Schema(
    NestedField(1, TABLE, StringType(), required=True),
    NestedField(2, "metric", StringType(), required=True),
    NestedField(3, "entity", StringType(), required=True),
    NestedField(4, "time_bucket", LongType(), required=True),
    NestedField(5, "rank", LongType()),
)
_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    # Each commit writes a metadata file.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
ALL = range(-(2**63), 2**63)
"""All time buckets."""

Partition = tuple[str, int]
"""The table of a layout, and the first second of the partition."""

Files = list[FileScanTask]
"""Data files, each with the delete files of other writers that apply to it."""


@dataclass(frozen=True)
class StoredLayout:
    """A layout, and the table columns that its own columns are stored in, in order."""

    layout: Layout
    columns: tuple[str, ...]

    def all_columns(self) -> tuple[str, ...]:
        """Return the table columns for those of `schema_of`, in order."""
        return (*self.layout.key_columns, *self.columns)


def table_name(sink_id: str) -> str:
    """Return the name of a sink's table, of a-z, 0-9 and _, which all catalogs allow.

    A hash keeps the names of two sinks distinct.
    """
    safe = "".join(
        character if character.isascii() and (character.isalnum() or character == "_") else "_"
        for character in sink_id[:100].lower()
    )
    if safe != sink_id:
        safe += "_" + sha256(sink_id.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"sink_{safe}"


class SinkTable:
    """The table of a sink as it was when it was loaded."""

    def __init__(self, table: Table, sink_id: str) -> None:
        """Check a table and read the layouts in its properties.

        Raises:
            StoreError: It is not the table of the sink, or is partitioned differently.
        """
        self.table = table
        self.name = ".".join(table.name())
        self.metadata = table.metadata
        if self.metadata.properties.get(SINK) != sink_id:
            raise StoreError(
                f"table {self.name} is not that of sink {sink_id!r}: use another namespace"
            )
        self.partition_s = self._width()
        self.layouts = _layouts_of(self.metadata.properties, self.name)

    @classmethod
    def load(cls, catalog: Catalog, identifier: str, sink_id: str) -> "SinkTable | None":
        """Return the table of a sink; `None` if there is none.

        Raises:
            StoreError: A table of that name is not the sink's.
        """
        try:
            return cls(catalog.load_table(identifier), sink_id)
        except NoSuchTableError:
            return None

    @classmethod
    def create(
        cls, catalog: Catalog, identifier: str, sink_id: str, partition_s: int
    ) -> "SinkTable":
        """Create the table of a sink, without rows."""
        spec = PartitionSpec(
            PartitionField(1, 1000, IdentityTransform(), TABLE),
            PartitionField(4, 1001, TruncateTransform(partition_s), START),
        )
        properties = {**_PROPERTIES, SINK: sink_id}
        return cls(
            catalog.create_table(identifier, _SCHEMA, None, spec, properties=properties), sink_id
        )

    def _width(self) -> int:
        fields, schema = self.metadata.spec().fields, self.metadata.schema()
        columns = [schema.find_column_name(field.source_id) for field in fields]
        if columns == [TABLE, "time_bucket"] and isinstance(fields[1].transform, TruncateTransform):
            return fields[1].transform.width
        found = ", ".join(
            f"{field.transform}({column})" for field, column in zip(fields, columns, strict=True)
        )
        raise StoreError(
            f"table {self.name} has partitions by {found}, and not by {TABLE} and "
            "truncate(time_bucket): undo the change of its partitions"
        )

    def stored_layout(self, layout: Layout) -> StoredLayout:
        """Return how a layout is stored.

        Raises:
            StoreError: The table of the layout is stored with other columns.
        """
        stored = self.layouts[layout.table]
        if stored.layout != layout:
            raise StoreError(
                f"table {self.name} has metrics of {layout.table} with the columns "
                f"{_described(stored.layout)}, and not {_described(layout)}: give the kind of "
                "metrics another table"
            )
        return stored

    def files(self, buckets: range, table: str | None = None) -> dict[Partition, Files]:
        """Return the data files of the partitions that a range of time buckets overlaps.

        Rows of unknown tables, which another program has added, are left alone.

        Args:
            buckets: The range.
            table: Only those of this table; `None` for all.

        Raises:
            StoreError: A data file is partitioned differently, or the table cannot be read.
        """
        # The very first partition starts below all ints of 64 bits; see `Replacement.write`.
        reaches_first = buckets.stop <= ALL.start + self.partition_s
        conditions = [] if reaches_first else within(buckets)
        if table is not None:
            conditions.append(equal(TABLE, table))
        found: dict[Partition, Files] = {}
        try:
            tasks = list(self.table.scan(row_filter=all_of(conditions)).plan_files())
        except ValueError as error:
            raise StoreError(
                f"table {self.name} cannot be read ({error}); where another program has written "
                "equality deletes, rewrite its data files, which applies them"
            ) from error
        for task in tasks:
            if task.file.spec_id != self.metadata.default_spec_id:
                raise StoreError(
                    f"data file {task.file.file_path} of table {self.name} has other partitions "
                    "than the table: rewrite it with those of the table"
                )
            name, start = task.file.partition[0], task.file.partition[1]
            if name not in self.layouts:
                continue
            found.setdefault((name, start - start % self.partition_s), []).append(task)
        return found

    def rows(
        self, stored: StoredLayout, tasks: Sequence[FileScanTask], condition: BooleanExpression
    ) -> pa.Table:
        """Read the rows of a layout's data files that meet a condition, unordered."""
        schema = schema_of(stored.layout)
        found = self._read(stored.all_columns(), tasks, condition)
        columns = zip(found.columns, schema, strict=True)
        return pa.table([exact_cast(column, kind.type) for column, kind in columns], schema=schema)

    def rows_in(self, tasks: Files) -> int:
        """Return the number of rows of data files, without those that other writers deleted."""
        if any(task.delete_files for task in tasks):
            return len(self.keys(tasks))
        return sum(task.file.record_count for task in tasks)

    def keys(self, tasks: Sequence[FileScanTask]) -> pa.Table:
        """Read the columns metric and time_bucket of data files, unordered."""
        return self._read(("metric", "time_bucket"), tasks, AlwaysTrue())

    def _read(
        self, names: Sequence[str], tasks: Sequence[FileScanTask], condition: BooleanExpression
    ) -> pa.Table:
        schema = self.metadata.schema()
        if missing := [name for name in names if name not in schema.column_names]:
            raise StoreError(
                f"table {self.name} has no column {missing[0]!r} any more, in which metrics are: "
                "rename it back; if it was dropped, its values are in earlier snapshots only"
            )
        columns = schema.select(*names)
        scan = ArrowScan(self.metadata, self.table.io, columns, condition)
        return scan.to_table(tasks).select(list(names))


def _layouts_of(properties: dict[str, str], name: str) -> dict[str, StoredLayout]:
    try:
        found = json.loads(properties.get(LAYOUTS, "{}"))
        return {
            table: StoredLayout(
                Layout(
                    table,
                    tuple((column, _TYPES[kind]) for column, kind, _ in content["columns"]),
                    content["multi_row"],
                ),
                tuple(stored for _, _, stored in content["columns"]),
            )
            for table, content in found.items()
        }
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"the property {LAYOUTS} of table {name} cannot be read ({error}): use the version of "
            "batchqueue that wrote it"
        ) from error


def layouts_text(layouts: dict[str, StoredLayout]) -> str:
    """Return layouts as the text of a table property."""
    return json.dumps(
        {
            table: {
                "multi_row": stored.layout.multi_row,
                "columns": [
                    (column, shown(kind), name)
                    for (column, kind), name in zip(
                        stored.layout.columns, stored.columns, strict=True
                    )
                ],
            }
            for table, stored in layouts.items()
        }
    )


def _described(layout: Layout) -> str:
    return ", ".join(f"{name} {shown(kind)}" for name, kind in layout.columns)


# Conditions on the rows of a table, as pyiceberg's expressions.


# For type checkers, constructors of pydantic models take no positional arguments; these do.
_equal_to: Any = EqualTo
_in: Any = In
_at_least: Any = GreaterThanOrEqual
_below: Any = LessThan
_and: Any = And

_FIRST, _END = -(2**63), 2**63


def equal(column: str, value: Any) -> BooleanExpression:
    """Return the condition that a column has a value."""
    return _equal_to(column, value)  # type: ignore[no-any-return]


def one_of(column: str, values: Collection[Any]) -> BooleanExpression:
    """Return the condition that a column has one of some values."""
    return _in(column, set(values))  # type: ignore[no-any-return]


def within(buckets: range) -> list[BooleanExpression]:
    """Return the conditions that a time bucket is in a range, which may reach beyond 64 bits."""
    found = []
    if buckets.start > _FIRST:
        found.append(_at_least("time_bucket", buckets.start))
    if buckets.stop < _END:
        found.append(_below("time_bucket", buckets.stop))
    return found


def all_of(conditions: Iterable[BooleanExpression]) -> BooleanExpression:
    """Return the condition that all given conditions are met."""
    return functools.reduce(_and, conditions, AlwaysTrue())


# Reading the table.


def read_selected(sink: SinkTable, layout: Layout, selection: Selection) -> list[pa.Table]:
    """Read the rows of a selection, in order, without the metric's name; `[]` if never stored."""
    if layout.table not in sink.layouts:
        return []
    stored = sink.stored_layout(layout)
    columns = dict(zip((name for name, _ in layout.columns), stored.columns, strict=True))
    buckets = range(
        ALL.start if selection.since is None else selection.since,
        ALL.stop if selection.before is None else selection.before,
    )
    files = sink.files(buckets, layout.table)
    condition = _condition(selection, columns, buckets)
    rows = sink.rows(stored, [file for some in files.values() for file in some], condition)
    return [in_order(rows, layout).drop_columns(["metric"])]


def _condition(selection: Selection, columns: dict[str, str], buckets: range) -> BooleanExpression:
    conditions = [equal("metric", selection.metric_type.name), *within(buckets)]
    if selection.entities is not None:
        conditions.append(one_of("entity", selection.entities))
    for column, wanted in selection.keys:
        conditions.append(one_of(columns[column], wanted))
    return all_of(conditions)


def metrics_in(sink: SinkTable) -> list[StoredMetric]:
    """Return the metrics of a sink, unordered."""
    files: dict[str, Files] = {}
    for (table, _), some in sink.files(ALL).items():
        files.setdefault(table, []).extend(some)
    found = []
    for table, of_table in files.items():
        grouped = (
            sink.keys(of_table)
            .group_by("metric")
            .aggregate([("time_bucket", "count"), ("time_bucket", "min"), ("time_bucket", "max")])
        )
        layout = sink.layouts[table].layout
        for name, *numbers in zip(*(each.to_pylist() for each in grouped.columns), strict=True):
            found.append(StoredMetric(stored_type(name, layout), *numbers))
    return found


# The ledger of a sink in the snapshots of its Iceberg table.
#
# Each snapshot that a transaction commits has the marks, the description, and the epochs that the
# transaction recorded. So rolling a table back rolls its ledger back. Snapshots of other writers,
# such as a compaction, have no ledger: that of their nearest ancestor applies. As snapshots expire,
# a property of the table has the newest ledger as well.


LEDGER = "batchqueue.ledger"
"""The property of a snapshot, and of a table, with a ledger as JSON."""

Summary = tuple[str, int, dict[str, Any]]
"""Query id, batch id, content."""


@dataclass
class Ledger:
    """The ledger in a snapshot.

    Attributes:
        marks: Query → largest batch id.
        description: Description of the job that wrote last.
        epochs: The epochs that the snapshot's transaction recorded, the oldest first.
        before: The newest earlier epoch, whose snapshot may expire; None if `epochs` has one.
        begins: Whether earlier epochs are forgotten or do not exist.
    """

    marks: dict[str, int] = field(default_factory=dict)
    description: dict[str, Any] | None = None
    epochs: list[Summary] = field(default_factory=list)
    before: Summary | None = None
    begins: bool = True

    def newest(self) -> list[Summary]:
        """Return the newest epoch in a list, or an empty list."""
        return self.epochs[-1:] or ([] if self.before is None else [self.before])

    def next(self) -> "Ledger":
        """Return the ledger of the next transaction, before it records an epoch."""
        before = next(iter(self.newest()), None)
        return Ledger(dict(self.marks), deepcopy(self.description), [], before, begins=False)

    def has_anything(self) -> bool:
        """Return whether something was recorded since the last `clear`, if ever."""
        return bool(self.marks or self.newest() or self.description is not None)

    def to_text(self) -> str:
        """Return the ledger as the property of a snapshot."""
        return json.dumps({**vars(self), "before": None if self.epochs else self.before})

    def to_property(self, snapshot: "Snapshot") -> dict[str, str]:
        """Return the ledger of this snapshot, the newest of its table, as the table's property."""
        content = {
            **vars(self),
            "epochs": [],
            "before": next(iter(self.newest()), None),
            "snapshot": snapshot.snapshot_id,
            "sequence": snapshot.sequence_number,
        }
        return {LEDGER: json.dumps(content)}


def ledger_of(metadata: "TableMetadata", name: str) -> Ledger:
    """Return the ledger of the current snapshot.

    Raises:
        StoreError: The ledger is damaged, or that of the current snapshot has expired.
    """
    for text in _texts(metadata):
        return _read(text, name)
    newest = metadata.properties.get(LEDGER)
    return Ledger() if newest is None else _of_expired(metadata, newest, name)


def _of_expired(metadata: "TableMetadata", text: str, name: str) -> Ledger:
    """Return the newest ledger from the table's property: no snapshot in the history has one.

    Raises:
        StoreError: It is damaged, or not the ledger of the current snapshot.
    """
    try:
        content = json.loads(text)
        snapshot_id, sequence = content.pop("snapshot"), content.pop("sequence")
        ledger = Ledger(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable(name, error) from error
    sequences = {each.snapshot_id: each.sequence_number or 0 for each in metadata.snapshots}
    later = [entry.snapshot_id for entry in metadata.snapshot_log]
    if snapshot_id in later:
        later = later[len(later) - later[::-1].index(snapshot_id) :]
    current = metadata.current_snapshot_id
    came_back = any(sequences.get(each, sequence) < sequence for each in later)
    if current is None or sequences[current] < sequence or (snapshot_id in sequences and came_back):
        raise StoreError(
            f"table {name} was rolled back to a snapshot whose ledger has expired, from one with "
            f"the marks {ledger.marks}: roll it forward to snapshot {snapshot_id} if that is still "
            "kept, or drop the table and write the sink anew"
        )
    return ledger


def epochs_of(metadata: "TableMetadata", name: str, newest: int) -> list[Epoch]:
    """Return the newest epochs of the kept snapshots, the oldest first.

    The newest epoch of all is always among them.

    Raises:
        StoreError: A ledger is damaged.
    """
    found = list(islice(_newest_first(metadata, name), newest))
    if not found and newest > 0:  # its snapshot has expired
        found = [Epoch(*epoch) for epoch in ledger_of(metadata, name).newest()]
    return found[::-1]


def _newest_first(metadata: "TableMetadata", name: str) -> Iterator[Epoch]:
    for text in _texts(metadata):
        ledger = _read(text, name)
        yield from (Epoch(*epoch) for epoch in reversed(ledger.epochs))
        if ledger.begins:
            return


def _texts(metadata: "TableMetadata") -> Iterator[str]:
    """Yield the ledgers of the current snapshot and its ancestors, the newest first."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    current: Snapshot | None = metadata.current_snapshot()
    while current is not None:
        if current.summary is not None:
            text = current.summary.additional_properties.get(LEDGER)
            if text is not None:
                yield text
        parent = current.parent_snapshot_id
        current = None if parent is None else snapshots.get(parent)


def _read(text: str, name: str) -> Ledger:
    try:
        return Ledger(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> StoreError:
    return StoreError(
        f"table {name} has a ledger that cannot be read ({error}): use the version of batchqueue "
        "that wrote it, or roll the table back to the snapshot before"
    )
