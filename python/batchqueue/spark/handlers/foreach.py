"""`foreach_batch` and `for_each_partition`: rows in batches by type, for handlers of your own."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchqueue import BatchQueueConfig, ConfigError, PartitionPolicy, ThreadPolicy
from batchqueue._words import a_type, counted
from batchqueue.spark.handlers.checks import check_columns, check_delivery
from batchqueue.spark.handlers.delivery import Delivery, MakeHandlers
from batchqueue.spark.handlers.summary import DeliverySummary, PartitionSummary
from batchqueue.spark.job.column_types import spark_columns
from batchqueue.spark.task.arrow import map_in_arrow

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

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
    Spark repeats tasks and epochs, and handlers get rows again that they had before. `TaskInfo`
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
    # DataFrames of Spark Connect have another class, and its client comes without RDDs to import.
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
