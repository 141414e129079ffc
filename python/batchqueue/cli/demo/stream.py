"""Runs the stream: some files per micro-batch, through the sink into the store."""

import re
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from batchqueue.cli.demo.data import FILES_PER_MICRO_BATCH, SCHEMA_DDL, FlightFiles
from batchqueue.exceptions import BatchQueueError
from batchqueue.spark import AggregationJob, register

_RAISED = re.compile(r"[\w.]+(Error|Exception): ")


class StreamFailedError(BatchQueueError):
    """The stream ended before it had read all files; a later run continues after its commits."""


def run_stream(
    spark: SparkSession,
    files: FlightFiles,
    job: AggregationJob,
    checkpoint: Path,
    follow: Callable[[StreamingQuery], object],
) -> float:
    """Read all files that the checkpoint does not have, and return when they are committed.

    Args:
        spark: The session.
        files: The flights.
        job: What to compute from them.
        checkpoint: The folder in which Spark keeps its progress; a killed stream continues from
            there.
        follow: Waits for the end of the query, and raises the error of the query.

    Returns:
        Seconds from the start of the query to its end.

    Raises:
        StreamFailedError: The query failed; the message names the reason.
    """
    source = spark.readStream.schema(SCHEMA_DDL).option("maxFilesPerTrigger", FILES_PER_MICRO_BATCH)
    sink = source.parquet(str(files.directory)).writeStream.format(register(spark, job))
    started_at = time.monotonic()
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        follow(query)
    except StreamingQueryException as error:
        raise StreamFailedError(
            f"the stream stopped: {_reason(error)}\nNothing is counted twice or half. "
            "Once the cause is fixed, the same command continues from there."
        ) from error
    finally:
        query.stop()
    return time.monotonic() - started_at


def _reason(error: StreamingQueryException) -> str:
    """Return the innermost message: the last error of a Python traceback, else the whole text."""
    raised = [line for line in str(error).splitlines() if _RAISED.match(line)]
    return raised[-1] if raised else str(error)
