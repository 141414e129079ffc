"""`RetryPolicy(bisect=True)`: one bad item of a batch fails alone, and order is kept."""

import asyncio
import pickle
from itertools import chain

import pyarrow as pa
import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchFailed,
    BatchQueue,
    BatchQueueConfig,
    ConfigError,
    PartitionSelector,
    RetryPolicy,
    ThreadPolicy,
)
from core_support.handlers import Held
from core_support.waits import WAIT_S

ONE = ThreadPolicy.fixed(1)
BISECT = RetryPolicy(attempts=1, bisect=True)


class Strict(Held):
    """Fails each batch with a bad number in it."""

    def __init__(self, *bad, error=ValueError):
        super().__init__()
        self.bad, self.error, self.calls, self.failed = set(bad), error, [], []

    def consume(self, batch):
        super().consume(batch)
        self.calls.append(list(batch))
        if not self.bad.isdisjoint(batch):
            raise self.error("a bad one")

    def on_error(self, batch, error):
        self.failed.append(batch)


def put(queue, handler, count):
    """Puts 0 alone, and the others behind it, so that they are one batch."""
    handler.hold(queue, 0)
    assert queue.produce_many(range(1, count)) == count - 1
    handler.released.set()


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("kind", ["by_type", "round_robin", "consumer"])
def test_one_bad_item_fails_alone(attempts, kind):
    handler = Strict(6)
    config = BatchQueueConfig(
        threads=ONE,
        retry=RetryPolicy(attempts=attempts, backoff_ms=0, jitter=1, bisect=True),
        selector=PartitionSelector.by_type() if kind == "by_type" else None,
        consumer=handler if kind == "consumer" else None,
    )
    with BatchQueue("bisect", config) as queue:
        if kind != "consumer":
            queue.add_handler(int, handler)
        put(queue, handler, 9)
    whole = list(range(1, 9))
    halves = [[1, 2, 3, 4], [5, 6, 7, 8], [5, 6], [5], [6], [7, 8]]
    assert handler.calls == [[0], *[whole] * attempts, *halves]
    assert handler.failed == [[6]]
    stats = queue.stats()
    assert (stats.consumed, stats.failed) == (8, 1)


def test_a_hundred_items_with_one_bad_take_few_calls():
    handler = Strict(77)
    with BatchQueue("bisect", BatchQueueConfig(threads=ONE, retry=BISECT)) as queue:
        queue.add_handler(int, handler)
        put(queue, handler, 101)
    assert handler.failed == [[77]]
    assert len(handler.calls) - 2 <= 2 * (1 + 7)
    ended = [call for call in handler.calls if 77 not in call or call == [77]]
    assert list(chain.from_iterable(ended)) == list(range(101))


def test_an_exception_that_is_not_retried_is_not_bisected():
    handler = Strict(6)
    retry = RetryPolicy(attempts=1, bisect=True, retry_on=(ConnectionError,))
    with BatchQueue("bisect", BatchQueueConfig(threads=ONE, retry=retry)) as queue:
        queue.add_handler(int, handler)
        put(queue, handler, 9)
    assert handler.failed == [list(range(1, 9))]
    assert queue.stats().failed == 8


def test_rows_are_bisected():
    rows = pa.RecordBatch.from_pydict({"kind": ["a"] * 9, "number": list(range(9))})
    entered = Held()
    calls, failed = [], []

    def consume(batch):
        numbers = [number for block in batch for number in block.column("number").to_pylist()]
        entered.consume(numbers)
        calls.append(numbers)
        if 6 in numbers:
            raise ValueError("a bad row")

    config = BatchQueueConfig(
        threads=ONE, retry=BISECT, error_handler=lambda batch, error: failed.extend(batch)
    )
    with BatchQueue("rows", config) as queue:
        queue.add_handler("a", consume)
        queue.produce_arrow(rows.slice(0, 1), type_column="kind")
        assert entered.entered.wait(WAIT_S)
        queue.produce_arrow(rows.slice(1), type_column="kind")
        entered.released.set()
    assert calls[2:] == [[1, 2, 3, 4], [5, 6, 7, 8], [5, 6], [5], [6], [7, 8]]
    assert [block.column("number").to_pylist() for block in failed] == [[6]]
    assert (queue.stats().consumed, queue.stats().failed) == (8, 1)


@pytest.mark.parametrize("bad", [[3], [1, 3, 5], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_part_that_the_handler_names_is_not_halved(bad, attempts):
    handler = Held()
    calls, failed = [], []

    def consume(batch):
        handler.consume(batch)
        calls.append(list(batch))
        raise BatchFailed([item for item in batch if item in bad], cause=ValueError("bad"))

    config = BatchQueueConfig(
        threads=ONE,
        retry=RetryPolicy(attempts=attempts, backoff_ms=0, bisect=True),
        error_handler=lambda batch, error: failed.append((batch, type(error.__cause__))),
    )
    with BatchQueue("part", config) as queue:
        queue.add_handler(int, consume)
        put(queue, handler, 6)
    assert calls == [[0], [1, 2, 3, 4, 5], *[bad] * (attempts - 1)]
    assert failed == [(bad, ValueError)]
    assert (queue.stats().consumed, queue.stats().failed) == (6 - len(bad), len(bad))


def test_async_handlers_are_bisected():
    calls = []

    async def consume(batch):
        calls.append(list(batch))
        await asyncio.sleep(0)
        if 2 in batch:
            raise ValueError("a bad one")

    async def produce():
        config = BatchQueueConfig(threads=ONE, retry=BISECT, min_idle_ms=50)
        async with AsyncBatchQueue("async", config) as queue:
            queue.add_handler(int, consume)
            await queue.produce_many([1, 2, 3, 4])
        return queue.stats()

    stats = asyncio.run(produce())
    assert calls == [[1, 2, 3, 4], [1, 2], [1], [2], [3, 4]]
    assert (stats.consumed, stats.failed) == (3, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"jitter": -0.1}, "jitter is -0.1; give a number from 0 to 1"),
        ({"jitter": 1.5}, "jitter is 1.5"),
        ({"jitter": float("nan")}, "jitter is nan"),
        ({"jitter": True}, "jitter is True"),
        ({"bisect": 1}, "bisect is 1; give True or False"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        RetryPolicy(**settings)


def test_a_policy_pickles_with_all_its_settings():
    policy = RetryPolicy(jitter=0.5, bisect=True)
    assert pickle.loads(pickle.dumps(policy)) == policy
