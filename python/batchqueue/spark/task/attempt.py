"""One attempt of one task: its rows become partials, on a queue of the same lifetime."""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from batchqueue.aggregation import Aggregator, MergeBuffer, Metrics
from batchqueue.queues.handlers import SupportsConsume
from batchqueue.spark.column_types import arrow_columns, check_rows
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.stage import CpuMeter, QueueStage, infrequent_gc
from batchqueue.spark.steps import ArrowAggregation, ArrowHandler, Emit, HandlerFactory
from batchqueue.spark.task.bad_rows import RowReader, TextLimits, check_groups
from batchqueue.spark.task.contents import (
    Contents,
    are_of_groups,
    contents_of_groups,
    contents_of_rows,
    total,
)
from batchqueue.spark.task.groups import (
    TaskGroups,
    counting_rows,
    declared_partials,
    merged_groups,
    overflow,
    record_batches,
    task_groups,
    without_null_keys,
    without_rows,
)
from batchqueue.spark.task.message import (
    AttemptMessage,
    AttemptSummary,
    EpochId,
    check_size,
    encode_message,
)

# L1 of one attempt: the handlers that merge its rows, and how the rows reach them.


_TAG_COLUMN = "batchqueue tag"
"""Column that tags rows for a step that takes all rows, and so has no type column."""


