"""The commit: L2 merges the partials of all tasks into the store, one transaction per epoch."""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute

from batchqueue.aggregation import L2PersistenceWorker, Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.words import counted
from batchqueue.outputs.base import BadRows, ChangedKeys
from batchqueue.outputs.ledger import layout_of, layout_text, owner_text, write_once
from batchqueue.outputs.reading import MetricsReader, Selection
from batchqueue.outputs.sqlite_store import SqliteStore
from batchqueue.outputs.store import (
    FINAL_BEFORE,
    UNMARKED,
    Epoch,
    StoreError,
    StoreTransaction,
    final_before,
)
from batchqueue.queues.config import BatchQueueConfig, BufferStrategy, PartitionPolicy, ThreadPolicy
from batchqueue.queues.handlers import SupportsConsume
from batchqueue.spark.commit.summary import (
    SinkTotals,
    epoch_contents,
    epoch_summary,
    latest_totals,
    log_line,
    with_retries,
    with_totals,
)
from batchqueue.spark.job import AggregationJob, Watermark
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.stage import (
    CpuMeter,
    InlineStage,
    QueueStage,
    StageSummary,
    infrequent_gc,
    not_stored,
)
from batchqueue.spark.steps import ArrowAggregation
from batchqueue.spark.task.contents import Contents, differ
from batchqueue.spark.task.groups import (
    ColumnPartials,
    TaskGroups,
    are_within,
    has_only_built_in_metrics,
    merged_groups,
    within,
)
from batchqueue.spark.task.message import AttemptSummary, EpochId, check_size

T = TypeVar("T")

_log = BackgroundLog("batchqueue.spark")


