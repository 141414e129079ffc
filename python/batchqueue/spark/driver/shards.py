"""L2 in many tasks: Spark's shuffle brings the partials of a key together, a task commits a shard.

A shard is a separate sink, `sinkId/0`, `sinkId/1` and so on, with its own ledger. So each shard is
exactly-once, whatever happens to the task or the job; but readers may see one shard an epoch ahead
of another.
"""

import json
import pickle
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from batchqueue.aggregation import Metrics
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.driver.pushdown import (
    check_bad_rows,
    checked_partials,
    plan_groups,
    pushdown_steps,
)
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.steps import ArrowAggregation
from batchqueue.spark.task.arrow import Batches, map_in_arrow
from batchqueue.spark.task.attempt import aggregate
from batchqueue.spark.task.groups import within
from batchqueue.spark.task.message import (
    AttemptMessage,
    AttemptSummary,
    EpochId,
    check_size,
    empty_message,
    encode_message,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTIALS = (
    "shard int, shuffle_key int, message binary, rows long, bad_rows long, bad_row_error string"
)
"""A message for a shard; and what Spark SQL counted for all shards, which each shard checks before
it commits."""

_RESULTS = "shard int, summary string"


@dataclass(frozen=True)
class ShardedWrite:
    """One epoch or batch write in shards; pickled for the tasks.

    Attributes:
        job: The job whose metrics are written.
        options: The options of the write; `shards` is set.
        epoch: The micro-batch; None in a batch write.
        shuffle_keys: A number for each shard, see `distinct_shuffle_keys`.
    """

    job: AggregationJob
    options: SinkOptions
    epoch: EpochId | None
    shuffle_keys: Sequence[int]

    @classmethod
    def prepare(
        cls,
        session: "SparkSession",
        job: AggregationJob,
        options: SinkOptions,
        epoch: EpochId | None,
    ) -> Self:
        """Prepare a write."""
        return cls(job, options, epoch, distinct_shuffle_keys(session, options.shards or 1))

    def check(self, *, overwrite: bool, wrote: int | None) -> list[dict[str, Any]] | None:
        """Refuse, before L1 runs, what the ledger of the first shard shows cannot be committed.

        Args:
            overwrite: In a batch write, delete the sink's earlier results first.
            wrote: Number of the epoch that the same run of the query wrote last, if it is known.

        Returns:
            The summary of each shard if all of them already have this batch write, else None.

        Raises:
            SinkError: The sink was written with another number of shards, or by another job; or as
                `EpochCommit.apply_epoch` and `EpochCommit.apply_batch`.
        """
        first = self._shard_commit(0, [])
        if self.epoch is not None:
            if wrote is None or wrote != self.epoch.batch_id - 1:  # else its last epoch was checked
                first.check_epoch(self.epoch, wrote)
            first.check_shards()
            return None
        found = first.check_batch(overwrite=overwrite)
        first.check_shards()
        summaries: list[dict[str, Any]] = []
        while found is not None:
            summaries.append(found)
            if len(summaries) == len(self.shuffle_keys):
                return summaries
            found = self._shard_commit(len(summaries), []).check_batch(overwrite=overwrite)
        return None

    def plan_in_tasks(self, df: "DataFrame") -> "DataFrame":
        """Plan L1 in the tasks, and split its partials by shard."""

        def attempt(batches: Batches) -> Batches:
            partials, summary = aggregate(self.job, batches, self._any_shard)
            yield self._split(partials, summary, AttemptSummary())

        return map_in_arrow(df, attempt, _PARTIALS)

    def plan_in_spark(self, df: "DataFrame", *, names_overflow: bool) -> "DataFrame":
        """Plan L1 in Spark SQL, see `plan_groups`, and split its groups by shard."""
        steps = pushdown_steps(self.job)

        def split(step: ArrowAggregation) -> Callable[[Batches], Batches]:
            def groups(batches: Batches) -> Batches:
                for batch in batches:
                    if not batch.num_rows:
                        continue
                    result = checked_partials(
                        [pa.Table.from_batches([batch])],
                        [step],
                        self.job,
                        self._any_shard,
                        self.epoch,
                    )
                    partials = chain(result.objects_of([step]), *result.columns_of([step]))
                    yield self._split(partials, result.summary, result.summary)

            return groups

        plans = plan_groups(df, self.job, self._any_shard, names_overflow=names_overflow)
        planned = zip(plans, steps, strict=True)
        return reduce(
            lambda left, right: left.unionByName(right),
            (map_in_arrow(groups, split(step), _PARTIALS) for groups, step in planned),
        )

    def commit(self, partials: "DataFrame", *, overwrite: bool) -> list[dict[str, Any]]:
        """Shuffle partials to the tasks of their shards, and commit there.

        Args:
            partials: What `plan_in_tasks` or `plan_in_spark` returned.
            overwrite: In a batch write, delete the sink's earlier results first.

        Returns:
            The summary of each shard's commit, in the order of the shards.
        """
        shards = len(self.shuffle_keys)
        # Every shard commits every epoch, even if it got no partial.
        keys = ", ".join(map(str, self.shuffle_keys))
        row_per_shard = partials.sparkSession.range(shards).selectExpr(
            "int(id) shard",
            f"element_at(array({keys}), int(id) + 1) shuffle_key",
            "CAST(NULL AS binary) message",
            "0L rows",
            "0L bad_rows",
            "CAST(NULL AS string) bad_row_error",
        )
        shuffled = partials.unionByName(row_per_shard).repartition(shards, "shuffle_key")

        def commit(batches: Batches) -> Batches:
            return self._commit(batches, overwrite=overwrite)

        rows = map_in_arrow(shuffled, commit, _RESULTS).collect()
        return [json.loads(row.summary) for row in sorted(rows, key=lambda row: row.shard)]

    @property
    def _any_shard(self) -> str:
        return f"{self.options.sink_id}/{len(self.shuffle_keys)}"

    def _split(
        self, partials: Iterable[Metrics], summary: AttemptSummary, seen: AttemptSummary
    ) -> pa.RecordBatch:
        by_shard: dict[int, list[Metrics]] = {shard: [] for shard in range(len(self.shuffle_keys))}
        # Shard 0 takes the summary of the attempt. Each learns the newest time, for the watermark,
        # and what all rows contained, so that it recognizes a replay even if others failed.
        others = AttemptSummary(newest=summary.newest, contents=summary.contents)
        # Checked here, before any shard is committed.
        for partial in within(partials, self.options.replaced):
            by_shard[shard_of(partial, len(self.shuffle_keys))].append(partial)
        messages = [
            encode_message(of_shard, self.job, others if shard else summary, self.epoch)
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
                "rows": pa.repeat(seen.rows, len(by_shard)),
                "bad_rows": pa.repeat(seen.bad_rows, len(by_shard)),
                "bad_row_error": pa.array([seen.bad_row_error] * len(by_shard), pa.string()),
            }
        )

    def _commit(self, batches: Batches, *, overwrite: bool) -> Batches:
        received: dict[int, list[AttemptMessage]] = {}
        seen: dict[int, list[AttemptSummary]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                messages = received.setdefault(row["shard"], [])
                if row["message"] is not None:
                    messages.append(pickle.loads(row["message"]))
                counts = AttemptSummary(
                    row["rows"], bad_rows=row["bad_rows"], bad_row_error=row["bad_row_error"]
                )
                seen.setdefault(row["shard"], []).append(counts)
        for shard, messages in received.items():
            check_bad_rows(seen[shard], self.job)
            commit = self._shard_commit(shard, messages or [empty_message(self.job, self.epoch)])
            summary = (
                commit.apply_batch(overwrite=overwrite)
                if self.epoch is None
                else commit.apply_epoch(self.epoch.batch_id)
            )
            yield pa.RecordBatch.from_pydict(
                {"shard": pa.array([shard], pa.int32()), "summary": [json.dumps(summary)]}
            )

    def _shard_commit(self, shard: int, messages: Sequence[AttemptMessage]) -> EpochCommit:
        options = replace(self.options, sink_id=f"{self.options.sink_id}/{shard}")
        return EpochCommit(self.job, options, messages)


def shard_of(metric: Metrics, shards: int) -> int:
    """Return the shard of a key: the same in every process and for every partial of that key."""
    entity, time_bucket = metric.key
    return zlib.crc32(f"{metric.name}\0{entity}\0{time_bucket}".encode()) % shards


_shuffle_keys: dict[int, list[int]] = {}


def distinct_shuffle_keys(session: "SparkSession", shards: int) -> list[int]:
    """Return a number for each shard, so that Spark's shuffle sends each shard to a different task.

    With the shard's own number as the key, shards would share tasks: of eight tasks, Spark's hash
    would leave three without a shard.
    """
    if shards not in _shuffle_keys:
        # With 20 candidates per task, the chance that one of 10,000 tasks gets none is 2e-5; then
        # two shards share a task.
        numbers = session.range(20 * shards + 100)
        hashed = numbers.selectExpr(
            "int(id) number", f"pmod(hash(int(id)), {shards}) task"
        ).collect()
        number_of_task = {row.task: row.number for row in hashed}
        _shuffle_keys[shards] = [number_of_task.get(task, task) for task in range(shards)]
    return _shuffle_keys[shards]
