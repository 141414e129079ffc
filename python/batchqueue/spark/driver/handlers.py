"""Rows for your own handlers, at least once. Declared in the driver, delivered in tasks."""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
from pyspark import TaskContext

from batchqueue.base.checks import check_whole
from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import ConfigError
from batchqueue.queues.config import BatchQueueConfig, BufferStrategy, PartitionPolicy, ThreadPolicy
from batchqueue.spark.column_types import (
    Column,
    check_once,
    check_reaches_python,
    check_tags,
    spark_columns,
)
from batchqueue.spark.job import check_pickles
from batchqueue.spark.requirements import DeliveryError
from batchqueue.spark.stage import Handler, LossMessage, QueueStage, StageSummary, infrequent_gc
from batchqueue.spark.task.arrow import map_in_arrow, unknown_tags
from batchqueue.spark.task.message import BATCH_ID, QUERY_ID

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame


# Summaries of rows that were delivered to handlers: of a partition, and of the whole job.


@dataclass(frozen=True)
class PartitionSummary:
    """What the successful attempt of one partition sends to the driver.

    Attributes:
        query_id: As in the `TaskInfo` of its handlers.
        epoch: As in the `TaskInfo` of its handlers.
        rows: Rows from Spark.
        attempts: Attempts of the task, including this one.
        queue: The counts of the queue; all zero if the partition had no row.
    """

    SCHEMA: ClassVar[str] = "summary string"

    query_id: str | None
    epoch: int | None
    rows: int
    attempts: int
    queue: StageSummary

    def to_batch(self) -> pa.RecordBatch:
        """Return a row of `SCHEMA`."""
        return pa.RecordBatch.from_pydict(
            {"summary": pa.array([json.dumps(asdict(self))], pa.string())}
        )

    @classmethod
    def parse(cls, summary: str) -> Self:
        """Parse the summary in a row of `to_batch`."""
        fields = json.loads(summary)
        return cls(**{**fields, "queue": StageSummary(**fields["queue"])})


@dataclass(frozen=True)
class DeliverySummary:
    """How the rows of one epoch, or of one batch job, were delivered.

    It is made after every partition has succeeded. So `failed`, `refused`, `unhandled` and
    `abandoned` are 0: an attempt in which one of them is not 0 fails. Failed attempts count in
    `attempts` and in no other figure, although their handlers may have taken some of the rows.

    Attributes:
        query_id: As in `TaskInfo`.
        epoch: As in `TaskInfo`.
        partitions: Partitions of the job.
        attempts: Attempts that they took, as Spark numbers them; at least 1 for each partition.
        rows: Rows from Spark.
        items: Items that were enqueued: rows, or what `items` made of them.
        failed: Items whose handler raised, after all retries of the retry policy.
        refused: Items that a queue did not accept.
        unhandled: Items without a handler.
        abandoned: Items that a shutdown left behind.
        peak_used_percent: Highest observed fill of the fullest partition of a queue, 0 to 100.
        seconds: Seconds from the start of the job to its end.
        dead_lettered: Items whose handler raised, and that the `dead_letter` of the config kept.
    """

    query_id: str | None
    epoch: int | None
    partitions: int
    attempts: int
    rows: int
    items: int
    failed: int
    refused: int
    unhandled: int
    abandoned: int
    peak_used_percent: float
    seconds: float
    dead_lettered: int = 0

    @classmethod
    def total(
        cls,
        partitions: Sequence[PartitionSummary],
        seconds: float,
        query_id: str | None,
        epoch: int | None,
    ) -> Self:
        """Return the sum over the partitions of a job.

        Args:
            partitions: The summary of each partition.
            seconds: Seconds that the job took.
            query_id: Used if the job has no partitions.
            epoch: Used if the job has no partitions.
        """
        queue = StageSummary.total([partition.queue for partition in partitions])
        return cls(
            query_id=partitions[0].query_id if partitions else query_id,
            epoch=partitions[0].epoch if partitions else epoch,
            partitions=len(partitions),
            attempts=sum(partition.attempts for partition in partitions),
            rows=sum(partition.rows for partition in partitions),
            items=queue.produced,
            failed=queue.failed,
            refused=queue.refused,
            unhandled=queue.unhandled,
            abandoned=queue.abandoned,
            peak_used_percent=queue.peak_used_percent,
            seconds=seconds,
            dead_lettered=queue.dead_lettered,
        )


# One attempt of one task: a queue carries its rows to handlers made for that attempt.


