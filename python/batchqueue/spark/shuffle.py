"""L2 beyond one process: Spark's shuffle brings the partials of a key together, and each shard is committed by a task.

A shard is a sink of its own, `sinkId/0`, `sinkId/1` and so on, with its own ledger. So each shard is exactly-once,
whatever becomes of the task or the job; but readers may see one shard an epoch ahead of another.
"""

import json
import pickle
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchqueue.aggregation import Metrics
from batchqueue.spark.arrow import Batches, map_in_arrow
from batchqueue.spark.attempt import AttemptMessage, EpochId, aggregate, check_size, message_of
from batchqueue.spark.commit import Commit
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.pushdown import declared_steps, groups_from, plan
from batchqueue.spark.steps import ArrowAggregation
from batchqueue.spark.summary import AttemptSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTIALS = "shard int, message binary"
_RESULTS = "shard int, summary string"


def write_shards(
    partials: "DataFrame",
    job: AggregationJob,
    options: SinkOptions,
    epoch: EpochId | None,
    *,
    overwrite: bool,
) -> list[dict[str, Any]]:
    """Bring partials to the tasks of their shards, and commit there.

    Args:
        partials: What `partials_of_tasks` or `partials_of_spark` made.
        job: What is written.
        options: How; `shards` is set.
        epoch: None in a batch write.
        overwrite: In a batch write, delete first what the sink wrote before.

    Returns:
        The summary of each shard's commit, by shard.
    """
    shards = options.shards or 1
    # Every shard commits every epoch, also when no partial came to it.
    every = partials.sparkSession.range(shards).selectExpr("int(id) shard", "CAST(NULL AS binary) message")
    merged = partials.unionByName(every).repartition(shards, "shard")
    rows = map_in_arrow(merged, _committing(job, options, epoch, overwrite=overwrite), _RESULTS).collect()
    return [json.loads(row.summary) for row in sorted(rows, key=lambda row: row.shard)]


def partials_of_tasks(
    df: "DataFrame", job: AggregationJob, options: SinkOptions, epoch: EpochId | None
) -> "DataFrame":
    """Plan an L1 in the tasks, whose partials are split by shard."""

    def attempt(batches: Batches) -> Batches:
        partials, summary = aggregate(job, batches)
        yield _split(partials, summary, job, options, epoch)

    return map_in_arrow(df, attempt, _PARTIALS)


def partials_of_spark(
    df: "DataFrame", job: AggregationJob, options: SinkOptions, epoch: EpochId | None
) -> "DataFrame":
    """Plan an L1 in Spark SQL, whose groups are split by shard."""

    def split(step: ArrowAggregation, is_first: bool) -> Callable[[Batches], Batches]:
        def groups(batches: Batches) -> Batches:
            for batch in batches:
                if not batch.num_rows:
                    continue
                result = groups_from([pa.Table.from_batches([batch])], [step], epoch)
                # Each step has seen all rows; they count once.
                summary = result.summary if is_first else AttemptSummary.nothing()
                yield _split(result.metrics_of([step]), summary, job, options, epoch)

        return groups

    steps = declared_steps(job)
    planned = [
        map_in_arrow(plan(df, step), split(step, number == 0), _PARTIALS) for number, step in enumerate(steps)
    ]
    return reduce(lambda one, other: one.unionByName(other), planned)


def shard_of(metric: Metrics, shards: int) -> int:
    """Return the shard of a key: the same in every process and for every partial of that key."""
    entity, time_bucket = metric.key
    return zlib.crc32(f"{metric.name}\0{entity}\0{time_bucket}".encode()) % shards


def _split(
    partials: Iterable[Metrics],
    summary: AttemptSummary,
    job: AggregationJob,
    options: SinkOptions,
    epoch: EpochId | None,
) -> pa.RecordBatch:
    shards = options.shards or 1
    by_shard: dict[int, list[Metrics]] = {0: []}  # which takes the summary of the attempt
    for partial in partials:
        by_shard.setdefault(shard_of(partial, shards), []).append(partial)
    messages = [
        message_of(of_shard, job, summary if shard == 0 else AttemptSummary.nothing(), epoch)
        for shard, of_shard in by_shard.items()
    ]
    check_size(sum(message.size for message in messages), options)
    return pa.RecordBatch.from_pydict(
        {
            "shard": pa.array(by_shard, pa.int32()),
            "message": pa.array([pickle.dumps(message) for message in messages], pa.binary()),
        }
    )


def _committing(
    job: AggregationJob, options: SinkOptions, epoch: EpochId | None, *, overwrite: bool
) -> Callable[[Batches], Batches]:
    def commit(batches: Batches) -> Batches:
        received: dict[int, list[AttemptMessage]] = {}
        for batch in batches:
            for shard, message in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                messages = received.setdefault(shard, [])
                if message is not None:
                    messages.append(pickle.loads(message))
        nothing = message_of([], job, AttemptSummary.nothing(), epoch)
        for shard, messages in received.items():
            sink = replace(options, sink_id=f"{options.sink_id}/{shard}")
            one = Commit(job, sink, messages or [nothing])
            summary = one.batch(overwrite=overwrite) if epoch is None else one.epoch(epoch.batch_id)
            yield pa.RecordBatch.from_pydict(
                {"shard": pa.array([shard], pa.int32()), "summary": [json.dumps(summary)]}
            )

    return commit
