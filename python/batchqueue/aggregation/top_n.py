"""TopN: bounded rankings of single rows."""

import time
from collections.abc import Callable

from batchqueue.aggregation.merging import MergingWorker, NextWorker


class TopNWorker(MergingWorker):
    """Merges rankings of single rows and emits the best rows of each group once per period.

    It keeps at most `limit` rows per group and time bucket; the limit belongs to the metric:
    `metric_type("delays.worst", Ranking, limit=10)`.
    """

    def __init__(
        self,
        next_worker: NextWorker,
        *,
        flush_period_ms: float = 60_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a TopN worker.

        Args:
            next_worker: Takes lists of rankings, e.g. `l2_queue.produce_many`.
            flush_period_ms: Milliseconds between two emissions; 60,000 by default.
            clock: Returns seconds that never decrease.
        """
        super().__init__(next_worker, flush_period_ms / 1_000, clock)

    def on_idle(self) -> None:
        """Emit the rankings if the period is over."""
        self.flush_if_due()