class CollectingWorker:
    """Merges metrics until the attempt ends. It has no `on_idle`: early results have no reader."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._buffer = MergeBuffer()

    def consume(self, batch: list[Metrics]) -> None:
        """Merge a batch."""
        self._buffer.accept_all(batch)

    def on_close(self) -> None:
        """Emit one partial per key."""
        self._emit(self._buffer.drain())


def _result_of(aggregator: Aggregator) -> pa.RecordBatch | None:
    try:
        return aggregator.result()
    except OverflowError as error:
        raise overflow(error) from error


@dataclass(frozen=True)
class L1Partials:
    """The partials that L1 made of the rows of one task.

    Attributes:
        job: The job.
        objects: Partials of handlers and functions, and bad rows that are kept.
        groups: Groups of declared metrics.
    """

    job: AggregationJob
    objects: list[Metrics]
    groups: list[TaskGroups]

    def __iter__(self) -> Iterator[Metrics]:
        """Make all partials."""
        yield from self.objects
        yield from merged_groups(self.groups, self.job.arrow)


class TaskL1:
    """The handlers of one attempt, and how the rows reach them.

    Attributes:
        handlers: The handlers by item type or tag.
        skipped: Rows that `partials` has left out because of a null key.
        rows: Turns the rows into items, and counts those that it cannot read.
        newest: The latest time of the rows in whole seconds, if the job has a watermark.
        contents: The contents of the rows, if `partials` has computed them from the groups.
    """

    def __init__(self, job: AggregationJob, sink_id: str) -> None:
        self.skipped = 0
        self._job = job
        self.newest: int | None = None
        self.contents: Contents | None = None
        self._watermark = job.watermark
        self._checked: pa.Schema | None = None
        self._collected: list[Metrics] = []
        self._aggregators: list[tuple[int, ArrowAggregation, Aggregator]] = []
        # One pass over a column delivers the rows of all its tags.
        self._type_columns = job.tags_by_column()
        self._tags_for_all_rows: list[str] = []
        factories: dict[type, HandlerFactory] = {
            **dict.fromkeys(job.metrics, CollectingWorker),
            **job.handlers,
        }
        self.handlers: dict[type | str, SupportsConsume[Any]] = {
            item_type: factory(self._collected.extend) for item_type, factory in factories.items()
        }
        for number, step in enumerate(job.arrow):
            handler = self._handler(number, step)
            if step.type_column is None:
                self._tags_for_all_rows.append(f"all rows, step {number}")
            tags = step.tags or self._tags_for_all_rows[-1:]
            self.handlers.update(dict.fromkeys(tags, handler))
        # The queue knows tags, not columns: a value of one column may be a tag of another.
        checks_tags = len(self._type_columns) + len(self._tags_for_all_rows) > 1
        self._limits = TextLimits.of(job, sink_id)
        self.rows = RowReader(job, sink_id, checks_tags=checks_tags)

    def _handler(self, number: int, step: ArrowAggregation | ArrowHandler) -> SupportsConsume[Any]:
        if isinstance(step, ArrowHandler):
            return step.make(self._collected.extend)
        aggregator = Aggregator(counting_rows(step))
        self._aggregators.append((number, step, aggregator))
        return aggregator

    def produce(self, batch: pa.RecordBatch, stage: QueueStage) -> None:
        """Enqueue one batch of rows: as items, by each type column, and whole, as the job says."""
        if batch.schema != self._checked:
            check_rows(self._job, arrow_columns(batch.schema), in_task=True)
            self._checked = batch.schema
        items, rows = self.rows.read(batch)
        self._note_times(rows)
        stage.produce_many(items)
        for type_column in self._type_columns:
            stage.produce_arrow(rows, type_column)
        for tag in self._tags_for_all_rows:
            tags = pa.DictionaryArray.from_arrays(
                pa.repeat(pa.scalar(0, pa.int8()), rows.num_rows), [tag]
            )
            schema = rows.schema.append(pa.field(_TAG_COLUMN, tags.type))
            whole = pa.RecordBatch.from_arrays([*rows.columns, tags], schema=schema)
            stage.produce_arrow(whole, _TAG_COLUMN)

    def _note_times(self, rows: pa.RecordBatch) -> None:
        if self._watermark is not None:
            column = self._watermark.time.column
            if column not in rows.schema.names:
                raise SinkError(
                    f"the watermark is of column {column!r}, and the rows, behind `prepare` if "
                    f"there is one, have {', '.join(rows.schema.names)}: keep the column, or name "
                    "another"
                )
            found = self._watermark.newest(rows.column(column))
            if found is not None and (self.newest is None or found > self.newest):
                self.newest = found

    def partials(self) -> L1Partials:
        """Return what the handlers emitted; call it after the queue has shut down."""
        groups: list[TaskGroups] = []
        results: list[tuple[ArrowAggregation, pa.RecordBatch]] = []
        for number, step, aggregator in self._aggregators:
            if (result := _result_of(aggregator)) is None:
                continue
            results.append((step, result))
            kept, skipped = without_null_keys(pa.Table.from_batches([result]), step)
            self.skipped += skipped
            for batch in record_batches(without_rows(kept)):
                if callable(step.metrics):
                    self._collected.extend(step.metrics(batch))
                else:
                    check_groups(batch, step, self._limits)
                    declared_partials(step, batch)  # fails here if a value does not fit
            if not callable(step.metrics):
                sent, _ = without_null_keys(pa.Table.from_batches([aggregator.partials()]), step)
                groups += (task_groups(number, step, batch) for batch in record_batches(sent))
        if are_of_groups(self._job):
            self.contents = contents_of_groups(results, self._job)
        objects = self.rows.storable(self._collected)
        return L1Partials(self._job, [*objects, *self.rows.dead_letters], groups)


@infrequent_gc()
def aggregate(
    job: AggregationJob, batches: Iterable[pa.RecordBatch], sink_id: str
) -> tuple[L1Partials, AttemptSummary]:
    """Turn the rows of one task into partials, on a queue that lives as long as the attempt.

    Args:
        job: What to do with the rows.
        batches: The rows.
        sink_id: The sink that the partials are for, or one of its shards.

    Raises:
        SinkError: An item was lost.
    """
    meter = CpuMeter()
    rows = 0
    contents: list[Contents] = []
    of_groups = are_of_groups(job)

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            if not of_groups and batch.num_rows:
                contents.append(contents_of_rows(batch, job.columns))
            yield batch

    l1 = TaskL1(job, sink_id)
    # Neither the task's id nor the attempt's number is unique: a task may run twice concurrently.
    with QueueStage(f"{job.name}-l1-{uuid.uuid4()}", job.l1, l1.handlers) as stage:
        for batch in counted() if job.prepare is None else job.prepare(counted()):
            l1.produce(batch, stage)
            if stage.has_failed:
                break  # Spark will retry the whole task
    partials = l1.partials()
    return partials, AttemptSummary(
        rows,
        stage.summary,
        stage.thread_items,
        meter.read(stage.drain_cpu_s),
        l1.skipped,
        l1.rows.bad_rows,
        l1.rows.first_error,
        l1.newest,
        l1.contents if of_groups else total(contents),
    )


def run_attempt(
    job: AggregationJob,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    epoch: EpochId | None = None,
) -> AttemptMessage:
    """Aggregate the rows of one task, and encode the result for the commit.

    Args:
        job: What to do with the rows.
        options: With `sink_id` and `max_commit_bytes`.
        batches: The rows.
        epoch: The micro-batch that the rows belong to; None in a batch write.

    Raises:
        SinkError: An item was lost, a partial cannot be encoded, or the partials are too large.
    """
    partials, summary = aggregate(job, batches, options.sink_id)
    message = encode_message(partials.objects, job, summary, epoch, partials.groups)
    check_size(message.size, options)
    return message
