"""Handlers of `AsyncBatchQueue`: coroutines run on their loop, which stays free."""

import asyncio
import concurrent.futures
import functools
import threading

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    BatchQueueError,
    ConfigError,
    HandlerConsumer,
    QueueClosedError,
    RetryPolicy,
)
from core_support.event_loop import OnLoopTo, begin, outcomes, run, until
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S


class OnLoop:
    """Records the arguments of each call, and that it ran on the loop's thread."""

    def __init__(self):
        self.calls = []

    def record(self, *call):
        assert threading.current_thread() is threading.main_thread()
        self.calls.append(call)

    async def consume(self, batch):
        await asyncio.sleep(0)
        self.record("consume", *batch)
        if "bad" in batch:
            raise ValueError("bad batch")

    async def on_idle(self):
        await asyncio.sleep(0)
        if ("idle",) not in self.calls:
            self.record("idle")

    async def on_error(self, batch, error):
        await asyncio.sleep(0)
        self.record("error", *batch, str(error))

    async def on_close(self):
        await asyncio.sleep(0)
        self.record("close")

    async def __call__(self, batch):
        await self.consume(batch)


def test_all_methods_of_a_handler_may_be_coroutines():
    async def main():
        handler = OnLoop()
        # A thread that fell asleep before the handler was added calls on_idle after max_idle_ms.
        async with AsyncBatchQueue("queue", config(max_idle_ms=5)) as queue:
            queue.add_handler(str, handler)
            await until(lambda: ("idle",) in handler.calls)
            for item in ("good", "bad"):
                assert await queue.produce(item)
                assert await queue.flush()
        calls = [call for call in handler.calls if call != ("idle",)]
        assert calls == [
            ("consume", "good"),
            ("consume", "bad"),
            ("error", "bad", "bad batch"),
            ("close",),
        ]
        stats = queue.stats()
        assert (stats.consumed, stats.failed) == (1, 1)
        assert_conserved(stats)

    run(main)


FUNCTIONS = {
    "function": lambda handler: handler.consume,
    "partial": lambda handler: functools.partial(handler.consume),
    "lambda": lambda handler: lambda batch: handler.consume(batch),
    "object with an async __call__": lambda handler: CallOnly(handler),
    "inherited": lambda handler: Inherited(handler),
}


class CallOnly:
    def __init__(self, handler):
        self.handler = handler

    async def __call__(self, batch):
        await self.handler.consume(batch)


class Inherited(HandlerConsumer):
    def __init__(self, handler):
        self.consume = handler.consume


@pytest.mark.parametrize("form", FUNCTIONS)
@pytest.mark.parametrize("place", ["handler", "factory", "consumer", "consumer_factory"])
def test_every_kind_of_coroutine_runs_on_the_loop(form, place):
    async def main():
        inner = OnLoop()
        handler = FUNCTIONS[form](inner)
        options = {"consumer": handler} if place == "consumer" else {}
        options |= {"consumer_factory": lambda: handler} if place == "consumer_factory" else {}
        async with AsyncBatchQueue("queue", config(**options)) as queue:
            if place == "handler":
                queue.add_handler(str, handler)
            elif place == "factory":
                queue.add_handler_factory(str, lambda: handler, partitions=1)
            assert await queue.produce("item")
        assert inner.calls == [("consume", "item")]

    run(main)


def test_plain_handler_runs_on_the_drain_thread():
    async def main():
        threads = []
        async with AsyncBatchQueue("queue", config()) as queue:
            queue.add_handler(int, lambda batch: threads.append(threading.current_thread()))
            await queue.produce(1)
        assert len(threads) == 1
        assert threads[0] is not threading.main_thread()

    run(main)


def test_coroutine_that_raises_fails_its_batch_and_is_retried():
    async def main():
        tries, errors = [], []

        async def consume(batch):
            tries.append(list(batch))
            if len(tries) < 3 or batch == [2]:
                raise TimeoutError(
                    "as planned"
                )  # not to be confused with a timeout of the wait for the coroutine

        async def error_handler(batch, error):
            await asyncio.sleep(0)
            errors.append((batch, repr(error), threading.current_thread()))

        settings = config(retry=RetryPolicy(attempts=3, backoff_ms=0), error_handler=error_handler)
        async with AsyncBatchQueue("queue", settings) as queue:
            queue.add_handler(int, consume)
            for item in (1, 2):
                await queue.produce(item)
                await queue.flush()
        assert tries == [[1]] * 3 + [[2]] * 3
        assert errors == [([2], "TimeoutError('as planned')", threading.main_thread())]
        assert (queue.stats().consumed, queue.stats().failed) == (1, 1)

    run(main)


