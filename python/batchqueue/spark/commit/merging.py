"""The merge of the partials of all tasks of an epoch into the store."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute

from batchqueue.aggregation import L2PersistenceWorker, Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.outputs.base import BadRows, ChangedKeys
from batchqueue.outputs.reading import MetricsReader, Selection
from batchqueue.outputs.store import (
    FINAL_BEFORE,
    Epoch,
    StoreError,
    StoreTransaction,
    final_before,
)
from batchqueue.queues.config import BatchQueueConfig, BufferStrategy, PartitionPolicy, ThreadPolicy
from batchqueue.queues.handlers import SupportsConsume
from batchqueue.spark.job import AggregationJob, Watermark
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.stage import InlineStage, QueueStage, StageSummary, not_stored
from batchqueue.spark.task.groups import (
    ColumnPartials,
    TaskGroups,
    are_within,
    has_only_built_in_metrics,
    merged_groups,
    within,
)
from batchqueue.spark.task.message import AttemptSummary, EpochId

# Which keys an epoch changes, listed in its transaction if the job asks for it.


CHANGED_AT = "changed_at"
"""Field of an epoch's summary: the position of the newest lists, its own or earlier; or None.

It is always present, so the next epoch needs only the newest summary.
"""


class Changes:
    """The keys that one epoch changes, by the name of their metric."""

    def __init__(self, job: AggregationJob, summaries: Callable[[int | None], list[Epoch]]) -> None:
        """Start without keys.

        Args:
            job: The job, which says whether keys are listed.
            summaries: Reads the given number of newest summaries of the sink; None: all that are
                kept.
        """
        self._job = job
        self._last = _last_position(summaries)
        self._keys: dict[str, set[tuple[str, int]]] = {}

    def merge(self, transaction: StoreTransaction, metrics: Sequence[Metrics]) -> None:
        """Merge partials into a transaction, and note their keys."""
        if self._job.changed_keys:
            for item in metrics:
                if not isinstance(item, BadRows):
                    self._keys.setdefault(item.name, set()).add(item.key)
        transaction.merge(metrics)

    def merge_rows(
        self, transaction: StoreTransaction, metric_type: type[Metrics], rows: Sequence[Row]
    ) -> None:
        """Merge partials that are rows into a transaction, and note their keys."""
        if self._job.changed_keys:
            self._keys.setdefault(metric_type.name, set()).update((row[0], row[1]) for row in rows)
        transaction.merge_rows(metric_type, rows)

    def add_stored(self, options: SinkOptions) -> None:
        """Add the keys that a write is about to delete, some of which it may not write again.

        Args:
            options: With `sink_id`, and the time buckets `replaced`; None for all.
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
        """Store the lists, and return their field of the summary."""
        if self._job.changed_keys:
            self._last = max(int(time.time()), self._last + 1)
            transaction.merge(
                [ChangedKeys(name, self._last, keys) for name, keys in self._keys.items()]
            )
        return {CHANGED_AT: self._last or None}


def _last_position(summaries: Callable[[int | None], list[Epoch]]) -> int:
    newest = summaries(1)
    if newest and CHANGED_AT not in newest[0].summary:  # of an older version
        newest = summaries(None)
    return max((epoch.summary.get(CHANGED_AT) or 0 for epoch in newest), default=0)


# The final time buckets of a sink, and the partials that an epoch has for them too late.


_compute: Any = pyarrow.compute  # its type hints lack functions


class FinalBuckets:
    """The final buckets of a sink in the commit of one epoch.

    Attributes:
        before: Buckets that start before this time are final as of earlier epochs; None if none
            are.
        late: Number of partials for final buckets so far.
        drops: Whether late partials are left out.
    """

    def __init__(
        self, transaction: StoreTransaction, watermark: Watermark | None, *, is_stream: bool
    ) -> None:
        """Read what is final.

        Args:
            transaction: Of the sink.
            watermark: The watermark of the job.
            is_stream: Whether this is an epoch of a stream, and not a batch write.
        """
        self.before = final_before(transaction.summaries)
        if self.before is not None and is_stream and watermark is not None:
            # If the window has become wider since, a bucket may be only partly final.
            self.before = watermark.start(self.before)
        self.late = 0
        self.drops = watermark is not None and watermark.late == "drop"
        self._watermark = watermark if is_stream else None
        self._is_stream = is_stream

    def sorted_out(self, metrics: Iterable[Metrics]) -> Iterable[Metrics]:
        """Return the partials that are stored, and count those that are late."""
        if self.before is None or not self._is_stream:
            return metrics
        return self._sorted_out(metrics, self.before)

    def _sorted_out(self, metrics: Iterable[Metrics], before: int) -> Iterator[Metrics]:
        for item in metrics:
            # 0 stands for all times; the time bucket of bad rows is when their task began.
            if item.time_bucket < before and item.time_bucket and not isinstance(item, BadRows):
                self.late += 1
                if self.drops:
                    continue
            yield item

    def has_late(self, time_buckets: pa.Array) -> bool:
        """Return whether a partial for one of these time buckets would be late."""
        if self.before is None or not self._is_stream:
            return False
        late = _compute.and_(
            _compute.less(time_buckets, self.before), _compute.not_equal(time_buckets, 0)
        )
        return bool(_compute.any(late).as_py())

    def summary(self, attempts: Sequence[AttemptSummary]) -> dict[str, Any]:
        """Return the fields of the epoch's summary; `final_before` never goes back.

        Args:
            attempts: The summaries of the tasks, with the newest time of each.
        """
        found = self.before
        newest = [attempt.newest for attempt in attempts if attempt.newest is not None]
        if self._watermark is not None and newest:
            reached = self._watermark.final_before(max(newest))
            found = reached if found is None else max(found, reached)
        return {"late": self.late, FINAL_BEFORE: found}


