"""The sink as Spark sees it: a data source whose writers work for one job."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from batchqueue.spark.attempt import AttemptMessage, EpochId, run_attempt
from batchqueue.spark.commit import Commit
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.retries import with_retries

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


def data_source(job: AggregationJob) -> "type[AggregationDataSource]":
    """Make the data source of one job."""
    # A class that only this process has is pickled by value, and the job with it.
    return cast(type[AggregationDataSource], type("Registered", (AggregationDataSource,), {"job": job}))


class AggregationDataSource(DataSource):
    """The data source of one job; `data_source` makes a subclass that holds it."""

    job: ClassVar[AggregationJob]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return f"batchqueue-{cls.job.name}"

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "StreamSinkWriter":
        """Check what can be checked before tasks run, and make the writer of one epoch."""
        if overwrite:
            raise SinkError(
                f"job {self.job.name!r} cannot take outputMode('complete'), which repeats all results in "
                "every epoch; use outputMode('append')"
            )
        return StreamSinkWriter(self.job, self._checked_options(schema, stream=True))

    def writer(self, schema: "StructType", overwrite: bool) -> "BatchSinkWriter":
        """Check what can be checked before tasks run, and make the writer of one batch."""
        options = self._checked_options(schema, stream=False)
        _open_store(self.job)
        return BatchSinkWriter(self.job, options, overwrite)

    def _checked_options(self, schema: "StructType", *, stream: bool) -> SinkOptions:
        options = SinkOptions.parse(self.options, self.job, stream=stream)
        self.job.check_columns(schema.fieldNames())
        return options


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """An attempt's message as Spark wants it."""

    message: AttemptMessage


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes one epoch: `write` runs in the tasks, `commit` in a worker beside the driver."""

    def __init__(self, job: AggregationJob, options: SinkOptions) -> None:
        self._job = job
        self._options = options

    def __getstate__(self) -> object:
        """Look at the store before the tasks run: what Spark sends to them is a pickled writer.

        Not where the writer is made. Spark makes another one for `commit` and another for `abort`, and if that one
        raised, it would report "Writing job failed" in place of the reason of the commit.
        """
        _open_store(self._job)
        return super().__getstate__()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Aggregate the rows of one task."""
        context = TaskContext.get()
        values = {name: context and context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID)}
        missing = [name for name, value in values.items() if not value]
        if missing:
            raise SinkError(
                f"Spark did not set the local property {missing[0]} in this task, so an epoch could not be "
                "told from its replay: use micro-batches, or df.write with option txnId"
            )
        epoch = EpochId(str(values[_QUERY_ID]), int(str(values[_BATCH_ID])))
        return TaskMessage(run_attempt(self._job, self._options, iterator, epoch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Merge the results of all tasks into the store, once per epoch."""
        Commit(self._job, self._options, _attempts(messages)).epoch(batchId)


class BatchSinkWriter(DataSourceArrowWriter):
    """Writes one batch."""

    def __init__(self, job: AggregationJob, options: SinkOptions, overwrite: bool) -> None:
        self._job = job
        self._options = options
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Aggregate the rows of one task."""
        return TaskMessage(run_attempt(self._job, self._options, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Merge the results of all tasks into the store."""
        Commit(self._job, self._options, _attempts(messages)).batch(overwrite=self._overwrite)


def _attempts(messages: list[WriterCommitMessage | None]) -> list[AttemptMessage]:
    # Every task has succeeded when Spark commits; None, for one that failed, is for `abort` only.
    return [cast(TaskMessage, one).message for one in messages]


def _open_store(job: AggregationJob) -> None:
    with_retries(job.store_retry, f"opening {job.store!r}", job.store.prepare)
