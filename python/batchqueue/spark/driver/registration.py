"""`register`: the job as a data source for reads, writes and streams.

It can be imported with any pyspark, so it can name the version that it needs; `format` cannot.
"""

from typing import TYPE_CHECKING

from batchqueue.spark.job import AggregationJob, check_job, check_session
from batchqueue.spark.requirements import require_data_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession", job: AggregationJob) -> str:
    """Register a job as a format of this session, replacing a format of the same name.

    Options of the write:

    - `sinkId`: names the sink within the store; default: the job's name. A batch without it is
      refused if a stream has written to that sink.
    - `onNewQuery` (stream): `append` or `replace`: what to do when a query with a new checkpoint
      meets a sink that has data; `append:` and the id of a query accepts that one only. Without it
      the query fails, and the message names its id.
    - `txnId` (batch): a write whose txnId was committed before is skipped. Without it a batch write
      is at-least-once.
    - `onJobChange`: `accept`: continue when the job's metrics or aggregations differ from those of
      the job that wrote last. Without it the write fails and names the difference. A metric whose
      columns have changed is never accepted: what is stored could not be merged with it.
    - `onMissingEpochs` (stream): `accept`: continue when the store lacks epochs that the checkpoint
      has. Without it the query fails.
    - `onChangedEpoch` (stream): `skip`: leave out the rows of a replayed epoch if their number, or
      the rows, differ from what the store recorded. Without it the query fails.
    - `maxCommitBytes`: largest size of the partial aggregates of one epoch, in bytes; default
      67108864 (64 MiB). A task checks its own partials, the commit the sum.

    Options of `spark.read`, which reads a metric as the store's `read_table` does. The data files
    of a ParquetStore are read in several tasks, any other store in one.

    - `metric`: its name; not needed if the job has one metric.
    - `sinkId`: as above.
    - `shards`: the number of shards of the `MetricsWriter` that wrote; leave it out if it had none.
    - `entities`: a JSON list of the entities to read; default: all.
    - `since`, `before`: limits of the time bucket, the first included: seconds since 1970, or a
      time with a zone, such as 2026-01-31T00:00+00:00.

    A stream is exactly-once when its source can be replayed, its plan is deterministic, and its
    checkpoint and store are durable.

    Functions that are defined in the main script are pickled with the job. Your own modules must be
    importable in the workers: install them, or use `spark.sparkContext.addPyFile`.

    Args:
        spark: The session that gets the format.
        job: What to do with the rows.

    Returns:
        The name of the format: "batchqueue-" followed by the job's name.

    Raises:
        ConfigError: An argument is of another class, or the job cannot be pickled.
        MissingPackageError: This pyspark is older than 4.0. With 4.0 the format takes batches only;
            a stream into it fails, and the message names `MetricsWriter.write_epoch` instead.

    Example:
        format_name = register(spark, job)
        query = df.writeStream.format(format_name).option("checkpointLocation", path).start()
        departures = spark.read.format(format_name).option("metric", "departures").load()
    """
    require_data_sources()
    from batchqueue.spark.driver.format import SessionSettings, data_source

    check_session(spark, "register", "dataSource")
    check_job(job, "register")
    job.check_pickles()
    source = data_source(job, SessionSettings.of(spark))
    spark.dataSource.register(source)
    return source.name()
