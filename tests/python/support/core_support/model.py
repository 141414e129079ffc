"""What the model of the queue remembers: who produced what, who got it, and what must hold then.

Producers record what was accepted and refused, handlers what they got. Nothing is shared but a list
that only grows, so the model orders no threads that the queue itself does not order.
"""

import itertools
import threading
from collections import Counter, defaultdict

from batchqueue import BatchQueueError, BufferStrategy, ProduceTimeoutError, ReentrantProduceError
from core_support.queues import assert_conserved
from core_support.waits import WAIT_S, eventually

KEYS = 3


class Item:
    __slots__ = ("key", "number", "producer")

    def __init__(self, producer, number, key):
        self.producer, self.number, self.key = producer, number, key

    def __repr__(self):
        return (
            f"{type(self).__name__}(producer {self.producer}, number {self.number}, key {self.key})"
        )


PLAIN = [type(f"Plain{index}", (Item,), {"__slots__": ()}) for index in range(4)]
"""Classes with one handler at a time: order is kept per class."""

SPREAD = [type(f"Spread{index}", (Item,), {"__slots__": ()}) for index in range(2)]
"""Classes with a handler factory: order is kept per instance."""

TYPES = PLAIN + SPREAD


class Producer:
    """The calls of one thread. Its numbers rise over all classes."""

    def __init__(self, queue, name):
        self.queue, self.name = queue, name
        self.numbers = itertools.count()
        self.accepted = []
        self.refused = 0

    def items(self, item_types):
        return [
            item_type(self.name, number := next(self.numbers), number % KEYS)
            for item_type in item_types
        ]

    def put(self, item_type, timeout=WAIT_S):
        """Enqueues one item; returns False if it was refused."""
        (item,) = self.items([item_type])
        try:
            accepted = self.queue.produce(item, timeout=timeout)
        except (ProduceTimeoutError, ReentrantProduceError):
            assert timeout < WAIT_S, "P4: no space for all that time"
            accepted = False
        self.record([item], accepted)
        return accepted

    def put_many(self, item_types, as_list=True, timeout=WAIT_S):
        items = self.items(item_types)
        try:
            accepted = self.queue.produce_many(items if as_list else iter(items), timeout=timeout)
        except (ProduceTimeoutError, ReentrantProduceError) as error:
            assert timeout < WAIT_S, "P4: no space for all that time"
            accepted = error.accepted
        self.record(items, accepted)

    def record(self, items, accepted):
        self.accepted += items[: int(accepted)]
        self.refused += accepted < len(items)


class Handler:
    """Records its batches. Raises, is slow, or calls its queue, depending on its behaviour."""

    def __init__(self, run, behaviour="plain"):
        self.run, self.behaviour = run, behaviour
        self.inside = threading.Lock()
        self.producer = run.producer(("handler", id(self)))
        self.calls = itertools.count()
        self.closed = 0
        self.added = 0
        self.gone = False

    def consume(self, batch):
        with Alone(self):
            if self.gone:
                self.run.wrong.append(f"P1: {self.behaviour} handler was entered after its removal")
            call = next(self.calls)
            if self.behaviour == "raises" and call % 3 == 0:
                self.run.tried.update((item.producer, item.number) for item in batch)
                raise ValueError("as planned")
            if self.behaviour == "slow":
                threading.Event().wait(0.0005)
            elif self.behaviour == "calls":
                self.run.call_from_handler(call, self.producer, batch)
            self.run.got.append((self, True, list(batch)))

    def on_error(self, batch, error):
        with Alone(self):
            if isinstance(error, ValueError):
                self.run.got.append((self, False, list(batch)))
            else:
                self.run.wrong.append(f"a handler failed: {error!r}")

    def on_close(self):
        with Alone(self):
            self.closed += 1


class IdleHandler(Handler):
    """Has `on_idle` as well."""

    def on_idle(self):
        with Alone(self):
            pass


class Alone:
    """Records when two calls into one handler overlap."""

    def __init__(self, handler):
        self.handler = handler

    def __enter__(self):
        if not self.handler.inside.acquire(blocking=False):
            self.handler.run.wrong.append(f"P1: {self.handler.behaviour} handler was entered twice")

    def __exit__(self, *exc):
        if self.handler.inside.locked():
            self.handler.inside.release()