@dataclass(frozen=True)
class Destination:
    """Where the partials of one epoch go.

    Attributes:
        transaction: Of the sink.
        final: Which partials are late.
        changes: Takes the keys of what is stored.
        replaced: Time buckets whose results a batch write replaces; None: it adds to all of them.
    """

    transaction: StoreTransaction
    final: FinalBuckets
    changes: Changes
    replaced: range | None

    def stored(self, metrics: Iterable[Metrics]) -> Iterable[Metrics]:
        """Return the partials that are stored.

        Raises:
            SinkError: A partial is outside the time buckets that are replaced.
        """
        return within(self.final.sorted_out(metrics), self.replaced)

    def takes_as_rows(self, partials: ColumnPartials) -> bool:
        """Return whether partials may go to `merge_rows`: all are stored, as they are."""
        buckets = partials.time_buckets
        is_plain = partials.are_rows and not self.final.has_late(buckets)
        return is_plain and are_within(buckets, self.replaced)

    def consume(self, batch: Sequence[Metrics]) -> None:
        """Merge a batch of partials into the transaction."""
        self.changes.merge(self.transaction, batch)

    def merge_rows(self, partials: ColumnPartials) -> None:
        """Merge partials as rows, once no queue uses the transaction."""
        self.changes.merge_rows(self.transaction, partials.metric, partials.rows())


class Partials(Protocol):
    """The partials of one epoch, or of one of its tasks, on their way to the commit."""

    @property
    def epoch(self) -> EpochId | None:
        """The micro-batch; None in a batch write."""

    @property
    def summary(self) -> AttemptSummary:
        """The counts and times of making the partials."""
        ...

    @property
    def size(self) -> int:
        """Bytes that they take in the message."""
        ...

    @property
    def groups(self) -> Sequence[TaskGroups]:
        """Groups of declared metrics, to be merged with those of other tasks."""
        ...

    def columns(self, job: AggregationJob) -> Sequence[ColumnPartials]:
        """Return partials of declared metrics whose keys no other task has."""
        ...

    def objects(self, job: AggregationJob) -> Iterable[Metrics]:
        """Return the others as metric objects."""
        ...


@dataclass(frozen=True)
class MergeSummary:
    """The counts of the merge of an epoch.

    Attributes:
        l2: Partials of the tasks.
        persist: Merged partials that went to the store.
        drain_cpu_s: CPU seconds of the drain threads.
    """

    l2: StageSummary
    persist: StageSummary
    drain_cpu_s: float


def merge_partials(
    job: AggregationJob, name: str, messages: Sequence[Partials], destination: Destination
) -> MergeSummary:
    """Merge the partials of all tasks, and write them.

    Partials of declared metrics are merged in columns, and go to the store as rows if possible; the
    others are merged as objects by L2, which has queues if the job has functions.

    Args:
        job: The job.
        name: The prefix of the queues' names.
        messages: One for each task.
        destination: Where the partials go.

    Raises:
        SinkError: A partial was lost, or does not fit.
    """
    groups = [of_task for message in messages for of_task in message.groups]
    stored = destination.stored
    # The L2 stage ends first, so the store writer still takes what its workers emit at close.
    with _persist_stage(job, name, destination) as persist:
        with _l2_stage(job, name, persist) as l2:
            for message in messages:
                l2.produce_many(stored(message.objects(job)))
            found = merged_groups(groups, job.arrow)
            for of_metric in found.unmerged:
                l2.produce_many(stored(of_metric))
        columns = [of_metric for message in messages for of_metric in message.columns(job)]
        as_rows = []
        for of_metric in chain(found.merged, columns):
            if destination.takes_as_rows(of_metric):
                as_rows.append(of_metric)
            else:
                persist.produce_many(stored(of_metric))
    for of_metric in as_rows:
        try:
            destination.merge_rows(of_metric)
        except StoreError as error:
            raise not_stored([of_metric.metric.name], error) from error
    merged = sum(of_task.partials for of_task in groups) + sum(map(len, columns))
    merged -= sum(map(len, found.unmerged))
    return MergeSummary(
        l2.summary.with_merged(merged),
        persist.summary.with_merged(sum(map(len, as_rows))),
        l2.drain_cpu_s + persist.drain_cpu_s,
    )


def _persist_stage(
    job: AggregationJob, name: str, destination: Destination
) -> QueueStage | InlineStage:
    is_declared = has_only_built_in_metrics(job.arrow) and job.items is None
    if is_declared and job.l2.dead_letter is None:
        return InlineStage(destination)
    # One thread uses the transaction, and the threads of L2 wait for it.
    config = BatchQueueConfig[Metrics](
        threads=ThreadPolicy.fixed(1),
        partitions=PartitionPolicy.fixed(1),
        consumer=destination,
        buffer_size=10_000,
        strategy=BufferStrategy.BLOCKING,
        min_idle_ms=1,
        max_idle_ms=20,
    )
    return QueueStage(f"{name}-persist", config)


def _l2_stage(
    job: AggregationJob, name: str, persist: QueueStage | InlineStage
) -> QueueStage | InlineStage:
    if isinstance(persist, InlineStage):
        return InlineStage(L2PersistenceWorker(persist.produce_many))
    workers: dict[type | str, SupportsConsume[Any]] = {
        metric_type: L2PersistenceWorker(persist.produce_many) for metric_type in job.stored_metrics
    }
    return QueueStage(f"{name}-l2", job.l2, workers)
