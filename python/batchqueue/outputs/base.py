"""`StoreBase`: deletion, final buckets, changed keys and unreadable rows, alike in all stores."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.outputs.layout import check_storable, values_of
from batchqueue.outputs.reading import ROWS_AT_ONCE, MetricsReader, Selection
from batchqueue.outputs.store import (
    FIRST_BUCKET,
    Epoch,
    StoreError,
    StoreTransaction,
    bucket_limit,
    final_before,
)

if TYPE_CHECKING:
    import pyarrow as pa


class Changed(NamedTuple):
    """The keys that one epoch, or one batch write, changed.

    Attributes:
        position: The position of the write: seconds since 1970, larger than the previous position.
        keys: By metric name, the entity and time bucket of each key, in order.
    """

    position: int
    keys: dict[str, list[tuple[str, int]]]


class ChangedKeys(Metrics):
    """The keys of a metric that one epoch, or one batch write, changed.

    A Spark job with `changed_keys=True` writes them under the name "changed_keys" into its sink, in
    the transaction of the epoch. The entity is the name of the metric. The time bucket is the
    position of the epoch, by which `changed` of a store returns the keys: its commit time, at least
    a second after the previous position.

    Example:
        >>> from batchqueue.outputs import SqliteStore
        >>> store = SqliteStore("metrics.db")
        >>> with store.transaction("orders") as transaction:
        ...     transaction.merge([ChangedKeys("hits", 1_700_000_000, [("rome", 0), ("oslo", 0)])])
        >>> for changed in store.read(ChangedKeys, "orders", since=1_700_000_000):
        ...     print(changed.entity, changed.keys)
        hits [('oslo', 0), ('rome', 0)]
    """

    __slots__ = ("_keys",)
    name = "changed_keys"
    table = "changed_keys"
    columns: ClassVar = {"changed_entity": str, "changed_bucket": int}
    multi_row = True

    def __init__(self, entity: str, time_bucket: int, keys: Iterable[tuple[str, int]]) -> None:
        """Start with the given keys.

        Args:
            entity: The name of the metric.
            time_bucket: The position of the epoch, in whole seconds since 1970, UTC.
            keys: Entity and time bucket of each key.
        """
        self.key = (entity, time_bucket)
        self._keys = set(keys)

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Entity and time bucket of each key, in order."""
        return sorted(self._keys)

    def combine(self, other: Self) -> None:
        """Add the keys of `other` to this one."""
        self._keys |= other._keys

    def to_rows(self) -> list[Row]:
        """Return a row of value columns for each key."""
        return list(self.keys)

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        return cls(entity, time_bucket, ((name, bucket) for name, bucket in rows))


class StoreBase(MetricsReader):
    """A store with transactions.

    Attributes:
        holds_nul: Whether texts may contain the character NUL.
        most_name_bytes: The most bytes that sink, metric and entity may have together; None without
            a limit.
    """

    holds_nul: ClassVar[bool] = True
    most_name_bytes: ClassVar[int | None] = None

    @abstractmethod
    def transaction(self, sink_id: str = "default") -> AbstractContextManager[StoreTransaction]:
        """Open a transaction that excludes other writers of the sink."""

    @abstractmethod
    def summaries(self, sink_id: str = "default", newest: int | None = None) -> list[Epoch]:
        """Return the summaries kept for a sink, in the order of recording."""

    def check_storable(self, item: Metrics, sink_id: str) -> None:
        """Check that a partial could be stored for a sink as it is, without connecting.

        Raises:
            StoreError: The store cannot hold its key or one of its values.
        """
        check_storable(item)

    def final_before(self, sink_id: str = "default") -> int:
        """Return the time bucket before which all buckets of a sink are final.

        A Spark job with a watermark marks buckets as final in the transaction of an epoch. The mark
        moves back only if the results of the sink are replaced, or its windows become wider. So an
        exporter that saves the mark of each run, and reads `since` the saved mark and `before` the
        current one, reads each bucket once.

        Args:
            sink_id: The sink; for a sharded sink, the id of one shard.

        Returns:
            The first bucket that is not final, in seconds since 1970; -2^63 if no bucket is final,
            so that nothing precedes it.

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
        """Return the keys that epochs of Spark jobs with `changed_keys=True` changed.

        An exporter saves the position of the last epoch that it exported, and asks for later
        epochs. So it sees each epoch once, and reads the current results of its keys.

        Args:
            sink_id: The sink; for a sharded sink, the id of one shard.
            after: Return only epochs after this position; 0 by default, for all that are kept.

        Returns:
            A `Changed` for each epoch that changed something, ordered by position.

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

        The ledger stays, so that no epoch is applied again. Rows that arrive later for a deleted
        bucket make a new partial, which counts only them.

        Args:
            before: The first time bucket that stays: seconds since 1970, or a datetime with a zone.
            since: The first time bucket to delete, in the same form; `None` for all before
                `before`.
            sink_id: The sink that wrote them.

        Returns:
            The number of deleted rows: one for each partial, or several for kinds such as
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
        """Return the rows of a selection as of one commit, in order; a part's rows in any order."""

    def batches(self, selection: Selection) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of a selection as record batches, as of one commit."""
        for table in self.tables(selection):
            yield from table.to_batches(ROWS_AT_ONCE)

    def rows(self, selection: Selection) -> Iterator[Row]:
        """Yield the rows of a selection, as of one commit, with the columns of `read_table`."""
        for table in self.tables(selection):
            yield from zip(*map(values_of, table.columns), strict=True)


class BadRow(NamedTuple):
    """A row that could not be read.

    Attributes:
        row_json: Its columns as a JSON object, with values that JSON lacks as text.
        error: Class and message of the exception.
    """

    row_json: str
    error: str


class BadRows(Metrics):
    """The rows that a job could not read, for one class of error and one second.

    A Spark job with `on_bad_row=DeadLetters()` writes them under the name "bad_rows" into its
    sink. The entity is the class of the error, such as "ValueError", and the time bucket is the
    second in which the task began, because the row's own time cannot be trusted.

    Example:
        >>> from batchqueue.outputs import SqliteStore
        >>> store = SqliteStore("metrics.db")
        >>> with store.transaction("orders") as transaction:
        ...     row = BadRows("ValueError", 1_700_000_000, '{"cents": "x"}', "ValueError: 'x'")
        ...     transaction.merge([row])
        >>> for errors in store.read(BadRows, "orders"):
        ...     print(errors.entity, *errors.rows[0])
        ValueError {"cents": "x"} ValueError: 'x'
    """

    __slots__ = ("_rows",)
    name = "bad_rows"
    table = "bad_rows"
    columns: ClassVar = {"row_json": str, "error": str}
    multi_row = True

    def __init__(self, entity: str, time_bucket: int, row_json: str, error: str) -> None:
        """Start with a single row.

        Args:
            entity: Class of the error.
            time_bucket: When the task began, in whole seconds since the epoch, UTC.
            row_json: Its columns as a JSON object.
            error: Class and message of the error.
        """
        self.key = (entity, time_bucket)
        self._rows = [BadRow(row_json, error)]

    @property
    def rows(self) -> list[BadRow]:
        """The rows, sorted by their text; equal rows repeat as often as they occurred."""
        return sorted(self._rows)

    def combine(self, other: Self) -> None:
        """Add the rows of `other` to this one."""
        self._rows.extend(other._rows)

    def to_rows(self) -> list[Row]:
        """Return a row of value columns for each bad row."""
        return list(self.rows)

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        made = cls(entity, time_bucket, "", "")
        made._rows = [BadRow(*row) for row in rows]
        return made