@dataclass(frozen=True)
class EpochCommit:
    """One commit of the results that Spark accepted.

    Attributes:
        job: The job whose metrics are written.
        options: The options of the write.
        messages: One for each task, from its successful attempt.
    """

    job: AggregationJob
    options: SinkOptions
    messages: Sequence["Partials"]

    def check_epoch(self, epoch: EpochId | None, wrote: int | None = None) -> None:
        """Refuse, before L1 runs, an epoch that the ledger shows cannot be committed.

        Args:
            epoch: The epoch; None if only the commit will know it.
            wrote: Number of the epoch that the same run of the query wrote last, if it is known.

        Raises:
            SinkError: As `apply_epoch`, as far as it depends on the ledger.
        """

        def check(ledger: StoreTransaction) -> None:
            check_epoch(ledger, self.job, self.options, epoch, wrote)

        self._in_ledger(check)

    def check_batch(self, *, overwrite: bool) -> dict[str, Any] | None:
        """Refuse, before L1 runs, a batch write that the ledger shows cannot be committed.

        Returns:
            What `apply_batch` would return if the ledger already has the write, else None.

        Raises:
            SinkError: As `apply_batch`, as far as it depends on the ledger.
        """

        def check(ledger: StoreTransaction) -> dict[str, Any] | None:
            query_id = f"{BATCH}{self.options.txn_id}"
            if self.options.txn_id is not None and ledger.applied(query_id, 0):
                recorded = _recorded_summary(ledger, query_id, 0)
                self._check_replaced(recorded)
                self._log_repetition(query_id, 0, 0)
                return {**(recorded or {}), "applied": False}
            check_batch(ledger, self.job, self.options, overwrite=overwrite)
            return None

        return self._in_ledger(check)

    def _in_ledger(self, check: Callable[[StoreTransaction], T]) -> T | None:
        """Check something in the ledger, if the store can be read without its lock."""
        ledger_of = getattr(self.job.store, "ledger", None)
        if ledger_of is None:
            return None

        def read() -> T | None:
            with ledger_of(self.options.sink_id) as ledger:
                if ledger is not None:
                    return check(ledger)
            check_not_in_shards(self.job, self.options)
            return None

        return with_retries(self.job.store_retry, f"opening {self.job.store!r}", read)

    def apply_epoch(self, batch_id: int, *, wrote: int | None = None) -> dict[str, Any]:
        """Apply one epoch of a stream, unless the ledger has it.

        A driver that dies between this commit and Spark's own record of it replays the epoch, under
        the same ids.

        Args:
            batch_id: The number of the epoch.
            wrote: Number of the epoch that the same run of the query wrote last, if it is known.

        Returns:
            The summary in the ledger, with `applied`: True if this call applied the epoch.

        Raises:
            SinkError: The query is new to a sink that has data, a group of workers has written to
                it, epochs before this one are missing, the epoch is replayed with other rows, the
                job has changed, or an item was lost.
        """
        epochs = {message.epoch for message in self.messages}
        (epoch,) = epochs if len(epochs) == 1 else (None,)
        if epoch is None or epoch.batch_id != batch_id:
            raise SinkError(f"the tasks worked on {epochs}, but Spark commits epoch {batch_id}")

        def prepare(transaction: StoreTransaction, changes: Changes) -> None:
            check_epoch(transaction, self.job, self.options, epoch, wrote)
            if replaces(transaction, self.options, epoch):
                changes.add_stored(self.options)
                transaction.clear()

        def check_replay(recorded: Mapping[str, Any] | None) -> None:
            check_rows(self.options, epoch, recorded, self._rows, self._contents)

        return self._apply_once(epoch.query_id, batch_id, prepare, check_replay, is_stream=True)

    def apply_batch(self, *, overwrite: bool) -> dict[str, Any]:
        """Apply one batch write, unless it has a txnId that the ledger has.

        Args:
            overwrite: Delete the sink's earlier results first.

        Returns:
            The summary in the ledger, with `applied`: True if this call applied the write.

        Raises:
            SinkError: A group of workers has written to the sink; or a stream, and `sinkId` was not
                given; or it was written with another number of shards; or a result is outside the
                time buckets that are replaced; or an item was lost.
        """

        def prepare(transaction: StoreTransaction, changes: Changes) -> None:
            check_batch(transaction, self.job, self.options, overwrite=overwrite)
            if overwrite:
                changes.add_stored(self.options)
                transaction.clear()
            if self.options.replaced is not None:
                replaced = self.options.replaced
                self._warn_of_running_buckets(transaction, replaced.stop)
                changes.add_stored(self.options)
                kept = (BadRows, ChangedKeys)
                transaction.delete(replaced.stop, since=replaced.start, keep=kept)

        def check_replay(recorded: Mapping[str, Any] | None) -> None:
            self._check_replaced(recorded)
            self.warn_of_other_rows(recorded)

        txn_id = self.options.txn_id
        query_id = f"{BATCH}{uuid.uuid4() if txn_id is None else txn_id}"
        return self._apply_once(query_id, 0, prepare, check_replay, marked=txn_id is not None)

    def _warn_of_running_buckets(self, transaction: StoreTransaction, end: int) -> None:
        """Log a warning if buckets are replaced that a stream still adds to."""
        final = final_before(transaction.summaries)
        if final is not None and end > final:
            _log.warning(
                "sink %s: `replace` ends at %d, and the buckets from %d on are not final: rows "
                "that the batch has read and the stream reads later count twice, and rows that the "
                "stream has committed since the batch was read are lost; replace final buckets, or "
                "stop the stream meanwhile",
                self.options.sink_id,
                end,
                final,
            )

    def _check_replaced(self, recorded: Mapping[str, Any] | None) -> None:
        """Check that an applied batch write replaced the same time buckets.

        Args:
            recorded: Its summary in the ledger; None if that is no longer kept.

        Raises:
            SinkError: It replaced others.
        """
        if recorded is None:
            return
        before, now = recorded.get("replaced"), _interval(self.options)
        if before != now:
            raise SinkError(
                f"the write with txnId {self.options.txn_id!r} was applied and has replaced "
                f"{before or 'nothing'}, and comes again to replace {now or 'nothing'}: give it "
                "another txnId"
            )

    def _apply_once(
        self,
        query_id: str,
        batch_id: int,
        prepare: "Callable[[StoreTransaction, Changes], None]",
        check_replay: Callable[[Mapping[str, Any] | None], None],
        *,
        marked: bool = True,
        is_stream: bool = False,
    ) -> dict[str, Any]:
        """Apply an epoch in one transaction, unless the ledger has it, with retries."""
        sink_id = self.options.sink_id
        attempts = 0

        def attempt() -> dict[str, Any]:
            nonlocal attempts
            attempts += 1
            repeated: dict[str, Any] = {}

            def unstored(transaction: StoreTransaction, last: int | None) -> _BeforeMerge | None:
                applied = last is not None and batch_id <= last
                if applied or attempts > 1:
                    recorded = _recorded_summary(transaction, query_id, batch_id)
                    # A write without a mark may be in the ledger, too: the store may have become
                    # unavailable just after it committed.
                    if applied or recorded is not None:
                        check_replay(recorded)
                        self._log_repetition(query_id, batch_id, last)
                        repeated.update(recorded or {}, applied=not applied)
                        return None
                # Read first: the totals continue when `prepare` deletes the results.
                totals = latest_totals(transaction.summaries)
                changes = Changes(self.job, transaction.summaries)
                prepare(transaction, changes)
                self._describe(transaction)
                final = FinalBuckets(transaction, self.job.watermark, is_stream=is_stream)
                return _BeforeMerge(totals, changes, final)

            def merge(transaction: StoreTransaction, before: _BeforeMerge) -> dict[str, Any]:
                merged = self._merge(transaction, query_id, batch_id, before, marked=marked)
                return with_totals(merged, before.totals) | before.changes.save(transaction)

            summary = write_once(
                self.job.store,
                sink_id,
                query_id,
                batch_id,
                unstored=unstored,
                merge=merge,
                marked=marked,
            )
            if summary is None:
                return repeated
            drops = self.job.watermark is not None and self.job.watermark.late == "drop"
            loses = summary["bad_rows"] or (summary["late"] and drops)
            level = logging.WARNING if loses else logging.INFO
            _log.log(level, "sink %s: %s", sink_id, log_line(query_id, summary))
            return {**summary, "applied": True}

        return with_retries(self.job.store_retry, f"the commit of sink {sink_id!r}", attempt)

    def _describe(self, transaction: StoreTransaction) -> None:
        """Store the fingerprint of the job; after `prepare`, which may have deleted another."""
        before = transaction.description()
        now = check_job(before, self.job, self.options)
        if now != before:
            transaction.describe(now)

    @property
    def _rows(self) -> int:
        return sum(message.summary.rows for message in self.messages)

    @property
    def _contents(self) -> Contents | None:
        return epoch_contents([message.summary for message in self.messages])

    def _log_repetition(self, query_id: str, batch_id: int, last: int | None) -> None:
        sink_id = self.options.sink_id
        _log.info("sink %s: epoch %d of query %s is applied already", sink_id, batch_id, query_id)
        if last is not None and last > batch_id:  # a replay is of the last epoch
            _log.warning(
                "sink %s: epoch %d of query %s is skipped, and the store has epochs up to %d: the "
                "checkpoint is an older copy, or another query continues a copy of it. What the "
                "rows contained is the same, or not known any more; if the rows are others, they "
                "are lost",
                sink_id,
                batch_id,
                query_id,
                last,
            )

    def warn_of_other_rows(self, recorded: Mapping[str, Any] | None) -> None:
        """Log a warning if a batch write is skipped although its rows have changed.

        Args:
            recorded: Its summary in the ledger; None if that is no longer kept.
        """
        if recorded is None:
            return
        if recorded.get("rows", self._rows) == self._rows and differ(
            recorded.get("contents"), self._contents
        ):
            _log.warning(
                "sink %s: the write with txnId %r was applied with other rows and comes again with "
                "as many, which are left out: give other rows another txnId",
                self.options.sink_id,
                self.options.txn_id,
            )
        if recorded.get("rows", self._rows) != self._rows:
            _log.warning(
                "sink %s: the write with txnId %r was applied with %s and comes again with "
                "%d, which are left out: give other rows another txnId",
                self.options.sink_id,
                self.options.txn_id,
                counted(recorded["rows"], "row"),
                self._rows,
            )

    def check_shards(self) -> None:
        """Check, before any shard is written, that the store has the same number of shards.

        Raises:
            SinkError: The store has another number of shards, or results of another kind of job.
        """

        def check() -> None:
            with self.job.store.transaction(self.options.sink_id) as transaction:
                before = transaction.description()
                check_owner(self.options, before)
                check_shards(self.options, before)

        with_retries(self.job.store_retry, f"opening {self.job.store!r}", check)

    @infrequent_gc()
    def _merge(
        self,
        transaction: StoreTransaction,
        query_id: str,
        batch_id: int,
        before: "_BeforeMerge",
        *,
        marked: bool,
    ) -> dict[str, Any]:
        """Merge all partials into the store, and return the epoch's entry for the ledger."""
        meter = CpuMeter()
        commit_bytes = sum(message.size for message in self.messages)
        check_size(commit_bytes, self.options)

        merged = merge_partials(
            self.job,
            f"{self.job.name}-{query_id}-{batch_id}",
            self.messages,
            Destination(transaction, before.final, before.changes, self.options.replaced),
        )
        replaced = _interval(self.options)
        attempts = [message.summary for message in self.messages]
        summary = epoch_summary(
            batch_id,
            attempts,
            l1=self.options.l1,
            commit_bytes=commit_bytes,
            l2=merged.l2,
            persist=merged.persist,
            commit_cpu=meter.read(merged.drain_cpu_s),
            guarantee="exactly-once" if marked else "at-least-once",
            committed_at=time.time(),
        ) | before.final.summary(attempts)
        return summary if replaced is None else {**summary, "replaced": replaced}


