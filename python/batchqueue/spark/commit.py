"""The commit: L2 merges the partials of all attempts into the store, in one transaction per epoch."""

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from batchqueue import SupportsConsume
from batchqueue.aggregation import L2PersistenceWorker, Metrics
from batchqueue.outputs import StoreTransaction, StoreWriter
from batchqueue.presets import sql_batch
from batchqueue.spark.attempt import EpochId, check_size
from batchqueue.spark.cpu import CpuMeter
from batchqueue.spark.description import describe, differences
from batchqueue.spark.errors import SinkError
from batchqueue.spark.garbage import rare_collections
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.retries import with_retries
from batchqueue.spark.stage import Stage
from batchqueue.spark.summary import AttemptSummary, epoch_summary

T = TypeVar("T")

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

    def epoch(self, batch_id: int) -> None:
        """Apply one epoch of a stream, unless the ledger has it.

        A driver that dies between this commit and Spark's own note of it replays the epoch, under the same
        ids.

        Raises:
            SinkError: The query is new to a sink that has data, or an item was lost.
        """
        if not self.messages:
            return  # no tasks, so no rows
        epochs = {message.epoch for message in self.messages}
        (epoch,) = epochs if len(epochs) == 1 else (None,)
        if epoch is None or epoch.batch_id != batch_id:
            raise SinkError(f"the tasks worked for {epochs}, but Spark commits epoch {batch_id}")
        query_id = epoch.query_id

        def apply(transaction: StoreTransaction) -> None:
            if transaction.applied(query_id, batch_id):
                _log.info(
                    "sink %s: epoch %d of query %s is applied already",
                    self.options.sink_id,
                    batch_id,
                    query_id,
                )
                return
            last = transaction.last_batch(query_id)
            if last is None and transaction.known_queries():
                self._meet_new_query(transaction, query_id)
            elif batch_id > (-1 if last is None else last) + 1:
                self._meet_gap(query_id, batch_id, last)
            self._apply(transaction, query_id, batch_id, marked=True)

        self._in_transaction(apply)

    def batch(self, *, overwrite: bool) -> dict[str, Any]:
        """Apply one batch write; if it has a txnId, unless the ledger has that.

        Args:
            overwrite: Delete first what the sink wrote before.

        Returns:
            The summary in the ledger, with `applied`: whether it was done now.

        Raises:
            SinkError: An item was lost.
        """
        query_id = f"batch:{uuid.uuid4() if self.options.txn_id is None else self.options.txn_id}"

        def apply(transaction: StoreTransaction) -> dict[str, Any]:
            if transaction.applied(query_id, 0):
                _log.info("sink %s: %s is applied already", self.options.sink_id, query_id)
                earlier = [epoch.summary for epoch in transaction.summaries() if epoch.query_id == query_id]
                return {**(earlier[0] if earlier else {}), "applied": False}
            if overwrite:
                transaction.clear()
            marked = self.options.txn_id is not None
            return {**self._apply(transaction, query_id, 0, marked=marked), "applied": True}

        return self._in_transaction(apply)

    def _in_transaction(self, action: Callable[[StoreTransaction], T]) -> T:
        def run() -> T:
            with self.job.store.transaction(self.options.sink_id) as transaction:
                return action(transaction)

        return with_retries(self.job.store_retry, f"the commit of sink {self.options.sink_id!r}", run)

    def _meet_new_query(self, transaction: StoreTransaction, query_id: str) -> None:
        if self.options.on_new_query is None:
            raise SinkError(
                f"query {query_id} is new, but sink {self.options.sink_id!r} has results of others: if its "
                "checkpoint was deleted, rows would be counted twice. Restore the checkpoint, or set option "
                "onNewQuery to 'append' (add to them) or 'replace' (delete them first), or use another sinkId"
            )
        if self.options.on_new_query == "replace":
            transaction.clear()

    def _meet_gap(self, query_id: str, batch_id: int, last: int | None) -> None:
        """Spark numbers the epochs of a query without gaps, and each of them raises the mark by one."""
        if self.options.on_new_query is None:
            has = "none of this query" if last is None else f"the epochs up to {last}"
            raise SinkError(
                f"epoch {batch_id} of query {query_id} meets a store that has {has} under sink "
                f"{self.options.sink_id!r}: if the store was deleted or replaced by an older copy while the "
                "checkpoint was kept, what is between would be missing. Restore the store, or start with a new "
                "checkpoint, or set option onNewQuery=append to go on without"
            )

    def _meet_changed_job(self, transaction: StoreTransaction) -> None:
        before, now = transaction.description(), describe(self.job)
        if before == now:
            return
        changes = differences(before, now) if before is not None else []
        if changes and self.options.on_job_change is None:
            raise SinkError(
                f"sink {self.options.sink_id!r} was written by another job: {'; '.join(changes)}. Give this job "
                "another sinkId, or set option onJobChange=accept: what is stored stays as it is, and the change "
                "holds for what is added"
            )
        transaction.describe(now)

    @rare_collections()
    def _apply(
        self, transaction: StoreTransaction, query_id: str, batch_id: int, *, marked: bool
    ) -> dict[str, Any]:
        self._meet_changed_job(transaction)
        meter = CpuMeter()
        commit_bytes = sum(message.size for message in self.messages)
        check_size(commit_bytes, self.options)
        name = f"{self.job.name}-{query_id}-{batch_id}"
        # L2 ends first, so what its workers hand on at close still finds the writer.
        with Stage(f"{name}-persist", sql_batch(lambda: StoreWriter(transaction), writers=1)) as persist:
            workers: dict[type | str, SupportsConsume[Any]] = {
                metric_type: L2PersistenceWorker(persist.produce_many) for metric_type in self.job.metrics
            }
            with Stage(f"{name}-l2", self.job.l2, workers) as l2:
                for message in self.messages:
                    l2.produce_many(message.metrics(self.job))
        summary = epoch_summary(
            batch_id,
            [message.summary for message in self.messages],
            commit_bytes=commit_bytes,
            l2=l2.summary,
            persist=persist.summary,
            commit_cpu=meter.read(l2.drain_cpu_s + persist.drain_cpu_s),
            guarantee="exactly-once" if marked else "at-least-once",
        )
        transaction.record(query_id, batch_id, summary, marked=marked)
        return summary
