"""Guards of a commit: the store must fit the query and the job that write to it now.

Each guard names the conflict, and the option that accepts it.
"""

from collections.abc import Mapping
from typing import Any

from batchqueue.outputs import StoreTransaction
from batchqueue.outputs.ownership import owner_text
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.fingerprint import differences, fingerprint, incompatible_metrics
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.task.context import EpochId


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


def check_gap(options: SinkOptions, epoch: EpochId, last: int | None) -> None:
    """Check that the store has all earlier epochs of the query.

    Spark numbers the epochs of a query without gaps, and each of them raises the mark by one.

    Args:
        options: With `on_missing_epochs`.
        epoch: The epoch to commit.
        last: Number of the last epoch of this query in the store; None if it has none.

    Raises:
        SinkError: Epochs are missing, and `onMissingEpochs` is not set.
    """
    expected = 0 if last is None else last + 1
    if epoch.batch_id <= expected or options.on_missing_epochs is not None:
        return
    has = "none of this query" if last is None else f"the epochs up to {last}"
    raise SinkError(
        f"epoch {epoch.batch_id} of query {epoch.query_id} meets a store that has {has} under sink "
        f"{options.sink_id!r}: if the store was deleted or replaced by an older copy while the "
        "checkpoint was kept, what is between would be missing. Restore the store, or start with a "
        "new checkpoint, or set option onMissingEpochs=accept for one start, to continue without "
        "them"
    )


def admit_query(transaction: StoreTransaction, options: SinkOptions, query_id: str) -> None:
    """Handle a new query that meets a sink with results of others, as `onNewQuery` says.

    Raises:
        SinkError: `onNewQuery` is not set.
    """
    if options.on_new_query is None:
        raise SinkError(
            f"query {query_id} is new, but sink {options.sink_id!r} has results of others: if its "
            "checkpoint was deleted, rows would be counted twice. Restore the checkpoint, or set "
            "option onNewQuery to 'append' (add to them) or 'replace' (delete them first), or use "
            "another sinkId"
        )
    if options.on_new_query == "replace":
        transaction.clear()


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


def admit_job(transaction: StoreTransaction, job: AggregationJob, options: SinkOptions) -> None:
    """Handle a job that has changed as `onJobChange` says, and store the job's fingerprint.

    Raises:
        SinkError: The job has changed and `onJobChange` is not set, or no store could merge the
            results.
    """
    before, now = transaction.description(), fingerprint(job, options.shards)
    if before == now:
        return
    check_shards(options, before)
    changes = differences(before, now) if before is not None else []
    if before is not None and (incompatible := incompatible_metrics(before, now)):
        raise SinkError(
            f"sink {options.sink_id!r} has other columns: {'; '.join(incompatible)}. What is "
            "stored cannot be merged with that: give the metric another name, or this job another "
            "sinkId"
        )
    if changes and options.on_job_change is None:
        raise SinkError(
            f"sink {options.sink_id!r} was written by another job: {'; '.join(changes)}. Give "
            "this job another sinkId, or set option onJobChange=accept: what is stored stays as it "
            "is, and the change holds for what is added"
        )
    transaction.describe(now)
