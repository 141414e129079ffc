"""P9 of `AsyncBatchQueue`: loops that close, exits and forks have defined results; none hangs."""

import asyncio
import gc
import os
import signal

import pytest

from batchqueue import AsyncBatchQueue, BatchQueueError
from core_support.event_loop import begin, fill, outcomes, run, until
from core_support.handlers import Held
from core_support.queues import assert_conserved, config
from core_support.scripts import run_script

HEADER = """
import asyncio

def make(**settings):
    return AsyncBatchQueue("queue", config(**settings))

async def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0)
"""


def script(code):
    exit_code, out, err = run_script(HEADER + code)
    assert exit_code == 0, err
    assert "FATAL" not in err
    assert "panicked" not in err
    assert "never awaited" not in err
    return out


# Loops that close.


@pytest.mark.parametrize("ending", ["run", "close"])
def test_handler_whose_loop_closes_fails_its_batch(ending):
    """`asyncio.run` cancels the coroutine first; a bare `close` leaves it pending."""
    errors = []

    async def consume(batch):
        await asyncio.get_running_loop().create_future()

    async def main():
        queue = AsyncBatchQueue(
            "queue", config(error_handler=lambda batch, error: errors.append((batch, error)))
        )
        queue.add_handler(int, consume)
        await queue.produce(1)
        await until(lambda: queue.stats().in_flight == 1 and len(asyncio.all_tasks()) > 1)
        await queue.produce(2)
        return queue

    loop = asyncio.new_event_loop()
    queue = run(main) if ending == "run" else loop.run_until_complete(main())
    loop.close()
    assert run(lambda: queue.shutdown()) == 0
    assert [batch for batch, _ in errors] == [[1], [2]]
    assert all(isinstance(error, BatchQueueError) for _, error in errors)
    assert "consume" in str(errors[0][1])
    assert "its event loop is closed" in str(errors[1][1])
    assert queue.stats().failed == 2
    assert_conserved(queue.stats())
    gc.collect()  # makes a pending task complain here and not in another test


def test_handler_that_is_registered_again_moves_to_the_running_loop():
    class Handler:
        items = ()

        async def consume(self, batch):
            await asyncio.sleep(0)
            self.items += tuple(batch)

    queue, handler = AsyncBatchQueue("queue", config()), Handler()

    async def main(number, register):
        if register:
            queue.add_handler(int, handler, replace=True)
        await queue.produce(number)
        assert await queue.flush()

    for number, register in ((1, True), (2, False), (3, True)):
        run(lambda number=number, register=register: main(number, register))
    assert run(lambda: queue.shutdown()) == 0
    assert handler.items == (1, 3)
    assert queue.stats().failed == 1


def test_tasks_that_wait_on_a_loop_that_closes_are_refused():
    handler, tasks = Held(), []

    async def main():
        queue = AsyncBatchQueue("queue", config(buffer_size=1))
        queue.add_handler(int, handler)
        await fill(queue, handler)
        tasks.extend(await begin(queue.produce(2), queue.produce(3), queue.produce_many([4, 5])))
        return queue

    loop = asyncio.new_event_loop()
    queue = loop.run_until_complete(main())
    loop.close()
    stats = queue.stats()
    assert (stats.attempts, stats.produced, stats.refused) == (5, 2, 3)
    handler.released.set()

    async def after():
        assert await queue.produce(6)
        assert await queue.shutdown() == 0

    run(after)
    tasks.clear()
    gc.collect()
    assert handler.items == [0, 1, 6]
    assert_conserved(queue.stats())


def test_one_queue_serves_one_loop_after_another():
    handler, queue = Held(), AsyncBatchQueue("queue", config(buffer_size=2))
    queue.add_handler(int, handler)

    async def wait_and_give_up():
        await fill(queue, handler) if not handler.entered.is_set() else None
        tasks = await begin(queue.produce(7), queue.produce(8))
        for task in tasks:
            task.cancel()
        assert await outcomes(tasks) == [asyncio.CancelledError] * 2

    for _ in range(3):
        run(wait_and_give_up)
    handler.released.set()
    assert run(lambda: queue.produce_many(range(3, 50))) == 47
    assert run(lambda: queue.shutdown()) == 0
    assert handler.items == list(range(50))
    assert_conserved(queue.stats())


def test_loop_without_add_reader_is_refused_and_counted():
    class Bare(asyncio.SelectorEventLoop):
        def add_reader(self, fd, callback, *args):
            if callback.__name__ == "_on_room":
                raise NotImplementedError
            return super().add_reader(fd, callback, *args)

    async def main():
        handler = Held()
        async with AsyncBatchQueue("queue", config(buffer_size=1)) as queue:
            queue.add_handler(int, handler)
            await fill(queue, handler)
            with pytest.raises(
                BatchQueueError, match=r"a Bare cannot watch file descriptors.*selector"
            ):
                await queue.produce(2)
            assert queue.stats().refused == 1
            handler.released.set()
        assert_conserved(queue.stats())

    with asyncio.Runner(loop_factory=Bare) as runner:
        runner.run(main())


