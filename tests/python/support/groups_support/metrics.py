"""Metrics of records, what a store has of them, and stores with faults."""

from collections import Counter
from contextlib import contextmanager

from batchqueue.aggregation import CountMetrics, SumMetrics, metric_type

TALLY = metric_type("tally", CountMetrics)
LENGTHS = metric_type("lengths", SumMetrics, columns={"total": int})


def tally(value):
    """Counts how often each value comes, so that every doubled or lost record shows."""
    return [TALLY(str(value), 0)]


def tally_and_length(value):
    yield TALLY(value, 0)
    yield LENGTHS("all", 0, len(value))


def tallied(store, sink_id="default"):
    """Returns how often the store has each value."""
    return Counter({each.entity: each.count for each in store.read(TALLY, sink_id)})


def marks(store, sink_id="default"):
    """Returns the marks of a sink."""
    with store.transaction(sink_id) as transaction:
        return {name: transaction.last_batch(name) for name in transaction.known_queries()}


class HookedStore:
    """A store that calls functions with each transaction: `before` it commits, `after` it did."""

    def __init__(self, store, before=lambda transaction: None, after=lambda: None):
        self._store = store
        self.before = before
        self.after = after

    @contextmanager
    def transaction(self, sink_id="default"):
        with self._store.transaction(sink_id) as transaction:
            yield transaction
            self.before(transaction)
        self.after()
