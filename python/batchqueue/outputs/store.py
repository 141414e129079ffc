"""The interface of a store of metrics: transactions over partials, and the ledger of epochs."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from batchqueue.aggregation import MergeBuffer, Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.exceptions import BatchQueueError, ConfigError

M = TypeVar("M", bound=Metrics)


class StoreError(BatchQueueError):
    """A store cannot be opened, read or written.

    The message names the store, the reason and the remedy.
    """


class StoreUnavailableError(StoreError):
    """The store is busy, down or out of reach: retrying the transaction later may succeed.

    A full disk is not such an error, because waiting does not make room.
    """


FIRST_BUCKET = -(2**63)
"""The smallest possible time bucket."""

UNMARKED = "unmarked"
"""The query id of the mark that stands for all epochs recorded without a mark."""


class Epoch(NamedTuple):
    """The summary of an applied batch of a query."""

    query_id: str
    batch_id: int
    summary: dict[str, Any]


class StoreTransaction(ABC):
    """An open transaction of a sink. It reads and changes only what this sink wrote.

    The *ledger* has a high-water mark per query, the largest applied batch id, which stays as long
    as the sink has data; and the summaries of the newest epochs.

    Any thread may use the transaction, one at a time. After an error in one of its methods it
    cannot be committed, even if the error was caught: a batch may be half written.
    """

    failure: BaseException | None = None
    """The first error that a method raised; `None` if there was no error."""

    rows_at_once: ClassVar[int] = 10_000
    """The number of rows that `merge_rows` looks up together."""

    @abstractmethod
    def load(self, metric_type: type[M], keys: Iterable[tuple[str, int]]) -> list[M]:
        """Return the stored partials of the given (entity, time_bucket) keys."""

    @abstractmethod
    def save(self, metrics: Sequence[Metrics]) -> None:
        """Store partials, replacing those of the same type and key.

        Of several partials with equal keys, the last counts.
        """

    def merge(self, metrics: Iterable[Metrics]) -> None:
        """Combine partials with each other and with what is stored."""
        with self.guarded():
            merged = MergeBuffer()
            merged.accept_all(metrics)
            for metric_type, keys in merged.keys().items():
                merged.accept_all(self.load(metric_type, keys))
            self.save(merged.drain())

    def merge_rows(self, metric_type: type[Metrics], rows: Sequence[Row]) -> None:
        """Combine partials given as rows with what is stored, as `merge` does with objects.

        Rows with new keys go to `save_rows`, the others become objects.

        Args:
            metric_type: A metric whose partials have one row each, which is stored unchanged:
                `to_rows` returns what `from_rows` took.
            rows: The partials, with the columns of `MetricsReader.read_table` and values of their
                types.
        """
        with self.guarded():
            has_own_merge = type(self).merge is not StoreTransaction.merge
            if has_own_merge or not _differ(rows):
                self.merge(_partials_of(metric_type, rows))
            elif not self.may_have(metric_type):
                self.save_rows(metric_type, rows)
            else:
                for first in range(0, len(rows), self.rows_at_once):
                    self._merge_rows(metric_type, rows[first : first + self.rows_at_once])

    def _merge_rows(self, metric_type: type[Metrics], rows: Sequence[Row]) -> None:
        keys = [row[:2] for row in rows]
        stored = {item.key: item for item in self.load(metric_type, keys)}
        known = [row for row, key in zip(rows, keys, strict=True) if key in stored]
        merged = _partials_of(metric_type, known)
        for partial in merged:
            partial.combine(stored[partial.key])
        if merged:
            self.save(merged)
        if len(merged) < len(rows):
            new = [row for row, key in zip(rows, keys, strict=True) if key not in stored]
            self.save_rows(metric_type, new)

    def may_have(self, metric_type: type[Metrics]) -> bool:
        """Return False if the sink is known to have no partial of a metric; True by default."""
        return True

    def save_rows(self, metric_type: type[Metrics], rows: Sequence[Row]) -> None:
        """Store partials given as rows, as for `merge_rows`, under keys that are new to the store.

        By default `save` stores them as objects.
        """
        self.save(_partials_of(metric_type, rows))

    def applied(self, query_id: str, batch_id: int) -> bool:
        """Return whether the ledger has this epoch, or a later epoch of the same query."""
        last = self.last_batch(query_id)
        return last is not None and batch_id <= last

    def record(
        self, query_id: str, batch_id: int, summary: Mapping[str, Any], *, marked: bool = True
    ) -> None:
        """Record an epoch: raise the mark of its query to `batch_id`, and keep the summary.

        Args:
            query_id: The query of the epoch.
            batch_id: Its number, above the mark of the query.
            summary: A mapping that JSON can represent. Only the newest summaries of a sink are
                kept.
            marked: False for an epoch whose query id never occurs again: its query gets no mark,
                but `known_queries` includes `UNMARKED` from then on. True by default.

        Raises:
            StoreError: The mark is not below `batch_id`, or JSON cannot represent the summary.
        """
        with self.guarded():
            text = to_json(summary)
            last = self.last_batch(query_id) if marked else None
            if last is not None and batch_id <= last:
                raise StoreError(
                    f"cannot record epoch {batch_id} of query {query_id}: the epochs up to {last} "
                    "are applied already; check applied() first"
                )
            self.raise_mark(query_id if marked else UNMARKED, batch_id if marked else 0)
            self.add_summary(query_id, batch_id, text)

    @abstractmethod
    def raise_mark(self, query_id: str, batch_id: int) -> None:
        """Set the mark of a query, which the caller has compared with `last_batch`."""

    @abstractmethod
    def add_summary(self, query_id: str, batch_id: int, summary: str) -> None:
        """Keep the summary of an epoch, as JSON; delete the sink's oldest if there are too many."""

    @abstractmethod
    def last_batch(self, query_id: str) -> int | None:
        """Return the mark of a query, its largest recorded batch id; `None` without a mark."""

    @abstractmethod
    def known_queries(self) -> set[str]:
        """Return the ids of the queries with a mark; empty if no epoch was ever recorded."""

    @abstractmethod
    def summaries(self, newest: int | None = None) -> list[Epoch]:
        """Return the summaries that are kept, in the order in which they were recorded.

        Args:
            newest: Return at most this many of the newest; `None` for all.
        """

    @abstractmethod
    def description(self) -> dict[str, Any] | None:
        """Return the description that `describe` stored last; `None` without a description."""

    @abstractmethod
    def describe(self, description: Mapping[str, Any]) -> None:
        """Store a description of the job that writes, replacing the previous description.

        Raises:
            StoreError: JSON cannot represent it.
        """

    @abstractmethod
    def delete(
        self, before: int, *, since: int = FIRST_BUCKET, keep: Collection[type[Metrics]] = ()
    ) -> int:
        """Delete the metrics of this sink in a range of time buckets; keep the ledger.

        Args:
            before: The first time bucket that stays.
            since: The first time bucket to delete. Default: the smallest possible.
            keep: Metric types whose partials stay; none by default.

        Returns:
            The number of deleted rows: one for each partial, or several for kinds such as
            `Ranking`.
        """

    @abstractmethod
    def clear(self) -> None:
        """Delete everything that this sink wrote: its metrics, marks, summaries and description."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Run a block of a method; if it raises, the transaction is unusable from then on.

        Raises:
            StoreError: An earlier block raised.
        """
        self.check()
        try:
            yield
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def check(self) -> None:
        """Reject a transaction with an earlier error.

        Raises:
            StoreError: A method raised earlier.
        """
        if self.failure is not None:
            raise StoreError(
                f"the transaction was rolled back after an earlier error ({self.failure}); "
                "let errors leave its block, and start another transaction"
            ) from self.failure


