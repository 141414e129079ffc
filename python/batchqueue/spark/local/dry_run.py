"""`dry_run`: the L1 of a job, in this process and without Spark."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from batchqueue.aggregation import Metrics
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.session_zone import batches_with_instants


def dry_run(
    job: AggregationJob, batches: Iterable[pa.RecordBatch], *, zone: str = "UTC"
) -> Iterator[Metrics]:
    """Run L1 as one task would; nothing is written.

    Args:
        job: What to do with the rows.
        batches: The rows of the task.
        zone: What would be the session's time zone, in which timestamps without a zone are read.
            Default: UTC, as in a `local_session`.

    Returns:
        The partials that the commit would receive, decoded lazily.

    Raises:
        ConfigError: The zone is not known, and there are timestamps without one.
        SinkError: An item was lost, a partial cannot be encoded, or the partials take more than
            `maxCommitBytes` does by default.

    Example:
        >>> from batchqueue.aggregation import CountMetrics, metric_type
        >>> from batchqueue.outputs import SqliteStore
        >>> DEPARTURES = metric_type("departures", CountMetrics)
        >>> job = AggregationJob(
        ...     name="flights",
        ...     items=lambda rows: (DEPARTURES(name, 0) for name in rows["carrier"].to_pylist()),
        ...     metrics=[DEPARTURES],
        ...     store=SqliteStore("metrics.db"),
        ... )
        >>> rows = pa.RecordBatch.from_pydict({"carrier": ["A", "B", "A"]})
        >>> sorted((partial.entity, partial.count) for partial in dry_run(job, [rows]))
        [('A', 2), ('B', 1)]
    """
    options = SinkOptions.parse({}, job, stream=True)
    return run_attempt(job, options, batches_with_instants(batches, zone)).metrics(job)
