"""L1: the first merge, close to the producers."""

import time
from collections.abc import Callable

from batchqueue.aggregation.merging import MergingWorker, NextWorker
from batchqueue.policies import check_finite


class L1AggregateWorker(MergingWorker):
    """Merges observations into far fewer partials. An instance may serve many metric types.

    It emits its partials when the flush period is over, and immediately when the queue has nothing
    left for it: a busy queue merges more, a quiet queue answers sooner.

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
            flush_period_ms: Longest time that a partial waits while batches arrive, in
                milliseconds; 500 by default.
            clock: Returns seconds that never decrease.

        Raises:
            ConfigError: `next_worker` cannot be called, or the period is invalid.
        """
        check_finite("L1AggregateWorker: flush_period_ms", flush_period_ms, 0)
        super().__init__(next_worker, flush_period_ms / 1_000, clock)

    def on_idle(self) -> None:
        """Emit all partials: there is nothing to merge them with."""
        self.flush()
