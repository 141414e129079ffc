"""The output mode of a stream, which `foreachBatch` does not pass on.

In the modes complete and update an aggregation of the query returns groups that it returned before,
with new values, and a sink that adds would count their rows again.
"""

import logging
from typing import TYPE_CHECKING, Any

from batchqueue.spark.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("batchqueue.spark")


def check_output_mode(df: "DataFrame", query_id: str, sink_id: str) -> None:
    """Check that the epochs of a query do not repeat rows of earlier epochs.

    A query without an aggregation may be in mode update, which is then the same as append. Logs a
    warning if Spark does not say the mode, as with Spark Connect.

    Args:
        df: A micro-batch of the query.
        query_id: The query.
        sink_id: The sink, for messages.

    Raises:
        SinkError: They do.
    """
    try:
        session: Any = df.sparkSession
        java: Any = session._jvm
        queries = session._jsparkSession.sharedState().activeStreamingQueries()
        execution: Any = queries.get(java.java.util.UUID.fromString(query_id))
        mode, repeats = None, False
        if execution is not None:
            mode = str(execution.outputMode().toString())
            plan = execution.logicalPlan()
            repeats = mode == "Complete" or (mode == "Update" and _aggregates(plan))
    # Spark Connect has no JVM here, and another version of Spark may have no such methods; Spark
    # raises errors of py4j as well as its own.
    except Exception:
        mode, repeats = None, False
    if repeats:
        raise SinkError(
            f"query {query_id} is in outputMode({str(mode).lower()!r}), whose epochs repeat groups "
            f"of earlier epochs with new values, and sink {sink_id!r} would add them up: give the "
            "job the rows instead of their aggregates, or use outputMode('append')"
        )
    if mode is None:
        _log.warning(
            "sink %s: Spark does not say the output mode of query %s; it must be append, because "
            "other modes repeat rows of earlier epochs, which would count again",
            *(sink_id, query_id),
        )


def _aggregates(plan: Any) -> bool:
    """Return whether a plan of Spark aggregates rows of a stream."""
    if plan.isStreaming() and plan.nodeName() == "Aggregate":
        return True
    children = plan.children()
    return any(_aggregates(children.apply(place)) for place in range(children.size()))