def test_cancelled_coroutine_fails_its_batch():
    async def main():
        errors = []

        async def consume(batch):
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

        settings = config(error_handler=lambda batch, error: errors.append(error))
        async with AsyncBatchQueue("queue", settings) as queue:
            queue.add_handler(int, consume)
            await queue.produce(1)
        assert [type(error) for error in errors] == [BatchQueueError]
        assert "consume was cancelled" in str(errors[0])
        assert queue.stats().failed == 1

    run(main)


def test_calls_into_one_coroutine_handler_never_overlap():
    async def main():
        class Handler:
            inside = overlaps = items = 0

            async def consume(self, batch):
                self.inside += 1
                self.overlaps += self.inside > 1
                await asyncio.sleep(0)
                self.items += len(batch)
                self.inside -= 1

            on_idle = on_close = lambda self: self.consume([])

        handler = Handler()
        async with AsyncBatchQueue("queue", config(threads=2, min_idle_ms=0)) as queue:
            queue.add_handler(int, handler)
            queue.add_handler(str, handler)
            for number in range(300):
                await queue.produce(number)
                await queue.produce(str(number))
                await asyncio.sleep(0)
        assert (handler.items, handler.overlaps) == (600, 0)

    run(main)


# Without a loop.


async def coroutine_function(batch):
    raise NotImplementedError


def test_coroutine_function_is_refused_with_the_remedy_without_a_running_loop():
    queue = AsyncBatchQueue("queue", config())
    for handler in (coroutine_function, OnLoop()):
        with pytest.raises(ConfigError, match=r"none is running here: make .* in a coroutine"):
            queue.add_handler(int, handler)
    for settings in ({"consumer": OnLoop()}, {"error_handler": coroutine_function}):
        with pytest.raises(ConfigError, match=r"none is running here"):
            AsyncBatchQueue("queue", config(**settings))
    recorder = Recorder()
    queue.add_handler(int, recorder)
    queue.add_handler(
        str, lambda batch: coroutine_function(batch)
    )  # cannot be known before the call

    async def main():
        await queue.produce_many([1, "text"])
        await queue.shutdown()

    run(main)
    assert recorder.items == [1]
    assert queue.stats().failed == 1


def test_batch_queue_refuses_coroutine_functions_with_the_remedy(make_queue):
    queue = make_queue()
    with pytest.raises(ConfigError, match=r"consume of .*coroutine_function.*use AsyncBatchQueue"):
        queue.add_handler(int, coroutine_function)

    class Half:
        def consume(self, batch):
            raise NotImplementedError

        async def on_close(self):
            raise NotImplementedError

    calls = [
        lambda: queue.add_handler(int, Half()),
        lambda: queue.handler(int)(coroutine_function),
        lambda: queue.add_handler_factory(int, OnLoop, partitions=1),
        lambda: make_queue(consumer=coroutine_function),
        lambda: make_queue(consumer_factory=OnLoop),
        lambda: make_queue(error_handler=coroutine_function),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="use AsyncBatchQueue"):
            call()


def test_arguments_are_checked_as_by_a_batch_queue():
    for arguments in (("", config()), ("queue", None)):
        with pytest.raises(ConfigError):
            AsyncBatchQueue(*arguments)

    async def main():
        queue = AsyncBatchQueue("queue", config())
        assert (queue.name, queue.running, repr(queue)) == (
            "queue",
            True,
            "<AsyncBatchQueue 'queue' running>",
        )
        for call in (
            lambda: queue.add_handler(1, print),
            lambda: queue.add_handler(int, None),
            lambda: queue.add_handler(int, print, weight=0),
            lambda: queue.add_handler_factory(int, OnLoop, partitions=0),
            lambda: queue.remove_handler(1),
        ):
            with pytest.raises(ConfigError):
                call()
        assert await queue.shutdown() == 0
        assert (queue.running, repr(queue)) == (False, "<AsyncBatchQueue 'queue' shut down>")
        with pytest.raises(QueueClosedError):
            queue.add_handler(int, coroutine_function)

    run(main)


