"""A queue with an exporter and its dead letters."""

from contextlib import contextmanager

from batchqueue import BatchQueue, RetryPolicy
from core_support.queues import assert_conserved, config

QUICK = RetryPolicy(attempts=None, backoff_ms=1, max_backoff_ms=20)


@contextmanager
def exporting(kind, exporter, retry=QUICK, threads=1, **settings):
    """Yields a queue and its dead letters; at the end all items have an outcome."""
    letters = []
    with BatchQueue("exporting", config(threads, retry=retry, **settings)) as queue:
        queue.add_handler(kind, exporter, dead_letter=letters.extend)
        yield queue, letters
    assert_conserved(queue.stats())
    assert queue.stats().failed == queue.stats().abandoned == 0


def send(kind, exporter, items, **settings):
    """Sends items through a queue, in one batch by default; returns its dead letters."""
    if len(items) > 1 and "max_batch_items" not in settings:
        settings.update(max_batch_items=len(items), max_delay_ms=60_000, buffer_size=50_000)
    with exporting(kind, exporter, **settings) as (queue, letters):
        assert queue.produce_many(items) == len(items)
    assert queue.stats().consumed + len(letters) == len(items)
    return letters
