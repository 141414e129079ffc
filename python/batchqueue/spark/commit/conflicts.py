"""Guards of a commit: the store must fit the query and the job that write to it now.

Each guard names the conflict, and the option that accepts it. `admission` says which of them a
write has to pass.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from batchqueue._words import counted
from batchqueue.outputs.ledger import owner_text
from batchqueue.outputs.store import UNMARKED
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.fingerprint import (
    differences,
    fingerprint,
    incompatible_metrics,
    remembered,
)
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.task.contents import Contents, differ
from batchqueue.spark.task.context import EpochId

BATCH = "batch:"
"""What the query ids of batch writes begin with in the ledger."""


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
    """Check that an epoch which the store has comes again with as many rows, and the same ones.

    Args:
        options: With `on_changed_epoch`.
        epoch: The epoch.
        recorded: Its summary in the ledger; None if that is no longer kept. That of an earlier
            version says only how many rows there were.
        rows: The number of its rows now.
        contents: What they contain; None if that is not known.

    Raises:
        SinkError: They differ, and `onChangedEpoch` is not set.
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
    """Check that a batch write does not meet the results of a stream by the name of the job only.

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