class _BeforeMerge(NamedTuple):
    """The state before an epoch is merged: the totals, the changes, the final buckets."""

    totals: SinkTotals
    changes: "Changes"
    final: "FinalBuckets"


def _interval(options: SinkOptions) -> list[int] | None:
    """Return the time buckets that a write replaces, for JSON: the first, and their end."""
    return None if options.replaced is None else [options.replaced.start, options.replaced.stop]


def _recorded_summary(
    transaction: StoreTransaction, query_id: str, batch_id: int
) -> Mapping[str, Any] | None:
    """Return an epoch's entry in the ledger; None if it has none, or no longer keeps it."""
    summaries = {
        (epoch.query_id, epoch.batch_id): epoch.summary for epoch in transaction.summaries()
    }
    return summaries.get((query_id, batch_id))


# The merge of the partials of all tasks of an epoch into the store.


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
    final: "FinalBuckets"
    changes: "Changes"
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


# The guards that a write must pass: as far as possible before L1 runs, and in the commit.
#
# The commit repeats them in its transaction, because another process may have written since.


def check_epoch(
    transaction: StoreTransaction,
    job: AggregationJob,
    options: SinkOptions,
    epoch: EpochId | None,
    wrote: int | None = None,
) -> None:
    """Check that an epoch may be committed, if the ledger does not have it.

    Args:
        transaction: A transaction of the sink.
        job: The job.
        options: The options of the write.
        epoch: The epoch; None if it is an epoch of a stream that is not known yet.
        wrote: See `check_gap`.

    Raises:
        SinkError: A guard refuses it.
    """
    before = transaction.description()
    check_owner(options, before)
    if epoch is None:
        if options.on_new_query != "replace":
            check_job(before, job, options)
        return
    last = transaction.last_batch(epoch.query_id)
    if last is not None and epoch.batch_id <= last:
        return
    if before is None:
        check_not_in_shards(job, options)
    check_gap(options, epoch, last, wrote)
    is_new = last is None and bool(transaction.known_queries())
    if is_new:
        check_query(options, epoch.query_id)
    if not (is_new and options.on_new_query == "replace"):
        check_job(before, job, options)