FINAL_BEFORE = "final_before"
"""The field of a summary with the time bucket before which all are final."""


def final_before(summaries: Callable[[int | None], list[Epoch]]) -> int | None:
    """Return the time bucket before which all are final; `None` if none are.

    Args:
        summaries: Reads the given number of newest summaries of a sink; all that are kept for None.
    """
    newest = summaries(1)
    if newest and FINAL_BEFORE not in newest[0].summary:  # not of a Spark sink, or an older one
        newest = summaries(None)
    found = (
        epoch.summary[FINAL_BEFORE] for epoch in reversed(newest) if FINAL_BEFORE in epoch.summary
    )
    return next(found, None)


def to_json(value: Mapping[str, Any]) -> str:
    """Return a summary or a description as JSON.

    Raises:
        StoreError: JSON cannot represent it.
    """
    try:
        return json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"cannot store {value!r}: {error}; "
            "JSON has str, int, finite float, bool, None, list and dict"
        ) from error


def bucket_limit(name: str, limit: int | datetime) -> int:
    """Return a limit of time buckets as an int, in seconds since 1970.

    Args:
        name: The name of the argument, for the message.
        limit: The limit.

    Raises:
        ConfigError: It is neither an int of up to 64 bits nor a datetime with a zone.
    """
    if isinstance(limit, datetime) and limit.utcoffset() is not None:
        return math.ceil(limit.timestamp())
    if type(limit) is not int:
        raise ConfigError(
            f"{name}={limit!r}: give a time bucket as an int, or a datetime with a zone, for "
            "instance datetime(2026, 1, 1, tzinfo=UTC)"
        )
    if not FIRST_BUCKET <= limit < 2**63:
        raise ConfigError(
            f"{name}={limit!r}: a time bucket is an int of up to 64 bits; it counts seconds"
        )
    return limit


