"""What a store of metrics must do: transactions over partials, and the ledger of epochs."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from batchqueue.aggregation import MergeBuffer, Metrics
from batchqueue.exceptions import BatchQueueError, ConfigError

M = TypeVar("M", bound=Metrics)


class StoreError(BatchQueueError):
    """A store cannot be opened, read or written. The message names the store, the reason and the remedy."""


class StoreUnavailableError(StoreError):
    """The store is busy, down or out of reach: the same transaction, tried again later, may succeed.

    A full disk is not among these: it stays full until somebody makes room.
    """


UNMARKED = "unmarked"
"""The query id of the one mark that stands for all epochs which were recorded without a mark of their own."""


class Epoch(NamedTuple):
    """The summary of one applied batch of one query."""

    query_id: str
    batch_id: int
    summary: dict[str, Any]


class StoreTransaction(ABC):
    """An open transaction on behalf of one sink. It sees and changes nothing that another sink wrote.

    The *ledger* has one high-water mark per query, the largest batch id that was applied, for as
    long as the sink has data; and the summaries of the newest epochs.

    It may be used from another thread than the one that opened it, by one thread at a time. After
    an error in one of its methods it cannot be committed, also when the error was caught: half of a
    batch may be written.
    """

    failure: BaseException | None = None
    """What went wrong first, if anything did."""

    @abstractmethod
    def load(self, metric_type: type[M], keys: Iterable[tuple[str, int]]) -> list[M]:
        """Return the stored partials of the given (entity, time_bucket) keys, any number of them."""

    @abstractmethod
    def save(self, metrics: Sequence[Metrics]) -> None:
        """Store partials, replacing those of the same type and key; of equal keys the last one counts."""

    def merge(self, metrics: Iterable[Metrics]) -> None:
        """Combine partials with each other and with what is stored."""
        with self.guarded():
            merged = MergeBuffer()
            merged.accept_all(metrics)
            for metric_type, keys in merged.keys().items():
                merged.accept_all(self.load(metric_type, keys))
            self.save(merged.drain())

    def applied(self, query_id: str, batch_id: int) -> bool:
        """Return whether this epoch, or a later one of the same query, is in the ledger."""
        last = self.last_batch(query_id)
        return last is not None and batch_id <= last

    def record(
        self, query_id: str, batch_id: int, summary: Mapping[str, Any], *, marked: bool = True
    ) -> None:
        """Enter an epoch: raise the mark of its query to `batch_id`, and keep the summary.

        Args:
            query_id: Whose epoch.
            batch_id: Its number, above that of the mark.
            summary: What JSON can hold. Only the newest ones of a sink are kept.
            marked: False for what will never be asked for again by its query id: there is no mark
                for this query, but `known_queries` has `UNMARKED` from then on.

        Raises:
            StoreError: The mark is not below `batch_id`, or JSON cannot hold the summary.
        """
        with self.guarded():
            text = to_json(summary)
            last = self.last_batch(query_id) if marked else None
            if last is not None and batch_id <= last:
                raise StoreError(
                    f"cannot record epoch {batch_id} of query {query_id}: the epochs up to {last} are applied "
                    "already; ask applied() first"
                )
            self.raise_mark(query_id if marked else UNMARKED, batch_id if marked else 0)
            self.add_summary(query_id, batch_id, text)

    @abstractmethod
    def raise_mark(self, query_id: str, batch_id: int) -> None:
        """Set the mark of a query; `record` has compared it with the one before."""

    @abstractmethod
    def add_summary(self, query_id: str, batch_id: int, summary: str) -> None:
        """Keep the summary of an epoch, as JSON, and delete the oldest ones of the sink if there are too many."""

    @abstractmethod
    def last_batch(self, query_id: str) -> int | None:
        """Return the mark of a query: the largest batch id that was recorded; None if there is none."""

    @abstractmethod
    def known_queries(self) -> set[str]:
        """Return the ids of the queries that have marks; empty if nothing was ever recorded."""

    @abstractmethod
    def summaries(self, newest: int | None = None) -> list[Epoch]:
        """Return the summaries that are kept, in the order in which they were recorded.

        Args:
            newest: At most so many, the last ones; None: all.
        """

    @abstractmethod
    def description(self) -> dict[str, Any] | None:
        """Return what `describe` stored last; None if it never did."""

    @abstractmethod
    def describe(self, description: Mapping[str, Any]) -> None:
        """Store a description of the job that writes, in the place of the one before.

        Raises:
            StoreError: JSON cannot hold it.
        """

    @abstractmethod
    def clear(self) -> None:
        """Delete everything that this sink wrote: its metrics, marks, summaries and description."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Run a part of a method: if it raises, the transaction cannot be used or committed any more.

        Raises:
            StoreError: An earlier part has raised.
        """
        self.check()
        try:
            yield
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def check(self) -> None:
        """Refuse a transaction in which something went wrong.

        Raises:
            StoreError: It did.
        """
        if self.failure is not None:
            raise StoreError(
                f"the transaction was rolled back after an earlier error ({self.failure}); let errors leave its "
                "block, and start another one"
            ) from self.failure


def to_json(value: Mapping[str, Any]) -> str:
    """Write a summary or a description as JSON.

    Raises:
        StoreError: JSON cannot hold it.
    """
    try:
        return json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"cannot store {value!r}: {error}; JSON has str, int, finite float, bool, None, list and dict"
        ) from error


def checked_kept_summaries(kept_summaries: int) -> int:
    """Return the number of summaries that a store keeps for each sink.

    Raises:
        ConfigError: It is below 1.
    """
    if kept_summaries < 1:
        raise ConfigError(f"kept_summaries={kept_summaries}: keep at least 1, the newest epoch's")
    return kept_summaries


class MetricsStore(Protocol):
    """Where metrics are kept. A description: it pickles, and opens what it needs where it is used."""

    def prepare(self) -> None:
        """Make sure that the store can be written, creating what is missing.

        Raises:
            StoreError: It cannot.
        """

    def transaction(self, sink_id: str = "default") -> AbstractContextManager[StoreTransaction]:
        """Open a transaction that excludes other writers; commit on a clean exit, roll back on an exception.

        Args:
            sink_id: On whose behalf: several sinks may share one store.

        Raises:
            StoreError: The store cannot be written.
            StoreUnavailableError: It is down, or others kept it busy for too long.
        """
        ...
