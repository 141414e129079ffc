"""One attempt of one task: rows become items, L1 merges them, the commit message carries the partials."""

import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from batchqueue import SupportsConsume
from batchqueue.aggregation import Aggregator, MergeBuffer, Metrics
from batchqueue.spark.arrow import strangers
from batchqueue.spark.cpu import CpuMeter
from batchqueue.spark.errors import SinkError
from batchqueue.spark.garbage import rare_collections
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.partials import decode, encode
from batchqueue.spark.stage import Stage
from batchqueue.spark.steps import ArrowAggregation, ArrowHandler, HandlerFactory, HandOn
from batchqueue.spark.summary import AttemptSummary


class EpochId(NamedTuple):
    """Which micro-batch a task works for, as Spark says in the task."""

    query_id: str
    batch_id: int


@dataclass(frozen=True)
class AttemptMessage:
    """What a successful attempt sends to the commit.

    Attributes:
        epoch: None in a batch write. The commit is not told the query otherwise.
        partials: Arrow IPC streams, see `batchqueue.spark.partials`.
        summary: How it went.
    """

    epoch: EpochId | None
    partials: tuple[bytes, ...]
    summary: AttemptSummary

    @property
    def size(self) -> int:
        """Bytes of the partials."""
        return sum(map(len, self.partials))

    def metrics(self, job: AggregationJob) -> Iterator[Metrics]:
        """Rebuild the partials."""
        return decode(self.partials, job.metrics)


class CollectingWorker:
    """L1 in an attempt: merges until the attempt ends. No `on_idle`: nobody waits for early results."""

    def __init__(self, hand_on: HandOn) -> None:
        self._hand_on = hand_on
        self._buffer = MergeBuffer()

    def consume(self, batch: list[Metrics]) -> None:
        """Merge a batch."""
        self._buffer.accept_all(batch)

    def on_close(self) -> None:
        """Hand on one partial per key."""
        self._hand_on(self._buffer.drain())


class L1:
    """The handlers of one attempt, and how rows get to them.

    Attributes:
        handlers: By item type and by tag.
    """

    def __init__(self, job: AggregationJob) -> None:
        self._items = job.items
        self._collected: list[Metrics] = []
        self._aggregators: list[tuple[ArrowAggregation, Aggregator]] = []
        # Each column once: that delivers the rows of all its tags.
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
            handler = self._handler(step)
            if step.type_column is None:
                self._tags_for_all_rows.append(f"all rows, step {number}")
            tags = step.tags or self._tags_for_all_rows[-1:]
            self.handlers.update(dict.fromkeys(tags, handler))
        # The queue knows a tag, not its column, so rows could go to the handlers of another column.
        self._check_tags = len(self._type_columns) + len(self._tags_for_all_rows) > 1

    def _handler(self, step: ArrowAggregation | ArrowHandler) -> SupportsConsume[Any]:
        if isinstance(step, ArrowHandler):
            return step.make(self._collected.extend)
        aggregator = Aggregator(step.aggregation)
        self._aggregators.append((step, aggregator))
        return aggregator

    def put(self, batch: pa.RecordBatch, stage: Stage) -> None:
        """Put one batch of rows on the queue, in every way that the job wants them."""
        if self._items is not None:
            stage.produce_many(self._items(batch))
        for type_column, tags in self._type_columns.items():
            if self._check_tags:
                _need_known_tags(batch, type_column, tags)
            stage.produce_arrow(batch, type_column)
        for tag in self._tags_for_all_rows:
            tags = pa.DictionaryArray.from_arrays(
                pa.repeat(pa.scalar(0, pa.int8()), batch.num_rows), [tag]
            )
            schema = batch.schema.append(pa.field(_TAG_COLUMN, tags.type))
            tagged = pa.RecordBatch.from_arrays([*batch.columns, tags], schema=schema)
            stage.produce_arrow(tagged, _TAG_COLUMN)

    def partials(self) -> list[Metrics]:
        """Return what the handlers made, when the queue is shut down."""
        for step, aggregator in self._aggregators:
            if (result := aggregator.result()) is not None:
                self._collected.extend(step.metrics(result))
        return self._collected


_TAG_COLUMN = "batchqueue tag"


def _need_known_tags(batch: pa.RecordBatch, type_column: str, tags: Collection[str]) -> None:
    """Refuse rows whose value of a column is in no step by that column.

    Raises:
        SinkError: There is one.
    """
    if unknown := strangers(batch, type_column, tags):
        raise SinkError(
            f"column {type_column!r} has a row with {unknown[0]!r}, and the steps by it have {', '.join(sorted(tags))} "
            "only, so nothing of this epoch is committed: name every tag in one of `arrow`"
        )


@rare_collections()
def aggregate(
    job: AggregationJob, batches: Iterable[pa.RecordBatch]
) -> tuple[list[Metrics], AttemptSummary]:
    """Turn the rows of one task into partials, on a queue that does not outlive it.

    Raises:
        SinkError: An item was lost.
    """
    meter = CpuMeter()
    rows = 0
    l1 = L1(job)
    # Neither the task's id nor the attempt's number is unique: a task may run twice at once.
    with Stage(f"{job.name}-l1-{uuid.uuid4()}", job.l1, l1.handlers) as stage:
        for batch in batches:
            rows += batch.num_rows
            l1.put(batch, stage)
            if stage.has_failed:
                break  # Spark will try the whole task again
    partials = l1.partials()
    return partials, AttemptSummary(
        rows, stage.summary, stage.thread_items, meter.read(stage.drain_cpu_s)
    )


def run_attempt(
    job: AggregationJob,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    epoch: EpochId | None = None,
) -> AttemptMessage:
    """Aggregate the rows of one task.

    Raises:
        SinkError: An item was lost, a partial cannot be encoded, or there are too many of them.
    """
    partials, summary = aggregate(job, batches)
    message = message_of(partials, job, summary, epoch)
    check_size(message.size, options)
    return message


@rare_collections()
def message_of(
    partials: Iterable[Metrics], job: AggregationJob, summary: AttemptSummary, epoch: EpochId | None
) -> AttemptMessage:
    """Encode partials.

    Raises:
        SinkError: A partial cannot be encoded.
    """
    return AttemptMessage(epoch, encode(partials, job.metrics), summary)


def nothing(job: AggregationJob, epoch: EpochId | None) -> AttemptMessage:
    """Return the message of a task without rows, for an epoch without tasks: Spark takes it for done as well."""
    return message_of([], job, AttemptSummary.nothing(), epoch)


def check_size(size: int, options: SinkOptions) -> None:
    """Keep the driver from being flooded.

    Raises:
        SinkError: The partials of an attempt, or of an epoch, are larger than the user allows.
    """
    if size > options.max_commit_bytes:
        raise SinkError(
            f"the partial aggregates of one epoch take {size} bytes, more than maxCommitBytes="
            f"{options.max_commit_bytes}, and would all meet in one process: make epochs smaller "
            "(maxFilesPerTrigger, maxOffsetsPerTrigger), bring the rows of one entity together first "
            "(df.repartition), merge in many tasks (MetricsWriter(shards=...)), or raise maxCommitBytes and "
            "spark.driver.memory"
        )