def replaces(transaction: StoreTransaction, options: SinkOptions, epoch: EpochId) -> bool:
    """Return whether an epoch deletes what others have written to the sink."""
    return (
        options.on_new_query == "replace"
        and transaction.last_batch(epoch.query_id) is None
        and bool(transaction.known_queries())
    )


def check_batch(
    transaction: StoreTransaction, job: AggregationJob, options: SinkOptions, *, overwrite: bool
) -> None:
    """Check that a batch write may be committed, if the ledger does not have it.

    Raises:
        SinkError: A guard refuses it.
    """
    before = transaction.description()
    check_owner(options, before)
    check_no_stream(options, transaction.known_queries())
    check_shards(options, before)
    if before is None:
        check_not_in_shards(job, options)
    if not overwrite:
        check_job(before, job, options)


def check_not_in_shards(job: AggregationJob, options: SinkOptions) -> None:
    """Check that a sink which is new without shards was not written with shards, or vice versa.

    Each shard is a separate sink, so the sink itself is new in either case.

    Raises:
        SinkError: It was written the other way.
    """
    summaries = getattr(job.store, "summaries", None)
    if summaries is None or isinstance(job.store, SqliteStore):  # which takes no shards
        return
    if options.shards is None:
        if summaries(f"{options.sink_id}/0", 1):
            raise SinkError(
                f"sink {options.sink_id!r} was written with shards=..., as sink "
                f"'{options.sink_id}/0' shows, not None, and each key has its shard: keep the "
                "number, or use another sinkId"
            )
        return
    whole = replace(options, sink_id=options.sink_id.rpartition("/")[0])
    if summaries(whole.sink_id, 1):
        check_shards(whole, {"shards": None})


