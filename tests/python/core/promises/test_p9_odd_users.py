"""P9: unusual items, handlers, classes, timeouts and settings have a defined result."""

import gc

import pytest

from batchqueue import (
    BatchQueue,
    BufferStrategy,
    ConfigError,
    PartitionPolicy,
    ProduceTimeoutError,
)
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.threads import in_background, join, run_threads
from core_support.waits import WAIT_S, eventually


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("-inf")])
@pytest.mark.parametrize("method", ["produce", "produce_many", "flush", "shutdown"])
def test_negative_time_out_is_an_error_and_changes_nothing(make_queue, method, timeout):
    queue = make_queue()
    arguments = {"produce": (1,), "produce_many": ([1],)}.get(method, ())
    with pytest.raises(ConfigError, match=r"timeout"):
        getattr(queue, method)(*arguments, timeout=timeout)
    assert queue.running
    assert queue.stats().attempts == 0


def test_infinite_time_out_waits_without_a_limit(make_queue):
    queue = make_queue()
    queue.add_handler(int, Recorder())
    for timeout in (float("inf"), 1e300, 1e18):
        assert queue.produce(1, timeout=timeout)
        assert queue.flush(timeout)
    assert queue.shutdown(float("inf")) == 0


def test_zero_time_out_succeeds_when_there_is_space(make_queue):
    queue = make_queue()
    handler = Recorder()
    queue.add_handler(int, handler)
    assert queue.produce(1, timeout=0)
    assert queue.produce_many([2, 3], timeout=0) == 2
    assert queue.flush(WAIT_S)
    assert handler.items == [1, 2, 3]


def test_producers_that_die_leave_the_queue_intact(make_queue):
    queue = make_queue(buffer_size=2)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    queue.produce_many([1, 2])

    def die():
        with pytest.raises(ProduceTimeoutError):
            queue.produce(9, timeout=0.02)

    for _ in range(5):
        run_threads(die)
    waiting, outcome = in_background(lambda: queue.produce(3))
    eventually(lambda: queue.stats().attempts == 9, "the last producer waits")
    handler.released.set()
    join(waiting)
    assert outcome == [True]
    queue.shutdown(WAIT_S)
    assert handler.items == [0, 1, 2, 3]
    assert_conserved(queue.stats())


def test_item_may_produce_when_it_dies(make_queue):
    outcomes = []

    class Phoenix:
        def __init__(self, lives):
            self.lives = lives

        def __del__(self):
            if self.lives:
                outcomes.append(queue.produce(Phoenix(self.lives - 1)))

    queue = make_queue(buffer_size=3)
    queue.add_handler(Phoenix, lambda batch: None)
    queue.produce_many([Phoenix(3), Phoenix(3), Phoenix(3)])
    eventually(lambda: len(outcomes) == 9, "the last item dies")
    assert queue.flush(WAIT_S)
    assert queue.shutdown(WAIT_S) == 0
    assert outcomes == [True] * 9
    assert queue.stats().consumed == 12


def test_abandoned_items_may_produce_when_they_die(make_queue):
    outcomes = []

    class Last:
        def __del__(self):
            outcomes.append(queue.produce(1))

    queue = make_queue()
    handler = Held()
    queue.add_handler(int, handler)
    queue.add_handler(Last, lambda batch: None)
    handler.hold(queue, 1)
    queue.produce_many([Last() for _ in range(5)])
    assert queue.shutdown(0) == 6
    handler.released.set()
    eventually(lambda: len(outcomes) == 5, "abandoned items die")
    assert outcomes == [False] * 5


def test_generator_that_raises_midway_keeps_what_was_accepted(make_queue):
    def items():
        yield 1
        yield 2
        raise ValueError("midway")

    queue = make_queue()
    handler = Recorder()
    queue.add_handler(int, handler)
    with pytest.raises(ValueError, match="midway"):
        queue.produce_many(items())
    queue.shutdown(WAIT_S)
    assert handler.items == [1, 2]
    assert_conserved(queue.stats())


