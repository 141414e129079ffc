"""`StoreBase`: what the stores here share besides reading, which needs their transactions."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from datetime import datetime

from batchqueue.aggregation import Metrics
from batchqueue.outputs.layout import check_storable
from batchqueue.outputs.reading import MetricsReader
from batchqueue.outputs.store import FIRST_BUCKET, StoreTransaction, bucket_limit


class StoreBase(MetricsReader):
    """A store with transactions."""

    @abstractmethod
    def transaction(self, sink_id: str = "default") -> AbstractContextManager[StoreTransaction]:
        """Open a transaction that excludes other writers of the sink."""

    def check_storable(self, item: Metrics, sink_id: str) -> None:
        """Check that a partial could be stored for a sink as it is, without connecting.

        Raises:
            StoreError: Its key or a value is one that the store does not hold.
        """
        check_storable(item)

    def delete(
        self,
        *,
        before: int | datetime,
        since: int | datetime | None = None,
        sink_id: str = "default",
    ) -> int:
        """Delete the metrics of a sink in a range of time buckets, in one transaction.

        The ledger stays, so that no epoch is applied again. Rows that arrive for such a bucket
        afterwards make a new partial, which counts them only.

        Args:
            before: The first time bucket that stays: seconds since 1970, or a datetime with a zone.
            since: The first time bucket that is deleted, likewise; `None` for all before `before`.
            sink_id: The sink that wrote them.

        Returns:
            The number of rows that were deleted: one for each partial, or several for kinds such as
            `Ranking`.

        Raises:
            ConfigError: A limit is neither an int nor a datetime with a zone.
            StoreError: The store cannot be written.
            StoreUnavailableError: The store is down, or other writers kept it busy for too long.
        """
        first = FIRST_BUCKET if since is None else bucket_limit("since", since)
        limit = bucket_limit("before", before)
        with self.transaction(sink_id) as transaction:
            return transaction.delete(limit, since=first)
