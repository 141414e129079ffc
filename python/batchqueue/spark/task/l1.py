"""L1 of one attempt: the handlers that merge its rows, and the way of the rows to them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from batchqueue import SupportsConsume
from batchqueue.aggregation import Aggregator, MergeBuffer, Metrics
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.column_types import arrow_columns, check_rows
from batchqueue.spark.job.steps import ArrowAggregation, ArrowHandler, Emit, HandlerFactory
from batchqueue.spark.stage.stage import Stage
from batchqueue.spark.task.bad_rows import RowReader
from batchqueue.spark.task.columns import declared_partials
from batchqueue.spark.task.contents import Contents, are_of_groups, contents_of_groups
from batchqueue.spark.task.groups import TaskGroups, merged_groups, overflow, task_groups
from batchqueue.spark.task.null_keys import (
    counting_rows,
    record_batches,
    without_null_keys,
    without_rows,
)
from batchqueue.spark.task.unstorable import TextLimits, check_groups

_TAG_COLUMN = "batchqueue tag"
"""Column that tags the rows of a step for all rows, which has no type column."""


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
    """What L1 has left of the rows of one task.

    Attributes:
        job: The job.
        objects: Partials of handlers and functions, and bad rows that are kept.
        groups: Those of declared metrics.
    """

    job: AggregationJob
    objects: list[Metrics]
    groups: list[TaskGroups]

    def __iter__(self) -> Iterator[Metrics]:
        """Make all partials."""
        yield from self.objects
        yield from merged_groups(self.groups, self.job.arrow)


class L1:
    """The handlers of one attempt, and the way of the rows to them.

    Attributes:
        handlers: The handlers by item type or tag.
        skipped: Rows that `partials` has left out because of a null key.
        rows: What makes items of the rows, and counts those that it cannot read.
        newest: The latest time of the rows in whole seconds, if the job has a watermark.
        contents: What the rows contained, if `partials` has taken that of the groups.
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

    def produce(self, batch: pa.RecordBatch, stage: Stage) -> None:
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
                    declared_partials(step, batch)  # what does not fit fails here
            if not callable(step.metrics):
                sent, _ = without_null_keys(pa.Table.from_batches([aggregator.partials()]), step)
                groups += (task_groups(number, step, batch) for batch in record_batches(sent))
        if are_of_groups(self._job):
            self.contents = contents_of_groups(results, self._job)
        objects = self.rows.storable(self._collected)
        return L1Partials(self._job, [*objects, *self.rows.dead_letters], groups)