def test_generator_may_produce_into_the_same_queue(make_queue):
    def items():
        for number in range(0, 100, 2):
            assert queue.produce(number)
            yield number + 1

    queue = make_queue(buffer_size=5)
    handler = Recorder()
    queue.add_handler(int, handler)
    assert queue.produce_many(items()) == 50
    queue.shutdown(WAIT_S)
    assert handler.items == list(range(100))


def test_list_may_change_while_its_producer_waits(make_queue):
    queue = make_queue(buffer_size=4_096)
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, -1)
    items = list(range(20_000))
    producer, outcome = in_background(lambda: queue.produce_many(items))
    eventually(lambda: queue.stats().produced == 4_097, "the first piece is accepted")
    del items[10_000:]
    handler.released.set()
    join(producer)
    assert outcome == [10_000]
    queue.shutdown(WAIT_S)
    assert len(handler.items) == outcome[0] + 1
    assert_conserved(queue.stats())


def test_million_items_in_one_call_arrive(make_queue):
    queue = make_queue(threads=2)
    total = [0, 0]

    def add(batch):
        total[0] += len(batch)
        total[1] += sum(batch)

    queue.add_handler(int, add)
    assert queue.produce_many(list(range(1_000_000))) == 1_000_000
    assert queue.shutdown(WAIT_S) == 0
    assert total == [1_000_000, sum(range(1_000_000))]


def test_garbage_collection_at_any_point_does_no_harm(make_queue):
    class Node:
        def __init__(self):
            self.me = self

        def __del__(self):
            queue.produce("from a collector")

    seen = Recorder()
    queue = make_queue(threads=2, buffer_size=50, strategy=BufferStrategy.IF_POSSIBLE)
    queue.add_handler(Node, lambda batch: gc.collect())
    queue.add_handler(str, seen)
    threshold = gc.get_threshold()
    gc.set_threshold(3, 2, 2)
    try:
        run_threads(*[lambda: [queue.produce(Node()) for _ in range(100)]] * 2)
        gc.collect()
        assert queue.flush(WAIT_S)
    finally:
        gc.set_threshold(*threshold)
    assert queue.shutdown(WAIT_S) == 0
    assert seen.items
    assert_conserved(queue.stats())


def test_five_thousand_types_are_handled(make_queue):
    types = [type(f"Type{index}", (), {}) for index in range(5_000)]
    seen = Recorder()
    queue = make_queue(threads=2, partitions=PartitionPolicy.adaptive(), buffer_size=100)
    for item_type in types:
        queue.add_handler(item_type, seen)
    assert queue.stats().partition_count == 50 + (5_000 - 50) // 2
    assert queue.produce_many([item_type() for item_type in types]) == 5_000
    assert queue.flush(WAIT_S)
    assert {type(item) for item in seen.items} == set(types)
    assert len(queue.stats().handlers()) == 5_000
    assert queue.shutdown(WAIT_S) == 0
    assert seen.closed == 1


@pytest.mark.parametrize("idle", [(0, 0), (0, 1e15), (1e9, 1e12)])
def test_extreme_idle_times_work(make_queue, idle):
    queue = make_queue(min_idle_ms=idle[0], max_idle_ms=idle[1])
    handler = Recorder()
    queue.add_handler(int, handler)
    for number in range(50):
        assert queue.produce(number)
        assert queue.flush(WAIT_S)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == list(range(50))


def test_unusual_classes_are_handled(make_queue):
    class Meta(type):
        def __eq__(cls, other):
            raise RuntimeError("do not compare me")

        def __hash__(cls):
            raise TypeError("do not hash me")

        def __repr__(cls):
            raise RuntimeError("do not print me")

    weird = Meta("Weird", (), {})

    class Unhashable:
        __hash__ = None

        def __eq__(self, other):
            raise RuntimeError("do not compare me")

        def __bool__(self):
            raise RuntimeError("neither true nor false")

        def __len__(self):
            raise RuntimeError("no length")

    class Text(str):
        __slots__ = ()

    handlers = {"weird": Recorder(), "unhashable": Recorder(), "text": Recorder()}
    queue = make_queue()
    for item_type, handler in zip((weird, Unhashable, Text), handlers.values(), strict=True):
        queue.add_handler(item_type, handler)
    queue.produce_many([weird(), Unhashable(), Text("a"), "a plain str"])
    assert queue.flush(WAIT_S)
    stats = queue.stats()
    assert (stats.consumed, stats.unhandled) == (3, 1)
    assert [len(handler.items) for handler in handlers.values()] == [1, 1, 1]


