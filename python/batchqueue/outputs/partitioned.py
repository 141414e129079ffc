"""Transactions over rows that a store keeps in partitions of time buckets, as Arrow tables."""

import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.outputs.layout import (
    Layout,
    PartialKey,
    by_layout,
    check_keys,
    partials_of,
    schema_of,
    table_layout,
    table_of,
    typed_rows,
    values_of,
)
from batchqueue.outputs.store import FIRST_BUCKET, StoreTransaction, to_json

M = TypeVar("M", bound=Metrics)

_KEY_SCHEMA = schema_of(Layout("", (), multi_row=False))

_Rows = list[tuple[Any, ...]]
_Changes = dict[PartialKey, _Rows]
"""Key → its rows of all columns; an empty list for a partial that no longer has rows."""


class LedgerState(Protocol):
    """The marks and the description in a ledger, which a store keeps beside the summaries."""

    marks: dict[str, int]
    description: dict[str, Any] | None


class PartitionedTransaction(StoreTransaction):
    """A transaction that keeps its changes in memory, on top of the stored rows that it touches.

    A *partition* has the rows of a table whose time buckets start in the same `partition_s`
    seconds, and is identified by the first of these seconds. A subclass reads and replaces
    partitions.
    """

    def __init__(
        self, partition_s: int, errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Make a transaction without changes.

        Args:
            partition_s: Seconds of time buckets that a partition covers.
            errors: Turns the errors of files and of Arrow into `StoreError`.
        """
        self.partition_s = partition_s
        self._errors = errors
        self._changes: dict[Layout, dict[int, _Changes]] = {}
        self._changed = False

    @property
    @abstractmethod
    def _state(self) -> LedgerState:
        """The ledger as this transaction leaves it."""

    @abstractmethod
    def _partitions(self, reached: range) -> Collection[tuple[Layout, int]]:
        """Return the stored partitions that start in a range of seconds."""

    @abstractmethod
    def _stored(self, layout: Layout, start: int) -> pa.Table | None:
        """Return the stored rows of a partition; `None` if there is no such partition."""

    @abstractmethod
    def _drop(self, layout: Layout, start: int) -> int:
        """Leave a stored partition out of the commit; return the number of its rows."""

    def load(self, metric_type: type[M], keys: Iterable[tuple[str, int]]) -> list[M]:
        """Return the stored partials of the given keys."""
        with self._step():
            layout = table_layout(metric_type)
            changed: _Rows = []
            stored: dict[int, list[PartialKey]] = {}
            distinct = dict.fromkeys(keys)
            check_keys(metric_type.name, distinct)
            for entity_and_bucket in distinct:
                key = (metric_type.name, *entity_and_bucket)
                start = self._start(key[2])
                rows = self._changes.get(layout, {}).get(start, {}).get(key)
                if rows is None:
                    stored.setdefault(start, []).append(key)
                else:
                    changed += rows
            found = [table_of(changed, schema_of(layout))]
            for start, wanted in stored.items():
                rows_there = self._stored(layout, start)
                if rows_there is not None:
                    found.append(_rows_of(rows_there, wanted))
            return _partials_in(metric_type, layout, pa.concat_tables(found))

    def save(self, metrics: Sequence[Metrics]) -> None:
        """Store partials, replacing those of the same type and key."""
        with self._step():
            for layout, partials in by_layout(metrics).items():
                table = self._changes.setdefault(layout, {})
                for key in partials:
                    table.setdefault(self._start(key[2]), {})[key] = []
                for row in typed_rows(layout, partials):
                    table[self._start(row[2])][row[:3]].append(row)
                self._changed = True

    def save_rows(self, metric_type: type[Metrics], rows: Sequence[Row]) -> None:
        """Store partials given as rows, under keys that the store does not have."""
        with self._step():
            name = metric_type.name
            table = self._changes.setdefault(table_layout(metric_type), {})
            for row in rows:
                changes = table.setdefault(self._start(row[1]), {})
                changes[name, row[0], row[1]] = [(name, *row)]
            self._changed = True

    def delete(
        self, before: int, *, since: int = FIRST_BUCKET, keep: Collection[type[Metrics]] = ()
    ) -> int:
        """Delete the metrics of this sink in a range of time buckets."""
        with self._step():
            deleted = 0
            for layout, start in self._partitions(range(since - self.partition_s + 1, before)):
                deleted += self._delete_stored(layout, start, range(since, before), keep)
            for layout, partitions in self._changes.items():
                kept = _names_in(layout, keep)
                for changes in partitions.values():
                    gone = [key for key in changes if since <= key[2] < before]
                    for key in (key for key in gone if key[0] not in kept):
                        deleted += len(changes[key])
                        changes[key] = []
            self._changed = self._changed or deleted > 0
            return deleted

    def raise_mark(self, query_id: str, batch_id: int) -> None:
        """Set the mark of a query."""
        with self._step():
            self._state.marks[query_id] = batch_id
            self._changed = True

    def last_batch(self, query_id: str) -> int | None:
        """Return the mark of a query; `None` without a mark."""
        with self._step():
            return self._state.marks.get(query_id)

    def known_queries(self) -> set[str]:
        """Return the ids of the queries with a mark."""
        with self._step():
            return set(self._state.marks)

    def description(self) -> dict[str, Any] | None:
        """Return the description of the job that wrote last; `None` without a description."""
        with self._step():
            return deepcopy(self._state.description)

    def describe(self, description: Mapping[str, Any]) -> None:
        """Store a description of the job that writes."""
        with self._step():
            self._state.description = json.loads(to_json(description))
            self._changed = True

    def _delete_stored(
        self, layout: Layout, start: int, buckets: range, keep: Collection[type[Metrics]]
    ) -> int:
        """Delete stored rows of a partition, except those that this transaction has replaced."""
        changes = self._changes.get(layout, {}).get(start, {})
        last = start + self.partition_s - 1
        kept = _names_in(layout, keep)
        if not kept and not changes and start in buckets and last in buckets:
            return self._drop(layout, start)
        stored = self._stored(layout, start)
        found = [] if stored is None else _keys_in(stored, buckets)
        deleted = [key for key in found if key not in changes and key[0] not in kept]
        if deleted:
            self._changes.setdefault(layout, {}).setdefault(start, changes)
            changes.update((key, []) for key in deleted)
        return len(deleted)

    def _changed_partitions(self) -> Iterator[tuple[Layout, int, pa.Table]]:
        """Yield each partition with changes and its new rows, which are in order."""
        for layout, partitions in self._changes.items():
            for start, changes in partitions.items():
                changed = (row for key_rows in changes.values() for row in key_rows)
                rows = table_of(changed, schema_of(layout))
                stored = self._stored(layout, start)
                if stored is not None:
                    rows = pa.concat_tables([_without_rows_of(stored, changes), rows])
                yield layout, start, in_order(rows, layout)

    def _start(self, time_bucket: int) -> int:
        return time_bucket - time_bucket % self.partition_s

    @contextmanager
    def _step(self) -> Iterator[None]:
        with self.guarded(), self._errors():
            yield


def in_order(rows: pa.Table, layout: Layout) -> pa.Table:
    """Return rows sorted by their keys."""
    keys = (name for name in layout.key_columns if name in rows.column_names)
    return rows.sort_by([(name, "ascending") for name in keys])


def _names_in(layout: Layout, metrics: Collection[type[Metrics]]) -> set[str]:
    """Return the names of the given metrics that are in a table."""
    return {metric.name for metric in metrics if table_layout(metric).table == layout.table}


def _keys_in(stored: pa.Table, buckets: range) -> list[PartialKey]:
    """Return the key of each stored row in a range of time buckets."""
    bucket = pc.field("time_bucket")
    inside = stored.filter((bucket >= buckets.start) & (bucket < buckets.stop))
    columns = inside.select(_KEY_SCHEMA.names).columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _without_rows_of(stored: pa.Table, keys: Iterable[PartialKey]) -> pa.Table:
    """Return the stored rows except those of the given keys, unordered."""
    return _joined(stored, keys, "left anti")


def _rows_of(stored: pa.Table, keys: Iterable[PartialKey]) -> pa.Table:
    """Return the stored rows of the given keys, unordered."""
    return _joined(stored, keys, "inner")


def _joined(stored: pa.Table, keys: Iterable[PartialKey], how: str) -> pa.Table:
    return stored.join(table_of(keys, _KEY_SCHEMA), _KEY_SCHEMA.names, join_type=how).select(
        stored.schema.names
    )


def _partials_in(metric_type: type[M], layout: Layout, rows: pa.Table) -> list[M]:
    """Rebuild the partials of a metric from their rows, ordered by entity and time bucket."""
    _, *columns = in_order(rows, layout).columns
    return partials_of(metric_type, zip(*map(values_of, columns), strict=True))
