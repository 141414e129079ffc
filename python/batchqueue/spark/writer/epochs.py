"""The epochs that this process writes, so that a second write is not mistaken for a replay.

Spark calls the function of foreachBatch once per epoch and run of a query. A replay follows a
restart, and has another run, or is in another process. So a second write into one sink within a run
has other rows, which the ledger would drop as those of an epoch that it has.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import PySparkException

from batchqueue.spark.errors import SinkError
from batchqueue.spark.task.context import EpochId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RUN_ID = "spark.jobGroup.id"
"""The local property that Spark sets to the id of a query's run, as the group of its jobs."""


class Place(NamedTuple):
    """What a query writes into.

    Attributes:
        store: Its description.
        sink_id: The sink.
    """

    store: str
    sink_id: str


class _Write(NamedTuple):
    run: str
    batch_id: int
    job: str


_lock = threading.Lock()
_last: dict[tuple[Place, str], _Write] = {}
"""By place and query id, the newest last. Changed and read under the lock."""

_MOST_WRITES = 10_000
"""A program that begins one query after the other keeps the newest."""


def run_of(df: "DataFrame") -> str:
    """Return a name for the run of the query whose micro-batch this is.

    With Spark Connect, a process of the server makes one run.
    """
    session = df.sparkSession
    try:
        context = session.sparkContext
        run_id = context.getLocalProperty(_RUN_ID)
    except PySparkException:  # Spark Connect has no context
        return ""
    # Each run has its own session. The id alone may be a group that the function has set.
    java = context._jvm.System.identityHashCode(session._jsparkSession)  # type: ignore[union-attr]
    return f"{run_id} {java}"


@contextmanager
def written_once(place: Place, epoch: EpochId, run: str, job: str) -> Iterator[int | None]:
    """Claim an epoch for the block that writes it; if the block raises, it may be written again.

    Args:
        place: What is written into.
        epoch: The epoch.
        run: See `run_of`.
        job: The name of the job that writes.

    Returns:
        The number of the epoch that the run has written before into this place; None if this is the
        first.

    Raises:
        SinkError: The run has written this epoch into this place already, or does so concurrently.
    """
    key, write = (place, epoch.query_id), _Write(run, epoch.batch_id, job)
    with _lock:
        before = _last.get(key)
        if before is not None and before[:2] == write[:2]:
            raise SinkError(
                f"epoch {epoch.batch_id} of query {epoch.query_id} was written into sink "
                f"{place.sink_id!r} by job {before.job!r} in this run, and now by job {job!r}: the "
                "ledger would drop these rows as a replay. Call write_epoch once per epoch and "
                "sinkId: join the DataFrames with unionByName before, or give each writer its own "
                "sinkId"
            )
        _last.pop(key, None)
        _last[key] = write
        if len(_last) > _MOST_WRITES:
            del _last[next(iter(_last))]
    try:
        yield before.batch_id if before is not None and before.run == run else None
    except BaseException:
        with _lock:
            if before is None:
                _last.pop(key, None)
            else:
                _last[key] = before
        raise
