"""Which time buckets of a sink are final, and what an epoch has for them too late."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute

from batchqueue.aggregation import Metrics
from batchqueue.outputs import BadRows, StoreTransaction
from batchqueue.outputs.base import FINAL_BEFORE, final_before
from batchqueue.spark.job.watermark import Watermark
from batchqueue.spark.task.message import AttemptSummary

_compute: Any = pyarrow.compute  # its type hints lack functions


class FinalBuckets:
    """The final buckets of a sink in the commit of one epoch.

    Attributes:
        before: The buckets that start before it are final as of the epochs before; None if none
            are.
        late: Partials for such a bucket, so far.
        drops: Whether they are left out.
    """

    def __init__(
        self, transaction: StoreTransaction, watermark: Watermark | None, *, is_stream: bool
    ) -> None:
        """Read what is final.

        Args:
            transaction: Of the sink.
            watermark: That of the job.
            is_stream: Whether this is an epoch of a stream, and not a batch write.
        """
        self.before = final_before(transaction.summaries)
        if self.before is not None and is_stream and watermark is not None:
            # A bucket of a window that has become wider since may be final in part only.
            self.before = watermark.start(self.before)
        self.late = 0
        self.drops = watermark is not None and watermark.late == "drop"
        self._watermark = watermark if is_stream else None
        self._is_stream = is_stream

    def sorted_out(self, metrics: Iterable[Metrics]) -> Iterable[Metrics]:
        """Return the partials that are stored, and count those that are late."""
        if self.before is None or not self._is_stream:
            return metrics
        return self._sorted_out(metrics, self.before)

    def _sorted_out(self, metrics: Iterable[Metrics], before: int) -> Iterator[Metrics]:
        for item in metrics:
            # 0 stands for all times; the time bucket of bad rows is when their task began.
            if item.time_bucket < before and item.time_bucket and not isinstance(item, BadRows):
                self.late += 1
                if self.drops:
                    continue
            yield item

    def has_late(self, time_buckets: pa.Array) -> bool:
        """Return whether a partial for one of these time buckets would be late."""
        if self.before is None or not self._is_stream:
            return False
        late = _compute.and_(
            _compute.less(time_buckets, self.before), _compute.not_equal(time_buckets, 0)
        )
        return bool(_compute.any(late).as_py())

    def summary(self, attempts: Sequence[AttemptSummary]) -> dict[str, Any]:
        """Return what the summary of the epoch says: the mark never goes back.

        Args:
            attempts: The summaries of the tasks, with the newest time of each.
        """
        found = self.before
        newest = [attempt.newest for attempt in attempts if attempt.newest is not None]
        if self._watermark is not None and newest:
            reached = self._watermark.final_before(max(newest))
            found = reached if found is None else max(found, reached)
        return {"late": self.late, FINAL_BEFORE: found}
