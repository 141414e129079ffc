"""Several threads run random programs against one queue; then every promise is checked.

Hypothesis chooses the queue and the program; the threads run it from different places, lap after
lap. The result of one thread's call depends on the others, so a failure is shown as found, not
shrunk. An action is one call of one thread: `make soak-python` does more of them than the test
suite.
"""

import faulthandler
import itertools
import logging
import os
import sys
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from batchqueue import (
    BatchQueue,
    BatchQueueConfig,
    BufferStrategy,
    ConfigError,
    DrainBalancer,
    PartitionPolicy,
    PartitionSelector,
    QueueClosedError,
    RetryPolicy,
    ThreadPolicy,
)
from core_support.model import PLAIN, SPREAD, TYPES, Item, Run
from core_support.threads import native_threads, run_threads
from core_support.waits import HANG_S, WAIT_S, eventually

ACTIONS = int(os.environ.get("BATCHQUEUE_SOAK_ACTIONS", "50000"))
BATCH = 10
"""Examples between two checks of the count."""

rotation = itertools.count()
JUNK = [[], [99], None, "no plan", [-1] * 4]


def rotate(load, owner, threads):
    turn = next(rotation)
    return [(thread + turn) % threads for thread in owner]


def junk(load, owner, threads):
    turn = next(rotation)
    return rotate(load, owner, threads) if turn % 2 else JUNK[turn % len(JUNK)]


BALANCERS = [
    None,
    DrainBalancer.throughput_weighted(1.0),
    DrainBalancer.load_weighted(1.01),
    DrainBalancer.custom(rotate),
    DrainBalancer.custom(junk),
]
SELECTORS = {
    "type": PartitionSelector.by_type(),
    "key": PartitionSelector.by_key(lambda item: item.key),
    "custom": PartitionSelector.custom(lambda item, count: item.key % count),
    "round robin": PartitionSelector.round_robin(),
}
ORDERS = {"type": "type", "key": "key", "custom": "key", "round robin": "nothing"}

schedulers = st.one_of(
    st.builds(lambda count: {"threads": ThreadPolicy.fixed(count)}, st.integers(1, 4)),
    st.builds(
        lambda name, count: {"shared_scheduler": (f"model-{name}", ThreadPolicy.fixed(count))},
        st.sampled_from("ab"),
        st.integers(1, 3),
    ),
)
partitions = st.one_of(
    st.integers(1, 7).map(PartitionPolicy.fixed),
    st.integers(1, 2).map(PartitionPolicy.adaptive),
    st.just(PartitionPolicy.thread_multiply(2)),
)
shapes = st.fixed_dictionaries(
    {
        "scheduler": schedulers,
        "partitions": partitions,
        "selector": st.sampled_from(["type", "type", "type", "key", "custom", "round robin"]),
        "buffer_size": st.sampled_from([1, 3, 40, 1_000]),
        "strategy": st.sampled_from(BufferStrategy),
        "max_batch_items": st.sampled_from([1, 5, 10_000]),
        "min_idle_ms": st.sampled_from([0, 0, 1]),
        "retry": st.sampled_from(
            [None, RetryPolicy(attempts=2, backoff_ms=0), RetryPolicy(backoff_ms=0.1)]
        ),
        "balancer": st.sampled_from(BALANCERS),
        "rebalance_interval_ms": st.sampled_from([0, 1]),
        "takeover_after_ms": st.sampled_from([1, 20]),
        "dead_letter": st.booleans(),
    }
)

plain = st.integers(0, len(PLAIN) - 1)
kinds = st.integers(0, len(TYPES) - 1)
behaviours = st.sampled_from(["plain", "plain", "raises", "slow", "calls", "idle"])
produces = st.tuples(st.just("produce"), kinds, st.sampled_from([0, WAIT_S]))
others = st.one_of(
    st.tuples(st.just("produce_many"), kinds, st.integers(1, 25), st.booleans()),
    st.tuples(st.just("produce_many"), kinds, st.integers(1, 25), st.booleans()),
    st.tuples(st.just("add"), plain, behaviours),
    st.tuples(st.just("add_for_two"), plain, behaviours),
    st.tuples(st.just("add_factory"), st.integers(0, len(SPREAD) - 1), behaviours),
    st.tuples(st.just("produce_new_class"), st.integers(1, 5)),
    st.tuples(st.just("add_and_remove"), st.integers(1, 5), behaviours),
    st.tuples(st.just("remove"), kinds),
    st.tuples(st.just("rebalance")),
    st.tuples(st.just("flush"), st.sampled_from([0, 0.001, WAIT_S])),
    st.tuples(st.just("stats")),
)
programs = st.lists(st.one_of(produces, others, others), min_size=25, max_size=50)
ends = st.sampled_from(
    [
        ("at the end", WAIT_S),
        ("at the end", WAIT_S),
        ("on the way", WAIT_S),
        ("on the way", 0.001),
        ("at the end", 0),
    ]
)


