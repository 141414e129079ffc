"""L1: the first merge, close to the producers."""

import time
from collections.abc import Callable

from batchqueue.aggregation.merging import MergingWorker, NextWorker


class L1AggregateWorker(MergingWorker):
    """Merges observations, so that far fewer partials travel on. One instance may serve many metric types.

    It hands on when the flush period is over, and at once when the queue has nothing left for it: a
    busy queue merges more, a quiet one answers sooner.

    Example:
        >>> from batchqueue.aggregation import CountMetrics
        >>> partials = []
        >>> worker = L1AggregateWorker(partials.extend)
        >>> worker.consume([CountMetrics("UA", 0), CountMetrics("UA", 0), CountMetrics("AA", 0)])
        >>> worker.on_close()
        >>> [(partial.entity, partial.count) for partial in partials]
        [('UA', 2), ('AA', 1)]
    """

    def __init__(
        self,
        next_worker: NextWorker,
        *,
        flush_period_ms: float = 500,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an L1 worker.

        Args:
            next_worker: Takes lists of partials, e.g. `l2_queue.produce_many`.
            flush_period_ms: Longest time that a partial waits here, while batches come in.
            clock: Seconds that only grow.
        """
        super().__init__(next_worker, flush_period_ms / 1_000, clock)

    def on_idle(self) -> None:
        """Hand on everything: there is nothing to merge it with."""
        self.flush()
