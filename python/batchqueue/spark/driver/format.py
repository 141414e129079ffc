"""The sink as Spark sees it: the data source of one job, and its writer of batches.

It needs Spark 4.0, so it is imported only when `register` is called.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, cast

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from batchqueue.spark.column_types import check_reaches_python, check_rows, spark_columns
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.commit.summary import open_store
from batchqueue.spark.driver.reading import ReadOptions, SinkReader
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.task.arrow import SESSION_ZONE, batches_with_instants, zone_of_task
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import AttemptMessage, AttemptSummary, encode_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from batchqueue.spark.driver.stream_writer import StreamSinkWriter


# The settings of the session that a format is registered in, which no data source can read.


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Settings of the session, as they are when the format is registered.

    Attributes:
        zone: Its zone. Default: UTC.
        tasks: How many tasks it runs concurrently. Default, and with Spark Connect: 8.
    """

    zone: str = "UTC"
    tasks: int = 8

    @classmethod
    def of(cls, spark: "SparkSession") -> Self:
        """Return the settings of a session."""
        try:
            tasks = spark.sparkContext.defaultParallelism
        except PySparkException:  # Spark Connect has no context
            tasks = cls.tasks
        return cls(zone=str(spark.conf.get(SESSION_ZONE)), tasks=tasks)


def data_source(
    job: AggregationJob, session: SessionSettings | None = None
) -> "type[AggregationDataSource]":
    """Make the data source of one job.

    Args:
        job: What to do with the rows.
        session: The settings of the session, as they are now. Default: those of `SessionSettings`.
    """
    # No module has this class under its name, so it is pickled by value, and the job with it.
    return cast(
        type[AggregationDataSource],
        type(
            "JobDataSource",
            (AggregationDataSource,),
            {"job": job, "session": session or SessionSettings()},
        ),
    )


class AggregationDataSource(DataSource):
    """The data source of one job; `data_source` makes a subclass that holds the job."""

    job: ClassVar[AggregationJob]
    session: ClassVar[SessionSettings]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return f"batchqueue-{cls.job.name}"

    def schema(self) -> "StructType":
        """Return the columns of what `spark.read` reads."""
        return ReadOptions.parse(self.options, self.job).schema

    def reader(self, schema: "StructType") -> SinkReader:
        """Make the reader of what the sink has stored."""
        return SinkReader(ReadOptions.parse(self.options, self.job), self.session.tasks)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "StreamSinkWriter":
        """Check what can be checked before tasks run, and make the writer of one epoch."""
        if overwrite:
            raise SinkError(
                f"job {self.job.name!r} cannot take outputMode('complete'), which repeats all "
                "results in every epoch; use outputMode('append')"
            )
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise SinkError(
                f"a stream into {self.name()!r} needs pyspark 4.1 or later, and here is "
                f"{pyspark.__version__}, whose data sources take streams row by row: give "
                "MetricsWriter(job).write_epoch to writeStream.foreachBatch, which keeps the same "
                "ledger"
            )
        from batchqueue.spark.driver.stream_writer import StreamSinkWriter

        return StreamSinkWriter(
            self.job, self._checked_options(schema, stream=True), self.session.zone
        )

    def writer(self, schema: "StructType", overwrite: bool) -> "BatchSinkWriter":
        """Check what can be checked before tasks run, and make the writer of one batch."""
        options = self._checked_options(schema, stream=False)
        open_store(self.job)
        return BatchSinkWriter(self.job, options, overwrite, self.session.zone)

    def _checked_options(self, schema: "StructType", *, stream: bool) -> SinkOptions:
        options = SinkOptions.parse(self.options, self.job, stream=stream)
        columns = spark_columns(schema)
        check_rows(self.job, columns)
        check_reaches_python(columns, "the tasks of a format")
        return options


# The writer of `df.write`.


class BatchSinkWriter(DataSourceArrowWriter):
    """Writes one batch: `write` runs in the tasks, `commit` in a process beside the driver."""

    def __init__(
        self, job: AggregationJob, options: SinkOptions, overwrite: bool, zone: str = "UTC"
    ) -> None:
        """Make the writer, and refuse what the ledger shows cannot be committed.

        Raises:
            SinkError: As `EpochCommit.check_batch`.
        """
        self._job = job
        self._options = options
        self._overwrite = overwrite
        self._zone = zone
        self._repeated = EpochCommit(job, options, []).check_batch(overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Aggregate the rows of one task; only count them if the ledger already has the write."""
        if self._repeated is not None:
            count = sum(batch.num_rows for batch in iterator)
            summary = AttemptSummary(count)
            return TaskMessage(encode_message([], self._job, summary, None))
        rows = batches_with_instants(iterator, zone_of_task(self._zone))
        return TaskMessage(run_attempt(self._job, self._options, rows))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Merge the results of all tasks into the store."""
        commit = EpochCommit(self._job, self._options, attempt_messages(messages))
        if self._repeated is not None:
            # Its rows were left out, so it must not be applied, even if an overwrite has deleted
            # the ledger meanwhile.
            commit.warn_of_other_rows(self._repeated)
        else:
            commit.apply_batch(overwrite=self._overwrite)


# The messages of tasks in the form in which Spark carries them to the commit.


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """The message of the successful attempt of a task."""

    message: AttemptMessage


def attempt_messages(messages: list[WriterCommitMessage | None]) -> list[AttemptMessage]:
    """Return what the tasks sent."""
    # Every task has succeeded when Spark commits. None, for a failed task, reaches `abort` only.
    return [cast(TaskMessage, message).message for message in messages]
