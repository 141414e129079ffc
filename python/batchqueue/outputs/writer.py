"""Consumers that write metrics into a store; for a queue of the shape `presets.sql_batch(writers=1)`."""

from batchqueue.aggregation import Metrics
from batchqueue.outputs.store import MetricsStore, StoreTransaction


class StoreWriter:
    """Merges each batch into a transaction that is open already; its owner commits.

    The owner must look at the queue's `stats().failed` before it commits: a batch may have failed
    half written.
    """

    def __init__(self, transaction: StoreTransaction) -> None:
        """Make a writer.

        Args:
            transaction: Used by nobody else until the queue is shut down.
        """
        self._transaction = transaction

    def consume(self, batch: list[Metrics]) -> None:
        """Merge a batch."""
        self._transaction.merge(batch)


class CommittingStoreWriter:
    """Merges each batch into a store, in a transaction of its own.

    A batch that cannot be written is rolled back as a whole and counts as failed.
    """

    def __init__(self, store: MetricsStore, sink_id: str = "default") -> None:
        """Make a writer.

        Args:
            store: Where to write.
            sink_id: On whose behalf.
        """
        self._store = store
        self._sink_id = sink_id

    def consume(self, batch: list[Metrics]) -> None:
        """Merge a batch and commit."""
        with self._store.transaction(self._sink_id) as transaction:
            transaction.merge(batch)
