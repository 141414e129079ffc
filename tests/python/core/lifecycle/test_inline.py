"""`inline=True`: handlers run in `produce`, with all that a queue with threads does."""

import os
import signal
import threading

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchFailed,
    BatchQueue,
    BatchQueueError,
    BufferStrategy,
    ConfigError,
    HandlerConsumer,
    PartitionPolicy,
    PartitionSelector,
    ProduceTimeoutError,
    RetryPolicy,
    ThreadPolicy,
)
from batchqueue.queues.config import BatchQueueConfig
from core_support.event_loop import run
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved, config, try_once_more
from core_support.scripts import run_script
from core_support.threads import in_background, join, run_threads
from core_support.waits import WAIT_S, eventually

IMMEDIATELY = {"backoff_ms": 0}


@pytest.fixture
def inline_queue(make_queue):
    return lambda **settings: make_queue(inline=True, **settings)


def test_handler_has_run_in_the_callers_thread_when_produce_returns(inline_queue):
    before = threading.active_count()
    queue = inline_queue()
    threads, items = [], []

    @queue.handler(int)
    def take(batch):
        threads.append(threading.current_thread())
        items.extend(batch)

    for number in range(3):
        assert queue.produce(number) is True
        assert items == list(range(number + 1))
    assert queue.produce_many([3, 4]) == 2
    assert queue.produce_many(iter([5, 6])) == 2
    assert items == list(range(7))
    assert set(threads) == {threading.main_thread()}
    assert threading.active_count() == before
    assert queue.stats().consumed == 7
    assert_conserved(queue.stats())


def test_no_native_thread_is_started():
    code, out, err = run_script(
        """
        def names():
            tasks = os.listdir("/proc/self/task")
            return sorted(open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks)

        before = names()
        settings = config(inline=True, balancer=True, retry=RetryPolicy(backoff_ms=1), threads=4)
        with BatchQueue("orders", settings) as queue:
            queue.add_handler(int, lambda batch: 1 / 0)
            queue.produce_many(range(100))
            queue.flush()
            assert names() == before, names()
            say(queue.stats().failed)
        """
    )
    assert (code, out) == (0, ["100"]), err


def test_more_items_than_a_partition_holds_are_handled_in_full_batches(inline_queue):
    queue = inline_queue(buffer_size=10, max_batch_items=4)
    recorder = Recorder()
    queue.add_handler(int, recorder)
    assert queue.produce_many(list(range(1_000))) == 1_000
    assert recorder.items == list(range(1_000))
    assert max(map(len, recorder.batches)) == 4


def test_refusing_queue_refuses_nothing_that_it_can_handle(inline_queue):
    queue = inline_queue(buffer_size=2, strategy=BufferStrategy.IF_POSSIBLE)
    recorder = Recorder()
    queue.add_handler(int, recorder)
    assert queue.produce_many(list(range(100))) == 100
    assert recorder.items == list(range(100))


def test_failing_handler_is_retried_and_its_items_are_dead_lettered(inline_queue):
    tries, letters, errors = [], [], []

    def fail(batch):
        tries.append(list(batch))
        if 2 in batch:
            raise BatchFailed([item for item in batch if item == 2])

    queue = inline_queue(
        retry=RetryPolicy(attempts=3, **IMMEDIATELY),
        dead_letter=letters.extend,
        error_handler=lambda batch, error: errors.append((batch, type(error))),
    )
    queue.add_handler(int, fail)
    queue.produce_many([1, 2, 3])
    assert tries == [[1, 2, 3], [2], [2]]
    assert [(letter.item, letter.attempts) for letter in letters] == [(2, 3)]
    assert errors == [([2], BatchFailed)]
    stats = queue.stats()
    assert (stats.consumed, stats.dead_lettered, stats.failed) == (2, 1, 0)


def test_error_of_a_handler_is_logged_and_not_raised(inline_queue, caplog):
    queue = inline_queue()
    queue.add_handler(int, lambda batch: 1 / 0)
    assert queue.produce(1) is True
    assert queue.stats().failed == 1
    assert "ZeroDivisionError" in caplog.text


def test_wait_of_a_retry_holds_up_produce(inline_queue):
    tries = []

    def fail_twice(batch):
        tries.append(list(batch))
        if len(tries) < 3:
            raise ValueError

    queue = inline_queue(retry=RetryPolicy(attempts=3, backoff_ms=20))
    queue.add_handler(int, fail_twice)
    queue.produce(1)
    assert tries == [[1]] * 3
    assert queue.stats().consumed == 1


class Down(Recorder):
    """Raises until `up` is set."""

    def __init__(self):
        super().__init__()
        self.up, self.tries = False, 0

    def consume(self, batch):
        self.tries += 1
        if not self.up:
            raise ConnectionError("down")
        super().consume(batch)


