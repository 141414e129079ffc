"""`StoreBase`: what the stores here share besides reading, which needs their transactions."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.outputs.changed_keys import Changed, ChangedKeys
from batchqueue.outputs.layout import check_storable
from batchqueue.outputs.reading import ROWS_AT_ONCE, MetricsReader, Selection
from batchqueue.outputs.store import FIRST_BUCKET, Epoch, StoreError, StoreTransaction, bucket_limit

if TYPE_CHECKING:
    import pyarrow as pa

FINAL_BEFORE = "final_before"
"""In the summary of an epoch, the time bucket before which all are final."""


def final_before(summaries: Callable[[int | None], list[Epoch]]) -> int | None:
    """Return the time bucket before which all are final; `None` if none are.

    Args:
        summaries: Reads that many of the newest summaries of a sink; None: all that are kept.
    """
    newest = summaries(1)
    if newest and FINAL_BEFORE not in newest[0].summary:  # not of a Spark sink, or an older one
        newest = summaries(None)
    found = (
        epoch.summary[FINAL_BEFORE] for epoch in reversed(newest) if FINAL_BEFORE in epoch.summary
    )
    return next(found, None)


class StoreBase(MetricsReader):
    """A store with transactions.

    Attributes:
        holds_nul: Whether texts may have the character NUL.
        most_name_bytes: Bytes that sink, metric and entity may have together; None without a limit.
    """

    holds_nul: ClassVar[bool] = True
    most_name_bytes: ClassVar[int | None] = None

    @abstractmethod
    def transaction(self, sink_id: str = "default") -> AbstractContextManager[StoreTransaction]:
        """Open a transaction that excludes other writers of the sink."""

    @abstractmethod
    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        """Return the summaries that are kept for a sink, in the order of recording."""

    def check_storable(self, item: Metrics, sink_id: str) -> None:
        """Check that a partial could be stored for a sink as it is, without connecting.

        Raises:
            StoreError: Its key or a value is one that the store does not hold.
        """
        check_storable(item)

    def final_before(self, sink_id: str = "default") -> int:
        """Return the time bucket before which all buckets of a sink are final.

        A Spark job with a watermark marks buckets as final in the transaction of an epoch. The mark
        never goes back, unless the results of the sink are replaced, or its windows become wider.
        So an exporter that keeps the mark of its last run, and reads `since` that mark and `before`
        the present one, takes each bucket once.

        Args:
            sink_id: The sink; with shards, that of a shard.

        Returns:
            The first bucket that is not final, in seconds since 1970; -2^63 if none are, so that
            nothing is before it.

        Raises:
            StoreError: There is no such store, it cannot be read, or the sink has shards, each with
                its own mark.
            StoreUnavailableError: The store is down or out of reach.
        """
        found = final_before(lambda newest: self.summaries(sink_id, newest))
        if found is None:
            self._refuse_shards(sink_id, "ask for the mark of each, and read each up to its own")
        return FIRST_BUCKET if found is None else found

    def changed(self, sink_id: str = "default", *, after: int = 0) -> list[Changed]:
        """Return what epochs have changed, of Spark jobs with `changed_keys=True`.

        An exporter keeps the position of the last one that it has exported, and asks for those
        after it. So it meets each epoch once, and reads the results of its keys as they are now.

        Args:
            sink_id: The sink; with shards, that of a shard.
            after: Only epochs behind this position; 0 by default, for all that are kept.

        Returns:
            A `Changed` for each epoch that has changed something, in their order.

        Raises:
            StoreError: There is no such store, it cannot be read, or the sink has shards, each with
                its own epochs.
            StoreUnavailableError: The store is down or out of reach.
        """
        found: dict[int, dict[str, list[tuple[str, int]]]] = {}
        for changed in self.read(ChangedKeys, sink_id, since=after + 1):
            found.setdefault(changed.time_bucket, {})[changed.entity] = changed.keys
        if not found and not self.summaries(sink_id, 1):
            self._refuse_shards(sink_id, "ask for the epochs of each")
        return [Changed(position, keys) for position, keys in sorted(found.items())]

    def _refuse_shards(self, sink_id: str, remedy: str) -> None:
        if self.summaries(f"{sink_id}/0", 1):
            raise StoreError(
                f"sink {sink_id!r} was written in shards, as sink '{sink_id}/0' shows: {remedy}; "
                "MetricsWriter.sink_ids names them"
            )

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


class TableStore(StoreBase):
    """A store that reads its rows as Arrow tables."""

    @abstractmethod
    def tables(self, selection: Selection) -> Iterable["pa.Table"]:
        """Return the rows of a selection as of one commit, in order; those of a part in any."""

    def batches(self, selection: Selection) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of a selection as record batches, as of one commit."""
        for table in self.tables(selection):
            yield from table.to_batches(ROWS_AT_ONCE)

    def rows(self, selection: Selection) -> Iterator[Row]:
        """Yield the rows of a selection, as of one commit, with the columns of `read_table`."""
        from batchqueue.outputs.rows import values_of

        for table in self.tables(selection):
            yield from zip(*map(values_of, table.columns), strict=True)
