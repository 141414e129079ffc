"""What a successful attempt sends to the commit: its encoded partials and a summary."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from batchqueue.aggregation import Metrics
from batchqueue.outputs.layout import arrow_types, shown, typed_array
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.stage import CpuSummary, StageSummary, infrequent_gc
from batchqueue.spark.task.arrow import read_batch, written
from batchqueue.spark.task.contents import Contents
from batchqueue.spark.task.groups import ColumnPartials, TaskGroups, merged_groups

# Which micro-batch a task works on, as Spark says in the task's local properties.


QUERY_ID = "sql.streaming.queryId"
"""The local property with the id of the streaming query, in tasks and in `foreachBatch`."""

BATCH_ID = "streaming.sql.batchId"
"""The local property with the number of the micro-batch, in tasks."""


class EpochId(NamedTuple):
    """The micro-batch that a task works on.

    Attributes:
        query_id: Id of the streaming query, which survives a restart from the checkpoint.
        batch_id: Number of the micro-batch, from 0.
    """

    query_id: str
    batch_id: int


def current_epoch() -> EpochId:
    """Return the micro-batch of the task that this process runs.

    Raises:
        SinkError: Spark did not say which it is.
    """
    context = TaskContext.get()
    values = {name: context and context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID)}
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise SinkError(
            f"Spark did not set the local property {missing[0]} in this task, so an epoch could "
            "not be distinguished from its replay: use micro-batches, or df.write with option txnId"
        )
    return EpochId(str(values[QUERY_ID]), int(str(values[BATCH_ID])))


@dataclass(frozen=True)
class AttemptSummary:
    """The counts and times of one attempt. Those of a queue are 0 if L1 runs in Spark SQL.

    Attributes:
        rows: Rows from Spark.
        l1: The counts of its queue.
        thread_items: Items that each drain thread handled.
        cpu: CPU and wall time of `write()`.
        skipped: Rows that steps left out because of a null key.
        bad_rows: Rows that could not be read, and were left out.
        bad_row_error: What was wrong with the first bad row; None if there is none.
        newest: The latest time of its rows in whole seconds, if the job has a watermark; None
            without rows.
        contents: The contents of its rows; None if unknown.
    """

    rows: int = 0
    l1: StageSummary = field(default_factory=StageSummary)
    thread_items: tuple[int, ...] = ()
    cpu: CpuSummary = field(default_factory=CpuSummary)
    skipped: int = 0
    bad_rows: int = 0
    bad_row_error: str | None = None
    newest: int | None = None
    contents: Contents | None = None


@dataclass(frozen=True)
class AttemptMessage:
    """What a successful attempt sends to the commit.

    Attributes:
        epoch: The micro-batch; None in a batch write. The commit learns the query only from here.
        partials: Arrow IPC streams, see `batchqueue.spark.task.message`.
        summary: Counts and times of the attempt.
        groups: Groups of declared metrics, see `batchqueue.spark.task.groups`.
    """

    epoch: EpochId | None
    partials: tuple[bytes, ...]
    summary: AttemptSummary
    groups: tuple[TaskGroups, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the partials and groups."""
        return sum(map(len, self.partials)) + sum(len(groups.stream) for groups in self.groups)

    def columns(self, job: AggregationJob) -> tuple[ColumnPartials, ...]:
        """Return nothing: any key may occur in other tasks, too."""
        return ()

    def objects(self, job: AggregationJob) -> Iterator[Metrics]:
        """Decode the partials that are not in groups."""
        return decode(self.partials, job.stored_metrics)

    def metrics(self, job: AggregationJob) -> Iterator[Metrics]:
        """Decode all partials.

        Raises:
            SinkError: As `merged_groups`.
        """
        return chain(self.objects(job), merged_groups(self.groups, job.arrow))


@infrequent_gc()
def encode_message(
    partials: Iterable[Metrics],
    job: AggregationJob,
    summary: AttemptSummary,
    epoch: EpochId | None,
    groups: Iterable[TaskGroups] = (),
) -> AttemptMessage:
    """Encode partials.

    Raises:
        SinkError: A partial cannot be encoded.
    """
    return AttemptMessage(epoch, encode(partials, job.stored_metrics), summary, tuple(groups))


def empty_message(job: AggregationJob, epoch: EpochId | None) -> AttemptMessage:
    """Return the message of a task without rows, for an epoch without tasks."""
    return encode_message([], job, AttemptSummary(), epoch)


def check_size(size: int, options: SinkOptions) -> None:
    """Check that the partials of an attempt, or of an epoch, fit into one process.

    Args:
        size: Their size in bytes.
        options: With `max_commit_bytes`.

    Raises:
        SinkError: They are larger than `max_commit_bytes`.
    """
    if size > options.max_commit_bytes:
        raise SinkError(
            f"the partial aggregates of one epoch take {size} bytes, more than maxCommitBytes="
            f"{options.max_commit_bytes}, and would all meet in one process: make epochs smaller "
            "(maxFilesPerTrigger, maxOffsetsPerTrigger), bring the rows of one entity together "
            "first (df.repartition), merge in many tasks (MetricsWriter(shards=...)), or raise "
            "maxCommitBytes and spark.driver.memory"
        )


