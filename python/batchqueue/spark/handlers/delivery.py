"""One attempt of one task: a queue carries its rows to handlers made for that attempt."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from batchqueue import BatchQueueConfig, ConfigError
from batchqueue.spark.errors import DeliveryError
from batchqueue.spark.handlers.summary import PartitionSummary
from batchqueue.spark.stage.process import infrequent_gc
from batchqueue.spark.stage.stage import Handler, LossMessage, Stage
from batchqueue.spark.stage.stage_summary import StageSummary
from batchqueue.spark.task.arrow import unknown_tags
from batchqueue.spark.task.context import BATCH_ID, QUERY_ID

_CHUNK_ELEMENTS = 1_000
"""Elements of an RDD that are enqueued between two checks whether a handler has failed."""


@dataclass(frozen=True)
class TaskInfo:
    """What an attempt works on.

    A replayed epoch and a retried task bring the same rows under the same `query_id`, `epoch` and
    `partition`, in the same order, as long as the source can be replayed and the plan is
    deterministic. So these three, with the position of an item among those that its handler gets,
    identify an item permanently.

    Attributes:
        query_id: The id of the streaming query, which survives a restart from the checkpoint. None
            if Spark does not say it and none was given: in batch jobs, and with Spark Connect.
        epoch: Number of the micro-batch, from 0; None in batch jobs where none was given.
        partition: Number of the partition, from 0.
        attempt: 32 hexadecimal digits, different in every attempt. Spark's own attempt number is
            not unique: a task may run twice concurrently.
    """

    query_id: str | None
    epoch: int | None
    partition: int
    attempt: str


MakeHandlers = Callable[[TaskInfo], Mapping[Any, Handler]]
"""Makes the handlers of one attempt, by item type or by tag."""

_Produce = Callable[[Stage, Mapping[Any, Handler], Any], object]
"""Enqueues a record batch, or a list of elements, in a stage that has these handlers."""


@dataclass(frozen=True)
class Delivery:
    """How rows reach handlers; pickled for the workers.

    Attributes:
        handlers: Makes the handlers.
        items: Turns a record batch into items. None if `type_column` is set, or if the elements of
            an RDD are the items.
        type_column: The column with the tags; None if there are items.
        config: Config of each attempt's queue.
        query_id: What `TaskInfo` says; None: what Spark says in the task.
        epoch: What `TaskInfo` says; None: what Spark says in the task.
    """

    handlers: MakeHandlers
    items: Callable[[pa.RecordBatch], Iterable[Any]] | None
    type_column: str | None
    config: BatchQueueConfig[Any]
    query_id: str | None
    epoch: int | None

    def deliver_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Deliver the rows of one partition, in its task; for `DataFrame.mapInArrow`.

        Returns:
            One row, of `PartitionSummary.SCHEMA`.

        Raises:
            DeliveryError: Not all rows reached a handler that took them.
            ConfigError: `handlers` did not return handlers by item type or tag.
        """
        produce = self._produce_items if self.type_column is None else self._produce_rows
        chunks = ((batch, batch.num_rows) for batch in batches if batch.num_rows)
        yield self._run(chunks, produce).to_batch()

    def deliver_elements(self, elements: Iterator[Any]) -> Iterator[PartitionSummary]:
        """Deliver the elements of one partition, in its task; for `RDD.mapPartitions`.

        Returns:
            One summary.

        Raises:
            DeliveryError: As `deliver_batches`.
            ConfigError: As `deliver_batches`.
        """
        chunks = iter(lambda: list(islice(elements, _CHUNK_ELEMENTS)), [])
        yield self._run(((chunk, len(chunk)) for chunk in chunks), self._produce_elements)

    @infrequent_gc()
    def _run(self, chunks: Iterator[tuple[Any, int]], produce: _Produce) -> PartitionSummary:
        context = TaskContext.get()
        if context is None:
            raise DeliveryError("rows are delivered in the tasks of Spark, and this is not a task")
        task = self._task(context)
        rows = 0
        queue = StageSummary.total([])
        chunk = next(chunks, None)
        if chunk is not None:  # a partition without rows opens no connections
            handlers = self._handlers(task)
            with Stage(
                f"delivery-{task.attempt}", self.config, handlers, _loss(task, handlers)
            ) as stage:
                while chunk is not None:
                    rows += chunk[1]
                    produce(stage, handlers, chunk[0])
                    # Spark will retry the whole task: whatever is delivered after a failure comes
                    # twice.
                    chunk = None if stage.has_failed else next(chunks, None)
            queue = stage.summary
        return PartitionSummary(task.query_id, task.epoch, rows, context.attemptNumber() + 1, queue)

    def _task(self, context: TaskContext) -> TaskInfo:
        query_id = context.getLocalProperty(QUERY_ID) if self.query_id is None else self.query_id
        epoch = context.getLocalProperty(BATCH_ID) if self.epoch is None else self.epoch
        return TaskInfo(
            query_id=query_id,
            epoch=None if epoch is None else int(epoch),
            partition=context.partitionId(),
            attempt=uuid.uuid4().hex,
        )

    def _handlers(self, task: TaskInfo) -> Mapping[Any, Handler]:
        handlers = self.handlers(task)
        key_type, keys = (
            (type, "class of the items") if self.type_column is None else (str, "tag, a str")
        )
        if (
            not isinstance(handlers, Mapping)
            or not handlers
            or not all(isinstance(key, key_type) for key in handlers)
        ):
            raise ConfigError(
                f"handlers({task}) returned {handlers!r}: return a dict of handlers by {keys}"
            )
        return handlers

    def _produce_items(
        self, stage: Stage, _handlers: Mapping[Any, Handler], batch: pa.RecordBatch
    ) -> None:
        assert self.items is not None
        stage.produce_many(self.items(batch))

    def _produce_rows(
        self, stage: Stage, handlers: Mapping[Any, Handler], batch: pa.RecordBatch
    ) -> None:
        assert self.type_column is not None
        # The queue would only count rows without a handler. This check names the tag, and enqueues
        # nothing of the batch.
        if unknown := unknown_tags(batch, self.type_column, handlers):
            raise DeliveryError(
                f"column {self.type_column!r} has a row with {unknown[0]!r}, and there are "
                f"handlers for {_names(handlers)} only: add one, or leave such rows out with "
                "df.where(...)"
            )
        stage.produce_arrow(batch, self.type_column)

    @staticmethod
    def _produce_elements(
        stage: Stage, _handlers: Mapping[Any, Handler], elements: list[Any]
    ) -> None:
        stage.produce_many(elements)


def _loss(task: TaskInfo, handlers: Mapping[Any, Handler]) -> LossMessage:
    return LossMessage(
        DeliveryError,
        f"partition {task.partition} is not delivered, though what handlers took before stays "
        "with them",
        f"every class of items needs a handler, and there are those for {_names(handlers)}",
    )


def _names(handlers: Mapping[Any, Handler]) -> str:
    return ", ".join(key.__name__ if isinstance(key, type) else repr(key) for key in handlers)
