"""A store with two sinks, and what it holds."""

from batchqueue.aggregation import CountMetrics, SumMetrics, metric_type
from batchqueue.outputs import SqliteStore

DAY = 86_400
COUNT = metric_type("test.count", CountMetrics)
TOTAL = metric_type("test.total", SumMetrics, columns={"total": int})


def filled(store):
    for batch_id in range(2):
        with store.transaction("nightly") as transaction:
            transaction.merge([COUNT("a", 0), COUNT("b", DAY), TOTAL("a", 0, 5)])
            transaction.record("query", batch_id, {"rows": 3, "committed_at": 1_790_000_000.5})
    with store.transaction("other") as transaction:
        transaction.merge([COUNT("a", 0, 7)])
        transaction.record("batch:1", 0, {"committed_at": "yesterday"}, marked=False)
    return store


def path_of(store):
    return store.path if isinstance(store, SqliteStore) else store.directory


def at(store, path):
    """The same kind of store at another place."""
    return type(store)(path)


def state(store, sink_id="nightly"):
    with store.transaction(sink_id) as transaction:
        last = transaction.last_batch("query")
    counts = {item.entity: item.count for item in store.read(COUNT, sink_id)}
    return counts, last, [epoch.batch_id for epoch in store.summaries(sink_id)]


FILLED = ({"a": 2, "b": 2}, 1, [0, 1])