class Threads:
    """One run of a program by several threads."""

    def __init__(self, shape, tally):
        shape = dict(shape)
        selector = shape.pop("selector")
        if shape.pop("dead_letter"):
            shape["dead_letter"] = lambda letters: self.run.keep_letters(letters)
        settings = BatchQueueConfig(
            **shape.pop("scheduler"),
            selector=SELECTORS[selector],
            max_idle_ms=60_000,
            shutdown_timeout=WAIT_S,
            **shape,
        )
        self.queue = BatchQueue("model", settings)
        self.run = Run(self.queue, ORDERS[selector])
        self.tally = tally

    def execute(self, program, threads, laps, end):
        when, timeout = end
        on_the_way = [("shutdown", timeout)] if when == "on the way" else []
        counts = [Counter() for _ in range(threads)]

        def body(index):
            producer = self.run.producer(("thread", index))
            start = index * len(program) // threads
            for lap in range(laps):
                last = lap == laps - 1
                turn = program[start:] + (on_the_way if last else []) + program[:start]
                for name, *arguments in turn:
                    getattr(self, name)(producer, *arguments)
                    counts[index][name] += 1

        try:
            run_threads(*[lambda index=index: body(index) for index in range(threads)])
        finally:
            results = []
            run_threads(*[lambda: results.append(self.queue.shutdown(timeout))] * 2)
            for count in counts:
                self.tally.update(count)
            self.tally["shutdown"] += 2
        assert {*results, self.queue.shutdown(WAIT_S)} == {self.queue.stats().abandoned}
        self.run.check()

    # The actions.

    def produce(self, producer, kind, timeout):
        producer.put(TYPES[kind], timeout)

    def produce_many(self, producer, kind, count, as_list):
        producer.put_many(
            [TYPES[(kind + index // 6) % len(TYPES)] for index in range(count)], as_list
        )

    def add(self, producer, kind, behaviour):
        self.register(self.run.handler(behaviour), PLAIN[kind])

    def add_for_two(self, producer, kind, behaviour):
        """One instance for two classes: it may lose the first before it has the second."""
        handler = self.run.handler(behaviour)
        for item_type in (PLAIN[kind], PLAIN[kind - 1]):
            self.register(handler, item_type)

    def register(self, handler, item_type):
        try:
            handler.added += 1
            self.queue.add_handler(item_type, handler, weight=0.5, replace=True)
        except QueueClosedError:
            handler.added -= 1

    def add_factory(self, producer, kind, behaviour):
        made = []

        def factory():
            made.append(self.run.handler(behaviour))
            made[-1].added = 1
            return made[-1]

        try:
            self.queue.add_handler_factory(SPREAD[kind], factory, partitions=2, replace=True)
        except (QueueClosedError, ConfigError):
            # Other selectors have no partitions per class, and one partition is too few.
            for handler in made:
                handler.added = 0

    def produce_new_class(self, producer, count):
        """A class that the queue has not seen: it may grow, and the items find their handler."""
        item_type = type("Fresh", (Item,), {"__slots__": ()})
        self.register(self.run.handler("plain"), item_type)
        self.run.certain.add(item_type)
        producer.put_many([item_type] * count)

    def add_and_remove(self, producer, count, behaviour):
        """A class of this thread alone: when its handler is removed, it has had its last call."""
        item_type = type("ComesAndGoes", (Item,), {"__slots__": ()})
        handler = self.run.handler(behaviour)
        self.register(handler, item_type)
        producer.put_many([item_type] * count)
        if self.queue.remove_handler(item_type):
            assert handler.closed == 1 or self.queue.stats().abandoned or not self.queue.running
            handler.gone = True

    def remove(self, producer, kind):
        self.queue.remove_handler(TYPES[kind])

    def rebalance(self, producer):
        assert self.queue.rebalance() >= 0

    def flush(self, producer, timeout):
        done = self.queue.flush(timeout)
        assert done or timeout < WAIT_S or self.queue.stats().abandoned, (
            "P4: a flush that did not end"
        )

    def stats(self, producer):
        stats = self.queue.stats()
        settled = stats.consumed + stats.dead_lettered + stats.failed + stats.unhandled
        assert stats.produced >= settled
        assert 0 <= stats.queued <= stats.total_capacity, "P5"

    def shutdown(self, producer, timeout):
        assert self.queue.shutdown(timeout) == self.queue.stats().abandoned
        assert not self.queue.running


@pytest.fixture
def quick_switches(caplog):
    """Threads switch often, for more interleavings in less time; nor do they wait for long logs."""
    caplog.set_level(logging.CRITICAL, "batchqueue")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def test_random_programs_of_several_threads_keep_every_promise(quick_switches):
    tally = Counter()

    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(
        shape=shapes, program=programs, threads=st.integers(2, 4), laps=st.integers(3, 8), end=ends
    )
    def example(shape, program, threads, laps, end):
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        Threads(shape, tally).execute(program, threads, laps, end)

    while sum(tally.values()) < ACTIONS:
        example()
    print(f"{sum(tally.values())} actions:", dict(tally))
    assert tally["produce"] <= sum(tally.values()) / 2
    assert set(tally) >= {name for name in vars(Threads) if not name.startswith("_")} - {
        "execute",
        "register",
    }
    eventually(
        lambda: native_threads() == 0, "the end of all drain threads, pools and the control thread"
    )