# Guards of a commit: the store must fit the query and the job that write to it now.
#
# Each guard names the conflict, and the option that accepts it.


BATCH = "batch:"
"""The prefix of the query ids of batch writes in the ledger."""


def check_owner(options: SinkOptions, before: Mapping[str, Any] | None) -> None:
    """Check that no other kind of job has written to the sink; no option accepts that.

    Args:
        options: With `sink_id`.
        before: The stored description of the sink; None if it is new.

    Raises:
        SinkError: A group of workers, a pipeline, or another program has written to it.
    """
    if before is None or "shards" in before:  # a fingerprint
        return
    writer = owner_text(before, "a program that is not a Spark job")
    raise SinkError(
        f"sink {options.sink_id!r} was written by {writer}: a Spark job would add to its results, "
        "or delete them. Give this job another sinkId"
    )


def check_gap(
    options: SinkOptions, epoch: EpochId, last: int | None, wrote: int | None = None
) -> None:
    """Check that the store has all earlier epochs of the query.

    Spark numbers the epochs of a query without gaps, and each of them raises the mark by one.

    Args:
        options: With `on_missing_epochs`.
        epoch: The epoch to commit.
        last: Number of the last epoch of this query in the store; None if it has none.
        wrote: Number of the epoch that the same run of the query wrote last, if that is known.

    Raises:
        SinkError: Epochs are missing, and `onMissingEpochs` is not set.
    """
    expected = 0 if last is None else last + 1
    if epoch.batch_id <= expected or options.on_missing_epochs is not None:
        return
    has = "none of this query" if last is None else f"the epochs up to {last}"
    meets = (
        f"epoch {epoch.batch_id} of query {epoch.query_id} meets a store that has {has} under sink "
        f"{options.sink_id!r}"
    )
    if wrote is not None and wrote == last:
        raise SinkError(
            f"{meets}, the last one from this run: the function of foreachBatch did not call "
            "write_epoch since, as `if not df.isEmpty(): write_epoch(...)` does. Call it for every "
            "epoch: without rows it only enters the epoch into the ledger. If no rows are missing, "
            "set option onMissingEpochs=accept for one start, to continue without these epochs"
        )
    raise SinkError(
        f"{meets}: if the store was deleted or replaced by an older copy while the checkpoint was "
        "kept, what is between would be missing; or the function of foreachBatch did not call "
        "write_epoch for each epoch, also without rows. Restore the store, or start with a new "
        "checkpoint, or set option onMissingEpochs=accept for one start, to continue without them"
    )


