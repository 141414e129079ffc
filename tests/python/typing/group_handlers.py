"""What the type checkers see of the handlers of a worker. Nothing here runs.

Each `type: ignore` is an error that must be found: without it, the comment itself is one.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import Callable, Iterator
from typing import Any, assert_type

from batchqueue.aggregation import CountMetrics, Metrics, metric_type
from batchqueue.groups import Assignment, Batch, MemoryStreams, MetricsSink, Worker
from batchqueue.outputs import SqliteStore

CITIES = metric_type("cities", CountMetrics)


class PerPartition:
    """A handler by its shape."""

    def __init__(self, assignment: Assignment) -> None: ...

    def consume(self, batch: Batch) -> None: ...


class Orders:
    """A handler of a queue, which takes lists."""

    def consume(self, batch: list[int]) -> None: ...


def metrics(order: dict[str, Any]) -> Iterator[Metrics]:
    yield CITIES(order["city"], 0)


def function(assignment: Assignment) -> Callable[[Batch], None]:
    return lambda batch: None


def factories(worker: Worker) -> None:
    assert_type(worker.handler_factory(PerPartition), type[PerPartition])
    worker.handler_factory(function)
    worker.handler_factory(lambda _: MetricsSink(SqliteStore("metrics.db"), metrics))
    worker.handler_factory(lambda _: Orders())  # type: ignore[type-var]


worker = Worker("billing", MemoryStreams("orders"))
worker.handler(MetricsSink(SqliteStore("metrics.db"), metrics, sink_id="cities"))
