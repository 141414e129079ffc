"""One attempt of one task: its rows go to handlers made for it, on a queue that does not outlive it."""

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

_ELEMENTS_AT_ONCE = 1_000
"""Elements of an RDD between two looks at whether a handler has failed."""


@dataclass(frozen=True)
class TaskInfo:
    """What an attempt works on.

    An epoch that is replayed, and a task that is tried again, bring the same rows under the same
    `query_id`, `epoch` and `partition`, in the same order, as long as the source can be replayed
    and the plan is deterministic. So these three, with the position of an item among those that its
    handler gets, name an item for good.

    Attributes:
        query_id: Of the streaming query; it stays when the query is restarted from its checkpoint.
            None where Spark does not tell it and none was given: in batch jobs, and with Spark
            Connect.
        epoch: Number of the micro-batch, from 0; None in batch jobs where none was given.
        partition: Number of the partition, from 0.
        attempt: 32 hexadecimal digits, different in every attempt. Spark's own attempt number is
            not: a task may run twice at once.
    """

    query_id: str | None
    epoch: int | None
    partition: int
    attempt: str


MakeHandlers = Callable[[TaskInfo], Mapping[Any, Handler]]
"""Makes the handlers of one attempt, by item type or by tag."""

_Put = Callable[[Stage, Mapping[Any, Handler], Any], object]
"""Puts a record batch, or a list of elements, on the queue of a stage that has these handlers."""


@dataclass(frozen=True)
class Delivery:
    """How rows reach handlers; it travels to the workers.

    Attributes:
        handlers: Makes the handlers.
        items: Turns a record batch into items; None: there is `type_column`, or the elements are
            the items.
        type_column: The column with the tags; None: there are items.
        config: Of each attempt's queue.
        query_id: None: what Spark says in the task.
        epoch: None: what Spark says in the task.
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
        put = self._put_items if self.type_column is None else self._put_rows
        parts = ((batch, batch.num_rows) for batch in batches if batch.num_rows)
        yield self._run(parts, put).to_batch()

    def deliver_elements(self, elements: Iterator[Any]) -> Iterator[PartitionSummary]:
        """Deliver the elements of one partition, in its task; for `RDD.mapPartitions`. The rest is as above."""
        lists = iter(lambda: list(islice(elements, _ELEMENTS_AT_ONCE)), [])
        yield self._run(((some, len(some)) for some in lists), self._put_elements)

    @infrequent_gc()
    def _run(self, parts: Iterator[tuple[Any, int]], put: _Put) -> PartitionSummary:
        context = TaskContext.get()
        if context is None:
            raise DeliveryError("rows are delivered in the tasks of Spark, and this is none")
        task = self._task(context)
        rows = 0
        queue = StageSummary.total([])
        part = next(parts, None)
        if part is not None:  # else there is nothing to open connections for
            handlers = self._handlers(task)
            with Stage(
                f"delivery-{task.attempt}", self.config, handlers, _loss(task, handlers)
            ) as stage:
                while part is not None:
                    rows += part[1]
                    put(stage, handlers, part[0])
                    # Spark will try the whole task again, so what else is delivered now would only
                    # come twice.
                    part = None if stage.has_failed else next(parts, None)
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

    def _put_items(
        self, stage: Stage, _handlers: Mapping[Any, Handler], batch: pa.RecordBatch
    ) -> None:
        assert self.items is not None
        stage.produce_many(self.items(batch))

    def _put_rows(
        self, stage: Stage, handlers: Mapping[Any, Handler], batch: pa.RecordBatch
    ) -> None:
        assert self.type_column is not None
        # The queue only counts rows that nobody wants; here the tag can be named, and nothing of
        # the batch is sent.
        if unknown := unknown_tags(batch, self.type_column, handlers):
            raise DeliveryError(
                f"column {self.type_column!r} has a row with {unknown[0]!r}, and there are handlers for "
                f"{_names(handlers)} only: add one, or leave such rows out with df.where(...)"
            )
        stage.produce_arrow(batch, self.type_column)

    @staticmethod
    def _put_elements(stage: Stage, _handlers: Mapping[Any, Handler], elements: list[Any]) -> None:
        stage.produce_many(elements)


def _loss(task: TaskInfo, handlers: Mapping[Any, Handler]) -> LossMessage:
    return LossMessage(
        DeliveryError,
        f"partition {task.partition} is not delivered, though what handlers took before stays with them",
        f"every class of items needs a handler, and there are those for {_names(handlers)}",
    )


def _names(handlers: Mapping[Any, Handler]) -> str:
    return ", ".join(key.__name__ if isinstance(key, type) else repr(key) for key in handlers)
