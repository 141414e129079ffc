"""Which guards a write has to pass: before L1 runs as far as the ledger can say, and in the commit.

The commit repeats them in its transaction, because another process may have written since.
"""

from dataclasses import replace

from batchqueue.outputs import SqliteStore, StoreTransaction
from batchqueue.spark.commit.conflicts import (
    check_gap,
    check_job,
    check_no_stream,
    check_owner,
    check_query,
    check_shards,
)
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.task.context import EpochId


def check_epoch(
    transaction: StoreTransaction,
    job: AggregationJob,
    options: SinkOptions,
    epoch: EpochId | None,
    wrote: int | None = None,
) -> None:
    """Check that an epoch may be committed, if the ledger does not have it.

    Args:
        transaction: Of the sink.
        job: The job.
        options: Of the write.
        epoch: The epoch; None if it is not known yet, but only that it is a stream.
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

    Each shard is a separate sink, so that the sink itself is new in either case.

    Raises:
        SinkError: It was.
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
