"""The sink's writer of streams. Spark 4.0, whose data sources have no such writer on Arrow, cannot import this."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from batchqueue.spark.commit.commit import Commit
from batchqueue.spark.commit.retries import open_store
from batchqueue.spark.errors import SinkError
from batchqueue.spark.format.task_message import TaskMessage, attempts
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.context import BATCH_ID, QUERY_ID, EpochId


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes one epoch: `write` runs in the tasks, `commit` in a worker beside the driver."""

    def __init__(self, job: AggregationJob, options: SinkOptions) -> None:
        self._job = job
        self._options = options

    def __getstate__(self) -> object:
        """Look at the store before the tasks run: what Spark sends to them is a pickled writer.

        Not where the writer is made. Spark makes another one for `commit` and another for `abort`,
        and if that one raised, it would report "Writing job failed" in place of the reason of the
        commit.
        """
        open_store(self._job)
        return super().__getstate__()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Aggregate the rows of one task."""
        context = TaskContext.get()
        values = {name: context and context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID)}
        missing = [name for name, value in values.items() if not value]
        if missing:
            raise SinkError(
                f"Spark did not set the local property {missing[0]} in this task, so an epoch could not be "
                "told from its replay: use micro-batches, or df.write with option txnId"
            )
        epoch = EpochId(str(values[QUERY_ID]), int(str(values[BATCH_ID])))
        return TaskMessage(run_attempt(self._job, self._options, iterator, epoch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Merge the results of all tasks into the store, once per epoch."""
        Commit(self._job, self._options, attempts(messages)).apply_epoch(batchId)
