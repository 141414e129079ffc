"""Which micro-batch a task works on, as Spark says in the task's local properties."""

from typing import NamedTuple

from pyspark import TaskContext

from batchqueue.spark.errors import SinkError

QUERY_ID = "sql.streaming.queryId"
"""The local property with the id of the streaming query, in tasks and in `foreachBatch`."""

BATCH_ID = "streaming.sql.batchId"
"""The local property with the number of the micro-batch, in tasks."""


class EpochId(NamedTuple):
    """The micro-batch that a task works on.

    Attributes:
        query_id: Of the streaming query; it survives a restart from the checkpoint.
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
