"""The sink as Spark sees it: a data source whose writers work for one job, and the writer of batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from batchqueue.spark.attempt import AttemptMessage, run_attempt
from batchqueue.spark.commit import Commit
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.retries import with_retries

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from batchqueue.spark.stream_sink import StreamSinkWriter


def data_source(job: AggregationJob) -> "type[AggregationDataSource]":
    """Make the data source of one job."""
    # A class that only this process has is pickled by value, and the job with it.
    return cast(
        type[AggregationDataSource], type("Registered", (AggregationDataSource,), {"job": job})
    )


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
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise SinkError(
                f"a stream into {self.name()!r} needs pyspark 4.1 or later, and here is {pyspark.__version__}, whose "
                "data sources take streams row by row: give MetricsWriter(job).write_epoch to "
                "writeStream.foreachBatch, which keeps the same ledger"
            )
        from batchqueue.spark.stream_sink import StreamSinkWriter

        return StreamSinkWriter(self.job, self._checked_options(schema, stream=True))

    def writer(self, schema: "StructType", overwrite: bool) -> "BatchSinkWriter":
        """Check what can be checked before tasks run, and make the writer of one batch."""
        options = self._checked_options(schema, stream=False)
        open_store(self.job)
        return BatchSinkWriter(self.job, options, overwrite)

    def _checked_options(self, schema: "StructType", *, stream: bool) -> SinkOptions:
        options = SinkOptions.parse(self.options, self.job, stream=stream)
        self.job.check_columns(schema.fieldNames())
        return options


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """An attempt's message as Spark wants it."""

    message: AttemptMessage


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
        Commit(self._job, self._options, attempts(messages)).batch(overwrite=self._overwrite)


def attempts(messages: list[WriterCommitMessage | None]) -> list[AttemptMessage]:
    """Return what the tasks sent."""
    # Every task has succeeded when Spark commits; None, for one that failed, is for `abort` only.
    return [cast(TaskMessage, one).message for one in messages]


def open_store(job: AggregationJob) -> None:
    """Look at the store before tasks run."""
    with_retries(job.store_retry, f"opening {job.store!r}", job.store.prepare)
