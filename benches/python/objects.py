"""Python objects from producers to handlers, beside other queues with a batching thread.

The handler is `len`, with 8 types in turn and room for 20,000 items of each. Every contender groups
by type and calls a handler per type with a list; every round checks that all items arrived.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import culsans
import janus

from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy

TYPES = [type(f"Type{number}", (), {}) for number in range(8)]
BUFFER = 20_000
MANY = 2_000
BATCH = 10_000
"""Items that a batching thread takes in one batch, as a drain thread does in one cycle."""

Items = list[Any]


class Ends(NamedTuple):
    """The calls of a queue of single items."""

    put: Callable[[Any], Any]
    get: Callable[[], Any]
    get_nowait: Callable[[], Any]


def items(count: int) -> Items:
    """Return objects of the types in turn."""
    return [kind() for kind in TYPES] * (count // len(TYPES))


def timed(producers: int, produce: Callable[[], None], finish: Callable[[], None]) -> float:
    """Return seconds from the common start of the producers until everything is handled."""
    start = threading.Barrier(producers + 1)

    def body() -> None:
        start.wait()
        produce()

    threads = [threading.Thread(target=body) for _ in range(producers)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    finish()
    return time.perf_counter() - began


def batchqueue_one_by_one(producers: int, count: int) -> float:
    """Return nanoseconds per item with `produce`."""
    sent = items(count // producers)

    def produce(bq: BatchQueue[Any]) -> None:
        put = bq.produce
        for item in sent:
            put(item)

    return through_batchqueue(producers, produce, len(sent))


def batchqueue_many(producers: int, count: int) -> float:
    """Return nanoseconds per item with `produce_many`, 2,000 in each call."""
    lists = [items(MANY) for _ in range(8)]
    rounds = count // producers // MANY

    def produce(bq: BatchQueue[Any]) -> None:
        for number in range(rounds):
            bq.produce_many(lists[number % len(lists)])

    return through_batchqueue(producers, produce, rounds * MANY)


def through_batchqueue(
    producers: int, produce: Callable[[BatchQueue[Any]], None], each: int
) -> float:
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(2), partitions=PartitionPolicy.adaptive(), buffer_size=BUFFER
    )
    with BatchQueue("bench", config) as bq:
        for kind in TYPES:
            bq.add_handler(kind, len)
        seconds = timed(producers, lambda: produce(bq), bq.flush)
        assert bq.stats().consumed == each * producers
    return seconds / (each * producers) * 1e9


def by_hand(producers: int, count: int, ends: Ends) -> float:
    """Return nanoseconds per item through a queue of single items and a batching thread."""
    sent = items(count // producers)
    total = len(sent) * producers
    handled = []

    def batches() -> Iterable[Items]:
        while True:
            batch = [ends.get()]
            try:
                while len(batch) < BATCH:
                    batch.append(ends.get_nowait())
            except queue.Empty:
                pass
            yield batch

    def drain() -> None:
        done = 0
        for batch in batches():
            groups: dict[type, Items] = {}
            for item in batch:
                groups.setdefault(type(item), []).append(item)
            for group in groups.values():
                done += len(group)
            if done == total:
                handled.append(done)
                return

    def produce() -> None:
        for item in sent:
            ends.put(item)

    thread = threading.Thread(target=drain)
    thread.start()
    seconds = timed(producers, produce, thread.join)
    assert handled == [total]
    return seconds / total * 1e9


def simple_queue(producers: int, count: int) -> float:
    """Measure `queue.SimpleQueue`, which is unbounded."""
    simple: queue.SimpleQueue[Any] = queue.SimpleQueue()
    return by_hand(producers, count, Ends(simple.put, simple.get, simple.get_nowait))


def std_queue(producers: int, count: int) -> float:
    """Measure `queue.Queue` with room for as many items as batchqueue."""
    bounded: queue.Queue[Any] = queue.Queue(BUFFER * len(TYPES))
    return by_hand(producers, count, Ends(bounded.put, bounded.get, bounded.get_nowait))


def culsans_queue(producers: int, count: int) -> float:
    """Measure the synchronous side of culsans."""
    side = culsans.Queue(BUFFER * len(TYPES)).sync_q
    return by_hand(producers, count, Ends(side.put, side.get, side.get_nowait))


def janus_queue(producers: int, count: int) -> float:
    """Measure the synchronous side of janus."""

    async def run() -> float:
        both: janus.Queue[Any] = janus.Queue(BUFFER * len(TYPES))
        side = both.sync_q
        ends = Ends(side.put, side.get, side.get_nowait)
        seconds = await asyncio.to_thread(by_hand, producers, count, ends)
        await both.aclose()
        return seconds

    return asyncio.run(run())


CONTENDERS: dict[str, tuple[Callable[[int, int], float], int]] = {
    "batchqueue, produce": (batchqueue_one_by_one, 1_600_000),
    "batchqueue, produce_many(2,000)": (batchqueue_many, 8_000_000),
    "queue.SimpleQueue and a batching thread": (simple_queue, 800_000),
    "queue.Queue and a batching thread": (std_queue, 64_000),
    "culsans, sync side, and a batching thread": (culsans_queue, 64_000),
    "janus, sync side, and a batching thread": (janus_queue, 64_000),
}
"""The measure of each contender, and its number of items."""
