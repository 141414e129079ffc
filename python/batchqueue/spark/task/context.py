"""Which micro-batch a task works for, and the local properties in which Spark says so."""

from typing import NamedTuple

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class EpochId(NamedTuple):
    """Which micro-batch a task works for, as Spark says in the task."""

    query_id: str
    batch_id: int
