"""L2 beyond one process: Spark's shuffle brings the partials of a key together, and each shard is committed by a task.

A shard is a sink of its own, `sinkId/0`, `sinkId/1` and so on, with its own ledger. So each shard
is exactly-once, whatever becomes of the task or the job; but readers may see one shard an epoch
ahead of another.
"""

import json
import pickle
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from batchqueue.aggregation import Metrics
from batchqueue.spark.commit.commit import Commit
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.job.steps import ArrowAggregation
from batchqueue.spark.task.arrow import Batches, map_in_arrow
from batchqueue.spark.task.attempt import aggregate
from batchqueue.spark.task.context import EpochId
from batchqueue.spark.task.message import (
    AttemptMessage,
    AttemptSummary,
    check_size,
    empty_message,
    encode_message,
)
from batchqueue.spark.writer.pushdown import checked_partials, plan_groups, pushdown_steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTIALS = "shard int, shuffle_key int, message binary"
_RESULTS = "shard int, summary string"


@dataclass(frozen=True)
class ShardedWrite:
    """One epoch or batch write in shards; it travels to the tasks.

    Attributes:
        job: What is written.
        options: How; `shards` is set.
        epoch: None in a batch write.
        shuffle_keys: See `shuffle_keys_of`.
    """

    job: AggregationJob
    options: SinkOptions
    epoch: EpochId | None
    shuffle_keys: Sequence[int]

    @classmethod
    def of(
        cls,
        session: "SparkSession",
        job: AggregationJob,
        options: SinkOptions,
        epoch: EpochId | None,
    ) -> Self:
        """Prepare a write.

        Raises:
            SinkError: The sink has another number of shards.
        """
        write = cls(job, options, epoch, shuffle_keys_of(session, options.shards or 1))
        write._commit_of(0, []).check_shards()
        return write

    def plan_in_tasks(self, df: "DataFrame") -> "DataFrame":
        """Plan an L1 in the tasks, whose partials are split by shard."""

        def attempt(batches: Batches) -> Batches:
            partials, summary = aggregate(self.job, batches)
            yield self._split(partials, summary)

        return map_in_arrow(df, attempt, _PARTIALS)

    def plan_in_spark(self, df: "DataFrame") -> "DataFrame":
        """Plan an L1 in Spark SQL, whose groups are split by shard."""
        steps = pushdown_steps(self.job)

        def split(step: ArrowAggregation) -> Callable[[Batches], Batches]:
            def groups(batches: Batches) -> Batches:
                for batch in batches:
                    if not batch.num_rows:
                        continue
                    result = checked_partials(
                        [pa.Table.from_batches([batch])], [step], steps, self.epoch
                    )
                    yield self._split(result.metrics_of([step]), result.summary)

            return groups

        planned = zip(plan_groups(df, steps), steps, strict=True)
        return reduce(
            lambda one, other: one.unionByName(other),
            (map_in_arrow(groups, split(step), _PARTIALS) for groups, step in planned),
        )

    def commit(self, partials: "DataFrame", *, overwrite: bool) -> list[dict[str, Any]]:
        """Bring partials to the tasks of their shards, and commit there.

        Args:
            partials: Planned by one of the above.
            overwrite: In a batch write, delete first what the sink wrote before.

        Returns:
            The summary of each shard's commit, by shard.
        """
        shards = len(self.shuffle_keys)
        # Every shard commits every epoch, also when no partial came to it.
        place = (
            f"element_at(array({', '.join(map(str, self.shuffle_keys))}), int(id) + 1) shuffle_key"
        )
        every = partials.sparkSession.range(shards).selectExpr(
            "int(id) shard", place, "CAST(NULL AS binary) message"
        )
        merged = partials.unionByName(every).repartition(shards, "shuffle_key")

        def commit(batches: Batches) -> Batches:
            return self._commit(batches, overwrite=overwrite)

        rows = map_in_arrow(merged, commit, _RESULTS).collect()
        return [json.loads(row.summary) for row in sorted(rows, key=lambda row: row.shard)]

    def _split(self, partials: Iterable[Metrics], summary: AttemptSummary) -> pa.RecordBatch:
        by_shard: dict[int, list[Metrics]] = {0: []}  # which takes the summary of the attempt
        for partial in partials:
            by_shard.setdefault(shard_of(partial, len(self.shuffle_keys)), []).append(partial)
        messages = [
            encode_message(
                of_shard, self.job, AttemptSummary.without_queue() if shard else summary, self.epoch
            )
            for shard, of_shard in by_shard.items()
        ]
        check_size(sum(message.size for message in messages), self.options)
        return pa.RecordBatch.from_pydict(
            {
                "shard": pa.array(by_shard, pa.int32()),
                "shuffle_key": pa.array(
                    [self.shuffle_keys[shard] for shard in by_shard], pa.int32()
                ),
                "message": pa.array([pickle.dumps(message) for message in messages], pa.binary()),
            }
        )

    def _commit(self, batches: Batches, *, overwrite: bool) -> Batches:
        received: dict[int, list[AttemptMessage]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                messages = received.setdefault(row["shard"], [])
                if row["message"] is not None:
                    messages.append(pickle.loads(row["message"]))
        for shard, messages in received.items():
            one, epoch = (
                self._commit_of(shard, messages or [empty_message(self.job, self.epoch)]),
                self.epoch,
            )
            summary = (
                one.apply_batch(overwrite=overwrite)
                if epoch is None
                else one.apply_epoch(epoch.batch_id)
            )
            yield pa.RecordBatch.from_pydict(
                {"shard": pa.array([shard], pa.int32()), "summary": [json.dumps(summary)]}
            )

    def _commit_of(self, shard: int, messages: Sequence[AttemptMessage]) -> Commit:
        options = replace(self.options, sink_id=f"{self.options.sink_id}/{shard}")
        return Commit(self.job, options, messages)


def shard_of(metric: Metrics, shards: int) -> int:
    """Return the shard of a key: the same in every process and for every partial of that key."""
    entity, time_bucket = metric.key
    return zlib.crc32(f"{metric.name}\0{entity}\0{time_bucket}".encode()) % shards


_shuffle_keys: dict[int, list[int]] = {}


def shuffle_keys_of(session: "SparkSession", shards: int) -> list[int]:
    """Return a number for each shard, such that Spark's shuffle by it brings no two of them to one task.

    By their own numbers they would meet: of eight tasks, Spark's hash would leave three without
    any.
    """
    if shards not in _shuffle_keys:
        # With 20 numbers for each task, the chance that one of 10,000 gets none is 2e-5, and then
        # two shards share one.
        numbers = session.range(20 * shards + 100)
        hashed = numbers.selectExpr(
            "int(id) number", f"pmod(hash(int(id)), {shards}) task"
        ).collect()
        of_tasks = {row.task: row.number for row in hashed}
        _shuffle_keys[shards] = [of_tasks.get(task, task) for task in range(shards)]
    return _shuffle_keys[shards]
