"""The protocol of handlers, through everything that takes a handler and passes its calls on.

Tasks of Spark are in `spark/handlers/test_protocol_in_tasks.py`.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    BatchQueueConfig,
    BatchQueueManager,
    ConfigError,
    PartitionPolicy,
    RetryPolicy,
    ThreadPolicy,
    presets,
)
from batchqueue.aggregation import Aggregation, Aggregator, Count, CountMetrics, L1AggregateWorker
from batchqueue.groups import MemoryStreams, OnFailure, Worker
from batchqueue.spark import SinkError
from batchqueue.spark.stage import QueueStage
from core_support.waits import WAIT_S, eventually
from handler_protocol import AsyncNoted, Noted, assert_protocol, calls, noted_by_workers

ITEMS = 20
Make = Callable[[], Any]
Way = Callable[[Make, int, RetryPolicy | None], None]
"""Passes some items, each an int, to handlers that a function makes, and ends."""


def settings(retry: RetryPolicy | None, **given: Any) -> BatchQueueConfig[Any]:
    given.setdefault("threads", ThreadPolicy.fixed(2))
    given.setdefault("partitions", PartitionPolicy.fixed(2))
    return BatchQueueConfig(
        min_idle_ms=1, max_idle_ms=2, shutdown_timeout=WAIT_S, retry=retry, **given
    )


def feed(queue: Any, count: int, register: Callable[[], object] = lambda: None) -> None:
    """Enqueue items in several batches, so that a later one meets what an earlier one left."""
    with queue:
        register()
        for number in range(count):
            queue.produce(number)
            assert queue.flush(WAIT_S)


def handler(make: Make, count: int, retry: RetryPolicy | None) -> None:
    queue: BatchQueue[Any] = BatchQueue("q", settings(retry))
    feed(queue, count, lambda: queue.add_handler(int, make()))


def decorated(make: Make, count: int, retry: RetryPolicy | None) -> None:
    queue: BatchQueue[Any] = BatchQueue("q", settings(retry))
    noted = make()

    class Made(type(noted)):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(vars(noted))

    feed(queue, count, lambda: queue.handler(int)(Made))


def factory(make: Make, count: int, retry: RetryPolicy | None) -> None:
    queue: BatchQueue[Any] = BatchQueue("q", settings(retry))
    feed(queue, count, lambda: queue.add_handler_factory(int, make, partitions=2))


def consumer(make: Make, count: int, retry: RetryPolicy | None) -> None:
    feed(BatchQueue("q", settings(retry, consumer=make())), count)


def consumer_factory(make: Make, count: int, retry: RetryPolicy | None) -> None:
    feed(BatchQueue("q", settings(retry, consumer_factory=make)), count)


def default_handler(make: Make, count: int, retry: RetryPolicy | None) -> None:
    feed(BatchQueue("q", settings(retry, default_handler=make())), count)


def inline(make: Make, count: int, retry: RetryPolicy | None) -> None:
    queue: BatchQueue[Any] = BatchQueue("q", settings(retry, inline=True))
    feed(queue, count, lambda: queue.add_handler(int, make()))


def managed(make: Make, count: int, retry: RetryPolicy | None) -> None:
    queue = BatchQueueManager.create("protocol", settings(retry))
    feed(queue, count, lambda: queue.add_handler(int, make()))


def preset(make: Make, count: int, retry: RetryPolicy | None) -> None:
    feed(BatchQueue("q", presets.sql_batch(make, writers=2, retry=retry)), count)


def event_loop(make: Make, count: int, retry: RetryPolicy | None) -> None:
    async def main() -> None:
        async with AsyncBatchQueue("q", settings(retry)) as queue:
            queue.add_handler(int, make())
            for number in range(count):
                await queue.produce(number)
                assert await queue.flush(WAIT_S)

    asyncio.run(main())


def event_loop_consumers(make: Make, count: int, retry: RetryPolicy | None) -> None:
    async def main() -> None:
        async with AsyncBatchQueue("q", settings(retry, consumer_factory=make)) as queue:
            for number in range(count):
                await queue.produce(number)
                assert await queue.flush(WAIT_S)

    asyncio.run(main())


def stage(make: Make, count: int, retry: RetryPolicy | None) -> None:
    with QueueStage("q", settings(retry), {int: make()}) as stage:
        for number in range(count):
            stage.produce_many([number])


def stage_with_a_default(make: Make, count: int, retry: RetryPolicy | None) -> None:
    with QueueStage("q", settings(retry, default_handler=make()), {}) as stage:
        for number in range(count):
            stage.produce_many([number])


def worker(make: Make, count: int, retry: RetryPolicy | None) -> None:
    run_worker(lambda worker: worker.handler(noted_by_workers(make())), count, retry)


def worker_by_class(make: Make, count: int, retry: RetryPolicy | None) -> None:
    run_worker(lambda worker: worker.add_handler(str, noted_by_workers(make())), count, retry)


def worker_by_partition(make: Make, count: int, retry: RetryPolicy | None) -> None:
    run_worker(
        lambda worker: worker.handler_factory(lambda _: noted_by_workers(make())), count, retry
    )


def run_worker(register: Callable[[Worker], Any], count: int, retry: RetryPolicy | None) -> None:
    streams = MemoryStreams("numbers", partitions=2)
    worker = Worker(
        "g",
        streams,
        codec="utf8",
        retry=retry or RetryPolicy(attempts=1),
        on_failure=OnFailure.SKIP,
        max_batch_items=1,
    )
    register(worker)
    with streams.producer(codec="utf8") as producer:
        producer.send_many([str(number) for number in range(count)])
    worker.run(until_idle=0.1)


QUEUES: list[Way] = [
    *(handler, decorated, factory, consumer, consumer_factory, default_handler, inline, managed),
    *(preset, event_loop, event_loop_consumers),
]
ON_A_LOOP = [event_loop, event_loop_consumers]
STAGES = [stage, stage_with_a_default]
WORKERS = [worker, worker_by_class, worker_by_partition]


def failure_of(way: Way, cause: str) -> AbstractContextManager[Any]:
    """What is raised where a handler has failed: by stages alone."""
    return pytest.raises(SinkError, match=cause) if way in STAGES else nullcontext()


def consumed(directory: Path) -> int:
    return sum(call[1] for each in calls(directory) for call in each if call[0] == "consumed")


every_way = pytest.mark.parametrize(
    "way", [*QUEUES, *STAGES, *WORKERS], ids=lambda way: way.__name__
)
without_a_loop = pytest.mark.parametrize(
    "way",
    [way for way in (*QUEUES, *STAGES, *WORKERS) if way not in ON_A_LOOP],
    ids=lambda way: way.__name__,
)


@every_way
def test_a_handler_is_opened_before_its_first_batch_and_closed_after_the_last(
    way: Way, tmp_path: Path
) -> None:
    way(lambda: Noted(tmp_path), ITEMS, None)
    total = assert_protocol(tmp_path)
    assert total["consumed"] >= 1
    assert consumed(tmp_path) == ITEMS


@every_way
def test_a_handler_without_items_is_neither_opened_nor_closed(way: Way, tmp_path: Path) -> None:
    way(lambda: Noted(tmp_path), 0, None)
    assert calls(tmp_path) == []


@every_way
def test_the_next_attempt_opens_a_handler_that_could_not_be_opened(
    way: Way, tmp_path: Path
) -> None:
    way(lambda: Noted(tmp_path, closed=2), ITEMS, RetryPolicy(attempts=4, backoff_ms=0))
    total = assert_protocol(tmp_path)
    assert total["open"] == total["opened"] + 2
    assert total["error"] == 0
    assert consumed(tmp_path) == ITEMS


@every_way
def test_a_handler_that_is_never_open_gets_no_other_call_than_on_error(
    way: Way, tmp_path: Path
) -> None:
    with failure_of(way, "open failed"):
        way(lambda: Noted(tmp_path, closed=1_000), ITEMS, None)
    total = assert_protocol(tmp_path)
    assert total["open"] >= 1
    assert total["consume"] == 0
    assert total["error"] == (0 if way in WORKERS else total["open"])


@pytest.mark.parametrize("way", [*QUEUES, *STAGES], ids=lambda way: way.__name__)
def test_on_error_gets_the_batch_that_failed_and_the_handler_is_closed(
    way: Way, tmp_path: Path
) -> None:
    with failure_of(way, "consume failed"):
        way(lambda: Noted(tmp_path, failing=1), ITEMS, None)
    total = assert_protocol(tmp_path)
    assert total["error"] == 1
    assert total["close"] >= 1


@pytest.mark.parametrize("way", ON_A_LOOP, ids=lambda way: way.__name__)
def test_coroutine_functions_follow_the_protocol_on_the_loop(way: Way, tmp_path: Path) -> None:
    way(lambda: AsyncNoted(tmp_path, closed=1, failing=1), ITEMS, RetryPolicy(attempts=3))
    total = assert_protocol(tmp_path)
    assert total["consume"] == total["consumed"] + 1
    assert total["error"] == 0


@without_a_loop
def test_coroutine_functions_are_refused_where_no_loop_runs(way: Way, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="on_open"):
        way(lambda: AsyncNoted(tmp_path), ITEMS, None)


@without_a_loop
def test_a_coroutine_that_on_open_returns_fails_the_batch(way: Way, tmp_path: Path) -> None:
    async def connect() -> None:
        """Nothing awaits it."""

    class Returning(Noted):
        def on_open(self) -> Any:
            self._note("open")
            return connect()

    with failure_of(way, "coroutine"):
        way(lambda: Returning(tmp_path), ITEMS, None)
    assert assert_protocol(tmp_path)["consume"] == 0


@pytest.mark.parametrize("per_type", [False, True])
def test_handlers_of_dead_letters_follow_the_protocol(per_type: bool, tmp_path: Path) -> None:
    def fail(batch: list[int]) -> None:
        raise ValueError("as planned")

    keeper = Noted(tmp_path)
    queue: BatchQueue[int] = BatchQueue(
        "q", settings(None, **({} if per_type else {"dead_letter": keeper}))
    )
    keeping = {"dead_letter": keeper} if per_type else {}
    feed(queue, ITEMS, lambda: queue.add_handler(int, fail, **keeping))
    assert assert_protocol(tmp_path)["consumed"] == queue.stats().dead_lettered == ITEMS


def test_a_stage_that_has_failed_opens_no_more_handlers(tmp_path: Path) -> None:
    def fail(batch: list[str]) -> None:
        raise OSError("the disk is gone")

    stage = QueueStage("q", settings(None), {str: fail, int: Noted(tmp_path)})
    stage.produce_many(["a"])
    eventually(lambda: stage.has_failed, "the failure")
    stage.produce_many([1])
    with pytest.raises(SinkError, match="the disk is gone"):
        stage.__exit__(None, None, None)
    assert calls(tmp_path) == []


def test_a_method_of_a_handler_and_the_handler_share_what_closes_it(tmp_path: Path) -> None:
    """In a worker as in a queue, in either order."""
    noted = noted_by_workers(Noted(tmp_path))
    streams = MemoryStreams("numbers", partitions=1)
    worker = Worker("g", streams, codec="utf8")
    worker.add_handler("tagged", noted.consume)
    worker.handler(noted)
    with streams.producer(codec="utf8") as producer:
        producer.send("1")
    worker.run(until_idle=0.1)
    assert assert_protocol(tmp_path)["close"] == 1


@pytest.mark.parametrize("method", ["on_idle", "on_error"])
def test_a_worker_refuses_the_methods_that_it_does_not_call(method: str) -> None:
    kind = type("Other", (), {"consume": print, method: lambda self, *given: None})
    worker = Worker("g", MemoryStreams("numbers", partitions=1))
    with pytest.raises(ConfigError, match=f"{method} of .*Other.* a worker"):
        worker.handler(kind())


@pytest.mark.parametrize("kind", [L1AggregateWorker, Aggregator])
def test_a_worker_of_an_aggregation_may_open_what_it_needs(kind: type, tmp_path: Path) -> None:
    """And still emits what it holds when it is closed."""
    emitted: list[Any] = []

    class Opening(kind):  # type: ignore[misc]
        def on_open(self) -> None:
            self.noted = Noted(tmp_path)
            self.noted.on_open()

        def consume(self, batch: Any) -> None:
            self.noted.consume(batch)
            super().consume(batch)

        def on_close(self) -> None:
            super().on_close()
            self.noted.on_close()

    queue: BatchQueue[Any] = BatchQueue("q", settings(None))
    with queue:
        if kind is Aggregator:
            queue.add_handler("tag", Opening(COUNTED, emitted.append))
            queue.produce_arrow(TAGGED, type_column="tag")
        else:
            queue.add_handler(CountMetrics, Opening(emitted.extend))
            queue.produce(CountMetrics("UA", 0))
    assert assert_protocol(tmp_path)["consumed"] == 1
    assert len(emitted) == 1


COUNTED = Aggregation(keys=["key"], measures={"n": Count()})
TAGGED = pa.table({"tag": ["tag"] * 2, "key": [1, 1]})


def test_an_aggregator_that_would_not_be_opened_is_refused() -> None:
    """Without its own `consume` it runs without the interpreter, which nothing opens."""

    class Opening(Aggregator):
        def on_open(self) -> None:
            """Connect."""

    refused = pytest.raises(ConfigError, match=r"on_open of .*define consume\(batch\)")
    with BatchQueue("q", settings(None)) as queue, refused:
        queue.add_handler("tag", Opening(COUNTED))
