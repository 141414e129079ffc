"""Five minutes of everything together against the Python layer. `make stress` runs it.

Each round makes a few queues of random shape, lets threads work on them for about a second, shuts
them down in one of several ways, and checks that every item is accounted for and in order.
Meanwhile classes are made and dropped, handlers come and go, partitions move, garbage is collected,
and a signal handler raises in the main thread, which produces. The ledger is that of the tests:
`core_support/model.py`. The printed seed makes the same queues and the same choices again; the
order of the threads is never the same.
"""

import argparse
import faulthandler
import gc
import itertools
import logging
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from batchqueue import (
    BatchQueue,
    BatchQueueConfig,
    BatchQueueManager,
    BufferStrategy,
    ConfigError,
    DrainBalancer,
    PartitionPolicy,
    PartitionSelector,
    QueueClosedError,
    RetryPolicy,
    ThreadPolicy,
)
from core_support.model import PLAIN, SPREAD, TYPES, Item, Producer, Run
from core_support.threads import join, run_threads
from core_support.waits import WAIT_S

ROUND_S = 1.0
HANG_S = 120
"""A round that takes longer hangs: the process ends with the stacks of all threads."""

ALARM_S = 0.003
MOST_TYPES = 300
"""Classes that a round registers: a queue remembers each for its life."""

BEHAVIOURS = ["plain", "plain", "raises", "slow", "calls", "idle"]


class Alarm(Exception):
    """Raised in the main thread, wherever it is."""


class Alarms:
    """Sends a signal every few milliseconds, which raises where the main thread is armed for it."""

    armed = False

    def __enter__(self) -> "Alarms":
        self.before = signal.signal(signal.SIGALRM, self.ring)
        signal.setitimer(signal.ITIMER_REAL, ALARM_S, ALARM_S)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def ring(self, *_: object) -> None:
        """Raise once."""
        if self.armed:
            self.armed = False
            raise Alarm


def shape(rng: random.Random) -> tuple[BatchQueueConfig[Any], str]:
    """Return random settings, and what keeps its order under them."""
    turn = itertools.count()

    def rotate(load: list[float], owner: list[int], threads: int) -> list[int]:
        step = next(turn)
        return [(thread + step) % threads for thread in owner] if step % 5 else [99]

    order, selector = rng.choice(
        [
            ("type", None),
            ("type", None),
            ("key", PartitionSelector.by_key(lambda item: item.key)),
            ("nothing", PartitionSelector.round_robin()),
        ]
    )
    scheduler: dict[str, Any] = {"threads": ThreadPolicy.fixed(rng.randint(1, 4))}
    if rng.random() < 0.35:
        scheduler = {
            "shared_scheduler": (
                f"stress-{rng.randint(1, 2)}",
                ThreadPolicy.fixed(rng.randint(1, 3)),
            )
        }
    max_batch_items = rng.choice([1, 50, 10_000])
    partitions = [
        PartitionPolicy.fixed(rng.randint(1, 6)),
        PartitionPolicy.adaptive(rng.choice([1, 25])),
    ]
    balancers = [None, DrainBalancer.throughput_weighted(1.0), DrainBalancer.custom(rotate)]
    config: BatchQueueConfig[Any] = BatchQueueConfig(
        **scheduler,
        selector=selector,
        partitions=rng.choice(partitions),
        # A large backlog in batches of one would take longer than the round.
        buffer_size=rng.choice([1, 10, 50] if max_batch_items == 1 else [1, 10, 500, 10_000]),
        strategy=rng.choice(list(BufferStrategy)),
        max_batch_items=max_batch_items,
        min_idle_ms=rng.choice([0, 1]),
        max_idle_ms=60_000,
        retry=rng.choice([None, RetryPolicy(attempts=2, backoff_ms=0)]),
        balancer=rng.choice(balancers),
        rebalance_interval_ms=1,
    )
    return config, order


