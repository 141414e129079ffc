"""Consumers that write metrics into a store, for queues like `presets.sql_batch(writers=1)`."""

from batchqueue.aggregation import Metrics
from batchqueue.outputs.store import MetricsStore, StoreTransaction


class StoreWriter:
    """Merges each batch into an open transaction, which its owner commits.

    The owner must check the queue's `stats().failed` before it commits: a batch that failed may be
    half written.
    """

    def __init__(self, transaction: StoreTransaction) -> None:
        """Make a writer.

        Args:
            transaction: The writer uses it alone until the queue is shut down.
        """
        self._transaction = transaction

    def consume(self, batch: list[Metrics]) -> None:
        """Merge a batch."""
        self._transaction.merge(batch)


class CommittingStoreWriter:
    """Merges each batch into a store, in its own transaction.

    A batch that cannot be written is rolled back as a whole and counts as failed.
    """

    def __init__(self, store: MetricsStore, sink_id: str = "default") -> None:
        """Make a writer.

        Args:
            store: Where to write.
            sink_id: The sink to write for; "default" by default.
        """
        self._store = store
        self._sink_id = sink_id

    def consume(self, batch: list[Metrics]) -> None:
        """Merge a batch and commit."""
        with self._store.transaction(self._sink_id) as transaction:
            transaction.merge(batch)
