"""`max_batch_items`: no call of a handler gets more, and what gathers comes in full batches."""

import asyncio
from itertools import chain

import pyarrow as pa
import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    BatchQueueConfig,
    ConfigError,
    PartitionPolicy,
    PartitionSelector,
    ThreadPolicy,
)
from core_support.handlers import Held
from core_support.waits import WAIT_S

ONE = ThreadPolicy.fixed(1)


SELECTORS = {
    "by_type": PartitionSelector.by_type(),
    "round_robin": PartitionSelector.round_robin(),
    "by_key": PartitionSelector.by_key(lambda item: "all"),
    "custom": PartitionSelector.custom(lambda item, count: 0),
}


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("own", [None, 30])
def test_batches_are_full_to_the_item(selector, own):
    gate = Held()
    config = BatchQueueConfig(threads=ONE, selector=SELECTORS[selector], max_batch_items=500)
    with BatchQueue("exact", config) as queue:
        queue.add_handler(int, gate, max_batch_items=own)
        gate.hold(queue, 0)
        queue.produce_many(range(1, 1_203))
        gate.released.set()
    most = own or 500
    assert list(map(len, gate.batches)) == [1] + [most] * (1_202 // most) + [1_202 % most]
    assert gate.items == list(range(1_203))


@pytest.mark.parametrize("scheduler", [None, ("BATCHES", ONE)])
def test_a_consumer_gets_no_more_than_the_queue_allows(scheduler):
    gate = Held()
    config = BatchQueueConfig(
        threads=None if scheduler else ONE,
        shared_scheduler=scheduler,
        consumer=gate,
        max_batch_items=7,
        buffer_size=30,
    )
    with BatchQueue("consumer", config) as queue:
        gate.hold(queue, "0")
        queue.produce_many([number if number % 2 else str(number) for number in range(1, 31)])
        gate.released.set()
    assert list(map(len, gate.batches)) == [1, 7, 7, 7, 7, 2]


def test_rows_are_cut_at_the_limit():
    gate = Held()
    rows = pa.RecordBatch.from_pydict({"kind": ["a"] * 1_000, "number": list(range(1_000))})
    with BatchQueue("rows", BatchQueueConfig(threads=ONE)) as queue:
        queue.add_handler("a", gate, max_batch_items=300)
        queue.produce_arrow(rows.slice(0, 1), type_column="kind")
        assert gate.entered.wait(WAIT_S)
        for start in range(1, 1_000, 77):
            queue.produce_arrow(rows.slice(start, 77), type_column="kind")
        gate.released.set()
    assert [sum(map(len, batch)) for batch in gate.batches] == [1, 300, 300, 300, 99]
    numbers = [batch.column("number").to_pylist() for call in gate.batches for batch in call]
    assert list(chain.from_iterable(numbers)) == list(range(1_000))


def test_instances_of_a_factory_share_a_limit():
    sizes = []
    config = BatchQueueConfig(threads=ONE, partitions=PartitionPolicy.adaptive(25))
    with BatchQueue("factory", config) as queue:
        queue.add_handler_factory(
            int, lambda: lambda batch: sizes.append(len(batch)), partitions=2, max_batch_items=3
        )
        queue.produce_many(range(100))
    assert sum(sizes) == 100
    assert max(sizes) <= 3


def test_a_decorated_handler_has_a_limit():
    sizes = []
    with BatchQueue("decorated", BatchQueueConfig(threads=ONE)) as queue:

        @queue.handler(int, max_batch_items=3)
        def count(batch):
            sizes.append(len(batch))

        queue.produce_many(range(100))
    assert sum(sizes) == 100
    assert max(sizes) <= 3


def test_an_async_handler_has_a_limit():
    batches = []

    async def consume(batch):
        batches.append(list(batch))
        await asyncio.sleep(0)

    async def produce():
        config = BatchQueueConfig(threads=ONE)
        async with AsyncBatchQueue("async", config) as queue:
            queue.add_handler(int, consume, max_batch_items=7)
            assert await queue.produce_many(range(1_000)) == 1_000

    asyncio.run(produce())
    assert list(chain.from_iterable(batches)) == list(range(1_000))
    assert max(map(len, batches)) <= 7


@pytest.mark.parametrize("items", [0, -1, 100_000_001, 2.5, True, "7"])
def test_a_limit_out_of_range_is_refused_and_the_handler_stays(items):
    seen = []
    with BatchQueue("refused", BatchQueueConfig(threads=ONE)) as queue:
        queue.add_handler(int, seen.extend)
        with pytest.raises(ConfigError, match=r"max_batch_items is .*; give 1 to 100_000_000"):
            queue.add_handler(int, lambda batch: None, max_batch_items=items)
        queue.produce(1)
    assert seen == [1]
