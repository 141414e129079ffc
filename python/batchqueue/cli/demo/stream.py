"""Runs the stream: the files, a few at a time, through the sink into the store."""

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
    """The stream ended before all files were read; what it had committed stays, and a later start goes on."""


def run_stream(
    spark: SparkSession,
    files: FlightFiles,
    job: AggregationJob,
    checkpoint: Path,
    follow: Callable[[StreamingQuery], object],
) -> float:
    """Reads all files that the checkpoint does not know yet, and returns when they are committed.

    Args:
        spark: The session.
        files: The flights.
        job: What to do with them.
        checkpoint: Where Spark keeps its progress; a killed stream goes on from there.
        follow: Waits for the end of the query, and raises what it raises.

    Returns:
        Seconds from the start of the query to its end.

    Raises:
        StreamFailedError: The query failed; the message says why.
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
            "Once the cause is mended, the same command goes on from there."
        ) from error
    finally:
        query.stop()
    return time.monotonic() - started_at


def _reason(error: StreamingQueryException) -> str:
    """The innermost message: the last line of the Python trace, if there is one, else the whole text."""
    raised = [line for line in str(error).splitlines() if _RAISED.match(line)]
    return raised[-1] if raised else str(error)
