"""`BusyListener`: reports to the readers of a run how long their last epochs were busy.

It derives from a class of pyspark, so it is imported late: what `batchqueue.pipeline` imports does
without pyspark.
"""

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from batchqueue.base.background_log import BackgroundLog
from batchqueue.pipeline.spark.control import EpochReport, RunControl

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = BackgroundLog("batchqueue.pipeline")


class BusyListener(StreamingQueryListener):
    """Writes the busy time of each epoch into the directory that the readers check.

    A reader cannot know it where epochs wait for a trigger. Spark calls listeners asynchronously,
    in one of its threads; a report that comes late is not used.
    """

    def __init__(self, run: RunControl, queries: Collection[str]) -> None:
        """Describe a run.

        Args:
            run: Its directory, which lives at least as long as the listener.
            queries: The names of its queries.
        """
        self._run = run
        self._queries = frozenset(queries)

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """Do nothing."""

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        """Do nothing."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """Write the report of an epoch."""
        progress = event.progress
        query = progress.name
        if query not in self._queries or not progress.sources or progress.numInputRows < 1:
            return
        times = progress.durationMs
        # latestOffset may have waited for the end of a pause.
        busy_ms = times.get("triggerExecution", 0) - times.get("latestOffset", 0)
        end = json.dumps(json.loads(progress.sources[0].endOffset), sort_keys=True)
        try:
            self._run.control.report(query, EpochReport(end, progress.numInputRows, busy_ms / 1000))
        except OSError as error:  # Spark would log it as its own error
            _log.debug("query %s: its epoch cannot be reported: %s", query, error)

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        """Do nothing."""
