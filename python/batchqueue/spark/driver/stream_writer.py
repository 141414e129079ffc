"""The writer of `df.writeStream`. It needs Spark 4.1, so it is imported when a stream starts.

The data sources of Spark 4.0 have no Arrow writer for streams.
"""

import pickle
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from batchqueue.exceptions import BatchQueueError
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.commit.summary import open_store
from batchqueue.spark.driver.format import TaskMessage, attempt_messages
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.task.arrow import batches_with_instants, zone_of_task
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import current_epoch


class RefusedBeforeTasksError(SinkError, pickle.PickleError):
    """The store, or what its ledger shows, refuses a query before its tasks run.

    It is a `PickleError` because pyspark, which pickles the writer at that point, passes on no
    other error unchanged.
    """


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes one epoch: `write` runs in the tasks, `commit` in a process beside the driver."""

    def __init__(self, job: AggregationJob, options: SinkOptions, zone: str = "UTC") -> None:
        self._job = job
        self._options = options
        self._zone = zone

    def __getstate__(self) -> object:
        """Open the store before the tasks run: Spark pickles the writer to send it to them.

        What the ledger can refuse without knowing the query is refused here, too.

        The constructor is the wrong place. Spark makes another writer for `commit` and another for
        `abort`; if the latter raised, Spark would report "Writing job failed" instead of the reason
        why the commit failed.
        """
        try:
            open_store(self._job)
            EpochCommit(self._job, self._options, []).check_epoch(None)
        except BatchQueueError as error:
            raise RefusedBeforeTasksError(str(error)) from error.__cause__
        return super().__getstate__()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Aggregate the rows of one task."""
        rows = batches_with_instants(iterator, zone_of_task(self._zone))
        return TaskMessage(run_attempt(self._job, self._options, rows, current_epoch()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Merge the results of all tasks into the store, once per epoch."""
        EpochCommit(self._job, self._options, attempt_messages(messages)).apply_epoch(batchId)
