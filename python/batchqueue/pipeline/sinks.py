"""Sinks of pipelines."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchqueue.aggregation import MergeBuffer, Metrics
from batchqueue.base.checks import check_whole
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import CutError, Position, check_written, is_deferred

if TYPE_CHECKING:
    from batchqueue.outputs import MetricsStore, StoreTransaction
    from batchqueue.outputs.ledger import OwnedSink


__all__ = ["FunctionSink", "MetricsSink"]


_MOST_ROWS = 1_000_000


class FunctionSink:
    """A sink that calls a function with a list of chunks.

    After a crash, chunks since the last cut are delivered again. `chunk_origin` returns where a
    chunk came from, so that the function can recognise it.

    Attributes:
        batch_rows: The preferred number of rows per call, if available.

    Example:
        >>> from batchqueue.pipeline import FunctionSink, IterableSource, Pipeline
        >>> def show(chunks):
        ...     for chunk in chunks:
        ...         print(chunk.to_pylist())
        >>> flow = Pipeline("cities")
        >>> cities = IterableSource(lambda: [{"city": "Rome"}, {"city": "Oslo"}])
        >>> flow.source(cities).to(FunctionSink(show))
        >>> _ = flow.run()
        [{'city': 'Rome'}, {'city': 'Oslo'}]
    """

    def __init__(
        self, function: Callable[[list[pa.RecordBatch]], Any], batch_rows: int = 500
    ) -> None:
        """Make a sink.

        Args:
            function: Gets one or more chunks, in order. Calls are never concurrent. Any exception
                ends the run.
            batch_rows: The preferred number of rows per call, if available, 1 to 1,000,000. A call
                never waits for them. Default: 500.

        Raises:
            ConfigError: An argument is invalid.
        """
        if not callable(function):
            raise ConfigError(
                f"function is {function!r}; give a function that takes a list of record batches"
            )
        if is_deferred(function):
            raise ConfigError(
                f"function is {function!r}, and a call of it would write nothing; give a plain "
                "function, for instance one that calls asyncio.run"
            )
        limits = f"an int from 1 to {_MOST_ROWS:,}"
        check_whole("batch_rows", batch_rows, 1, _MOST_ROWS, limits)
        self.batch_rows = batch_rows
        self._function = function

    def write(self, chunks: list[pa.RecordBatch]) -> None:
        """Call the function."""
        if chunks:
            check_written(self._function(chunks))

    def __repr__(self) -> str:
        name = getattr(self._function, "__name__", type(self._function).__name__)
        return f"FunctionSink({name}, batch_rows={self.batch_rows})"


# `MetricsSink`: merges chunks as metrics into a store, each exactly once.
#
# The store has a mark with the number of the last cut, and the description of the sink has the
# positions of that cut. The transaction that stores the metrics advances both.


_MARK = "pipeline"
_POSITIONS = "positions"


class MetricsSink:
    """A sink that merges chunks as metrics into a store, so that each counts exactly once.

    Metrics that arrive between two cuts are merged in memory, a partial per metric and key, and
    stored with the cut in one transaction. Chunks lost in a crash are delivered again, and count
    once.

    A sink id belongs to one pipeline. Other pipelines are refused, because their metrics would be
    added to the stored ones; so are metrics whose columns have changed.

    Attributes:
        store: Where it writes.
        to_metrics: What turns chunks into metrics.
        sink_id: The sink that it writes for.
        metrics: The declared types of metrics.

    Example:
        >>> from batchqueue.aggregation import Aggregation, Count, CountMetrics, metric_type
        >>> from batchqueue.outputs import SqliteStore
        >>> from batchqueue.pipeline import IterableSource, MetricsSink, Pipeline
        >>> ORDERS = metric_type("orders", CountMetrics)
        >>> def to_metrics(groups):
        ...     for group in groups.to_pylist():
        ...         yield ORDERS(group["city"], 0, group["orders"])
        >>> cities = IterableSource(lambda: [{"city": "Rome"}, {"city": "Oslo"}, {"city": "Rome"}])
        >>> store = SqliteStore("orders.db")
        >>> flow = Pipeline("orders")
        >>> by_city = Aggregation(keys=["city"], measures={"orders": Count()})
        >>> flow.source(cities).aggregate(by_city).to(MetricsSink(store, to_metrics))
        >>> _ = flow.run()
        >>> _ = flow.run()  # resumes behind the last cut
        >>> [(found.entity, found.count) for found in store.read(ORDERS)]
        [('Oslo', 1), ('Rome', 2)]
    """

    batch_rows = 1_000
    needs_origins = False

    def __init__(
        self,
        store: "MetricsStore",
        to_metrics: Callable[[pa.RecordBatch], Iterable[Metrics]],
        *,
        sink_id: str = "default",
        metrics: Sequence[type[Metrics]] = (),
    ) -> None:
        """Make a sink; a run opens the store.

        Args:
            store: Where to write, for instance a `SqliteStore`.
            to_metrics: Gets a chunk, and returns any number of metrics. Take their time from the
                rows, not from the clock: a chunk that is delivered again must give the same
                metrics.
            sink_id: The sink to write for; "default" by default. Several sinks may share a store.
            metrics: The types of metrics that `to_metrics` returns. Only Spark needs them. Default:
                none.

        Raises:
            ConfigError: The store is not a store, or `to_metrics` is not callable.
        """
        if not hasattr(store, "transaction"):
            raise ConfigError(
                f"store is {store!r}; give a store of metrics, for instance "
                'SqliteStore("metrics.db")'
            )
        if not callable(to_metrics):
            raise ConfigError(
                f"to_metrics is {to_metrics!r}; give a function that takes a record batch and "
                "returns a list of metrics"
            )
        self.store = store
        self.to_metrics = to_metrics
        self.sink_id = sink_id
        self.metrics = tuple(metrics)
        self._pipeline = ""
        self._buffer: MergeBuffer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_buffer": None}

    def __repr__(self) -> str:
        return f"MetricsSink({self.store!r}, sink_id={self.sink_id!r})"

    def open(self, pipeline: str) -> None:
        """Prepare for a run of a pipeline, and discard what an earlier run did not commit."""
        self._pipeline = pipeline
        self._buffer = None

    def write(self, chunks: list[pa.RecordBatch]) -> None:
        """Merge the metrics of chunks in memory.

        Raises:
            TypeError: `to_metrics` did not return metrics.
        """
        if self._buffer is None:
            self._buffer = MergeBuffer()
        for chunk in chunks:
            self._buffer.accept_all(_checked(self.to_metrics(chunk)))

    def commit(self, cut: int, positions: Mapping[str, Position]) -> None:
        """Store what was written, and the cut.

        Raises:
            ConfigError: The sink id belongs to another pipeline, group or job, or a metric has
                changed its columns. Nothing was changed.
            CutError: The store does not have the previous cut: another run of the pipeline is
                writing, or the store was replaced. Nothing was changed.
            StoreError: The store cannot be written.
        """
        partials = [] if self._buffer is None else self._buffer.drain()

        def next_cut(_: "StoreTransaction", stored: int | None) -> list[Metrics]:
            if (stored or 0) != cut - 1:
                raise CutError(
                    f"{self._sink} has cut {stored or 0} and is to store cut {cut}, which must be "
                    f"the next one: run pipeline {self._pipeline!r} once at a time, and give it "
                    "the store that it has written"
                )
            return partials

        self._sink.write_once(_MARK, cut, next_cut, **{_POSITIONS: dict(positions)})

    def last_cut(self) -> tuple[int, Mapping[str, Position]] | None:
        """Return the newest stored cut with its positions; None if there is none.

        Raises:
            ConfigError: The sink id belongs to another pipeline, group or job.
            StoreError: The store cannot be used.
        """
        with self.store.transaction(self.sink_id) as transaction:
            description = self._sink.description(transaction)
            stored = transaction.last_batch(_MARK)
        if description is None or stored is None:
            return None
        return stored, description[_POSITIONS]

    @property
    def _sink(self) -> "OwnedSink":
        from batchqueue.outputs.ledger import OwnedSink

        owner = {"kind": "pipeline", "pipeline": self._pipeline}
        return OwnedSink(self.store, self.sink_id, owner)


def _checked(made: object) -> Iterable[Metrics]:
    if not isinstance(made, Iterable):
        raise TypeError(
            f"to_metrics returned {a_type(made)}; return a list of metrics, an empty one for none"
        )
    for item in made:
        if not isinstance(item, Metrics):
            raise TypeError(
                f"to_metrics gave {a_type(item)}; give metrics, which metric_type makes classes of"
            )
        yield item
