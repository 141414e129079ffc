"""L2: the merge across sources, before the store."""

import time
from collections.abc import Callable

from batchqueue.aggregation.merging import MergingWorker, NextWorker
from batchqueue.policies import check_finite


class L2PersistenceWorker(MergingWorker):
    """Merges the partials of all L1 workers and emits them to the store's writer once per period.

    The writer merges them with what is stored, so a late partial only costs another write.
    """

    def __init__(
        self,
        store_writer: NextWorker,
        *,
        period_s: float = 60,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an L2 worker.

        Args:
            store_writer: Takes lists of partials: `produce_many` of a `sql_batch` queue, or a
                writer's `consume`.
            period_s: Seconds between two writes; 60 by default.
            clock: Returns seconds that never decrease.

        Raises:
            ConfigError: `store_writer` cannot be called, or the period is invalid.
        """
        check_finite("L2PersistenceWorker: period_s", period_s, 0)
        super().__init__(store_writer, period_s, clock)

    def on_idle(self) -> None:
        """Write if the period is over."""
        self.flush_if_due()
