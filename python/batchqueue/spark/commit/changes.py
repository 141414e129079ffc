"""Which keys an epoch changes, listed in its transaction if the job asks for it."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.outputs import (
    BadRows,
    ChangedKeys,
    Epoch,
    MetricsReader,
    Selection,
    StoreTransaction,
    StoreWriter,
)
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.options import SinkOptions

CHANGED_AT = "changed_at"
"""In the summary of an epoch, the position of the newest lists, its own or earlier ones; or None.

It is always there, so that the next epoch needs the newest summary only.
"""


class Changes:
    """The keys that one epoch changes, by the name of their metric."""

    def __init__(self, job: AggregationJob, summaries: Callable[[int | None], list[Epoch]]) -> None:
        """Begin without keys.

        Args:
            job: It says whether they are listed.
            summaries: Reads that many of the newest summaries of the sink; None: all that are kept.
        """
        self._job = job
        self._last = _last_position(summaries)
        self._keys: dict[str, set[tuple[str, int]]] = {}

    def writer(self, transaction: StoreTransaction) -> StoreWriter:
        """Return what merges batches of partials into a transaction, and takes their keys."""
        return _Listing(transaction, self) if self._job.changed_keys else StoreWriter(transaction)

    def add(self, metrics: Iterable[Metrics]) -> None:
        """Add the keys of partials."""
        for item in metrics:
            if not isinstance(item, BadRows):
                self._keys.setdefault(item.name, set()).add(item.key)

    def merge_rows(
        self, transaction: StoreTransaction, metric_type: type[Metrics], rows: Sequence[Row]
    ) -> None:
        """Merge partials that come as rows into a transaction, and take their keys."""
        if self._job.changed_keys:
            self._keys.setdefault(metric_type.name, set()).update((row[0], row[1]) for row in rows)
        transaction.merge_rows(metric_type, rows)

    def add_stored(self, options: SinkOptions) -> None:
        """Add the keys that a write is about to delete, some of which may not come again.

        Args:
            options: They name the sink, and the time buckets that are replaced; None for all.
        """
        store: Any = self._job.store
        if not self._job.changed_keys or not isinstance(store, MetricsReader):
            return
        replaced = options.replaced
        for metric in store.metrics(options.sink_id):
            if metric.metric_type.table in (BadRows.table, ChangedKeys.table):
                continue
            wanted = Selection(
                metric_type=metric.metric_type,
                sink_id=options.sink_id,
                since=None if replaced is None else replaced.start,
                before=None if replaced is None else replaced.stop,
            )
            keys = {(row[0], row[1]) for row in store.rows(wanted)}
            if keys:
                self._keys.setdefault(metric.metric_type.name, set()).update(keys)

    def save(self, transaction: StoreTransaction) -> dict[str, int | None]:
        """Store the lists; return what the summary says of them."""
        if self._job.changed_keys:
            self._last = max(int(time.time()), self._last + 1)
            transaction.merge(
                [ChangedKeys(name, self._last, keys) for name, keys in self._keys.items()]
            )
        return {CHANGED_AT: self._last or None}


class _Listing(StoreWriter):
    def __init__(self, transaction: StoreTransaction, changes: Changes) -> None:
        super().__init__(transaction)
        self._changes = changes

    def consume(self, batch: list[Metrics]) -> None:
        self._changes.add(batch)
        super().consume(batch)


def _last_position(summaries: Callable[[int | None], list[Epoch]]) -> int:
    newest = summaries(1)
    if newest and CHANGED_AT not in newest[0].summary:  # of an older version
        newest = summaries(None)
    return max((epoch.summary.get(CHANGED_AT) or 0 for epoch in newest), default=0)
