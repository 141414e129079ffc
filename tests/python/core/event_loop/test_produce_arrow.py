"""`AsyncBatchQueue.produce_arrow`: rows from an event loop, which never waits."""

import asyncio

import pyarrow as pa
import pytest

from batchqueue import AsyncBatchQueue, ConfigError, ProduceTimeoutError
from core_support.event_loop import begin, outcomes, run, until
from core_support.handlers import Held
from core_support.queues import assert_conserved, config


def rows(count, tag="a"):
    return pa.record_batch({"tag": [tag] * count, "n": range(count)})


def test_rows_go_to_the_handlers_of_their_tags():
    async def main():
        seen = {"a": 0, "b": 0}
        async with AsyncBatchQueue("queue", config()) as queue:
            for tag in seen:

                @queue.handler(tag)
                async def count(batch, tag=tag):
                    seen[tag] += sum(block.num_rows for block in batch)

            table = pa.Table.from_batches([rows(10), rows(20, "b"), rows(5)])
            assert await queue.produce_arrow(table, type_column="tag") == 35
        assert seen == {"a": 15, "b": 20}
        with pytest.raises(ConfigError, match="type_column"):
            await queue.produce_arrow(table, type_column="none")

    run(main)


def test_the_loop_runs_while_rows_wait_for_room():
    async def main():
        handler = Held()
        queue = AsyncBatchQueue("queue", config(buffer_size=10))
        queue.add_handler("a", handler)
        async with queue:
            await queue.produce_arrow(rows(1), type_column="tag")
            await until(handler.entered.is_set)
            (waiting,) = await begin(queue.produce_arrow(rows(50), type_column="tag"))
            with pytest.raises(ProduceTimeoutError) as raised:
                await queue.produce_arrow(rows(100), type_column="tag", timeout=0.01)
            assert raised.value.accepted < 100
            assert not waiting.done()
            handler.released.set()
            assert await waiting == 50
        assert_conserved(queue.stats())

    run(main)


def test_a_cancelled_task_drops_the_rows_that_found_no_room():
    async def main():
        handler = Held()
        queue = AsyncBatchQueue("queue", config(buffer_size=10))
        queue.add_handler("a", handler)
        async with queue:
            await queue.produce_arrow(rows(1), type_column="tag")
            await until(handler.entered.is_set)
            tasks = await begin(queue.produce_arrow(rows(50), type_column="tag"))
            await until(lambda: queue.stats().queued + queue.stats().held >= 10)
            tasks[0].cancel()
            assert await outcomes(tasks) == [asyncio.CancelledError]
            await until(lambda: queue.stats().refused)
            handler.released.set()
        assert queue.stats().consumed < 51
        assert_conserved(queue.stats())

    run(main)
