"""The commit: L2 merges the partials of all tasks into the store, one transaction per epoch."""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from batchqueue import SupportsConsume
from batchqueue.aggregation import L2PersistenceWorker, Metrics
from batchqueue.outputs import StoreTransaction, StoreWriter
from batchqueue.presets import sql_batch
from batchqueue.spark.commit.conflicts import (
    admit_job,
    admit_query,
    check_gap,
    check_owner,
    check_shards,
)
from batchqueue.spark.commit.epoch_summary import epoch_summary, log_line
from batchqueue.spark.commit.retries import with_retries
from batchqueue.spark.commit.totals import latest_totals, with_totals
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.stage.process import CpuMeter, infrequent_gc
from batchqueue.spark.stage.stage import Stage
from batchqueue.spark.task.context import EpochId
from batchqueue.spark.task.message import AttemptSummary, check_size

_log = logging.getLogger("batchqueue.spark")


class Partials(Protocol):
    """The partials of one epoch, or of one of its tasks, on their way to the commit."""

    @property
    def epoch(self) -> EpochId | None:
        """The micro-batch; None in a batch write."""

    @property
    def summary(self) -> AttemptSummary:
        """How they were made."""
        ...

    @property
    def size(self) -> int:
        """Bytes that they take in the message."""
        ...

    def metrics(self, job: AggregationJob) -> Iterable[Metrics]:
        """Return them as metric objects."""
        ...


@dataclass(frozen=True)
class Commit:
    """One commit of the results that Spark accepted.

    Attributes:
        job: The job whose metrics are written.
        options: The options of the write.
        messages: One for each task, from its successful attempt.
    """

    job: AggregationJob
    options: SinkOptions
    messages: Sequence[Partials]

    def apply_epoch(self, batch_id: int) -> dict[str, Any]:
        """Apply one epoch of a stream, unless the ledger has it.

        A driver that dies between this commit and Spark's own record of it replays the epoch, under
        the same ids.

        Returns:
            The summary in the ledger, with `applied`: True if this call applied the epoch.

        Raises:
            SinkError: The query is new to a sink that has data, a group of workers has written to
                it, epochs before this one are missing, the job has changed, or an item was lost.
        """
        epochs = {message.epoch for message in self.messages}
        (epoch,) = epochs if len(epochs) == 1 else (None,)
        if epoch is None or epoch.batch_id != batch_id:
            raise SinkError(f"the tasks worked on {epochs}, but Spark commits epoch {batch_id}")

        def prepare(transaction: StoreTransaction) -> None:
            last = transaction.last_batch(epoch.query_id)
            check_gap(self.options, epoch, last)
            if last is None and transaction.known_queries():
                admit_query(transaction, self.options, epoch.query_id)

        return self._apply_once(epoch.query_id, batch_id, prepare)

    def apply_batch(self, *, overwrite: bool) -> dict[str, Any]:
        """Apply one batch write, unless it has a txnId that the ledger has.

        Args:
            overwrite: Delete the sink's earlier results first.

        Returns:
            The summary in the ledger, with `applied`: True if this call applied the write.

        Raises:
            SinkError: A group of workers has written to the sink, or an item was lost.
        """

        def prepare(transaction: StoreTransaction) -> None:
            if overwrite:
                transaction.clear()

        txn_id = self.options.txn_id
        query_id = f"batch:{uuid.uuid4() if txn_id is None else txn_id}"
        return self._apply_once(query_id, 0, prepare, marked=txn_id is not None)

    def _apply_once(
        self,
        query_id: str,
        batch_id: int,
        prepare: Callable[[StoreTransaction], None],
        *,
        marked: bool = True,
    ) -> dict[str, Any]:
        """Apply an epoch in one transaction, unless the ledger has it, with retries."""
        sink_id = self.options.sink_id
        attempts = 0

        def attempt() -> dict[str, Any]:
            nonlocal attempts
            attempts += 1
            with self.job.store.transaction(sink_id) as transaction:
                applied = transaction.applied(query_id, batch_id)
                if applied or attempts > 1:
                    recorded = _recorded_summary(transaction, query_id, batch_id)
                    # A write without a mark may be there as well: the store may have gone away just
                    # after it committed.
                    if applied or recorded is not None:
                        self._log_repetition(query_id, batch_id, recorded)
                        return {**(recorded or {}), "applied": not applied}
                check_owner(self.options, transaction.description())
                # Read first: the totals continue when `prepare` deletes the results.
                before = latest_totals(transaction.summaries)
                prepare(transaction)
                admit_job(transaction, self.job, self.options)
                summary = with_totals(
                    self._merge(transaction, query_id, batch_id, marked=marked), before
                )
                transaction.record(query_id, batch_id, summary, marked=marked)
            _log.info("sink %s: %s", sink_id, log_line(query_id, summary))
            return {**summary, "applied": True}

        return with_retries(self.job.store_retry, f"the commit of sink {sink_id!r}", attempt)

    def _log_repetition(
        self, query_id: str, batch_id: int, recorded: Mapping[str, Any] | None
    ) -> None:
        sink_id, rows = self.options.sink_id, sum(message.summary.rows for message in self.messages)
        _log.info("sink %s: epoch %d of query %s is applied already", sink_id, batch_id, query_id)
        if recorded is not None and recorded.get("rows", rows) != rows:
            _log.warning(
                "sink %s: epoch %d of query %s was applied with %d rows and comes again with %d, "
                "which are left out: its source gave other rows, its checkpoint is an older copy, "
                "or one epoch was written twice",
                sink_id,
                batch_id,
                query_id,
                recorded["rows"],
                rows,
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
        self, transaction: StoreTransaction, query_id: str, batch_id: int, *, marked: bool
    ) -> dict[str, Any]:
        """Merge all partials into the store, and return the epoch's entry for the ledger."""
        meter = CpuMeter()
        commit_bytes = sum(message.size for message in self.messages)
        check_size(commit_bytes, self.options)
        name = f"{self.job.name}-{query_id}-{batch_id}"
        # The L2 stage ends first, so the store writer still takes what its workers emit at close.
        with Stage(
            f"{name}-persist", sql_batch(lambda: StoreWriter(transaction), writers=1)
        ) as persist:
            workers: dict[type | str, SupportsConsume[Any]] = {
                metric_type: L2PersistenceWorker(persist.produce_many)
                for metric_type in self.job.metrics
            }
            with Stage(f"{name}-l2", self.job.l2, workers) as l2:
                for message in self.messages:
                    l2.produce_many(message.metrics(self.job))
        return epoch_summary(
            batch_id,
            [message.summary for message in self.messages],
            commit_bytes=commit_bytes,
            l2=l2.summary,
            persist=persist.summary,
            commit_cpu=meter.read(l2.drain_cpu_s + persist.drain_cpu_s),
            guarantee="exactly-once" if marked else "at-least-once",
            committed_at=time.time(),
        )


def _recorded_summary(
    transaction: StoreTransaction, query_id: str, batch_id: int
) -> Mapping[str, Any] | None:
    """Return an epoch's entry in the ledger; None if it has none, or no longer has it."""
    summaries = {
        (epoch.query_id, epoch.batch_id): epoch.summary for epoch in transaction.summaries()
    }
    return summaries.get((query_id, batch_id))