def check_query(options: SinkOptions, query_id: str) -> None:
    """Check that a new query may write into a sink with results of others.

    Raises:
        SinkError: `onNewQuery` is not set, or accepts another query only.
    """
    accepted = options.on_new_query
    if accepted in ("append", "replace", f"append:{query_id}"):
        return
    only = "" if accepted is None else f", and onNewQuery={accepted} accepts no other query"
    raise SinkError(
        f"query {query_id} is new, but sink {options.sink_id!r} has results of others{only}: if "
        "its checkpoint was deleted, rows would be counted twice. Restore the checkpoint, or set "
        f"option onNewQuery to 'append:{query_id}' (add to them; it may stay set, as it accepts "
        "this query only), 'append' (add to them) or 'replace' (delete them first), or use another "
        "sinkId"
    )


def check_rows(
    options: SinkOptions,
    epoch: EpochId,
    recorded: Mapping[str, Any] | None,
    rows: int,
    contents: Contents | None,
) -> None:
    """Check that a replayed epoch has the same number of rows, and the same rows.

    Args:
        options: With `on_changed_epoch`.
        epoch: The epoch.
        recorded: Its summary in the ledger; None if it is no longer kept. An entry of an earlier
            version has only the number of rows.
        rows: The number of its rows now.
        contents: The contents of the rows; None if unknown.

    Raises:
        SinkError: The rows differ, and `onChangedEpoch` is not set.
    """
    if recorded is None:
        return
    has_as_many = recorded.get("rows", rows) == rows
    if has_as_many and not differ(recorded.get("contents"), contents):
        return
    if options.on_changed_epoch is None:
        had, again = f" with {counted(recorded['rows'], 'row')}", f"{rows:,}"
        if has_as_many:
            again = "as many others"
        if has_as_many and not rows:  # a shard does not count them
            had, again = "", "others"
        raise SinkError(
            f"epoch {epoch.batch_id} of query {epoch.query_id} is in sink {options.sink_id!r}"
            f"{had}, and comes again with {again}, so it is not a replay: another query has "
            "continued a copy of this checkpoint, or this is an older copy, or the query or its "
            "source gives other rows now. Restore checkpoint and store of the same time, or start "
            "with a new checkpoint, or set option onChangedEpoch=skip for one start, to leave out "
            "the rows of epochs that the store has. If a column has other values in each run, like "
            "uuid() or monotonically_increasing_id(), leave it out of AggregationJob(columns=...)"
        )


def check_no_stream(options: SinkOptions, known_queries: Iterable[str]) -> None:
    """Check that a batch write does not reach the results of a stream by the default sink id.

    Args:
        options: With `is_named`.
        known_queries: The queries that have written to the sink.

    Raises:
        SinkError: A stream has written to the sink, and `sinkId` was not given.
    """
    streams = sorted(
        query for query in known_queries if query != UNMARKED and not query.startswith(BATCH)
    )
    if streams and not options.is_named:
        raise SinkError(
            f"sink {options.sink_id!r} has the results of stream {streams[0]}, and this batch "
            "write has no sinkId, so that it meets them by the name of its job: it would add to "
            "them, or overwrite them. Give it a sinkId: its own, or this one if that is meant"
        )


def check_shards(options: SinkOptions, before: Mapping[str, Any] | None) -> None:
    """Check that the sink was written with the same number of shards.

    Args:
        options: With `shards`.
        before: The stored fingerprint of the job; None if the sink is new.

    Raises:
        SinkError: The number of shards differs.
    """
    if before is not None and before["shards"] != options.shards:
        raise SinkError(
            f"sink {options.sink_id!r} was written with shards={before['shards']}, not "
            f"{options.shards}, and each key has its shard: keep the number, or use another sinkId"
        )


