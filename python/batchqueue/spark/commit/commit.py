"""The commit: L2 merges the partials of all tasks into the store, one transaction per epoch."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.words import counted
from batchqueue.outputs.base import BadRows, ChangedKeys
from batchqueue.outputs.ledger import write_once
from batchqueue.outputs.store import StoreTransaction, final_before
from batchqueue.spark.commit.guards import (
    BATCH,
    check_batch,
    check_epoch,
    check_job,
    check_not_in_shards,
    check_owner,
    check_rows,
    check_shards,
    replaces,
)
from batchqueue.spark.commit.merging import (
    Changes,
    Destination,
    FinalBuckets,
    Partials,
    merge_partials,
)
from batchqueue.spark.commit.summary import (
    SinkTotals,
    epoch_contents,
    epoch_summary,
    latest_totals,
    log_line,
    with_retries,
    with_totals,
)
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.stage import CpuMeter, infrequent_gc
from batchqueue.spark.task.contents import Contents, differ
from batchqueue.spark.task.message import EpochId, check_size

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
    messages: Sequence[Partials]

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
        prepare: Callable[[StoreTransaction, Changes], None],
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
    changes: Changes
    final: FinalBuckets


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
