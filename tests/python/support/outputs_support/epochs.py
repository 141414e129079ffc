"""Epochs of one query, each of which counts in two partitions, and what a store has of them."""

from typing import Any

from batchqueue.aggregation import CountMetrics, metric_type

DAY = 86_400
COUNT = metric_type("test.count", CountMetrics)


def add(store: Any, batch_id: int, sink_id: str = "default", count: int = 1) -> None:
    """Applies an epoch, as a sink does."""
    with store.transaction(sink_id) as transaction:
        if transaction.applied("query", batch_id):
            return
        transaction.merge([COUNT("a", 0, count), COUNT("b", DAY, count)])
        transaction.record("query", batch_id, {"batch": batch_id})


def state(store: Any) -> tuple[dict[str, int], int | None, list[int]]:
    """Returns the counts, the mark, and the epochs with a summary."""
    with store.transaction() as transaction:
        last = transaction.last_batch("query")
    epochs = [epoch.batch_id for epoch in store.summaries()]
    return {item.entity: item.count for item in store.read(COUNT)}, last, epochs
