"""`AsyncBatchQueue` under many tasks of one or several loops: each item arrives once, in order."""

import asyncio
import random
import threading

import pytest

from batchqueue import AsyncBatchQueue, PartitionSelector, ProduceTimeoutError
from core_support.event_loop import outcomes, run
from core_support.queues import TYPES, assert_conserved, config
from core_support.threads import run_threads
from core_support.waits import WAIT_S

SELECTORS = {
    "by_type": (PartitionSelector.by_type(), 3),
    "by_key": (PartitionSelector.by_key(lambda item: item % 3), 3),
    "round_robin": (PartitionSelector.round_robin(), 1),
}


@pytest.mark.parametrize("selector", SELECTORS)
def test_items_of_each_task_keep_their_order(selector):
    select, partitions = SELECTORS[selector]

    async def produce(queue, producer, kind):
        items = [TYPES[number % 3](producer * 1_000 + number) for number in range(200)]
        if kind == 0:
            for item in items:
                assert await queue.produce(item)
        else:
            assert await queue.produce_many(items if kind == 1 else iter(items)) == 200

    async def main():
        seen = []
        settings = config(
            threads=2, partitions=partitions, selector=select, buffer_size=5, min_idle_ms=0
        )
        async with AsyncBatchQueue("queue", settings) as queue:
            for item_type in TYPES[:3]:
                queue.add_handler(item_type, seen.extend)
            await asyncio.gather(
                *(produce(queue, producer, producer % 3) for producer in range(12))
            )
        for producer in range(12):
            for item_type in TYPES[:3]:
                mine = [
                    item for item in seen if item // 1_000 == producer and type(item) is item_type
                ]
                assert mine == sorted(mine)
        assert len(seen) == len(set(map(int, seen))) == 2_400
        assert_conserved(queue.stats())

    run(main)


class Producer:
    """A task that enqueues numbers, and at random is cancelled or gives up."""

    def __init__(self, index, seed):
        self.index, self.number, self.accepted = index, 0, []
        self.random = random.Random(seed)

    def next(self, count=1):
        first = self.number
        self.number += count
        return [
            TYPES[number % 2](self.index * 100_000 + number) for number in range(first, self.number)
        ]

    async def act(self, queue):
        timeout = self.random.choice([None, None, 0, 0.0005])
        if self.random.random() < 0.5:
            (item,) = self.next()
            if await queue.produce(item, timeout=timeout):
                self.accepted.append(item)
            return
        items, accepted = self.next(self.random.randrange(1, 12)), 0
        try:
            given = items if self.random.random() < 0.5 else iter(items)
            accepted = await queue.produce_many(given, timeout=timeout)
        except (asyncio.CancelledError, ProduceTimeoutError) as error:
            accepted = error.accepted
            raise
        finally:
            self.accepted.extend(items[:accepted])

    async def live(self, queue, actions):
        for _ in range(actions):
            task = asyncio.ensure_future(self.act(queue))
            if self.random.random() < 0.4:
                for _ in range(self.random.randrange(6)):
                    await asyncio.sleep(0)
                task.cancel()
            assert (await outcomes([task]))[0] in (
                None,
                asyncio.CancelledError,
                ProduceTimeoutError,
            )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loops", [1, 2])
def test_items_accepted_from_randomly_cancelled_tasks_arrive_once_and_in_order(seed, loops):
    seen = {item_type: [] for item_type in TYPES[:2]}
    producers = [Producer(index, seed * 1_000 + index) for index in range(24)]
    settings = config(threads=2, partitions=2, buffer_size=1 + seed * 2, min_idle_ms=0)
    queue = AsyncBatchQueue("queue", settings)
    for item_type in TYPES[:2]:
        queue.add_handler(item_type, seen[item_type].extend)

    def loop(share):
        async def main():
            await asyncio.gather(
                *(producer.live(queue, 60) for producer in producers[share::loops])
            )

        run(main)

    run_threads(*(lambda share=share: loop(share) for share in range(loops)))
    assert asyncio.run(queue.shutdown(WAIT_S)) == 0
    for item_type, items in seen.items():
        for producer in producers:
            mine = [item for item in items if item // 100_000 == producer.index]
            assert mine == [item for item in producer.accepted if type(item) is item_type]
    stats = queue.stats()
    assert stats.consumed == sum(len(producer.accepted) for producer in producers)
    assert stats.refused > 0
    assert_conserved(stats)


def test_loops_of_several_threads_wait_for_one_partition():
    seen, queue = [], AsyncBatchQueue("queue", config(buffer_size=3, min_idle_ms=0))
    queue.add_handler(int, seen.extend)
    together = threading.Barrier(4)

    def loop(producer):
        async def main():
            together.wait(WAIT_S)
            for number in range(500):
                assert await queue.produce(producer * 1_000 + number)

        run(main)

    run_threads(*(lambda producer=producer: loop(producer) for producer in range(4)))
    assert asyncio.run(queue.shutdown(WAIT_S)) == 0
    for producer in range(4):
        assert [item for item in seen if item // 1_000 == producer] == list(
            range(producer * 1_000, producer * 1_000 + 500)
        )
    assert_conserved(queue.stats())