def interrupted(inline_queue):
    """Returns a queue whose one item backs off, because Ctrl-C ended `produce`, and the handler."""
    day = 86_400_000
    queue = inline_queue(retry=RetryPolicy(attempts=None, backoff_ms=day, max_backoff_ms=day))
    handler = Down()
    queue.add_handler(int, handler)

    def interrupt():
        eventually(lambda: queue.stats().held == 1, "the first attempt")
        os.kill(os.getpid(), signal.SIGINT)

    thread, _ = in_background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.produce(1)
    join(thread)
    assert (queue.stats().held, handler.tries) == (1, 1)
    return queue, handler


def test_ctrl_c_ends_the_wait_of_a_retry_and_the_item_is_tried_again_later(inline_queue):
    queue, handler = interrupted(inline_queue)
    handler.up = True
    try_once_more(queue)
    assert queue.shutdown(WAIT_S) == 0
    assert (handler.items, handler.closed) == ([1], 1)
    assert_conserved(queue.stats())


def test_shutdown_without_time_makes_the_last_attempt(inline_queue):
    queue, handler = interrupted(inline_queue)
    assert queue.shutdown(0) == 0
    assert (queue.stats().failed, handler.tries, handler.closed) == (1, 2, 1)
    assert_conserved(queue.stats())


def test_timeouts_hold_while_a_batch_backs_off(inline_queue):
    day = 86_400_000
    retry = RetryPolicy(attempts=None, backoff_ms=day, max_backoff_ms=day)
    queue, handler = inline_queue(retry=retry, buffer_size=3), Down()
    queue.add_handler(int, handler)
    queue.add_handler(str, handler)
    assert queue.produce(1, timeout=0.01) is True
    assert queue.flush(0.01) is False
    assert queue.produce_many([2], timeout=0.01) == 1
    future = queue.submit(3, timeout=0.01)
    with pytest.raises(ProduceTimeoutError):
        queue.produce(4, timeout=0.01)
    assert queue.remove_handler(str, timeout=0.01) is True
    assert (queue.stats().consumed, future.done()) == (0, False)
    handler.up = True
    try_once_more(queue)
    assert queue.flush(WAIT_S) is True
    assert handler.items == [1, 2, 3]
    assert_conserved(queue.stats())


def hung(inline_queue):
    """Returns a queue, the handler that another caller is inside, and that caller."""
    queue, handler = inline_queue(), Held()
    queue.add_handler(int, handler)
    caller, _ = in_background(lambda: queue.produce(1))
    assert handler.entered.wait(WAIT_S)
    return queue, handler, caller


def test_timeouts_hold_while_another_caller_is_inside_a_handler(inline_queue):
    queue, handler, caller = hung(inline_queue)
    assert queue.flush(0.01) is False
    assert queue.produce(2, timeout=0.01) is True
    assert queue.shutdown(0.01) == 2
    handler.released.set()
    join(caller)
    assert (handler.items, handler.closed) == ([1], 1)
    assert_conserved(queue.stats())


def test_ctrl_c_ends_the_wait_for_another_caller(inline_queue):
    queue, handler, caller = hung(inline_queue)
    assert queue.produce(2, timeout=0.01) is True
    waits = threading.Event()

    def interrupt():
        assert waits.wait(WAIT_S)
        os.kill(os.getpid(), signal.SIGINT)

    def flush():
        waits.set()
        queue.flush()

    thread, _ = in_background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        flush()
    join(thread)
    handler.released.set()
    join(caller)
    assert queue.flush(WAIT_S) is True
    assert handler.items == [1, 2]


def test_no_batch_waits_for_its_time(inline_queue):
    queue = inline_queue(max_delay_ms=3_600_000)
    recorder = Recorder()
    queue.add_handler(int, recorder)
    queue.produce(1)
    assert recorder.batches == [[1]]


def test_handler_may_produce_into_its_own_queue(inline_queue):
    queue = inline_queue()
    seen = []

    @queue.handler(int)
    def count_down(batch):
        seen.extend(batch)
        for item in batch:
            if item:
                assert queue.produce(item - 1)

    queue.produce(5)
    assert seen == [5, 4, 3, 2, 1, 0]


def test_stages_feed_each_other_in_both_directions(make_queue):
    first = make_queue("first", inline=True)
    second = make_queue("second", inline=True)
    seen = []

    @first.handler(int)
    def up(batch):
        seen.extend(batch)
        second.produce_many([str(item + 1) for item in batch if item < 6])

    @second.handler(str)
    def down(batch):
        seen.extend(batch)
        first.produce_many([int(item) + 1 for item in batch])

    first.produce(0)
    assert seen == [0, "1", 2, "3", 4, "5", 6]
    assert first.shutdown(WAIT_S) == second.shutdown(WAIT_S) == 0


def test_flush_in_a_handler_raises_as_on_a_drain_thread(inline_queue):
    raised = []
    queue = inline_queue()

    @queue.handler(int)
    def take(batch):
        try:
            queue.flush()
        except BatchQueueError as error:
            raised.append(str(error))

    queue.produce(1)
    assert "drain thread" in raised[0]
    assert queue.flush(WAIT_S) is True


