"""Random actions against the queue and a small model of it, which must agree at the end."""

import threading
from collections import Counter, defaultdict

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from batchqueue import (
    BatchQueue,
    BatchQueueConfig,
    BufferStrategy,
    DrainBalancer,
    PartitionPolicy,
    ProduceTimeoutError,
    QueueClosedError,
    ThreadPolicy,
)
from core_support.queues import assert_conserved
from core_support.threads import run_threads
from core_support.waits import WAIT_S, eventually


class Item:
    def __init__(self, number):
        self.number = number


TYPES = [type(f"Item{index}", (Item,), {}) for index in range(4)]


class Handler:
    """Records its batches; waits while held; fails those that begin with a multiple of `fails`."""

    def __init__(self, gate, fails):
        self.gate, self.fails = gate, fails
        self.consumed, self.failed = [], []
        self.closed = 0
        self.inside = threading.Lock()

    def consume(self, batch):
        assert self.inside.acquire(blocking=False), "P1: entered twice"
        try:
            assert self.gate.wait(WAIT_S)
            numbers = [item.number for item in batch]
            if self.fails and numbers[0] % self.fails == 0:
                self.failed.extend(numbers)
                raise ValueError("as planned")
            self.consumed.extend(numbers)
        finally:
            self.inside.release()

    def on_close(self):
        assert not self.inside.locked(), "P1: closed while inside"
        self.closed += 1


class Letters:
    """Records the dead letters it gets; raises for those that begin with a multiple of `fails`."""

    def __init__(self, fails):
        self.fails = fails
        self.kept, self.failed = defaultdict(list), defaultdict(list)

    def consume(self, letters):
        raises = bool(self.fails) and letters[0].item.number % self.fails == 0
        for letter in letters:
            assert isinstance(letter.error, ValueError)
            assert letter.attempts == 1
            (self.failed if raises else self.kept)[letter.item_type].append(letter.item.number)
        if raises:
            raise OSError("no place for letters, as planned")


class Model:
    """The accepted numbers in their order, and how many attempts were refused."""

    def __init__(self, letters):
        self.letters = letters
        """Where the failed items went, or None: then they only count."""
        self.accepted = defaultdict(list)
        self.refused = 0
        self.next_number = 0
        self.handlers = defaultdict(list)
        """All handlers that a type ever had, the newest last."""
        self.registered = set()
        """The types that have a handler now."""

    def numbers(self, count):
        self.next_number += count
        return range(self.next_number - count, self.next_number)

    def put(self, item_type, numbers, accepted):
        self.accepted[item_type] += numbers[:accepted]
        self.refused += accepted < len(numbers)

    def check(self, stats):
        assert_conserved(stats)
        assert stats.refused == self.refused
        assert stats.produced == sum(len(numbers) for numbers in self.accepted.values())
        consumed = failed = dead = 0
        for item_type, numbers in self.accepted.items():
            mine = [[number for handler in self.handlers[item_type] for number in handler.consumed]]
            mine.append(
                [number for handler in self.handlers[item_type] for number in handler.failed]
            )
            assert not Counter(mine[0] + mine[1]) - Counter(numbers), (
                "no duplicates, no unknown items"
            )
            assert all(numbers == sorted(numbers) for numbers in mine), "P3, also across handlers"
            consumed += len(mine[0])
            failed += len(mine[1])
            if self.letters is not None:
                kept, lost = (each[item_type] for each in (self.letters.kept, self.letters.failed))
                assert kept == sorted(kept), "P3, also of dead letters"
                assert not Counter(kept + lost) - Counter(mine[1]), "letters of failed items, once"
                if not stats.abandoned:
                    assert sorted(kept + lost) == mine[1], "a letter for each failed item"
                dead += len(kept)
        assert stats.consumed + stats.abandoned >= consumed
        assert dead or not stats.dead_lettered
        if not stats.abandoned:
            counted = (stats.consumed, stats.dead_lettered, stats.failed)
            assert counted == (consumed, dead, failed - dead)
            assert stats.unhandled == stats.produced - consumed - failed
            # A shutdown with a timeout of 0 does not wait for the last calls.
            handlers = [handler for handlers in self.handlers.values() for handler in handlers]
            eventually(
                lambda: all(handler.closed for handler in handlers), "on_close of every handler"
            )
            assert all(handler.closed == 1 for handler in handlers)


