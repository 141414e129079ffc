"""Guards of a commit: what it finds in the store must agree with the query and the job that come.

Each guard names the difference, and the option that accepts it.
"""

from collections.abc import Mapping
from typing import Any

from batchqueue.outputs import StoreTransaction
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.fingerprint import describe, differences, incompatible_metrics
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.task.context import EpochId


def check_gap(options: SinkOptions, epoch: EpochId, last: int | None) -> None:
    """Check that the store has all epochs before this one.

    Spark numbers the epochs of a query without gaps, and each of them raises the mark by one.

    Args:
        options: With `on_missing_epochs`.
        epoch: The epoch to commit.
        last: Number of the last epoch that the store has of this query; None: it has none.

    Raises:
        SinkError: Epochs are missing, and `onMissingEpochs` does not accept that.
    """
    expected = 0 if last is None else last + 1
    if epoch.batch_id <= expected or options.on_missing_epochs is not None:
        return
    has = "none of this query" if last is None else f"the epochs up to {last}"
    raise SinkError(
        f"epoch {epoch.batch_id} of query {epoch.query_id} meets a store that has {has} under sink "
        f"{options.sink_id!r}: if the store was deleted or replaced by an older copy while the "
        "checkpoint was kept, what is between would be missing. Restore the store, or start with a "
        "new checkpoint, or set option onMissingEpochs=accept for one start, to go on without"
    )


def admit_query(transaction: StoreTransaction, options: SinkOptions, query_id: str) -> None:
    """Let a new query into a sink that has results of others, as `onNewQuery` says.

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
        before: What the store remembers of the job; None: the sink is new.

    Raises:
        SinkError: The number of shards differs.
    """
    if before is not None and before["shards"] != options.shards:
        raise SinkError(
            f"sink {options.sink_id!r} was written with shards={before['shards']}, not "
            f"{options.shards}, and each key has its shard: keep the number, or use another sinkId"
        )


def admit_job(transaction: StoreTransaction, job: AggregationJob, options: SinkOptions) -> None:
    """Let a job write that differs from the last one, as `onJobChange` says, and remember it.

    Raises:
        SinkError: `onJobChange` does not accept the change, or no store could merge it.
    """
    before, now = transaction.description(), describe(job, options.shards)
    if before == now:
        return
    check_shards(options, before)
    changes = differences(before, now) if before is not None else []
    if before is not None and (moved := incompatible_metrics(before, now)):
        raise SinkError(
            f"sink {options.sink_id!r} has other columns: {'; '.join(moved)}. What is stored "
            "cannot be merged with that: give the metric another name, or this job another sinkId"
        )
    if changes and options.on_job_change is None:
        raise SinkError(
            f"sink {options.sink_id!r} was written by another job: {'; '.join(changes)}. Give this "
            "job another sinkId, or set option onJobChange=accept: what is stored stays as it is, "
            "and the change holds for what is added"
        )
    transaction.describe(now)