class Run:
    """One queue with all that is known about it."""

    def __init__(self, queue, order):
        """`order` is what keeps its order: "type", "key" or "nothing"."""
        self.queue, self.order = queue, order
        self.got = []
        self.letters = []
        """Dead letters, if the queue has `keep_letters` for them."""
        self.tried = set()
        """Items that failed once: they count as failed if their handler is removed before the next
        try."""
        self.unknown = []
        """Items that may or may not be in: a signal came before their producer recorded them."""
        self.certain = set()
        """Classes that had a handler before their first item and never lost it."""
        self.wrong = []
        self.handlers = []
        self.producers = []

    def producer(self, name):
        self.producers.append(Producer(self.queue, name))
        return self.producers[-1]

    def handler(self, behaviour):
        made = (IdleHandler if behaviour == "idle" else Handler)(self, behaviour)
        self.handlers.append(made)
        return made

    def keep_letters(self, letters):
        self.letters += [(letter.item.producer, letter.item.number) for letter in letters]

    def call_from_handler(self, call, producer, batch):
        """None of these calls may wait."""
        which = call % 5
        if which == 0:
            assert self.queue.rebalance() == 0
        elif which == 1:
            self.queue.remove_handler(PLAIN[call % len(PLAIN)])
        elif which == 2 and batch[0].producer[0] != "handler":
            # Not for what a handler produced, or it would never end.
            if self.queue.config.strategy is BufferStrategy.BLOCKING:
                producer.put(PLAIN[call % len(PLAIN)], timeout=0)
            else:
                producer.put_many([PLAIN[0], PLAIN[1]], timeout=0)
        elif which == 3:
            try:
                self.queue.flush()
            except BatchQueueError:
                return
            self.wrong.append("P9: a flush from a handler did not raise")
        else:
            assert self.queue.stats().in_flight >= 0

    # What must hold at rest.

    def check(self):
        """Checks a queue that was shut down."""
        stats = self.queue.stats()
        if stats.abandoned:
            eventually(
                lambda: not any(handler.inside.locked() for handler in self.handlers),
                "the last batches",
            )
        assert self.wrong == []
        assert_conserved(stats)
        self.check_counts(stats, {(item.producer, item.number) for item in self.unknown})
        self.check_order()
        if not stats.abandoned:
            eventually(
                lambda: all(handler.closed >= bool(handler.added) for handler in self.handlers),
                "on_close of all",
            )
            for handler in self.handlers:
                assert handler.closed <= handler.added, (
                    f"{handler.behaviour} handler closed {handler.closed} times"
                )

    def check_counts(self, stats, unknown):
        accepted = {
            (item.producer, item.number)
            for producer in self.producers
            for item in producer.accepted
        }
        got = Counter((item.producer, item.number) for _, _, batch in self.got for item in batch)
        assert max(got.values(), default=1) == 1, "P2: handled twice"
        assert not set(got) - accepted - unknown, "P2: handled without having been accepted"
        refused = sum(producer.refused for producer in self.producers)
        assert refused <= stats.refused <= refused + len(unknown)
        assert len(accepted) <= stats.produced <= len(accepted) + len(unknown)
        handled = [item for _, fine, batch in self.got if fine for item in batch]
        consumed = len(handled)
        failed = sum(len(batch) for _, fine, batch in self.got if not fine)
        failed += len(self.tried - set(got))
        assert max(Counter(self.letters).values(), default=1) == 1, "P2: two letters of an item"
        both = {(item.producer, item.number) for item in handled} & set(self.letters)
        assert both == set(), "P2: a letter of an item that was handled"
        assert not set(self.letters) - set(got) - self.tried, "P2: a letter without a failure"
        if stats.abandoned:
            # A batch that runs when time runs out is abandoned, even if its handler returns later.
            settled = stats.consumed + stats.failed + stats.dead_lettered
            assert settled <= consumed + failed <= settled + stats.abandoned
            assert stats.dead_lettered <= len(self.letters)
        else:
            counted = (stats.consumed, stats.dead_lettered, stats.failed)
            assert counted == (consumed, len(self.letters), failed - len(self.letters))
            assert stats.unhandled == stats.produced - consumed - failed
            certain = [
                item
                for producer in self.producers
                for item in producer.accepted
                if type(item) in self.certain
            ]
            missing = [item for item in certain if (item.producer, item.number) not in got]
            assert missing == [], "P2: unhandled although their class had a handler before"

    def check_order(self):
        if self.order == "nothing":
            return
        last = defaultdict(lambda: -1)
        for handler, _, batch in self.got:
            for item in batch:
                if type(item) in SPREAD:
                    lane = (handler, item.producer)
                elif self.order == "key":
                    lane = (type(item), item.producer, item.key)
                else:
                    lane = (type(item), item.producer)
                assert item.number > last[lane], f"P3: {item} came after number {last[lane]}"
                last[lane] = item.number
