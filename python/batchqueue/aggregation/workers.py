"""Workers for L1, L2 and TopN: they merge batches, emit when due, and lose nothing."""

import time
from collections.abc import Callable
from typing import Any

from batchqueue.aggregation.metrics import MergeBuffer, Metrics
from batchqueue.base.checks import check_finite
from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import BatchQueueError, ConfigError, ProduceTimeoutError

NextWorker = Callable[[list[Metrics]], Any]
"""A function of partials that returns how many it took from the front, like `produce_many`, or None
for all."""


class MergingWorker:
    """A handler that keeps a partial per key and emits the partials as lists.

    Partials that the next worker refuses (a full queue with IF_POSSIBLE, a timeout, a queue that
    is shut down) stay in the buffer, merge with later batches and are offered again. Only partials
    that are refused at close, or given to a next worker that raised, are dropped: they are counted
    in `dropped`, and the error is raised.

    If `combine` raises, the whole batch counts as failed; the items before the failing item are
    merged.

    Attributes:
        dropped: Number of partials that were dropped.
    """

    def __init__(
        self, next_worker: NextWorker, period_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make a worker.

        Args:
            next_worker: Takes the partials.
            period_s: Seconds between two emissions.
            clock: Returns seconds that never decrease.

        Raises:
            ConfigError: `next_worker` cannot be called.
        """
        if not callable(next_worker):
            remedy = (
                "give its method, for instance queue.produce_many"
                if callable(getattr(next_worker, "produce_many", None))
                else "give a function that takes a list, for instance queue.produce_many"
            )
            raise ConfigError(
                f"{type(self).__name__} hands its partials to {next_worker!r}, "
                f"{a_type(next_worker)}, which cannot be called; {remedy}"
            )
        self.dropped = 0
        self._next_worker = next_worker
        self._period_s = period_s
        self._clock = clock
        self._buffer = MergeBuffer()
        self._due_at = clock() + period_s

    def consume(self, batch: list[Metrics]) -> None:
        """Merge a batch; emit if the period is over."""
        self._buffer.accept_all(batch)
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Emit all partials if the period is over."""
        if self._clock() >= self._due_at:
            self.flush()

    def flush(self) -> None:
        """Emit all partials now, and start a new period."""
        self._due_at = self._clock() + self._period_s
        partials = self._buffer.drain()
        if partials:
            self._buffer.accept_all(self._refused(partials))

    def on_close(self) -> None:
        """Emit all partials, for the last time.

        Raises:
            BatchQueueError: The next worker refused some of them.
        """
        self.flush()
        refused = len(self._buffer.drain())
        if refused:
            self.dropped += refused
            raise BatchQueueError(
                f"{type(self).__name__} dropped {counted(refused, 'partial')} at close, which the "
                "next worker refused; let it outlive this queue, with room or with "
                "BufferStrategy.BLOCKING"
            )

    def _refused(self, partials: list[Metrics]) -> list[Metrics]:
        try:
            taken = self._next_worker(partials)
        except ProduceTimeoutError as error:
            taken = error.accepted
        except BaseException:
            self.dropped += len(partials)
            raise
        return partials[taken:] if isinstance(taken, int) and taken is not True else []


# L1: the first merge, close to the producers.


class L1AggregateWorker(MergingWorker):
    """A worker that merges observations of any number of metric types into far fewer partials.

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


# L2: the merge across sources, before the store.


class L2PersistenceWorker(MergingWorker):
    """A worker that merges the partials of all L1 workers and emits them to the store's writer.

    It emits once per period. The writer merges the partials with what is stored, so a late partial
    only costs another write.
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


# TopN: bounded rankings of single rows.


class TopNWorker(MergingWorker):
    """A worker that merges rankings of single rows, and emits each group's best once per period.

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