# Partials as compressed Arrow IPC, for the way from the tasks to the commit.
#
# Partials whose metrics have the same value columns share one stream, so that a hundred metrics
# cost a handful of headers. A metric is sent as its position in the job: the receiver has the job,
# and so the types.


Layout = tuple[tuple[str, type], ...]


class _Columns:
    """The partials of one layout, column by column.

    The rows of partial `i` are `rows[ends[i]:ends[i + 1]]`.
    """

    def __init__(self) -> None:
        self.metrics: list[int] = []
        self.entities: list[str] = []
        self.time_buckets: list[int] = []
        self.ends: list[int] = [0]
        self.rows: list[tuple[Any, ...]] = []

    def encode(self, layout: Layout) -> bytes:
        values = list(zip(*self.rows, strict=True)) or [()] * len(layout)
        rows = pa.StructArray.from_arrays(
            [
                typed_array(column, arrow_types()[kind])
                for column, (_, kind) in zip(values, layout, strict=True)
            ],
            names=[name for name, _ in layout],
        )
        entities = _not_null("entity", pa.array(self.entities, pa.string()))
        time_buckets = _not_null("time_bucket", typed_array(self.time_buckets, pa.int64()))
        batch = pa.RecordBatch.from_pydict(
            {
                "metric": pa.array(self.metrics, pa.int32()),
                "entity": entities.dictionary_encode(),
                "time_bucket": time_buckets,
                "rows": pa.ListArray.from_arrays(pa.array(self.ends, pa.int32()), rows),
            }
        )
        return written(batch)


def encode(partials: Iterable[Metrics], metrics: Sequence[type[Metrics]]) -> tuple[bytes, ...]:
    """Encode partials, without merging those of the same key.

    Args:
        partials: Of the types in `metrics`.
        metrics: The metric types of the job, in its order.

    Returns:
        One Arrow IPC stream per layout of value columns.

    Raises:
        SinkError: A partial has another type, or a value does not fit its column.
    """
    positions = {metric_type: position for position, metric_type in enumerate(metrics)}
    layouts = [tuple(metric_type.columns.items()) for metric_type in metrics]
    groups: dict[Layout, _Columns] = {}
    for partial in partials:
        position = positions.get(type(partial))
        if position is None:
            raise SinkError(
                f"a partial of {type(partial).__name__} cannot be stored: add it to the metrics of "
                "the job"
            )
        of_layout = groups.setdefault(layouts[position], _Columns())
        of_layout.metrics.append(position)
        of_layout.entities.append(partial.entity)
        of_layout.time_buckets.append(partial.time_bucket)
        of_layout.rows.extend(partial.to_rows())
        of_layout.ends.append(len(of_layout.rows))
    return tuple(_encode_checked(layout, found, metrics) for layout, found in groups.items())


def decode(streams: Iterable[bytes], metrics: Sequence[type[Metrics]]) -> Iterator[Metrics]:
    """Decode what `encode` returned.

    Args:
        streams: What `encode` returned.
        metrics: The same metric types in the same order.
    """
    for stream in streams:
        batch = read_batch(stream)
        positions, time_buckets = (batch.column(index).to_pylist() for index in (0, 2))
        # `to_pylist` of the dictionary column itself would take a microsecond per value.
        names = batch.column(1).dictionary.to_pylist()
        entities = [names[index] for index in batch.column(1).indices.to_pylist()]
        lists = batch.column(3)
        rows = list(zip(*(column.to_pylist() for column in lists.values.flatten()), strict=True))
        bounds = pairwise(lists.offsets.to_pylist())
        for position, entity, time_bucket, (start, end) in zip(
            positions, entities, time_buckets, bounds, strict=True
        ):
            yield metrics[position].from_rows(entity, time_bucket, rows[start:end])


def _not_null(name: str, array: pa.Array) -> pa.Array:
    if array.null_count:
        raise pa.ArrowInvalid(
            f"{name} is None; leave such rows out in `items`, or by "
            "ArrowAggregation(null_keys='skip')"
        )
    return array


def _encode_checked(layout: Layout, columns: _Columns, metrics: Sequence[type[Metrics]]) -> bytes:
    try:
        return columns.encode(layout)
    except (pa.ArrowException, OverflowError) as error:
        names = ", ".join(sorted(metrics[position].name for position in set(columns.metrics))[:5])
        declared = ", ".join(f"{name} {shown(kind)}" for name, kind in layout)
        raise SinkError(
            f"a value does not fit its column ({declared}) in one of {names}: {error}; "
            "declare the column with another type, or measure in another unit"
        ) from error
