"""The guards that a write must pass: as far as possible before L1 runs, and in the commit.

The commit repeats them in its transaction, because another process may have written since.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from batchqueue.base.words import counted
from batchqueue.outputs.ledger import layout_of, layout_text, owner_text
from batchqueue.outputs.sqlite_store import SqliteStore
from batchqueue.outputs.store import UNMARKED, StoreTransaction
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.steps import ArrowAggregation
from batchqueue.spark.task.contents import Contents, differ
from batchqueue.spark.task.message import EpochId


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
