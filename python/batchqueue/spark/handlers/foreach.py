"""`foreach_batch` and `for_each_partition`: rows of Spark, in batches by type, for handlers with side effects."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchqueue import BatchQueueConfig, ConfigError, PartitionPolicy, ThreadPolicy
from batchqueue.spark.handlers.checks import check_columns, check_delivery
from batchqueue.spark.handlers.delivery import Delivery, MakeHandlers
from batchqueue.spark.handlers.summary import DeliverySummary, PartitionSummary
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
"""Two drain threads, for every core of an executor runs an attempt of its own."""


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
    """Make the function for `df.writeStream.foreachBatch`: each micro-batch goes to handlers, in batches by type.

    Delivery is at-least-once. When a handler raises, a worker dies or the driver is restarted,
    Spark runs tasks and epochs again, and handlers see rows again that they have had before.
    `TaskInfo` names them so that a handler can be idempotent. Where nothing fails, each row comes
    once.

    In each attempt of a task one queue is made and closed. While a partition of it is full, the
    task waits, and Spark reads no further. A handler has the order that the rows have in the
    partition. An attempt fails when a handler raised (after all tries of `config.retry`), or an
    item had no handler; after as many failures as Spark allows, the query fails with the message.

    Args:
        handlers: Called in the worker, once per attempt that has rows, with its `TaskInfo`. It
            returns the handlers of that attempt in a dict: by class of the items with `items`, by
            tag with `type_column`. It opens connections; the handlers' `on_close` closes them, also
            when the attempt fails.
        items: Turns one `pyarrow.RecordBatch` into items, which go to the handler of exactly their
            class. A generator is best. Give either this or `type_column`.
        type_column: The column by whose values, strings or integers, the rows are split. Handlers
            get them as `pyarrow.RecordBatch` objects. Every value needs a handler; null has none.
        columns: Columns that `items` reads. If one is missing, the query fails before any task
            runs.
        config: Of each attempt's queue; BLOCKING, and without consumer and error handler. Default:
            two drain threads, and room for 10,000 items of each type.
        query_id: What `TaskInfo.query_id` says; default: the id that Spark has given the query.
            Spark Connect does not tell it, so give a name there, and never the same to two queries.
        on_summary: Called after each epoch with its `DeliverySummary`, which is logged as well. It
            runs on the driver, or with Spark Connect in a Python process of the server. When it
            raises, the epoch fails.

    Returns:
        A function of a DataFrame and an epoch number.

    Raises:
        ConfigError: An argument cannot be used, or does not pickle.

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
    """Run a job that gives the rows of a DataFrame, or the elements of an RDD, to handlers, in batches by type.

    It is to `df.foreachPartition` what `foreach_batch` is to `foreachBatch`, and as that it is
    at-least-once.

    Args:
        data: A DataFrame of a classic session or of Spark Connect; or an RDD, whose elements are
            the items. Where those need changing, use `rdd.flatMap` before: it runs in the same
            Python process.
        handlers: As in `foreach_batch`. For an RDD by class of its elements: `pyspark.sql.Row` for
            `df.rdd`.
        items: As in `foreach_batch`; for a DataFrame give either this or `type_column`, for an RDD
            none of both.
        type_column: As in `foreach_batch`.
        columns: As in `foreach_batch`.
        config: As in `foreach_batch`.
        query_id: What `TaskInfo.query_id` says. Name a batch job that may be repeated, and its
            handlers can tell what they have had. Default: what Spark says, inside a foreachBatch
            function of your own; else None.
        epoch: What `TaskInfo.epoch` says; the default is as that of `query_id`.

    Returns:
        How it went; the same is logged.

    Raises:
        ConfigError: An argument cannot be used, or does not pickle.
        pyspark.errors.PySparkException: The job failed. py4j.protocol.Py4JJavaError for an RDD.
    """
    if not _is_dataframe(data) and not hasattr(data, "mapPartitions"):
        raise ConfigError(f"data is a {type(data).__name__}; give a DataFrame or an RDD")
    config = _CONFIG if config is None else config
    delivery = Delivery(handlers, items, type_column, config, query_id, epoch)
    check_delivery(delivery, columns, rdd=not _is_dataframe(data))
    if getattr(data, "isStreaming", False):
        raise ConfigError(
            "data is a stream; give df.writeStream.foreachBatch(...) what foreach_batch returns"
        )
    return _run(data, delivery, columns)


def _is_dataframe(data: object) -> bool:
    # Those of Spark Connect are of another class, and where only its client is installed there are
    # no RDDs to ask for.
    return hasattr(data, "mapInArrow")


def _run(data: Any, delivery: Delivery, columns: Sequence[str]) -> DeliverySummary:
    began = time.monotonic()
    if _is_dataframe(data):
        check_columns(delivery, columns, data.columns)
        rows = map_in_arrow(data, delivery.deliver_batches, PartitionSummary.SCHEMA).collect()
        partitions = [PartitionSummary.parse(row["summary"]) for row in rows]
    else:
        partitions = data.mapPartitions(delivery.deliver_elements).collect()
    seconds = time.monotonic() - began
    summary = DeliverySummary.total(partitions, seconds, delivery.query_id, delivery.epoch)
    _log.info(
        "query %s, epoch %s: %d rows delivered as %d items from %d partitions, in %d attempts and %.1f s; %d failed, "
        "%d refused, %d unhandled, %d abandoned; peak queue use %.0f %%",
        *(
            summary.query_id,
            summary.epoch,
            summary.rows,
            summary.items,
            summary.partitions,
            summary.attempts,
        ),
        *(summary.seconds, summary.failed, summary.refused, summary.unhandled, summary.abandoned),
        summary.peak_used_percent,
    )
    return summary