def test_statistics_show_classes_that_cannot_be_keys_of_a_dict(make_queue):
    class NoHash(type):
        def __eq__(cls, other):
            return cls is other

    class AllEqual(type):
        def __eq__(cls, other):
            return True

        def __hash__(cls):
            return 1

    classes = [
        NoHash("First", (), {}),
        NoHash("First", (), {}),
        AllEqual("Second", (), {}),
        AllEqual("Third", (), {}),
    ]
    queue = make_queue(partitions=2)
    for item_type in classes:
        queue.add_handler(item_type, Recorder())
    queue.produce_many([item_type() for item_type in classes for _ in range(3)])
    assert queue.flush(WAIT_S)
    stats, module = queue.stats(), __name__
    names = [f"{module}.First", f"{module}.First #2", f"{module}.Second", f"{module}.Third"]
    assert {name: it.consumed for name, it in stats.handlers().items()} == dict.fromkeys(names, 3)
    assert list(stats.to_dict()["handlers"]) == names
    for name in ("First", "Second", "Third"):
        assert name in stats._repr_html_()


def test_item_may_change_its_class_while_it_is_queued(make_queue):
    class Before:
        pass

    class After:
        pass

    before, after = Held(), Recorder()
    queue = make_queue()
    queue.add_handler(Before, before)
    queue.add_handler(After, after)
    before.hold(queue, Before())
    item = Before()
    queue.produce(item)
    item.__class__ = After
    before.released.set()
    queue.shutdown(WAIT_S)
    assert len(before.items) + len(after.items) == 2
    assert_conserved(queue.stats())


def test_proxies_work_as_handlers(make_queue):
    class Proxy:
        def __init__(self, target):
            self._target = target

        def __getattr__(self, name):
            return (
                getattr(self._target, name)
                if hasattr(self._target, name)
                else (lambda *arguments: None)
            )

    target = Recorder()
    queue = make_queue()
    queue.add_handler(int, Proxy(target))
    queue.produce(1)
    assert queue.shutdown(WAIT_S) == 0
    assert target.items == [1]
    assert target.closed == 1


def test_panic_inside_a_handler_fails_its_batch(make_queue):
    """A failure below a handler, even in this package, never keeps the interpreter locked."""
    queue = make_queue()
    outcomes = []

    def provoke(batch):
        try:
            BatchQueue("a\0b", queue.config)
        except BaseException as error:
            outcomes.append(error)
            raise

    queue.add_handler(int, provoke)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert type(outcomes[0]) is ConfigError
    assert queue.stats().failed == 1


def test_on_idle_may_produce_and_shut_down(make_queue):
    class Idle(Recorder):
        calls = 0

        def on_idle(self):
            self.calls += 1
            if self.calls == 1:
                assert queue.produce(7)
            elif self.items:
                queue.shutdown()

    handler = Idle()
    queue = make_queue(min_idle_ms=0, max_idle_ms=1)
    queue.add_handler(int, handler)
    eventually(lambda: not queue.running, "the queue shuts itself down")
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == [7]
    assert handler.closed == 1


def test_hanging_handler_is_named_and_does_not_stop_the_others(make_queue):
    queue = make_queue(threads=2)
    held, free = Held(), Recorder()
    queue.add_handler(int, held)
    queue.add_handler(str, free)
    held.hold(queue, 1)
    assert queue.stats().stuck_handlers == ()
    eventually(lambda: queue.stats().stuck_handlers, "the handler is named after a second")
    assert queue.stats().stuck_handlers == ("int",)
    queue.produce("a")
    eventually(lambda: free.items == ["a"], "the other thread continues")
    held.released.set()
    assert queue.flush(WAIT_S)
    assert queue.stats().stuck_handlers == ()


def test_closing_a_sleeping_queue_wakes_its_threads(make_queue):
    """Without the wake-up they would sleep for a minute."""
    for _ in range(50):
        queue = make_queue(threads=3, min_idle_ms=0, max_idle_ms=60_000)
        assert queue.shutdown(WAIT_S) == 0
