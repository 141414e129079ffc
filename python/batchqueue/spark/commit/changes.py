"""Which keys an epoch changes, listed in its transaction if the job asks for it."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from batchqueue.aggregation import Metrics
from batchqueue.outputs import BadRows, ChangedKeys, Epoch, MetricsReader, StoreTransaction
from batchqueue.outputs.writer import StoreWriter
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.options import SinkOptions

CHANGED_AT = "changed_at"
"""In the summary of an epoch, the time bucket of its `ChangedKeys`."""


class Changes:
    """The keys that one epoch changes, by the name of their metric."""

    def __init__(self, job: AggregationJob, summaries: Callable[[int | None], list[Epoch]]) -> None:
        """Begin without keys.

        Args:
            job: It says whether they are listed.
            summaries: Reads that many of the newest summaries of the sink; None: all that are kept.
        """
        self._job = job
        self._last = _last_change(summaries) if job.changed_keys else 0
        self._keys: dict[str, set[tuple[str, int]]] = {}

    def writer(self, transaction: StoreTransaction) -> StoreWriter:
        """Return what merges batches of partials into a transaction, and takes their keys."""
        return _Listing(transaction, self) if self._job.changed_keys else StoreWriter(transaction)

    def add(self, metrics: Iterable[Metrics]) -> None:
        """Add the keys of partials."""
        for item in metrics:
            if not isinstance(item, BadRows):
                self._keys.setdefault(item.name, set()).add(item.key)

    def add_replaced(self, options: SinkOptions) -> None:
        """Add the keys that a batch write is about to replace, some of which may not come again."""
        store: Any = self._job.store
        replaced = options.replaced
        if replaced is None or not self._job.changed_keys or not isinstance(store, MetricsReader):
            return
        for metric in self._job.metrics:
            self.add(
                store.read(metric, options.sink_id, since=replaced.start, before=replaced.stop)
            )

    def save(self, transaction: StoreTransaction) -> dict[str, int]:
        """Store the list; return what the summary says of it."""
        if not self._job.changed_keys:
            return {}
        at = max(int(time.time()), self._last + 1)
        transaction.save([ChangedKeys(name, at, keys) for name, keys in self._keys.items()])
        return {CHANGED_AT: at}


class _Listing(StoreWriter):
    def __init__(self, transaction: StoreTransaction, changes: Changes) -> None:
        super().__init__(transaction)
        self._changes = changes

    def consume(self, batch: list[Metrics]) -> None:
        self._changes.add(batch)
        super().consume(batch)


def _last_change(summaries: Callable[[int | None], list[Epoch]]) -> int:
    newest = summaries(1)
    if newest and CHANGED_AT not in newest[0].summary:  # of a job that does not list them
        newest = summaries(None)
    found = (epoch.summary[CHANGED_AT] for epoch in newest if CHANGED_AT in epoch.summary)
    return max(found, default=0)
