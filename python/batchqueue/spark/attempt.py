"""One attempt of one task: rows become items, L1 merges them, the commit message carries the partials."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from batchqueue import SupportsConsume
from batchqueue.aggregation import Aggregator, MergeBuffer, Metrics
from batchqueue.spark.cpu import CpuMeter
from batchqueue.spark.errors import SinkError
from batchqueue.spark.garbage import rare_collections
from batchqueue.spark.job import AggregationJob, HandlerFactory, HandOn
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.partials import encode
from batchqueue.spark.stage import Stage
from batchqueue.spark.summary import AttemptSummary


class EpochId(NamedTuple):
    """Which micro-batch a task works for, as Spark says in the task."""

    query_id: str
    batch_id: int


@dataclass(frozen=True)
class AttemptMessage(WriterCommitMessage):
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


@rare_collections()
def run_attempt(
    job: AggregationJob, options: SinkOptions, batches: Iterable[pa.RecordBatch], epoch: EpochId | None = None
) -> AttemptMessage:
    """Aggregate the rows of one task, on a queue that does not outlive it.

    Raises:
        SinkError: An item was lost, a partial cannot be encoded, or there are too many of them.
    """
    meter = CpuMeter()
    rows = 0
    collected: list[Metrics] = []
    factories: dict[type, HandlerFactory] = {**dict.fromkeys(job.metrics, CollectingWorker), **job.handlers}
    handlers: dict[type | str, SupportsConsume[Any]] = {
        item_type: factory(collected.extend) for item_type, factory in factories.items()
    }
    aggregators = [(step, Aggregator(step.aggregation)) for step in job.arrow]
    for step, aggregator in aggregators:
        handlers.update(dict.fromkeys(step.tags, aggregator))
    # Neither the task's id nor the attempt's number is unique: a task may run twice at once.
    with Stage(f"{job.name}-l1-{uuid.uuid4()}", job.l1, handlers) as l1:
        for batch in batches:
            rows += batch.num_rows
            if job.items is not None:
                l1.produce_many(job.items(batch))
            # Each column once: that delivers the rows of all its tags.
            for type_column in dict.fromkeys(step.type_column for step in job.arrow):
                l1.produce_arrow(batch, type_column)
    for step, aggregator in aggregators:
        if (result := aggregator.result()) is not None:
            collected.extend(step.metrics(result))
    partials = encode(collected, job.metrics)
    summary = AttemptSummary(rows, l1.summary, l1.thread_items, meter.read(l1.drain_cpu_s))
    message = AttemptMessage(epoch, partials, summary)
    check_size(message.size, options)
    return message


def check_size(size: int, options: SinkOptions) -> None:
    """Keep the driver from being flooded.

    Raises:
        SinkError: The partials of an attempt, or of an epoch, are larger than the user allows.
    """
    if size > options.max_commit_bytes:
        raise SinkError(
            f"the partial aggregates of one epoch take {size} bytes, more than maxCommitBytes="
            f"{options.max_commit_bytes}, and would all meet in the driver: make epochs smaller "
            "(maxFilesPerTrigger, maxOffsetsPerTrigger), bring the rows of one entity together first "
            "(df.repartition), or raise maxCommitBytes and spark.driver.memory"
        )
