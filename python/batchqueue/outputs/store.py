"""What a store of metrics must do: transactions over partials, and the ledger of epochs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from batchqueue.aggregation import MergeBuffer, Metrics
from batchqueue.exceptions import BatchQueueError

M = TypeVar("M", bound=Metrics)


class StoreError(BatchQueueError):
    """A store cannot be opened, read or written. The message names the store, the reason and the remedy."""


class Epoch(NamedTuple):
    """A ledger entry: one applied batch of one query."""

    query_id: str
    batch_id: int
    summary: dict[str, Any]


class StoreTransaction(ABC):
    """An open transaction on behalf of one sink. It sees and changes nothing that another sink wrote.

    It may be used from another thread than the one that opened it, by one thread at a time.
    """

    @abstractmethod
    def load(self, metric_type: type[M], keys: Iterable[tuple[str, int]]) -> list[M]:
        """Return the stored partials of the given (entity, time_bucket) keys, any number of them."""

    @abstractmethod
    def save(self, metrics: Sequence[Metrics]) -> None:
        """Store partials, replacing those of the same type and key; of equal keys the last one counts."""

    def merge(self, metrics: Iterable[Metrics]) -> None:
        """Combine partials with each other and with what is stored."""
        merged = MergeBuffer()
        merged.accept_all(metrics)
        for metric_type, keys in merged.keys().items():
            merged.accept_all(self.load(metric_type, keys))
        self.save(merged.drain())

    @abstractmethod
    def applied(self, query_id: str, batch_id: int) -> bool:
        """Return whether the ledger has this epoch."""

    @abstractmethod
    def record(self, query_id: str, batch_id: int, summary: Mapping[str, Any]) -> None:
        """Enter an epoch, with a summary that JSON can hold; one that is there already is a StoreError."""

    @abstractmethod
    def last_batch(self, query_id: str) -> int | None:
        """Return the largest batch id of a query in the ledger; None if it has none."""

    @abstractmethod
    def known_queries(self) -> set[str]:
        """Return the ids of the queries that have epochs in the ledger."""

    @abstractmethod
    def summaries(self) -> list[Epoch]:
        """Return the ledger, in the order of its entries."""

    @abstractmethod
    def clear(self) -> None:
        """Delete everything that this sink wrote: its metrics and its epochs."""


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
            StoreError: The store cannot be written, or others kept it busy for too long.
        """
        ...