def test_shutdown_closes_the_handlers_and_refuses_items(inline_queue):
    queue = inline_queue()
    recorder = Recorder()
    queue.add_handler(int, recorder)
    queue.produce(1)
    assert queue.shutdown() == 0
    assert (recorder.items, recorder.closed, queue.running) == ([1], 1, False)
    assert queue.produce(2) is False
    assert queue.shutdown(0) == 0
    assert recorder.closed == 1
    assert_conserved(queue.stats())


def test_items_that_on_close_produces_are_handled(make_queue):
    second = make_queue("second", inline=True)
    seen = []
    second.add_handler(str, seen.extend)

    class Keeps(HandlerConsumer):
        def __init__(self):
            self.kept = []

        def consume(self, batch):
            self.kept.extend(batch)

        def on_close(self):
            second.produce_many([str(item) for item in self.kept])

    with BatchQueue("first", config(inline=True)) as first:
        first.add_handler(int, Keeps())
        first.produce_many([1, 2])
        assert seen == []
    assert seen == ["1", "2"]


def test_handlers_come_and_go(inline_queue):
    queue = inline_queue(partitions=PartitionPolicy.adaptive())
    first, second = Recorder(), Recorder()
    queue.add_handler(int, first)
    queue.produce(1)
    queue.add_handler(int, second, replace=True)
    assert first.closed == 1
    queue.produce(2)
    assert queue.remove_handler(int) is True
    assert second.closed == 1
    assert queue.remove_handler(int) is False
    queue.produce(3)
    assert (first.items, second.items, queue.stats().unhandled) == ([1], [2], 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"selector": PartitionSelector.round_robin(), "partitions": 3},
        {"selector": PartitionSelector.by_key(str), "partitions": 3},
        {"selector": PartitionSelector.custom(lambda item, count: item % count), "partitions": 3},
        {"threads": 4, "partitions": 8, "balancer": True},
    ],
)
def test_every_selector_works(inline_queue, settings):
    queue = inline_queue(**settings)
    seen = []
    queue.add_handler(int, seen.extend)
    for number in range(30):
        queue.produce(number)
        assert seen[-1] == number
    queue.produce_many(list(range(30, 60)))
    assert sorted(seen) == list(range(60))
    assert queue.rebalance() == 0


def test_consumer_gets_items_of_all_types(inline_queue):
    recorder = Recorder()
    queue = inline_queue(consumer=recorder)
    queue.produce_many([1, "a"])
    assert recorder.items == [1, "a"]
    made = []

    def factory():
        made.append(Recorder())
        return made[-1]

    other = inline_queue(consumer_factory=factory, threads=3, partitions=1)
    other.produce_many([1, "a"])
    assert [handler.items for handler in made] == [[1, "a"]]


def test_rows_are_handled_before_produce_arrow_returns(inline_queue):
    pa = pytest.importorskip("pyarrow")
    queue = inline_queue(buffer_size=3)
    recorder = Recorder()
    queue.add_handler("a", recorder)
    data = pa.record_batch({"tag": ["a"] * 20, "n": list(range(20))})
    assert queue.produce_arrow(data, type_column="tag") == 20
    assert [n for batch in recorder.items for n in batch["n"].to_pylist()] == list(range(20))


def test_several_threads_may_produce(inline_queue):
    queue = inline_queue(buffer_size=5)
    inside, together, seen = [], [], []

    @queue.handler(int)
    def take(batch):
        inside.append(1)
        if len(inside) > 1:
            together.append(len(inside))
        seen.extend(batch)
        inside.pop()

    bodies = [
        lambda index=index: [queue.produce(index * 500 + n) for n in range(500)]
        for index in range(4)
    ]
    run_threads(*bodies)
    assert queue.flush(WAIT_S)
    assert sorted(seen) == list(range(2_000))
    assert together == []
    for index in range(4):
        mine = [item for item in seen if item // 500 == index]
        assert mine == sorted(mine)


def test_exit_closes_the_handlers_of_an_inline_queue():
    code, out, err = run_script(
        """
        class Keeps:
            def consume(self, batch):
                pass
            def on_close(self):
                say("closed")

        queue = BatchQueue("orders", config(inline=True))
        queue.add_handler(int, Keeps())
        queue.produce(1)
        """
    )
    assert (code, out, err) == (0, ["closed"], "")


def test_dropped_queue_closes_its_handlers_and_goes(make_queue):
    recorder = Recorder()
    queue = BatchQueue("orders", config(inline=True))
    queue.add_handler(int, recorder)
    queue.produce(1)
    del queue
    assert (recorder.items, recorder.closed) == ([1], 1)


def test_inline_queue_has_neither_a_shared_scheduler_nor_a_loop():
    with pytest.raises(ConfigError, match="inline=True is given with a shared_scheduler"):
        BatchQueueConfig(shared_scheduler=("io", ThreadPolicy.fixed(1)), inline=True)
    with pytest.raises(ConfigError, match="inline is 1; give True or False"):
        config(inline=1)

    async def main():
        with pytest.raises(ConfigError, match="inline=True is given for an AsyncBatchQueue"):
            AsyncBatchQueue("orders", config(inline=True))

    run(main)