def check_job(
    before: Mapping[str, Any] | None, job: AggregationJob, options: SinkOptions
) -> Mapping[str, Any]:
    """Check that the job may write to the sink, and return the fingerprint to store.

    Args:
        before: The stored fingerprint; None if the sink is new.
        job: The job.
        options: With `on_job_change` and `shards`.

    Raises:
        SinkError: The job has changed and `onJobChange` is not set, or no store could merge the
            results.
    """
    now = fingerprint(job, options.shards)
    if before is None or before == now:
        return now
    check_shards(options, before)
    if incompatible := incompatible_metrics(before, now):
        raise SinkError(
            f"sink {options.sink_id!r} has other columns: {'; '.join(incompatible)}. What is "
            "stored cannot be merged with that: give the metric another name, or this job another "
            "sinkId"
        )
    changes = differences(before, now)
    if changes and options.on_job_change is None:
        raise SinkError(
            f"sink {options.sink_id!r} was written by another job: {'; '.join(changes)}. Give "
            "this job another sinkId, or set option onJobChange=accept: what is stored stays as it "
            "is, and the change holds for what is added"
        )
    return remembered(before, now)


# The fingerprint of a job: what its numbers mean, so that a changed job does not mix them up.
#
# The store keeps the fingerprint of the job that wrote last.


def fingerprint(job: AggregationJob, shards: int | None) -> dict[str, Any]:
    """Describe what the numbers of a job mean, as far as it is declared.

    Functions are not compared.

    Args:
        job: The job.
        shards: See `SinkOptions`.

    Returns:
        `metrics`: table, columns and limit by name; `aggregations`: keys, window and measures of
        each; `shards`. It can be written as JSON.
    """
    metrics = {metric.name: layout_of(metric) for metric in job.metrics}
    aggregations = [_aggregation(step) for step in job.arrow if isinstance(step, ArrowAggregation)]
    return {"metrics": metrics, "aggregations": aggregations, "shards": shards}


def _aggregation(step: ArrowAggregation) -> str:
    if step.null_keys is None:
        return step.aggregation.text
    rule = step.null_keys if step.null_keys == "skip" else sorted(dict(step.null_keys).items())
    return f"{step.aggregation.text} with null_keys {rule}"


def remembered(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint to store: what functions leave undeclared stays as it was.

    Otherwise a job of functions would erase the aggregations of the job before it, and the job
    after it could declare others.

    Args:
        before: The stored fingerprint; None if the sink is new.
        now: The fingerprint of the job.
    """
    if before is None or now["aggregations"]:
        return dict(now)
    return {**now, "aggregations": before["aggregations"]}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the differences between two fingerprints; empty if there are none."""
    return [
        *_metric_differences(before["metrics"], now["metrics"]),
        *_aggregation_differences(before["aggregations"], now["aggregations"]),
    ]


def incompatible_metrics(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the metrics whose table or columns have changed, which no store could merge."""
    pairs = (
        (name, metric, now["metrics"].get(name, metric))
        for name, metric in sorted(before["metrics"].items())
    )
    return [
        _change(name, old, new)
        for name, old, new in pairs
        if {**old, "limit": 0} != {**new, "limit": 0}
    ]


def _metric_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if name not in before:
            yield f"metric {name!r} is new"
        elif name not in now:
            yield f"metric {name!r} is gone"
        elif before[name] != now[name]:
            yield _change(name, before[name], now[name])


def _aggregation_differences(before: list[str], now: list[str]) -> Iterator[str]:
    # Switching the same metrics between functions only and declarations only does not change their
    # meaning.
    if not before or not now:
        return
    old, new = Counter(before), Counter(now)
    gone, added = list(old - new), list(new - old)
    if gone and added:
        yield f"an aggregation was {gone[0]} and is {added[0]}"
    elif gone or added:
        yield f"an aggregation is {'gone' if gone else 'new'}: {(gone or added)[0]}"


def _change(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return f"metric {name!r} was {layout_text(before)} and is {layout_text(now)}"
