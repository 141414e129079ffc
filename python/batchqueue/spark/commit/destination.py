"""`Destination`: the transaction of an epoch, and which of its partials go there."""

from collections.abc import Iterable
from dataclasses import dataclass

from batchqueue.aggregation import Metrics
from batchqueue.outputs import StoreTransaction, StoreWriter
from batchqueue.spark.commit.changes import Changes
from batchqueue.spark.commit.final_buckets import FinalBuckets
from batchqueue.spark.task.columns import ColumnPartials
from batchqueue.spark.task.replaced import are_within, within


@dataclass(frozen=True)
class Destination:
    """Where the partials of one epoch go.

    Attributes:
        transaction: Of the sink.
        final: Which partials are late.
        changes: Takes the keys of what is stored.
        replaced: Time buckets whose results a batch write replaces; None: it adds to all of them.
    """

    transaction: StoreTransaction
    final: FinalBuckets
    changes: Changes
    replaced: range | None

    def stored(self, metrics: Iterable[Metrics]) -> Iterable[Metrics]:
        """Return the partials that are stored.

        Raises:
            SinkError: One is outside of the time buckets that are replaced.
        """
        return within(self.final.sorted_out(metrics), self.replaced)

    def takes_as_rows(self, partials: ColumnPartials) -> bool:
        """Return whether partials may go to `merge_rows`: all are stored, as they are."""
        buckets = partials.time_buckets
        is_plain = partials.are_rows and not self.final.has_late(buckets)
        return is_plain and are_within(buckets, self.replaced)

    def writer(self) -> StoreWriter:
        """Make what merges batches of partials into the transaction."""
        return self.changes.writer(self.transaction)

    def merge_rows(self, partials: ColumnPartials) -> None:
        """Merge partials into the transaction, once no writer uses it."""
        self.changes.merge_rows(self.transaction, partials.metric, partials.rows())
