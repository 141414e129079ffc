"""P4: of handlers that would wait for each other for ever, one gives up and names the others."""

import asyncio
import logging
import threading

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueueConfig,
    PartitionPolicy,
    ReentrantProduceError,
    ThreadPolicy,
)
from core_support.event_loop import run
from core_support.handlers import Recorder
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S, eventually

FEEDER_WAITS = (
    "queue feeder: a shutdown from a handler did not wait, or it would have waited for ever: "
    "the handler of int in queue fed waits for the end of queue feeder; "
    "the handler of str in queue feeder waits for room in partition 0 of queue fed"
)


def shut_down(*queues):
    for queue in queues:
        assert queue.shutdown(WAIT_S) == 0
        assert_conserved(queue.stats())


def test_a_handler_that_shuts_its_feeder_down_returns(make_queue, caplog):
    fed, feeder = make_queue("fed", buffer_size=4), make_queue("feeder")
    outcomes, returned = [], threading.Event()

    class Fed(Recorder):
        def consume(self, batch):
            super().consume(batch)
            if not returned.is_set():
                eventually(lambda: fed.stats().total_used >= 4, "the feeder to wait")
                outcomes.append(feeder.shutdown())
                returned.set()

    handler = Fed()
    fed.add_handler(int, handler)
    feeder.add_handler(str, lambda batch: outcomes.append(fed.produce_many(list(range(100)))))
    with caplog.at_level(logging.WARNING, "batchqueue"):
        assert feeder.produce("begin")
        assert returned.wait(WAIT_S)
    eventually(lambda: not feeder.running, "the end of the feeder")
    eventually(lambda: outcomes == [0, 100], "all items")
    shut_down(feeder, fed)
    assert handler.items == list(range(100))
    assert FEEDER_WAITS in caplog.text


POOL = BatchQueueConfig(
    shared_scheduler=("circle", ThreadPolicy.fixed(2)),
    partitions=PartitionPolicy.fixed(1),
    buffer_size=2,
)


@pytest.mark.parametrize("settings", [config(buffer_size=2), POOL], ids=["own threads", "one pool"])
def test_of_two_queues_that_feed_each_other_one_handler_gets_an_error(make_queue, settings):
    queues = [make_queue(name, settings) for name in ("left", "right")]
    errors = []

    def double_into(queue):
        def handler(batch):
            for depth in batch:
                for _ in range(2 if depth else 0):
                    try:
                        queue.produce(depth - 1)
                    except ReentrantProduceError as error:
                        errors.append(str(error))

        return handler

    for queue, other in zip(queues, reversed(queues), strict=True):
        queue.add_handler(int, double_into(other))
    assert queues[0].produce(9)
    eventually(
        lambda: all(queue.stats().total_used == 0 for queue in (*queues, *queues)), "no items left"
    )
    shut_down(*queues)
    assert errors
    for error in errors:
        assert (
            "the handler of int in queue left waits for room in partition 0 of queue right" in error
        )
        assert (
            "the handler of int in queue right waits for room in partition 0 of queue left" in error
        )
        assert "buffer_size" in error


def test_a_handler_on_an_event_loop_may_shut_its_feeder_down():
    """Both handlers are coroutines, and the feeder's awaits room."""

    async def main():
        fed = AsyncBatchQueue("fed", config(buffer_size=4))
        feeder = AsyncBatchQueue("feeder", config())
        seen, accepted, returned = [], [], asyncio.Event()

        async def collect(batch):
            seen.extend(batch)
            if not returned.is_set():
                while fed.stats().total_used < 4:
                    await asyncio.sleep(0)
                assert await feeder.shutdown() == 0
                returned.set()

        async def feed(batch):
            accepted.append(await fed.produce_many(list(range(100))))

        fed.add_handler(int, collect)
        feeder.add_handler(str, feed)
        assert await feeder.produce("begin")
        async with asyncio.timeout(WAIT_S):
            await returned.wait()
        assert await feeder.shutdown(WAIT_S) == 0
        assert await fed.shutdown(WAIT_S) == 0
        assert (seen, accepted) == (list(range(100)), [100])

    run(main)