# The loop stays free.


def test_full_executor_of_the_loop_blocks_nothing():
    async def main():
        seen, released = [], threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, released.wait, WAIT_S)
        async with AsyncBatchQueue("queue", config()) as queue:
            queue.add_handler(int, OnLoopTo(seen))
            await queue.produce_many([1, 2])
            assert await queue.flush() is True
            await queue.produce(3)
            assert await queue.shutdown() == 0
        assert seen == [1, 2, 3]
        released.set()
        assert await busy

    run(main)


def test_replacing_and_removing_a_busy_handler_does_not_wait_for_it():
    async def main():
        log, release = [], asyncio.Event()

        class Handler:
            def __init__(self, name):
                self.name = name

            async def consume(self, batch):
                log.append((self.name, *batch))
                await release.wait()

            async def on_close(self):
                log.append((self.name, "close"))

        async with AsyncBatchQueue("queue", config()) as queue:
            queue.add_handler(int, Handler("old"))
            await queue.produce(1)
            await until(lambda: log)
            queue.add_handler(int, Handler("new"), replace=True)
            await queue.produce(2)
            release.set()
            await until(lambda: ("new", 2) in log)
            assert queue.remove_handler(int) is True
            assert queue.remove_handler(int) is False
            await until(lambda: ("new", "close") in log)
            await queue.produce(3)
        assert log == [("old", 1), ("old", "close"), ("new", 2), ("new", "close")]
        assert queue.stats().unhandled == 1

    run(main)


def test_flush_and_shutdown_end_with_their_time_out_or_their_task():
    async def main():
        handler = Held()
        queue = AsyncBatchQueue("queue", config(shutdown_timeout=0))
        queue.add_handler(int, handler)
        await queue.produce(1)
        await until(handler.entered.is_set)
        assert await queue.flush(0) is False
        with pytest.raises(ConfigError):
            await queue.flush(-1)
        tasks = await begin(queue.flush(), queue.shutdown())
        await until(lambda: not queue.running)
        for task in tasks:
            task.cancel()
        assert await outcomes(tasks) == [asyncio.CancelledError] * 2
        await until(
            lambda: (
                not {"batchqueue-flush", "batchqueue-shutdown"}
                & {thread.name for thread in threading.enumerate()}
            )
        )
        assert await queue.shutdown(0) == 1
        handler.released.set()
        assert await queue.shutdown() == 1

    run(main)


def test_leaving_the_block_waits_for_the_configured_time():
    async def main():
        handler = Held()
        async with AsyncBatchQueue("queue", config(shutdown_timeout=0)) as queue:
            queue.add_handler(int, handler)
            await queue.produce(1)
            await until(handler.entered.is_set)
        assert queue.stats().abandoned == 1
        handler.released.set()

    run(main)


def test_batch_queue_works_beside_a_running_loop(make_queue):
    """The plain queue is unaffected by loops: it may run beside one."""

    async def main():
        recorder = Recorder()
        queue = make_queue()
        queue.add_handler(int, recorder)
        assert queue.produce(1)
        assert await asyncio.to_thread(BatchQueue.flush, queue)
        assert recorder.items == [1]

    run(main)


def test_last_attempt_of_a_coroutine_comes_before_the_end_of_a_shutdown():
    day, tries = 86_400_000, []

    async def consume(batch):
        tries.append(list(batch))
        if len(tries) == 1:
            await asyncio.sleep(1)  # so the last attempt begins two seconds before the end
            raise ConnectionError("down")

    async def main():
        retry = RetryPolicy(attempts=None, backoff_ms=day, max_backoff_ms=day)
        queue = AsyncBatchQueue("loop", config(retry=retry))
        queue.add_handler(int, consume)
        await queue.produce(1)
        await until(lambda: queue.stats().held == 1)
        assert await queue.shutdown(6) == 0
        assert queue.stats().consumed == 1

    run(main)
    assert tries == [[1]] * 2