kinds = st.integers(0, len(TYPES) - 1)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("add_handler"), kinds, st.sampled_from([0, 0, 3])),
        st.tuples(st.just("produce"), kinds),
        st.tuples(st.just("produce_many"), kinds, st.integers(0, 30), st.booleans()),
        st.tuples(st.just("produce_in_threads"), kinds, st.integers(2, 4), st.integers(1, 15)),
        st.tuples(st.just("remove_handler"), kinds),
        st.tuples(st.just("rebalance")),
        st.tuples(st.just("hold")),
        st.tuples(st.just("release")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("shutdown"), st.sampled_from([0, WAIT_S])),
    ),
    max_size=25,
)
shapes = st.fixed_dictionaries(
    {
        "threads": st.integers(1, 3).map(ThreadPolicy.fixed),
        "partitions": st.one_of(
            st.integers(1, 5).map(PartitionPolicy.fixed),
            st.integers(1, 2).map(PartitionPolicy.adaptive),
        ),
        "buffer_size": st.sampled_from([1, 2, 5, 300]),
        "strategy": st.sampled_from(BufferStrategy),
        "max_batch_items": st.sampled_from([1, 3, 10_000]),
        "min_idle_ms": st.sampled_from([0, 1]),
        "balancer": st.sampled_from(
            [None, DrainBalancer.custom(lambda _, owner, threads: [threads - 1] * len(owner))]
        ),
        "rebalance_interval_ms": st.sampled_from([0, 1]),
        "takeover_after_ms": st.sampled_from([1, 20]),
        "dead_letter": st.sampled_from([None, None, 0, 3]),
    }
)


class Run:
    """One run: every action on the queue and on the model."""

    def __init__(self, shape):
        fails = shape.get("dead_letter")
        letters = None if fails is None else Letters(fails)
        given = {**shape, "dead_letter": letters}
        self.queue = BatchQueue(
            "model", BatchQueueConfig(**given, max_idle_ms=60_000, error_handler=lambda *_: None)
        )
        self.model = Model(letters)
        self.gate = threading.Event()
        self.gate.set()

    def add_handler(self, kind, fails):
        """Also in place of another handler, which has to get its last batch first."""
        item_type, handler = TYPES[kind], Handler(self.gate, fails)
        if item_type in self.model.registered:
            self.release()
        if not self.queue.running:
            with pytest.raises(QueueClosedError):
                self.queue.add_handler(item_type, handler, replace=True)
            return
        before = self.model.handlers[item_type][-1:] if item_type in self.model.registered else []
        self.queue.add_handler(item_type, handler, replace=True)
        self.model.handlers[item_type].append(handler)
        self.model.registered.add(item_type)
        assert all(handler.closed == 1 for handler in before)

    def remove_handler(self, kind):
        self.release()
        running = self.queue.running
        item_type = TYPES[kind]
        assert self.queue.remove_handler(item_type) is (
            running and item_type in self.model.registered
        )
        if running:
            self.model.registered.discard(item_type)
            assert set(self.queue.stats().handlers()) == self.model.registered
            assert all(handler.closed == 1 for handler in self.model.handlers[item_type])

    def rebalance(self):
        moved = self.queue.rebalance()
        assert 0 <= moved <= self.queue.stats().moves
        assert self.queue.stats().thread_count > 1 or not moved

    def produce(self, kind):
        self.produce_many(kind, 1, False)

    def produce_many(self, kind, count, as_list):
        numbers = self.model.numbers(count)
        items = [TYPES[kind](number) for number in numbers]
        try:
            accepted = self.queue.produce_many(items if as_list else iter(items), timeout=0)
        except ProduceTimeoutError as error:
            accepted = error.accepted
        self.model.put(TYPES[kind], list(numbers), accepted)

    def produce_in_threads(self, kind, threads, count):
        """Blocking, so the handlers must not be held."""
        self.release()
        numbers = [self.model.numbers(count) for _ in range(threads)]
        puts = []

        def produce(mine):
            for number in mine:
                puts.append(self.queue.produce(TYPES[kind](number), timeout=WAIT_S))

        # One after another: several threads in turn are several producers, in a known order.
        for mine in numbers:
            start = len(puts)
            run_threads(lambda mine=mine: produce(mine))
            for number, accepted in zip(mine, puts[start:], strict=True):
                self.model.put(TYPES[kind], [number], int(accepted))

    def hold(self):
        self.gate.clear()

    def release(self):
        self.gate.set()

    def flush(self):
        if self.gate.is_set():
            assert self.queue.flush(WAIT_S) or self.queue.stats().abandoned

    def shutdown(self, timeout):
        if timeout:
            self.release()
        abandoned = self.queue.shutdown(timeout)
        assert abandoned == self.queue.stats().abandoned
        assert not self.queue.running

    def end(self):
        self.release()
        self.queue.shutdown(WAIT_S)
        stats = self.queue.stats()
        if stats.abandoned:
            eventually(
                lambda: (
                    not any(
                        handler.inside.locked()
                        for handlers in self.model.handlers.values()
                        for handler in handlers
                    )
                )
            )
        self.model.check(stats)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(shape=shapes, steps=actions)
