"""A stage's queue ends with it, in time for a retry policy, and wraps only shared handlers."""

import os
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from batchqueue import (
    BatchFailed,
    BatchQueueConfig,
    ConfigError,
    PartitionPolicy,
    RetryPolicy,
    ThreadPolicy,
)
from batchqueue.spark import SinkError
from batchqueue.spark.stage import QueueStage

CONFIG: BatchQueueConfig[Any] = BatchQueueConfig(
    threads=ThreadPolicy.fixed(2),
    partitions=PartitionPolicy.fixed(2),
    min_idle_ms=0,
    buffer_size=10,
)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_stage_that_cannot_be_made_leaves_no_drain_threads() -> None:
    async def coroutine(_: list[Any]) -> None: ...

    before = threads()
    with pytest.raises(ConfigError, match="must run on an event loop"):
        QueueStage("refused", CONFIG, {int: len, str: coroutine})
    assert threads() == before


def test_end_of_a_stage_waits_for_the_retries_of_the_last_batch() -> None:
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1), retry=RetryPolicy(attempts=2, backoff_ms=500)
    )
    tries: list[float] = []

    def consume(_: list[int]) -> None:
        tries.append(time.monotonic())
        if tries[-1] - tries[0] < 0.4:
            raise ConnectionError("not yet")

    with QueueStage("retries", config, {int: consume}) as stage:
        stage.produce_many([1, 2, 3])
    assert (stage.summary.consumed, stage.summary.failed) == (3, 0)


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("returns", [False, True])
def test_a_part_of_a_batch_that_fails_is_retried_alone(attempts: int, returns: bool) -> None:
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        threads=ThreadPolicy.fixed(1), retry=RetryPolicy(attempts=attempts, backoff_ms=1)
    )
    calls: list[list[int]] = []

    def consume(batch: list[int]) -> BatchFailed | None:
        calls.append(list(batch))
        failure = BatchFailed([item for item in batch if item == 2 and calls == [batch]])
        if returns:
            return failure
        raise failure

    stage = QueueStage("part", config, {int: consume})
    if attempts == 1:
        with pytest.raises(SinkError, match=r"lost 1 of 3 items \(1 failed"), stage:
            stage.produce_many([1, 2, 3])
    else:
        with stage:
            stage.produce_many([1, 2, 3])
        assert calls[-1] == [2]
    assert stage.summary.consumed + stage.summary.failed == 3
    assert stage.summary.failed == 2 - attempts


def test_methods_of_one_object_are_never_entered_concurrently() -> None:
    alone: list[bool] = []

    class Writer:
        lock = threading.Lock()

        def write(self, _: list[Any]) -> None:
            alone.append(self.lock.acquire(blocking=False))
            if alone[-1]:
                threading.Event().wait(0.01)  # a second thread would enter here
                self.lock.release()

        def numbers(self, batch: list[int]) -> None:
            self.write(batch)

        def words(self, batch: list[str]) -> None:
            self.write(batch)

    writer = Writer()
    with QueueStage("one object", CONFIG, {int: writer.numbers, str: writer.words}) as stage:
        stage.produce_many([item for number in range(200) for item in (number, str(number))])
    assert set(alone) == {True}


def feed_until_it_fails(handlers: dict[type | str, Any]) -> None:
    with QueueStage("fails", CONFIG, handlers) as stage:
        assert not stage.has_failed
        deadline = time.monotonic() + 30
        while not stage.has_failed and time.monotonic() < deadline:
            stage.produce_many([1])
        assert stage.has_failed


def test_stage_reports_that_a_handler_has_failed() -> None:
    def fail(_: list[int]) -> None:
        raise ZeroDivisionError("no")

    with pytest.raises(SinkError, match="ZeroDivisionError: no"):
        feed_until_it_fails({int: fail})


def test_stage_reports_items_without_a_handler() -> None:
    with pytest.raises(SinkError, match="without a handler"):
        feed_until_it_fails({str: len})


@pytest.mark.parametrize("is_object", [False, True])
def test_what_dead_letters_keep_does_not_fail_the_stage(is_object: bool) -> None:
    letters: list[Any] = []
    taken: list[int] = []

    class Handler:
        def consume(self, batch: list[int]) -> None:
            if 13 in batch:
                raise ValueError("a row was rejected")
            taken.extend(batch)

    config = replace(
        CONFIG,
        max_batch_items=5,
        retry=RetryPolicy(attempts=1, bisect=True),
        dead_letter=letters.extend,
    )
    handler: Any = Handler() if is_object else Handler().consume
    with QueueStage("kept", config, {int: handler}) as stage:
        stage.produce_many(range(100))
    assert sorted(taken) == [number for number in range(100) if number != 13]
    assert [letter.item for letter in letters] == [13]
    assert (stage.summary.consumed, stage.summary.dead_lettered, stage.summary.lost) == (99, 1, 0)


def test_dead_letters_that_raise_fail_the_stage() -> None:
    def reject(_: list[Any]) -> None:
        raise ValueError("rejected")

    config = replace(CONFIG, dead_letter=reject)
    with (
        pytest.raises(SinkError, match=r"lost 1 of 1 items \(1 failed"),
        QueueStage("lost", config, {int: reject}) as stage,
    ):
        stage.produce_many([1])
