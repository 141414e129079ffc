"""The sink as Spark sees it: a data source that makes the writers of one job."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, cast

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource

from batchqueue.spark.column_types import check_reaches_python, check_rows, spark_columns
from batchqueue.spark.commit.summary import open_store
from batchqueue.spark.driver.batch_writer import BatchSinkWriter
from batchqueue.spark.driver.reading import ReadOptions, SinkReader
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.task.arrow import SESSION_ZONE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from batchqueue.spark.driver.stream_writer import StreamSinkWriter


# What a format knows of the session that it is registered in: Spark shows it to no data source.


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
        """Return those of a session."""
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
