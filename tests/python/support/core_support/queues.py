"""Settings, item types and the conservation law of the queues under test."""

from batchqueue import BatchQueueConfig, PartitionPolicy, ThreadPolicy, _core
from core_support.waits import WAIT_S

TYPES = [type(f"Item{index}", (int,), {}) for index in range(5)]
"""Numbers of five classes, for queues with several handlers."""


def config(threads=1, partitions=None, **settings):
    """Settings with an idle sleep of a minute, so that a lost wake-up fails its test."""
    settings.setdefault("min_idle_ms", 1)
    settings.setdefault("max_idle_ms", 60_000)
    settings.setdefault("shutdown_timeout", WAIT_S)
    if partitions is None:
        partitions = PartitionPolicy.fixed(threads)
    elif isinstance(partitions, int):
        partitions = PartitionPolicy.fixed(partitions)
    return BatchQueueConfig(threads=ThreadPolicy.fixed(threads), partitions=partitions, **settings)


def try_once_more(queue):
    """Has what backs off tried for the last time, as shortly before the end of a shutdown."""
    _core.close_to_outside(queue, 0)
    assert queue.flush(WAIT_S)


def assert_conserved(stats):
    """Checks the conservation law of a queue at rest."""
    assert stats.attempts == stats.produced + stats.refused, stats
    settled = stats.consumed + stats.dead_lettered + stats.failed + stats.unhandled
    assert stats.produced == settled + stats.abandoned, stats
    assert stats.queued == stats.held == stats.in_flight == 0, stats
    assert stats.total_used == 0, stats
