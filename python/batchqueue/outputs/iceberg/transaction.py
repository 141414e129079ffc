"""A transaction of the Iceberg store: changes in memory, one snapshot when it commits."""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue

from batchqueue.outputs.iceberg.errors import iceberg_errors
from batchqueue.outputs.iceberg.ledger import Ledger, epochs_of, ledger_of
from batchqueue.outputs.iceberg.replacement import Replacement
from batchqueue.outputs.iceberg.table import ALL, Files, Partition, SinkTable
from batchqueue.outputs.layout import Layout
from batchqueue.outputs.partitioned import PartitionedTransaction
from batchqueue.outputs.store import Epoch, StoreUnavailableError, to_json

_PLANS = 3
"""So many partitions are looked up one by one; a transaction that touches more looks all up."""


class IcebergTransaction(PartitionedTransaction):
    """A `StoreTransaction` that keeps the partitions it touches in memory."""

    def __init__(
        self,
        sink: SinkTable | None,
        create: Callable[[], SinkTable],
        partition_s: int,
        store: str,
        kept_summaries: int,
    ) -> None:
        """Begin with a snapshot.

        Args:
            sink: The table of the sink with its current snapshot; `None` if there is none yet.
            create: Creates the table.
            partition_s: Seconds of time buckets in a partition.
            store: The store, for messages.
            kept_summaries: Summaries to read of the sink.
        """
        super().__init__(partition_s, lambda: iceberg_errors(store))
        self._store = store
        self._kept_summaries = kept_summaries
        self._sink = sink
        self._create = create
        self._ledger = (Ledger() if sink is None else ledger_of(sink.metadata, sink.name)).next()
        self._files: dict[int, dict[Partition, Files]] = {}
        self._rows: dict[Partition, pa.Table] = {}
        self._dropped: dict[Partition, Files] = {}
        self._all_files: dict[Partition, Files] | None = None
        self._cleared = False

    def _partitions(self, reached: range) -> list[tuple[Layout, int]]:
        files = self._files_in(range(reached.start, reached.stop + self.partition_s - 1))
        return [
            (self._sink.layouts[table].layout, start)
            for table, start in files
            if self._sink is not None and start in reached and (table, start) not in self._dropped
        ]

    def _stored(self, layout: Layout, start: int) -> pa.Table | None:
        partition = (layout.table, start)
        files = self._files_of(partition)
        if self._sink is None or not files or partition in self._dropped:
            return None
        if partition not in self._rows:
            stored = self._sink.stored_layout(layout)
            try:
                self._rows[partition] = self._sink.rows(stored, files, AlwaysTrue())
            except FileNotFoundError as error:
                raise StoreUnavailableError(
                    f"cannot use the store {self._store}: {error}; if the snapshot has expired "
                    "meanwhile, start another transaction"
                ) from error
        return self._rows[partition]

    def _drop(self, layout: Layout, start: int) -> int:
        files = self._files_of((layout.table, start))
        self._dropped[layout.table, start] = files
        return 0 if self._sink is None else self._sink.rows_in(files)

    def _files_of(self, partition: Partition) -> Files:
        _, start = partition
        if self._all_files is None and start not in self._files:
            if len(self._files) < _PLANS:
                self._files[start] = self._files_in(range(start, start + self.partition_s))
            else:
                self._all_files = self._files_in(ALL)
        files = self._files.get(start) if self._all_files is None else self._all_files
        return (files or {}).get(partition, [])

    def _files_in(self, buckets: range) -> dict[Partition, Files]:
        return {} if self._sink is None else self._sink.files(buckets)

    def raise_mark(self, query_id: str, batch_id: int) -> None:
        """Set the mark of a query."""
        with self._step():
            self._ledger.marks[query_id] = batch_id
            self._changed = True

    def add_summary(self, query_id: str, batch_id: int, summary: str) -> None:
        """Keep the summary of an epoch, as long as the snapshot of this transaction is kept."""
        with self._step():
            self._ledger.epochs.append((query_id, batch_id, json.loads(summary)))
            self._changed = True

    def last_batch(self, query_id: str) -> int | None:
        """Return the mark of a query; `None` without a mark."""
        with self._step():
            return self._ledger.marks.get(query_id)

    def known_queries(self) -> set[str]:
        """Return the ids of the queries with a mark."""
        with self._step():
            return set(self._ledger.marks)

    def summaries(self, newest: int | None = None) -> list[Epoch]:
        """Return the newest summaries that are kept, in the order in which they were recorded."""
        with self._step():
            own = [Epoch(*epoch) for epoch in deepcopy(self._ledger.epochs)]
            count = self._kept_summaries if newest is None else min(newest, self._kept_summaries)
            found = self._earlier(count - len(own)) + own
            return found[len(found) - count :] if count < len(found) else found

    def _earlier(self, newest: int) -> list[Epoch]:
        if self._sink is None or self._ledger.begins or newest <= 0:
            return []
        return epochs_of(self._sink.metadata, self._sink.name, newest)

    def description(self) -> dict[str, Any] | None:
        """Return the description of the job that wrote last; `None` without a description."""
        with self._step():
            return deepcopy(self._ledger.description)

    def describe(self, description: Mapping[str, Any]) -> None:
        """Store a description of the job that writes."""
        with self._step():
            self._ledger.description = json.loads(to_json(description))
            self._changed = True

    def clear(self) -> None:
        """Delete everything that this sink wrote."""
        with self._step():
            self._dropped = self._files_in(ALL)
            self._changes.clear()
            self._ledger = Ledger()
            self._cleared = self._changed = True

    def has_table(self) -> bool:
        """Return whether something was ever committed for the sink."""
        return self._sink is not None

    def has_anything(self) -> bool:
        """Return whether something was written since the last `clear`, if ever."""
        with self._step():
            return self._ledger.has_anything() or bool(self._files_in(ALL))

    def commit(self) -> None:
        """Write the changes: first the data files, then the snapshot that has them.

        Raises:
            StoreUnavailableError: Another writer has committed meanwhile, or it is not known
                whether the commit succeeded.
        """
        if not self._changed:
            return
        with self.guarded(), iceberg_errors(self._store, committing=True):
            self._sink = self._sink or self._create()
            replacement = Replacement(self._sink, anew=self._cleared)
            try:
                self._write(replacement)
            except CommitFailedException:
                replacement.remove_written()
                raise

    def _write(self, replacement: Replacement) -> None:
        replaced = dict(self._dropped)
        for layout, start, rows in self._changed_partitions():
            partition = (layout.table, start)
            replaced[partition] = self._files_of(partition)
            if len(rows):
                replacement.write(layout, start, rows)
        files = [file for some in replaced.values() for file in some]
        replacement.commit(self._ledger, files)
