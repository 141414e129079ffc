"""A queue without a config: a drain thread per core, partitions that grow with the handlers."""

import asyncio
import os

from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    BatchQueueConfig,
    PartitionPolicy,
    ThreadPolicy,
)
from core_support.event_loop import run

EXPECTED = BatchQueueConfig(
    threads=ThreadPolicy.cpu_cores(1.0), partitions=PartitionPolicy.adaptive()
)


def kinds(count):
    return [type(f"Kind{number}", (), {}) for number in range(count)]


def test_queue_needs_only_a_name():
    seen = []
    with BatchQueue("default") as queue:
        assert queue.config == EXPECTED
        queue.add_handler(str, seen.extend)
        assert queue.produce_many(["to", "be"]) == 2
    assert seen == ["to", "be"]
    assert queue.stats().consumed == 2


def test_default_is_one_drain_thread_per_core_that_this_process_may_use():
    with BatchQueue("default") as queue:
        threads = queue.stats().thread_count
    assert threads == ThreadPolicy.cpu_cores(1.0).resolve()
    assert 1 <= threads <= len(os.sched_getaffinity(0))


def test_default_gives_each_handler_its_partition():
    with BatchQueue("default") as queue:
        threads = queue.stats().thread_count
        assert queue.stats().partition_count == threads
        for kind in kinds(threads + 3):
            queue.add_handler(kind, [].extend)
        assert queue.stats().partition_count == threads + 3


def test_subclass_needs_only_a_name():
    class Named(BatchQueue):
        def __init__(self, name):
            super().__init__(name)

    with Named("default") as queue:
        assert queue.config == EXPECTED


def test_async_queue_needs_only_a_name():
    async def main():
        seen = []

        async def consume(batch):
            await asyncio.sleep(0)
            seen.extend(batch)

        async with AsyncBatchQueue("default") as queue:
            assert queue.config == EXPECTED
            queue.add_handler(str, consume)
            assert await queue.produce_many(["to", "be"]) == 2
        assert seen == ["to", "be"]

    run(main)