@example(
    shape={
        "threads": ThreadPolicy.fixed(2),
        "partitions": PartitionPolicy.adaptive(1),
        "buffer_size": 1,
        "strategy": BufferStrategy.BLOCKING,
        "max_batch_items": 1,
        "min_idle_ms": 0,
    },
    steps=[
        ("add_handler", 0, 0),
        ("hold",),
        ("produce_many", 0, 5, True),
        ("add_handler", 1, 3),
        ("produce_in_threads", 1, 3, 4),
        ("flush",),
        ("hold",),
        ("produce_many", 1, 30, False),
        ("shutdown", 0),
        ("produce", 0),
    ],
)
@example(  # A flush after a shutdown(0) that abandoned nothing returned False.
    shape={
        "threads": ThreadPolicy.fixed(1),
        "partitions": PartitionPolicy.fixed(1),
        "buffer_size": 5,
        "strategy": BufferStrategy.BLOCKING,
        "max_batch_items": 10_000,
        "min_idle_ms": 0,
    },
    steps=[("add_handler", 0, 0), ("produce", 0), ("shutdown", 0), ("flush",)],
)
def test_random_actions_agree_with_the_model(shape, steps):
    run = Run(shape)
    try:
        for name, *arguments in steps:
            getattr(run, name)(*arguments)
    finally:
        run.end()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shape=shapes,
    producers=st.lists(
        st.lists(st.tuples(kinds, st.integers(1, 20)), max_size=15), min_size=2, max_size=4
    ),
    close_after=st.one_of(st.none(), st.integers(0, 200)),
)
def test_concurrent_producers_agree_with_the_model(shape, producers, close_after):
    """Each producer's accepted numbers arrive once, and in order per type."""
    run = Run(shape)
    queue = run.queue
    for kind in range(3):
        run.add_handler(kind, 0)
    accepted = [defaultdict(list) for _ in producers]

    def produce(mine, plan, base):
        number = base
        for kind, count in plan:
            items = [TYPES[kind](number + index) for index in range(count)]
            number += count
            got = queue.produce_many(items, timeout=WAIT_S)
            mine[kind] += [item.number for item in items[:got]]

    def close():
        if close_after is not None:
            eventually(lambda: queue.stats().attempts >= close_after or all_done.is_set())
            queue.shutdown(WAIT_S)

    def produce_all():
        try:
            run_threads(
                *[
                    lambda mine=mine, plan=plan, base=base: produce(mine, plan, base * 1_000_000)
                    for base, (mine, plan) in enumerate(zip(accepted, producers, strict=True))
                ]
            )
        finally:
            all_done.set()

    all_done = threading.Event()
    run_threads(produce_all, close)
    assert queue.shutdown(WAIT_S) == 0
    stats = queue.stats()
    assert_conserved(stats)
    for kind in range(3):
        (handler,) = run.model.handlers[TYPES[kind]]
        seen = handler.consumed
        for base, mine in enumerate(accepted):
            assert [number for number in seen if number // 1_000_000 == base] == mine[kind]
    assert stats.unhandled == sum(len(mine[3]) for mine in accepted)
    assert stats.produced == sum(len(numbers) for mine in accepted for numbers in mine.values())