_CHUNK_ELEMENTS = 1_000
"""Elements of an RDD that are enqueued between two checks whether a handler has failed."""


@dataclass(frozen=True)
class TaskInfo:
    """The rows that an attempt works on.

    A replayed epoch and a retried task get the same rows under the same `query_id`, `epoch` and
    `partition`, in the same order, as long as the source can be replayed and the plan is
    deterministic. So these three identify an item permanently, together with its position among
    those that its handler gets.

    Attributes:
        query_id: The id of the streaming query, which survives a restart from the checkpoint. None
            if Spark does not provide it and none was given: in batch jobs, and with Spark Connect.
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

_Produce = Callable[[QueueStage, Mapping[Any, Handler], Any], object]
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
        yield self._run(((chunk, len(chunk)) for chunk in chunks), self._produce_items)

    @infrequent_gc()
    def _run(self, chunks: Iterator[tuple[Any, int]], produce: _Produce) -> PartitionSummary:
        context = TaskContext.get()
        if context is None:
            raise DeliveryError("rows are delivered in the tasks of Spark, and this is not a task")
        task = self._task(context)
        rows = 0
        queue = StageSummary()
        chunk = next(chunks, None)
        if chunk is not None:  # a partition without rows opens no connections
            handlers = self._handlers(task)
            with QueueStage(
                f"delivery-{task.attempt}", self.config, handlers, _loss(task, handlers)
            ) as stage:
                while chunk is not None:
                    rows += chunk[1]
                    produce(stage, handlers, chunk[0])
                    # Spark will retry the whole task: whatever is delivered after a failure is
                    # delivered twice.
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
        self, stage: QueueStage, _handlers: Mapping[Any, Handler], chunk: Any
    ) -> None:
        stage.produce_many(chunk if self.items is None else self.items(chunk))

    def _produce_rows(
        self, stage: QueueStage, handlers: Mapping[Any, Handler], batch: pa.RecordBatch
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


def _loss(task: TaskInfo, handlers: Mapping[Any, Handler]) -> LossMessage:
    return LossMessage(
        DeliveryError,
        f"partition {task.partition} is not delivered, though what handlers took before stays "
        "with them",
        f"every class of items needs a handler, and there are those for {_names(handlers)}",
    )


def _names(handlers: Mapping[Any, Handler]) -> str:
    return ", ".join(key.__name__ if isinstance(key, type) else repr(key) for key in handlers)


# `foreach_batch` and `for_each_partition`: rows in batches by type, for handlers of your own.


_log = logging.getLogger("batchqueue.spark")

Items = Callable[[pa.RecordBatch], Iterable[Any]]

_CONFIG: BatchQueueConfig[Any] = BatchQueueConfig(
    threads=ThreadPolicy.fixed(2),
    partitions=PartitionPolicy.adaptive(),
    min_idle_ms=1,
    max_idle_ms=50,
)
"""Two drain threads, because each core of an executor runs its own attempt."""


def foreach_batch(
    handlers: MakeHandlers,
    *,
    items: Items | None = None,
    type_column: str | None = None,
    columns: Sequence[str] = (),
    config: BatchQueueConfig[Any] | None = None,
    query_id: str | None = None,
    on_summary: Callable[[DeliverySummary], object] | None = None,
) -> "Callable[[DataFrame, int], None]":
    """Make the function for `foreachBatch`: each micro-batch goes to handlers, in batches by type.

    Delivery is at-least-once. When a handler raises, a worker dies or the driver is restarted,
    Spark repeats tasks and epochs, and handlers get rows again that they already had. `TaskInfo`
    identifies them, so that a handler can be idempotent. If nothing fails, each row comes once.

    Each attempt of a task opens and closes one queue. While a partition of the queue is full, the
    task waits, and Spark reads no further. A handler gets rows in the order that they have in
    Spark's partition. An attempt fails when a handler raises (after all retries of `config.retry`),
    or when an item has no handler; after as many failures as Spark allows, the query fails with the
    message.

    Args:
        handlers: Called in the worker with the `TaskInfo` of an attempt, once per attempt that has
            rows. It returns the handlers of that attempt in a dict: by class of the items with
            `items`, by tag with `type_column`. It opens connections; the handlers' `on_close`
            closes them, even when the attempt fails.
        items: Turns one `pyarrow.RecordBatch` into items, which go to the handler of exactly their
            class. Prefer a generator. Give either this or `type_column`.
        type_column: The column whose values, strings or integers, split the rows. Handlers get them
            as `pyarrow.RecordBatch` objects. Every value needs a handler; null cannot have one.
        columns: Columns that `items` reads. If a column is missing, the query fails before any task
            runs. Default: none are checked.
        config: Config of each attempt's queue; BLOCKING, without consumer or error handler.
            Default: two drain threads, and room for 10,000 items of each type.
        query_id: What `TaskInfo.query_id` says. Default: the id that Spark gave the query. Spark
            Connect does not pass it on, so give a name there, and a different one to each query.
        on_summary: Called after each epoch with its `DeliverySummary`, which is logged as well. It
            runs in the driver, or with Spark Connect in a Python process of the server. If it
            raises, the epoch fails.

    Returns:
        A function of a DataFrame and an epoch number.

    Raises:
        ConfigError: An argument is invalid, or cannot be pickled.

    Example:
        query = (
            df.writeStream.foreachBatch(foreach_batch(handlers, type_column="kind"))
            .option("checkpointLocation", path)
            .start()
        )
    """
    if on_summary is not None and not callable(on_summary):
        raise ConfigError(
            f"on_summary is {on_summary!r}; give a function that takes a DeliverySummary"
        )
    config = _CONFIG if config is None else config
    delivery = Delivery(handlers, items, type_column, config, query_id, epoch=None)
    check_delivery(delivery, columns, rdd=False)

    def deliver(df: "DataFrame", epoch: int) -> None:
        summary = _run(df, replace(delivery, epoch=epoch), columns)
        if on_summary is not None:
            on_summary(summary)

    return deliver


def for_each_partition(
    data: "DataFrame | RDD[Any]",
    handlers: MakeHandlers,
    *,
    items: Items | None = None,
    type_column: str | None = None,
    columns: Sequence[str] = (),
    config: BatchQueueConfig[Any] | None = None,
    query_id: str | None = None,
    epoch: int | None = None,
) -> DeliverySummary:
    """Run a job that gives the rows of a DataFrame or RDD to handlers, in batches by type.

    It is to `df.foreachPartition` what `foreach_batch` is to `foreachBatch`, and at-least-once as
    well.

    Args:
        data: A DataFrame of a classic session or of Spark Connect; or an RDD, whose elements are
            the items. To transform them, use `rdd.flatMap` before: it runs in the same Python
            process.
        handlers: As in `foreach_batch`. For an RDD by class of its elements: `pyspark.sql.Row` for
            `df.rdd`.
        items: As in `foreach_batch`. For a DataFrame give either this or `type_column`, for an RDD
            neither.
        type_column: As in `foreach_batch`.
        columns: As in `foreach_batch`.
        config: As in `foreach_batch`.
        query_id: What `TaskInfo.query_id` says. Name a batch job that may be repeated, so that its
            handlers can recognize what they have taken. Default: what Spark says, if this is called
            inside a foreachBatch function; else None.
        epoch: What `TaskInfo.epoch` says. Default: as for `query_id`.

    Returns:
        The counts of the job, which are logged as well.

    Raises:
        ConfigError: An argument is invalid, or cannot be pickled.
        pyspark.errors.PySparkException: The job failed. py4j.protocol.Py4JJavaError for an RDD.
    """
    if not _is_dataframe(data) and not hasattr(data, "mapPartitions"):
        raise ConfigError(f"data is {a_type(data)}; give a DataFrame or an RDD")
    config = _CONFIG if config is None else config
    delivery = Delivery(handlers, items, type_column, config, query_id, epoch)
    check_delivery(delivery, columns, rdd=not _is_dataframe(data))
    if getattr(data, "isStreaming", False):
        raise ConfigError(
            "data is a stream; give df.writeStream.foreachBatch(...) what foreach_batch returns"
        )
    return _run(data, delivery, columns)


def _is_dataframe(data: object) -> bool:
    # DataFrames of Spark Connect have another class, and its client has no RDD class to import.
    return hasattr(data, "mapInArrow")


def _run(data: Any, delivery: Delivery, columns: Sequence[str]) -> DeliverySummary:
    started_at = time.monotonic()
    if _is_dataframe(data):
        check_columns(delivery, columns, spark_columns(data.schema))
        rows = map_in_arrow(data, delivery.deliver_batches, PartitionSummary.SCHEMA).collect()
        partitions = [PartitionSummary.parse(row["summary"]) for row in rows]
    else:
        partitions = data.mapPartitions(delivery.deliver_elements).collect()
    seconds = time.monotonic() - started_at
    summary = DeliverySummary.total(partitions, seconds, delivery.query_id, delivery.epoch)
    _log.info(
        "query %s, epoch %s: %s delivered as %s from %s, in %s and %.1f s; %d failed, %d "
        "dead-lettered, %d refused, %d unhandled, %d abandoned; peak queue "
        "use %.0f %%",
        *(
            summary.query_id,
            summary.epoch,
            counted(summary.rows, "row"),
            counted(summary.items, "item"),
            counted(summary.partitions, "partition"),
            counted(summary.attempts, "attempt"),
        ),
        *(summary.seconds, summary.failed, summary.dead_lettered, summary.refused),
        *(summary.unhandled, summary.abandoned, summary.peak_used_percent),
    )
    return summary


# Checks of a delivery in the driver, before any task runs.


def check_delivery(delivery: Delivery, columns: Sequence[str], *, rdd: bool) -> None:
    """Check everything that needs no data.

    Args:
        delivery: What is pickled for the workers.
        columns: Columns that `items` reads.
        rdd: True if the data is an RDD, False if it is a DataFrame.

    Raises:
        ConfigError: A value is invalid, or cannot be pickled.
    """
    if not callable(delivery.handlers):
        raise ConfigError(
            f"handlers is {delivery.handlers!r}; give a function that takes a TaskInfo and returns "
            "a dict of handlers: it is called in the workers, so that handlers and their "
            "connections need not be pickled"
        )
    if rdd:
        _check_rdd(delivery, columns)
    else:
        _check_dataframe(delivery)
    if isinstance(columns, str):
        raise ConfigError(f"columns is {columns!r}; give a list of names")
    if delivery.query_id is not None and not (
        isinstance(delivery.query_id, str) and delivery.query_id
    ):
        raise ConfigError(f"query_id is {delivery.query_id!r}; give a str, or leave it out")
    remedy = "a whole number from 0 up, or leave it out"
    check_whole("epoch", delivery.epoch, 0, give=remedy, is_optional=True)
    _check_config(delivery.config)
    check_pickles(delivery, "", "the function `handlers`, which runs in the workers")


def check_columns(delivery: Delivery, columns: Sequence[str], rows: list[Column]) -> None:
    """Check that the rows have the columns that are read, and that handlers can get them.

    Raises:
        ConfigError: A column is missing, cannot be handed to Python, or has no tags.
    """
    needed = [*columns, *([] if delivery.type_column is None else [delivery.type_column])]
    available = [column.name for column in rows]
    missing = [column for column in needed if column not in available]
    if missing:
        raise ConfigError(
            f"the handlers need column {', '.join(missing)}, but the rows have "
            f"{', '.join(available)}: select or rename it before (case matters)"
        )
    check_once(rows, needed)
    check_reaches_python(rows, "handlers")
    for column in rows:
        if column.name == delivery.type_column:
            check_tags(column)


def _check_rdd(delivery: Delivery, columns: Sequence[str]) -> None:
    if delivery.items is not None or delivery.type_column is not None or columns:
        raise ConfigError(
            "items, type_column and columns are for a DataFrame, and data is an RDD: its elements "
            "are the items; make them with rdd.flatMap before"
        )


def _check_dataframe(delivery: Delivery) -> None:
    items, type_column = delivery.items, delivery.type_column
    if (items is None) == (type_column is None):
        raise ConfigError(
            f"{'neither' if items is None else 'both'} of items and type_column is given; give one "
            "of them: items, a function that turns record batches into items, or type_column, the "
            "column that the rows are split by"
        )
    if items is not None and not callable(items):
        raise ConfigError(
            f"items is {items!r}; give a function that turns a record batch into items"
        )
    if type_column is not None and not isinstance(type_column, str):
        raise ConfigError(f"type_column is {type_column!r}; give the name of a column")


def _check_config(config: Any) -> None:
    if not isinstance(config, BatchQueueConfig):
        raise ConfigError(f"config is {a_type(config)}; give a BatchQueueConfig")
    for name in ("consumer", "consumer_factory", "error_handler"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"the config has {name}, and here the function `handlers` makes all that handles "
                "items: leave it out"
                + (", and give handlers an on_error" if name == "error_handler" else "")
            )
    if config.strategy is not BufferStrategy.BLOCKING:
        raise ConfigError(
            f"the config has strategy {config.strategy.name}: what it refuses would reach no "
            "handler; use BufferStrategy.BLOCKING, with which Spark waits"
        )
