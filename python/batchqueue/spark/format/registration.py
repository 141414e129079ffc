"""`register` makes a job a format that `df.write` and `df.writeStream` can name."""

from typing import TYPE_CHECKING

from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.requirements import require_data_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession", job: AggregationJob) -> str:
    """Make a job a write format of this session; a format of the same name is replaced.

    Options of the write:

    - `sinkId`: on whose behalf the store is written; default: the job's name.
    - `onNewQuery` (stream): `append` or `replace`: what to do when a query with a new checkpoint
      meets a sink that has data. Without it the query fails.
    - `txnId` (batch): a write whose txnId was committed before is skipped. Without it a batch write
      is at-least-once.
    - `onJobChange`: `accept`: go on when the job is not the one that wrote last, in its metrics or
      aggregations. Without it the write fails and names the difference. Other columns of a metric
      are never accepted: what is stored could not be merged with them.
    - `onMissingEpochs` (stream): `accept`: go on when the store lacks epochs that the checkpoint
      has. Without it the query fails.
    - `maxCommitBytes`: largest size of the partial aggregates of one epoch; default 64 MB. A task
      checks its own, the commit the sum.

    A stream is exactly-once when its source can be replayed, its plan is deterministic, and its
    checkpoint and store are durable.

    Functions that are defined in the main script travel with the job. A module of your own must be
    importable in the workers: install it, or use `spark.sparkContext.addPyFile`.

    Args:
        spark: The session.
        job: What to do with the rows.

    Returns:
        The name of the format: "batchqueue-" and the job's name.

    Raises:
        ConfigError: The job cannot be pickled.
        MissingPackageError: This pyspark is older than 4.0. With 4.0 the format takes batches; a
            stream into it fails, and names `MetricsWriter.write_epoch` as the way.

    Example:
        format_name = register(spark, job)
        query = df.writeStream.format(format_name).option("checkpointLocation", path).start()
    """
    require_data_sources()
    from batchqueue.spark.format.source import data_source

    job.check_pickles()
    source = data_source(job)
    spark.dataSource.register(source)
    return source.name()
