"""`MetricsSink`: a handler that merges records as metrics into a store, each exactly once.

Its fence is the ledger of the store. Per partition a mark holds the token of the newest owner that
wrote, and per handler another one the offset of the last record that is stored. They are compared
and raised in the transaction that stores the metrics: all are committed, or nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from batchqueue.exceptions import ConfigError
from batchqueue.groups.errors import StaleTokenError, quoted_value
from batchqueue.groups.fence import FencedBatch
from batchqueue.groups.record import Record
from batchqueue.groups.sink_l1 import L1, ByAggregation, ByFunction

if TYPE_CHECKING:
    import pyarrow as pa

    from batchqueue.aggregation import Aggregation, Metrics
    from batchqueue.outputs import MetricsStore, StoreTransaction


class MetricsSink:
    """A handler that merges records as metrics into a store, so that each counts exactly once.

    L1 merges the metrics of a batch in memory, before the store is locked; L2 merges these partials
    with what the store has. The results, the offset of the last record and the token of the
    partition are stored in one transaction per batch. So a record that comes again, after a crash,
    a retry or a takeover, is left out; and a worker that has lost its partition stores nothing
    once its successor has been here: the sink raises `StaleTokenError`, and the worker drops the
    partition.

    It keeps no state between batches. Give it to `Worker.handler`, to `add_handler` for one or more
    kinds, or return one from `handler_factory`. It pickles if the store and `to_metrics` do.

    A sink id belongs to one group and stream. Others are refused, because their records would count
    beside those that are stored; so are metrics whose columns have changed.

    Example:
        >>> from batchqueue.aggregation import CountMetrics, metric_type
        >>> from batchqueue.groups import MemoryStreams, MetricsSink, Worker
        >>> from batchqueue.outputs import SqliteStore
        >>> ORDERS = metric_type("orders", CountMetrics)
        >>> store = SqliteStore("metrics.db")
        >>> orders = MemoryStreams("orders", partitions=2)
        >>> worker = Worker("billing", orders, codec="json")
        >>> _ = worker.handler(MetricsSink(store, lambda order: [ORDERS(order["city"], 0)]))
        >>> with orders.producer(codec="json") as producer:
        ...     _ = producer.send_many([{"city": "rome"}, {"city": "oslo"}, {"city": "rome"}])
        >>> worker.run(until_idle=0.1).handled
        3
        >>> [(found.entity, found.count) for found in store.read(ORDERS)]
        [('oslo', 1), ('rome', 2)]
    """

    def __init__(
        self,
        store: "MetricsStore",
        to_metrics: "Callable[[Any], Iterable[Metrics]]",
        *,
        sink_id: str = "default",
    ) -> None:
        """Make a sink; the store is opened with the first batch.

        Args:
            store: Where to write, for instance a `SqliteStore`.
            to_metrics: Gets the value of a record, and returns its metrics, in any number. It is
                called again for a record that comes again, so the same value must give the same
                metrics: take their time from the value, not from the clock.
            sink_id: The sink to write for; "default" by default. Several sinks may share a store.

        Raises:
            ConfigError: The store is not a store, or `to_metrics` is not callable.
        """
        if not hasattr(store, "transaction"):
            raise ConfigError(
                f"store is {quoted_value(store)}; give a store of metrics, for instance "
                'SqliteStore("metrics.db")'
            )
        self._store = store
        self._l1: L1 = ByFunction(to_metrics)
        self._sink_id = sink_id

    @classmethod
    def arrow(
        cls,
        store: "MetricsStore",
        aggregation: "Aggregation",
        metrics: "Callable[[pa.RecordBatch], Iterable[Metrics]]",
        *,
        sink_id: str = "default",
    ) -> Self:
        """Make a sink for records that are Arrow batches, as with the codec "arrow".

        An `Aggregator` merges the rows of a batch of records in Rust, and only its groups become
        Python objects.

        Args:
            store: Where to write.
            aggregation: What to aggregate. A batch of records may have up to its `max_groups`
                groups.
            metrics: Gets a `pyarrow.RecordBatch` with a row for each group, and returns metrics. It
                is called once for consecutive records with the same schema. L2 combines metrics of
                the same key across batches, so return what can be combined: a mean as its sum and
                count, no quantiles.
            sink_id: The sink to write for; "default" by default.

        Raises:
            ConfigError: An argument is invalid.

        Example:
            >>> import pyarrow as pa
            >>> from batchqueue.aggregation import Aggregation, Count, CountMetrics, metric_type
            >>> from batchqueue.groups import MemoryStreams, MetricsSink, Worker
            >>> from batchqueue.outputs import SqliteStore
            >>> FLIGHTS = metric_type("flights", CountMetrics)
            >>> by_carrier = Aggregation(keys=["carrier"], measures={"flights": Count()})
            >>> def metrics(groups):
            ...     for group in groups.to_pylist():
            ...         yield FLIGHTS(group["carrier"], 0, group["flights"])
            >>> store, flights = SqliteStore("flights.db"), MemoryStreams("flights")
            >>> worker = Worker("statistics", flights, codec="arrow")
            >>> _ = worker.handler(MetricsSink.arrow(store, by_carrier, metrics))
            >>> with flights.producer(codec="arrow") as producer:
            ...     _ = producer.send(pa.record_batch({"carrier": ["UA", "AA", "UA"]}))
            >>> worker.run(until_idle=0.1).handled
            1
            >>> [(found.entity, found.count) for found in store.read(FLIGHTS)]
            [('AA', 1), ('UA', 2)]
        """
        l1 = ByAggregation(aggregation, metrics)
        sink = cls(store, metrics, sink_id=sink_id)
        sink._l1 = l1
        return sink

    def __repr__(self) -> str:
        return f"MetricsSink({self._store!r}, sink_id={self._sink_id!r})"

    def consume(self, batch: FencedBatch) -> None:
        """Merge the records of a batch that are not stored yet, and commit.

        Args:
            batch: The batch of a worker.

        Raises:
            StaleTokenError: A newer owner of the partition was here. Nothing was changed.
            ConfigError: The sink id belongs to another group, stream or job, or a metric has
                changed its columns. Nothing was changed.
            TypeError: `to_metrics`, or `metrics`, did not return metrics.
            StoreError: The store cannot be written, for instance because its disk is full.
            StoreUnavailableError: It is busy or down; another attempt may succeed.
        """
        from batchqueue.outputs.ledger import admit_metrics, admit_owner

        partials = self._merged(batch.records)  # before the lock: other writers need not wait
        with self._store.transaction(self._sink_id) as transaction:
            owner = {"kind": "group", "group": batch.group, "stream": batch.stream}
            description = admit_owner(transaction, self._name, owner)
            marks = _Marks.of(batch)
            _pass_fence(transaction, batch, marks.token)
            stored = transaction.last_batch(marks.offset)
            if stored is not None and stored >= batch.last:
                return
            if stored is not None and stored >= batch.records[0].offset:
                partials = self._merged([each for each in batch.records if each.offset > stored])
            admit_metrics(transaction, self._name, description, partials)
            if partials:
                transaction.merge(partials)
            transaction.raise_mark(marks.offset, batch.last)

    @property
    def _name(self) -> str:
        return f"sink {self._sink_id!r} of {self._store!r}"

    def _merged(self, records: "Sequence[Record[Any]]") -> "list[Metrics]":
        """L1: a partial per metric type and key."""
        from batchqueue.aggregation import MergeBuffer

        buffer = MergeBuffer()
        buffer.accept_all(self._l1.metrics(records))
        return buffer.drain()


class _Marks(NamedTuple):
    """The query ids of a partition in the ledger. Names of groups and streams have no bars."""

    token: str
    offset: str

    @classmethod
    def of(cls, batch: FencedBatch) -> Self:
        """Return those of the partition and the handler of a batch."""
        place = f"{batch.stream}/{batch.partition}"
        # All handlers of an owner have its token; one of them may be ahead of the others.
        return cls(
            f"token|{batch.group}|{place}",
            f"offset|{batch.group}|{batch.kind}|{place}",
        )


def _pass_fence(transaction: "StoreTransaction", batch: FencedBatch, mark: str) -> None:
    """Refuse a former owner, and note the newest one, even if it has nothing new."""
    seen = transaction.last_batch(mark)
    if seen is not None and seen > batch.token:
        raise StaleTokenError(batch.stream, batch.partition, batch.token, seen)
    if seen != batch.token:
        transaction.raise_mark(mark, batch.token)
