"""A model of futures: whatever happens, each is done exactly once, with the end that fits."""

import concurrent.futures
import random
import threading

import pytest

from batchqueue import (
    BatchFailed,
    BatchQueue,
    BatchQueueError,
    BufferStrategy,
    PartitionSelector,
    ProduceTimeoutError,
    QueueClosedError,
    RetryPolicy,
)
from core_support.queues import TYPES, assert_conserved, config
from core_support.waits import WAIT_S

SEEDS = range(12)


class Broken(Exception):
    """What the handlers of the model raise."""


class Handler:
    """Answers the double of each item; fails by chance. Keeps what became of each attempt."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.lock = threading.Lock()
        self.last = {}

    def consume(self, batch):
        with self.lock:
            dice = self.chance.random()
            results = [2 * item for item in batch]
            if dice < 0.1:
                self.last.update((int(item), Broken) for item in batch)
                raise Broken
            if dice < 0.2:
                bad = sorted(
                    self.chance.sample(range(len(batch)), self.chance.randint(1, len(batch)))
                )
                self.last.update((int(item), "done") for item in batch)
                self.last.update((int(batch[at]), BatchFailed) for at in bad)
                raise BatchFailed(indexes=bad, results=results)
            if dice < 0.22:
                self.last.update((int(item), ValueError) for item in batch)
                return results[1:]
            self.last.update((int(item), "done") for item in batch)
            return results


def settings_of(chance):
    retry = chance.choice(
        [None, RetryPolicy(attempts=2, backoff_ms=1, bisect=chance.random() < 0.5)]
    )
    settings = {
        "retry": retry,
        "buffer_size": chance.choice([10, 1_000]),
        "strategy": chance.choice(list(BufferStrategy)),
        "max_batch_items": chance.choice([1, 7, 10_000]),
    }
    if chance.random() < 0.5:
        settings["dead_letter"] = lambda letters: None
    if chance.random() < 0.5:
        settings["selector"] = PartitionSelector.round_robin()
    threads = chance.randint(1, 2)
    return config(threads=threads, partitions=chance.randint(threads, 4), **settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_future_is_done_once_with_the_right_end(seed):
    chance = random.Random(seed)
    queue = BatchQueue("queue", settings_of(chance))
    handlers = [Handler(seed + index) for index, _ in enumerate(TYPES)]
    for item_type, handler in zip(TYPES, handlers, strict=True):
        queue.add_handler(item_type, handler)
    done, lock = {}, threading.Lock()

    def note(future):
        with lock:
            done[future] = done.get(future, 0) + 1

    futures = []

    def produce(producer):
        dice = random.Random(seed * 10 + producer)
        for number in range(producer * 1_000, producer * 1_000 + 800):
            index = dice.randrange(len(TYPES))
            item = TYPES[index](number)
            if dice.random() < 0.2:
                queue.produce(TYPES[index](-1 - number))
                continue
            future = queue.submit(item, timeout=dice.choice([None, 0.001]))
            future.add_done_callback(note)
            with lock:
                futures.append((index, number, future))
            if dice.random() < 0.1:
                future.cancel()

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join(WAIT_S)
    concurrent.futures.wait([future for _, _, future in futures], WAIT_S)
    assert queue.shutdown(WAIT_S) == 0
    for index, number, future in futures:
        last = handlers[index].last.get(number)
        assert future.done()
        assert done[future] == 1
        if future.cancelled():
            assert last is None
        elif last is None:
            assert isinstance(future.exception(), ProduceTimeoutError)
        elif last == "done":
            assert future.result() == 2 * number
        else:
            assert isinstance(future.exception(), last)
    assert_conserved(queue.stats())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shutdown_without_time_ends_each_future_once(seed):
    chance = random.Random(seed)
    queue = BatchQueue("queue", settings_of(chance))
    hang = threading.Event()
    calls = []

    def consume(batch):
        calls.append(len(batch))
        if len(calls) > chance.randint(1, 20):
            hang.wait(WAIT_S)
        return batch

    for item_type in TYPES:
        queue.add_handler(item_type, lambda batch: consume(batch))
    done, futures = {}, []

    def note(future):
        done[future] = done.get(future, 0) + 1

    for number in range(500):
        future = queue.submit(chance.choice(TYPES)(number), timeout=0)
        future.add_done_callback(note)
        futures.append(future)
    queue.shutdown(0.01)
    for number, future in enumerate(futures):
        assert done[future] == 1
        error = future.exception(0)
        if error is None:
            assert future.result() == number
        else:
            assert isinstance(error, (QueueClosedError, ProduceTimeoutError, BatchQueueError))
    hang.set()