def checked_kept_summaries(kept_summaries: int) -> int:
    """Return `kept_summaries`, the number of summaries that a store keeps for each sink.

    Raises:
        ConfigError: It is below 1.
    """
    if kept_summaries < 1:
        raise ConfigError(f"kept_summaries={kept_summaries}: keep at least 1, the newest epoch's")
    return kept_summaries


class MetricsStore(Protocol):
    """A store of metrics. It pickles, and opens connections where it is used."""

    def prepare(self) -> None:
        """Check that the store can be written, and create what is missing.

        Raises:
            StoreError: The store cannot be written.
        """

    def transaction(self, sink_id: str = "default") -> AbstractContextManager[StoreTransaction]:
        """Open a transaction that excludes other writers.

        It commits on a clean exit of the block, and rolls back on an exception.

        Args:
            sink_id: The sink that writes; several sinks may share a store.

        Raises:
            StoreError: The store cannot be written.
            StoreUnavailableError: It is down, or other writers kept it busy for too long.
        """
        ...


# Consumers that write metrics into a store, for queues like `presets.sql_batch(writers=1)`.


class StoreWriter:
    """A writer that merges each batch into an open transaction, which its owner commits.

    The owner must check the queue's `stats().failed` before it commits: a batch that failed may be
    half written.
    """

    def __init__(self, transaction: StoreTransaction) -> None:
        """Make a writer.

        Args:
            transaction: A transaction that only the writer uses until the queue is shut down.
        """
        self._transaction = transaction

    def consume(self, batch: list[Metrics]) -> None:
        """Merge a batch."""
        self._transaction.merge(batch)


class CommittingStoreWriter:
    """A writer that merges each batch into a store in its own transaction.

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


def _partials_of(metric_type: type[M], rows: Sequence[Row]) -> list[M]:
    """Make a partial from each row, which has the columns of `MetricsReader.read_table`."""
    make, first = metric_type.from_rows, 2 + len(metric_type.key_columns)
    return [make(row[0], row[1], [row[first:]]) for row in rows]


def _differ(rows: Sequence[Row]) -> bool:
    """Return whether all rows have distinct keys."""
    # Comparing entities alone takes a third of the time.
    return len({row[0] for row in rows}) == len(rows) or len({row[:2] for row in rows}) == len(rows)


# The report of `batchqueue store check`: the sinks of a store, and its problems.


_YEAR_9999_S = 253_370_764_800

Query = tuple[str, str]
"""A sink, and a query id of its ledger."""


@dataclass
class SinkReport:
    """The content of a sink in a store.

    Attributes:
        queries: Number of queries with a mark.
        rows: Number of rows in all tables.
        last_commit_s: Commit time of the newest epoch, in seconds since 1970; None if its summary
            lacks it, or no summary is kept.
    """

    queries: int = 0
    rows: int = 0
    last_commit_s: float | None = None


@dataclass
class StoreReport:
    """The sinks of a store, and its problems.

    Attributes:
        sinks: The sinks, by id.
        problems: A sentence for each problem.
    """

    sinks: dict[str, SinkReport] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def sink(self, sink_id: str) -> SinkReport:
        """Return the report of a sink, which is empty at first."""
        return self.sinks.setdefault(sink_id, SinkReport())

    def add_newest(self, sink_id: str, summary: Mapping[str, Any]) -> None:
        """Add the newest summary of a sink, which any program may have written."""
        committed_at = commit_time(summary)
        if committed_at is not None:
            self.sink(sink_id).last_commit_s = committed_at

    def add_ledger(self, marks: Mapping[Query, int], newest: Mapping[Query, int]) -> None:
        """Add the queries of all sinks, and the problems of their ledgers.

        Args:
            marks: The mark of each query.
            newest: The largest batch id of each query among the summaries that are kept.
        """
        for sink_id, _ in marks:
            self.sink(sink_id).queries += 1
        self.problems += _ledger_problems(marks, newest)


def commit_time(summary: Mapping[str, Any]) -> float | None:
    """Return an epoch's commit time, in seconds since 1970; `None` if its summary has no time."""
    committed_at = summary.get("committed_at")
    if isinstance(committed_at, int | float) and 0 <= committed_at < _YEAR_9999_S:
        return committed_at
    return None


def _ledger_problems(marks: Mapping[Query, int], newest: Mapping[Query, int]) -> Iterable[str]:
    """Compare marks with summaries: written together, they differ only in mixed states."""
    for (sink_id, query_id), batch_id in newest.items():
        mark = marks.get((sink_id, query_id))
        if mark is None and (sink_id, UNMARKED) not in marks:
            yield f"sink {sink_id!r} has summaries of query {query_id}, and no mark of it"
        elif mark is not None and mark != batch_id:
            yield (
                f"sink {sink_id!r} has epochs of query {query_id} up to {mark} according to its "
                f"mark, and up to {batch_id} according to its summaries"
            )
