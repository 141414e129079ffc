"""A result for each item, beside a thread pool; and the door of an `AsyncBatchQueue` for threads.

The handler returns its batch. One thread submits a piece, and then asks each future of it for its
result.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from batchqueue import AsyncBatchQueue, BatchQueue, BatchQueueConfig, ThreadPolicy

PIECE = 5_000
"""Items that are submitted before the first result is awaited."""

CONFIG: BatchQueueConfig[Any] = BatchQueueConfig(
    threads=ThreadPolicy.fixed(1), buffer_size=2 * PIECE
)


def echo(batch: list[int]) -> list[int]:
    """Answer each item with itself."""
    return batch


def submit_ns(count: int) -> float:
    """Return nanoseconds per item for `BatchQueue.submit` and `result`."""
    with BatchQueue("bench", CONFIG) as queue:
        queue.add_handler(int, echo)
        return by_pieces(count, queue.submit)


def executor_ns(count: int) -> float:
    """Return the same for a `ThreadPoolExecutor` with one thread."""
    with ThreadPoolExecutor(1) as pool:
        return by_pieces(count, lambda item: pool.submit(int, item))


def by_pieces(count: int, submit: Callable[[int], "Future[int]"]) -> float:
    began = time.perf_counter()
    for start in range(0, count, PIECE):
        futures = [submit(number) for number in range(start, min(start + PIECE, count))]
        for number, future in enumerate(futures, start):
            assert future.result() == number
    return (time.perf_counter() - began) / count * 1e9


def async_submit_ns(count: int) -> float:
    """Return nanoseconds per item for `AsyncBatchQueue.submit`, awaited together."""

    async def main() -> float:
        async with AsyncBatchQueue("bench", CONFIG) as queue:
            queue.add_handler(int, echo)
            began = time.perf_counter()
            for start in range(0, count, PIECE):
                futures = [queue.submit(number) for number in range(start, start + PIECE)]
                for number, future in enumerate(futures, start):
                    assert await future == number
            return (time.perf_counter() - began) / count * 1e9

    return asyncio.run(main())


def produce_ns(count: int) -> float:
    """Return nanoseconds per item for `BatchQueue.produce`, without the handling."""
    with BatchQueue("bench", unbounded(count)) as queue:
        queue.add_handler(int, len)
        return put_ns(count, queue.produce)


def door_ns(count: int) -> float:
    """Return the same for `AsyncBatchQueue.sync.produce`, from a thread beside the loop."""

    async def main() -> float:
        async with AsyncBatchQueue("bench", unbounded(count)) as queue:
            queue.add_handler(int, len)
            return await asyncio.to_thread(put_ns, count, queue.sync.produce)

    return asyncio.run(main())


def unbounded(count: int) -> BatchQueueConfig[Any]:
    return BatchQueueConfig(threads=ThreadPolicy.fixed(1), buffer_size=count)


def put_ns(count: int, put: Callable[[int], bool]) -> float:
    items = list(range(count))
    began = time.perf_counter()
    for item in items:
        put(item)
    return (time.perf_counter() - began) / count * 1e9
