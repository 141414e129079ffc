"""The commit: L2 merges the partials of all attempts into the store, in one transaction per epoch."""

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
from batchqueue.spark.commit.conflicts import admit_job, admit_query, check_gap, check_shards
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
    """Partial aggregates of one epoch, or of one of its tasks."""

    @property
    def epoch(self) -> EpochId | None:
        """None in a batch write."""

    @property
    def summary(self) -> AttemptSummary:
        """How they were made."""
        ...

    @property
    def size(self) -> int:
        """Bytes that they took on the way."""
        ...

    def metrics(self, job: AggregationJob) -> Iterable[Metrics]:
        """Return them as objects."""
        ...


@dataclass(frozen=True)
class Commit:
    """One commit: what Spark found to be the results of the tasks that count.

    Attributes:
        job: What is written.
        options: How.
        messages: One per task.
    """

    job: AggregationJob
    options: SinkOptions
    messages: Sequence[Partials]

    def apply_epoch(self, batch_id: int) -> dict[str, Any]:
        """Apply one epoch of a stream, unless the ledger has it.

        A driver that dies between this commit and Spark's own note of it replays the epoch, under
        the same ids.

        Returns:
            The summary in the ledger, with `applied`: whether it was done now.

        Raises:
            SinkError: The query is new to a sink that has data, epochs before this one are missing,
                the job has changed, or an item was lost.
        """
        epochs = {message.epoch for message in self.messages}
        (epoch,) = epochs if len(epochs) == 1 else (None,)
        if epoch is None or epoch.batch_id != batch_id:
            raise SinkError(f"the tasks worked for {epochs}, but Spark commits epoch {batch_id}")

        def prepare(transaction: StoreTransaction) -> None:
            last = transaction.last_batch(epoch.query_id)
            check_gap(self.options, epoch, last)
            if last is None and transaction.known_queries():
                admit_query(transaction, self.options, epoch.query_id)

        return self._once(epoch.query_id, batch_id, prepare)

    def apply_batch(self, *, overwrite: bool) -> dict[str, Any]:
        """Apply one batch write; if it has a txnId, unless the ledger has that.

        Args:
            overwrite: Delete first what the sink wrote before.

        Returns:
            The summary in the ledger, with `applied`: whether it was done now.

        Raises:
            SinkError: An item was lost.
        """

        def prepare(transaction: StoreTransaction) -> None:
            if overwrite:
                transaction.clear()

        txn_id = self.options.txn_id
        query_id = f"batch:{uuid.uuid4() if txn_id is None else txn_id}"
        return self._once(query_id, 0, prepare, marked=txn_id is not None)

    def _once(
        self,
        query_id: str,
        batch_id: int,
        prepare: Callable[[StoreTransaction], None],
        *,
        marked: bool = True,
    ) -> dict[str, Any]:
        """Apply an epoch in a transaction, unless the ledger has it, and try again while the store is away."""
        sink_id = self.options.sink_id
        tries = 0

        def run() -> dict[str, Any]:
            nonlocal tries
            tries += 1
            with self.job.store.transaction(sink_id) as transaction:
                applied = transaction.applied(query_id, batch_id)
                if applied or tries > 1:
                    kept = {one[:2]: one.summary for one in transaction.summaries()}.get(
                        (query_id, batch_id)
                    )
                    # What has no mark may be there, too: the store may have gone away just after it
                    # had committed.
                    if applied or kept is not None:
                        self._log_repetition(query_id, batch_id, kept)
                        return {**(kept or {}), "applied": not applied}
                before = latest_totals(
                    transaction.summaries
                )  # they go on when `prepare` deletes the rest
                prepare(transaction)
                admit_job(transaction, self.job, self.options)
                summary = with_totals(
                    self._apply(transaction, query_id, batch_id, marked=marked), before
                )
                transaction.record(query_id, batch_id, summary, marked=marked)
            _log.info("sink %s: %s", sink_id, log_line(query_id, summary))
            return {**summary, "applied": True}

        return with_retries(self.job.store_retry, f"the commit of sink {sink_id!r}", run)

    def _log_repetition(self, query_id: str, batch_id: int, kept: Mapping[str, Any] | None) -> None:
        sink_id, rows = self.options.sink_id, sum(message.summary.rows for message in self.messages)
        _log.info("sink %s: epoch %d of query %s is applied already", sink_id, batch_id, query_id)
        if kept is not None and kept.get("rows", rows) != rows:
            _log.warning(
                "sink %s: epoch %d of query %s was applied with %d rows and comes again with %d, "
                "which are left out: its source gave other rows, its checkpoint is an older copy, "
                "or one epoch was written twice",
                sink_id,
                batch_id,
                query_id,
                kept["rows"],
                rows,
            )

    def check_shards(self) -> None:
        """Check that the store has as many shards, before any of them is written.

        Raises:
            SinkError: The store has another number of shards.
        """

        def check() -> None:
            with self.job.store.transaction(self.options.sink_id) as transaction:
                check_shards(self.options, transaction.description())

        with_retries(self.job.store_retry, f"opening {self.job.store!r}", check)

    @infrequent_gc()
    def _apply(
        self, transaction: StoreTransaction, query_id: str, batch_id: int, *, marked: bool
    ) -> dict[str, Any]:
        meter = CpuMeter()
        commit_bytes = sum(message.size for message in self.messages)
        check_size(commit_bytes, self.options)
        name = f"{self.job.name}-{query_id}-{batch_id}"
        # L2 ends first, so what its workers hand on at close still finds the writer.
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