def test_queues_leave_no_file_open():
    async def main():
        handler = Held()
        async with AsyncBatchQueue("queue", config(buffer_size=1)) as queue:
            queue.add_handler(int, handler)
            await fill(queue, handler)
            tasks = await begin(queue.produce(2))
            handler.released.set()
            await asyncio.gather(*tasks)

    run(main)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run(main)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_interrupt_ends_a_waiting_task():
    """As with `asyncio.run`: the main task is cancelled, and the interrupt follows."""
    handler, queue = Held(), AsyncBatchQueue("queue", config(buffer_size=1))
    queue.add_handler(int, handler)

    async def main():
        await fill(queue, handler)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await queue.produce(2)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        signal.signal(signal.SIGINT, before)
    assert queue.stats().refused == 1
    handler.released.set()
    assert asyncio.run(queue.shutdown()) == 0
    assert_conserved(queue.stats())


# The end of the interpreter.


def test_exit_delivers_to_plain_handlers_what_a_loop_left():
    out = script("""
async def main():
    global queue
    queue = make(min_idle_ms=60_000)
    queue.add_handler(int, lambda batch: say(batch))
    await queue.produce_many([1, 2, 3])
asyncio.run(main())
""")
    assert out == ["[1, 2, 3]"]


@pytest.mark.parametrize(
    "loop",
    ["asyncio.run(main())", "loop = asyncio.new_event_loop(); loop.run_until_complete(main())"],
    ids=["run", "stop"],
)
def test_exit_fails_the_batches_that_coroutines_can_no_longer_handle(loop):
    """A loop that has only stopped might run again, but not after the exit."""
    out = script(f"""
async def consume(batch):
    await asyncio.get_running_loop().create_future()
async def main():
    global queue
    report = lambda batch, error: say(batch, type(error).__name__)
    queue = make(shutdown_timeout=1000, error_handler=report)
    queue.add_handler(int, consume)
    await queue.produce(1)
    await until(lambda: queue.stats().in_flight == 1)
    await queue.produce(2)
{loop}
""")
    assert sorted(out) == ["[1] BatchQueueError", "[2] BatchQueueError"]


def test_exit_with_a_coroutine_busy_on_the_loop_of_a_daemon_thread():
    out = script("""
entered = threading.Event()
async def consume(batch):
    entered.set()
    await asyncio.sleep(1000)
async def main():
    global queue
    queue = make(shutdown_timeout=0.3, buffer_size=1)
    queue.add_handler(int, consume)
    await queue.produce(1)
    await until(entered.is_set)
    await asyncio.gather(queue.produce(2), queue.produce(3), queue.flush())
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
entered.wait(30)
eventually(lambda: queue.stats().attempts == 3)
say("ends")
""")
    assert out == ["ends"]


@pytest.mark.parametrize("wait", ["queue.produce(3)", "queue.flush()", "queue.shutdown()"])
def test_exit_while_a_task_waits_on_a_loop_that_has_stopped(wait):
    out = script(f"""
released = threading.Event()
async def main():
    global queue, task
    queue = make(shutdown_timeout=0.3, buffer_size=1)
    queue.add_handler(int, lambda batch: released.wait(1000))
    await queue.produce(1)
    await until(lambda: queue.stats().in_flight == 1)
    await queue.produce(2)
    task = asyncio.ensure_future({wait})
    await asyncio.sleep(0)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
say("ends")
""")
    assert out == ["ends"]


def test_exit_in_the_middle_of_a_handler():
    out = script("""
async def consume(batch):
    say("exits")
    sys.exit(0)
async def main():
    async with make() as queue:
        queue.add_handler(int, consume)
        await queue.produce(1)
        await asyncio.get_running_loop().create_future()
asyncio.run(main())
""")
    assert out == ["exits"]


# Forks.


def test_forked_child_gets_an_error_and_the_parent_continues():
    out = script("""
import warnings
warnings.simplefilter("ignore")
entered, released = threading.Event(), threading.Event()
def consume(batch):
    entered.set()
    released.wait(30)
async def name_of_error(coroutine):
    try:
        return await coroutine
    except QueueForkedError as error:
        return type(error).__name__
async def child():
    many = (queue.produce_many(items) for items in ([1], iter([1])))
    for call in (queue.produce(1), *many, queue.flush(), queue.shutdown()):
        say(await name_of_error(call))
    async with queue:
        say(repr(queue))
    new = AsyncBatchQueue("new", config())
    new.add_handler(int, lambda batch: say("new", batch))
    await new.produce(5)
    await new.shutdown()
async def main():
    global queue, waits
    queue = make(buffer_size=1)
    queue.add_handler(int, consume)
    await queue.produce(1)
    await until(entered.is_set)
    await queue.produce(2)
    waits = asyncio.create_task(queue.produce(3))
    await asyncio.sleep(0)
    pid = os.fork()
    if pid == 0:
        asyncio._set_running_loop(None)
        asyncio.run(child())
        del waits
        queue._wait_rooms.clear()
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    released.set()
    say(await waits, await queue.flush(), queue.stats().consumed)
asyncio.run(main())
""")
    assert out == ["QueueForkedError"] * 5 + [
        "<AsyncBatchQueue 'queue' made before a fork>",
        "new [5]",
        "True True 3",
    ]
