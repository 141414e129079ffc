"""A transaction of the Parquet store: changes in memory, written as new files when it commits."""

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from batchqueue.aggregation import Metrics
from batchqueue.outputs.layout import (
    Layout,
    PartialKey,
    by_layout,
    check_key,
    table_layout,
    typed_rows,
)
from batchqueue.outputs.parquet.files import (
    keys_in,
    layout_of,
    partials_in,
    read_file,
    rows_in,
    rows_of,
    without_rows_of,
    write_file,
)
from batchqueue.outputs.parquet.ledger import add_epoch, move_recent, newest_epochs
from batchqueue.outputs.parquet.manifest import DATA_SUFFIX, Manifest, sync_folder, written_files
from batchqueue.outputs.rows import schema_of, table_of
from batchqueue.outputs.store import FIRST_BUCKET, Epoch, StoreTransaction, to_json

M = TypeVar("M", bound=Metrics)

_Rows = list[tuple[Any, ...]]
_Changes = dict[PartialKey, _Rows]
"""Key → its rows of all columns; an empty list for a partial that no longer has rows."""


class ParquetTransaction(StoreTransaction):
    """A `StoreTransaction` that keeps the files of the partitions it touches in memory."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        errors: Callable[[], AbstractContextManager[None]],
        kept_summaries: int,
        keep_replaced_s: float,
    ) -> None:
        """Make the transaction of a sink whose lock is held.

        Args:
            folder: The folder of the sink.
            manifest: The state to start from; the transaction changes it.
            errors: Turns the errors of files and of Arrow into `StoreError`.
            kept_summaries: Summaries to keep for the sink.
            keep_replaced_s: Seconds to keep a replaced file for its readers.
        """
        self._folder = folder
        self._manifest = manifest
        self._errors = errors
        self._kept_summaries = kept_summaries
        self._keep_replaced_s = keep_replaced_s
        self._changes: dict[Layout, dict[int, _Changes]] = {}
        self._stored: dict[str, pa.Table] = {}
        self._committed = manifest.live()
        self._changed = False

    def load(self, metric_type: type[M], keys: Iterable[tuple[str, int]]) -> list[M]:
        """Return the stored partials of the given keys."""
        with self._step():
            layout = table_layout(metric_type)
            changed: _Rows = []
            stored: dict[int, list[PartialKey]] = {}
            for entity_and_bucket in dict.fromkeys(keys):
                check_key(metric_type.name, entity_and_bucket)
                key = (metric_type.name, *entity_and_bucket)
                start = self._start(key[2])
                rows = self._changes.get(layout, {}).get(start, {}).get(key)
                if rows is None:
                    stored.setdefault(start, []).append(key)
                else:
                    changed += rows
            found = [table_of(changed, schema_of(layout))]
            for start, wanted in stored.items():
                file = self._file(layout, start)
                if file is not None:
                    found.append(rows_of(file, wanted))
            return partials_in(metric_type, layout, pa.concat_tables(found))

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

    def raise_mark(self, query_id: str, batch_id: int) -> None:
        """Set the mark of a query."""
        with self._step():
            self._manifest.marks[query_id] = batch_id
            self._changed = True

    def add_summary(self, query_id: str, batch_id: int, summary: str) -> None:
        """Keep the summary of an epoch, and delete the oldest if there are too many."""
        with self._step():
            epoch = (query_id, batch_id, json.loads(summary))
            add_epoch(self._manifest, epoch, self._kept_summaries)
            self._changed = True

    def last_batch(self, query_id: str) -> int | None:
        """Return the mark of a query; `None` without a mark."""
        with self._step():
            return self._manifest.marks.get(query_id)

    def known_queries(self) -> set[str]:
        """Return the ids of the queries with a mark."""
        with self._step():
            return set(self._manifest.marks)

    def summaries(self, newest: int | None = None) -> list[Epoch]:
        """Return the newest summaries that are kept, in the order in which they were recorded."""
        with self._step():
            return [Epoch(*epoch) for epoch in newest_epochs(self._folder, self._manifest, newest)]

    def description(self) -> dict[str, Any] | None:
        """Return the description of the job that wrote last; `None` without a description."""
        with self._step():
            return deepcopy(self._manifest.description)

    def describe(self, description: Mapping[str, Any]) -> None:
        """Store a description of the job that writes."""
        with self._step():
            self._manifest.description = json.loads(to_json(description))
            self._changed = True

    def delete(
        self, before: int, *, since: int = FIRST_BUCKET, keep: Collection[type[Metrics]] = ()
    ) -> int:
        """Delete the metrics of this sink in a range of time buckets."""
        with self._step():
            deleted = 0
            for table, files in self._manifest.tables.items():
                reached = range(since - self._manifest.partition_s + 1, before)
                for start in [start for start in files if start in reached]:
                    layout = layout_of(table, self._folder / files[start])
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

    def _delete_stored(
        self, layout: Layout, start: int, buckets: range, keep: Collection[type[Metrics]]
    ) -> int:
        """Delete what a file has, apart from partials that this transaction has replaced."""
        changes = self._changes.get(layout, {}).get(start, {})
        last = start + self._manifest.partition_s - 1
        kept = _names_in(layout, keep)
        if not kept and not changes and start in buckets and last in buckets:
            return rows_in(self._folder / self._manifest.tables[layout.table].pop(start))
        stored = self._file(layout, start)
        found = [] if stored is None else keys_in(stored, buckets)
        deleted = [key for key in found if key not in changes and key[0] not in kept]
        if deleted:
            self._changes.setdefault(layout, {}).setdefault(start, changes)
            changes.update((key, []) for key in deleted)
        return len(deleted)

    def clear(self) -> None:
        """Delete everything that this sink wrote."""
        with self._step():
            self._changes.clear()
            manifest = self._manifest
            self._manifest = Manifest(
                manifest.sink, manifest.partition_s, replaced=manifest.replaced
            )
            self._changed = True

    def commit(self) -> None:
        """Write the changes: first the data files, then the manifest that names them."""
        if not self._changed:
            return
        written: list[Path] = []
        with self._step():
            now = time.time()
            self._remove_unread_files(now)
            try:
                for layout, partitions in self._changes.items():
                    for start, changes in partitions.items():
                        self._write(layout, start, changes, written)
                written += move_recent(self._folder, self._manifest)
                sync_folder(self._folder)
                live = self._manifest.live()
                self._manifest.replaced |= dict.fromkeys(self._committed - live, now)
                self._manifest.replace(self._folder)
            except Exception:
                # Make room again on a full disk; but if the manifest was replaced, it names these
                # files.
                if not self._is_committed():
                    for path in written:
                        path.unlink(missing_ok=True)
                raise

    def _write(self, layout: Layout, start: int, changes: _Changes, written: list[Path]) -> None:
        changed = (row for key_rows in changes.values() for row in key_rows)
        rows = table_of(changed, schema_of(layout))
        stored = self._file(layout, start)
        if stored is not None:
            rows = pa.concat_tables([without_rows_of(stored, changes), rows])
        files = self._manifest.tables.setdefault(layout.table, {})
        files.pop(start, None)
        if len(rows):
            path = self._folder / f"{layout.table}.{start}.{uuid.uuid4().hex}{DATA_SUFFIX}"
            written.append(path)
            write_file(path, layout, rows)
            files[start] = path.name

    def _is_committed(self) -> bool:
        found = Manifest.load(self._folder, self._manifest.sink)
        return found is not None and found.live() == self._manifest.live()

    def _remove_unread_files(self, now: float) -> None:
        """Remove files replaced long ago, and files of a writer that died before its commit."""
        replaced = self._manifest.replaced
        for name in [name for name, at in replaced.items() if now - at > self._keep_replaced_s]:
            (self._folder / name).unlink(missing_ok=True)
            del replaced[name]
        for name in written_files(self._folder) - self._committed - replaced.keys():
            (self._folder / name).unlink(missing_ok=True)

    def _start(self, time_bucket: int) -> int:
        return time_bucket - time_bucket % self._manifest.partition_s

    def _file(self, layout: Layout, start: int) -> pa.Table | None:
        name = self._manifest.tables.get(layout.table, {}).get(start)
        if name is None:
            return None
        if name not in self._stored:
            self._stored[name] = read_file(self._folder / name, layout)
        return self._stored[name]

    @contextmanager
    def _step(self) -> Iterator[None]:
        with self.guarded(), self._errors():
            yield


def _names_in(layout: Layout, metrics: Collection[type[Metrics]]) -> set[str]:
    """Return the names of those metrics that are in a table."""
    return {metric.name for metric in metrics if table_layout(metric).table == layout.table}