class Round:
    """A few queues, the threads that work on them, and their end."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.rng = rng
        self.until = time.monotonic() + ROUND_S
        self.done = Counter[str]()
        self.errors: list[BaseException] = []
        self.runs: list[Run] = []
        self.queues: list[BatchQueue[Any]] = []
        for index in range(rng.randint(1, 4)):
            config, order = shape(rng)
            queue = BatchQueueManager.create(f"stress-{number}-{index}", config)
            self.queues.append(queue)
            self.runs.append(Run(queue, order))

    def work(self) -> None:
        """Let all threads work for a second, or until a thread has shut the queues down."""
        bodies = [self.produce, self.produce, self.change, self.make_types, self.control]
        threads = []
        for index, body in enumerate(bodies):
            rng = random.Random(self.rng.random())
            threads.append(
                threading.Thread(target=self.guarded, args=(body, index, rng), daemon=True)
            )
        for thread in threads:
            thread.start()
        self.produce_under_fire()
        for thread in threads:
            join(thread)
        if self.errors:
            raise self.errors[0]

    def guarded(self, body: Callable[..., None], index: int, rng: random.Random) -> None:
        """Run one thread's work; keep what it raises for the main thread."""
        try:
            body(index, rng)
        except BaseException as error:
            self.errors.append(error)

    def turns(self) -> Iterator[None]:
        """Yield until the round is over."""
        while time.monotonic() < self.until and not self.errors:
            yield

    def produce(self, index: int, rng: random.Random) -> None:
        """Produce into all queues."""
        producers = [run.producer(("thread", index)) for run in self.runs]
        for _ in self.turns():
            self.put(rng.choice(producers), rng)

    def put(self, producer: Producer, rng: random.Random) -> None:
        """Enqueue one item, or several."""
        if rng.random() < 0.5:
            producer.put(rng.choice(TYPES))
            self.done["produce"] += 1
        else:
            item_types = rng.choices(TYPES, k=rng.randint(1, 40))
            producer.put_many(item_types, as_list=rng.random() < 0.7)
            self.done["produce_many"] += 1

    def produce_under_fire(self) -> None:
        """Produce in the main thread, where a signal handler raises every few milliseconds."""
        producers = [(run, run.producer(("main", 0))) for run in self.runs]
        with Alarms() as alarms:
            for _ in self.turns():
                try:
                    alarms.armed = True
                    self.put_under_fire(*self.rng.choice(producers))
                    alarms.armed = False
                    self.done["produce"] += 1
                except Alarm:
                    self.done["signal"] += 1

    def put_under_fire(self, run: Run, producer: Producer) -> None:
        """One item. An exception may come between any two lines: until then its fate is unknown."""
        (item,) = producer.items([self.rng.choice(TYPES)])
        run.unknown.append(item)
        accepted = False
        try:
            accepted = run.queue.produce(item, timeout=WAIT_S)
        except Alarm as alarm:
            if getattr(alarm, "accepted", None) != 0:
                raise
            self.done["interrupted wait"] += 1
        producer.record([item], accepted)
        run.unknown.pop()

    def change(self, index: int, rng: random.Random) -> None:
        """Replace and remove handlers."""
        for _ in self.turns():
            run = rng.choice(self.runs)
            behaviour = rng.choice(BEHAVIOURS)
            try:
                which = rng.random()
                if which < 0.5:
                    self.add(run, rng.choice(PLAIN), behaviour)
                elif which < 0.7:
                    self.add_factory(run, rng.choice(SPREAD), behaviour)
                else:
                    run.queue.remove_handler(rng.choice(TYPES))
                    self.done["remove"] += 1
            except QueueClosedError:
                self.done["closed"] += 1

    def add(self, run: Run, item_type: type, behaviour: str) -> None:
        """Register a new handler, and count it only if that succeeded."""
        handler = run.handler(behaviour)
        run.queue.add_handler(item_type, handler, weight=0.3, replace=True)
        handler.added = 1
        self.done["add"] += 1

    def add_factory(self, run: Run, item_type: type, behaviour: str) -> None:
        """Register a factory, if the queue has room for it."""
        made: list[Any] = []

        def factory() -> Any:
            made.append(run.handler(behaviour))
            return made[-1]

        try:
            run.queue.add_handler_factory(item_type, factory, partitions=2, replace=True)
        except ConfigError:
            return
        for handler in made:
            handler.added = 1
        self.done["add_factory"] += 1

    def make_types(self, index: int, rng: random.Random) -> None:
        """Make a class, use it, and drop it: queues grow, and addresses of classes are reused."""
        producers = [run.producer(("dynamic", index)) for run in self.runs]
        for number, _ in enumerate(self.turns()):
            item_type = type(f"Dynamic{number}", (Item,), {"__slots__": ()})
            which = rng.randrange(len(self.runs))
            run = self.runs[which]
            known = number % 3 and number < MOST_TYPES
            try:
                if known:
                    self.add(run, item_type, rng.choice(BEHAVIOURS))
                producers[which].put_many([item_type] * rng.randint(1, 5))
                if known:
                    run.queue.remove_handler(item_type)
            except QueueClosedError:
                self.done["closed"] += 1
            self.done["type"] += 1

    def control(self, index: int, rng: random.Random) -> None:
        """Rebalance, flush, read statistics, collect; near the end perhaps shut a queue down."""
        for _ in self.turns():
            queue = rng.choice(self.queues)
            which = rng.choice(["rebalance", "rebalance", "flush", "stats", "collect", "shutdown"])
            if which == "rebalance":
                queue.rebalance()
            elif which == "flush":
                queue.flush(rng.choice([0.001, WAIT_S]))
            elif which == "stats":
                queue.stats().handlers()
            elif which == "collect":
                gc.collect()
            elif rng.random() < 0.02:
                queue.shutdown(rng.choice([0, 0.01, WAIT_S]))
            else:
                continue
            self.done[which] += 1

    def end(self) -> None:
        """Shut everything down, from several threads, and check each queue."""
        timeout = self.rng.choice([WAIT_S, WAIT_S, 0, 0.01])
        one_by_one_ends = [lambda queue=queue: queue.shutdown(timeout) for queue in self.queues]
        run_threads(
            lambda: BatchQueueManager.shutdown_all(timeout), *self.rng.choice([[], one_by_one_ends])
        )
        for run in self.runs:
            run.queue.shutdown(WAIT_S)
            run.check()
            self.done["unknown"] += len(run.unknown)
            self.done["items"] += run.queue.stats().produced
            self.done["moves"] += run.queue.stats().moves
            self.done["abandoned"] += run.queue.stats().abandoned


def main() -> int:
    """Run rounds until the time is over; return 0 if every promise held."""
    parser = argparse.ArgumentParser(
        description="Everything together, round after round, each checked at its end."
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=300,
        help="how long, at least one round (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=None, help="makes the same rounds again")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    faulthandler.enable()
    log = logging.getLogger("batchqueue")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    sys.setswitchinterval(5e-4)
    rng, total = random.Random(seed), Counter[str]()
    until = time.monotonic() + options.seconds
    rounds = 0
    while rounds == 0 or time.monotonic() < until:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        this_round = Round(rounds, random.Random(rng.random()))
        try:
            this_round.work()
            this_round.end()
        except BaseException:
            configs = "\n".join(str(queue.config) for queue in this_round.queues)
            print(
                f"round {rounds} of seed {seed} failed, with these queues:\n{configs}",
                file=sys.stderr,
                flush=True,
            )
            raise
        total.update(this_round.done)
        rounds += 1
    faulthandler.cancel_dump_traceback_later()
    shown = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    print(f"stress: {rounds} rounds, every item accounted for and in order: {shown}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
