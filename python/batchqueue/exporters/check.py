"""A conformance test for your own exporter: call it in a test."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from batchqueue.exceptions import BatchQueueError
from batchqueue.exporters.contract import Exporter, NotDelivered
from batchqueue.queues.callbacks import DeadLetter
from batchqueue.queues.config import (
    BatchQueueConfig,
    PartitionPolicy,
    RetryPolicy,
    ThreadPolicy,
)
from batchqueue.queues.queue import BatchQueue

T = TypeVar("T")

_ITEMS = 200
_THREADS = 3
_WAIT_S = 30.0
_RETRY = RetryPolicy(attempts=None, backoff_ms=1, max_backoff_ms=50)


def check_exporter(
    make_exporter: Callable[[], Exporter[T]],
    receive: Callable[[], Iterable[Hashable]],
    *,
    make_item: Callable[[int], T],
    key: Callable[[T], Hashable],
    make_bad_item: Callable[[int], T] | None = None,
    outage: Callable[[], AbstractContextManager[Any]] | None = None,
) -> None:
    """Check that an exporter keeps the contract, on queues that it makes.

    All is well: each item arrives once, in order. The outcomes add up, and fit the items. An
    exception loses nothing. `close` works before the first item, twice, and before the next item;
    during a call it returns what is inside. Exporters work side by side in several drain threads.
    With `make_bad_item`, bad items are dead letters and all others arrive; with `outage`, no item
    is lost in one.

    Args:
        make_exporter: Makes an exporter; all of them send to the same place.
        receive: Returns the keys of all items that have arrived since the beginning, in order.
        make_item: Makes an item from a number; each number is used once.
        key: Returns the key of an item, as `receive` has it. Two items have different keys.
        make_bad_item: Makes an item that the other side refuses. Default: None, not checked.
        outage: Returns a context during which the other side fails; afterwards it works again.
            Default: None, not checked.

    Raises:
        AssertionError: The exporter does not keep the contract; the message says where.
    """
    check = _Check(make_exporter, receive, make_item, key)
    check.each_item_arrives_once_in_order()
    check.outcomes_fit_the_items()
    check.exception_loses_nothing()
    check.close_works_at_any_time()
    check.close_returns_what_is_inside()
    check.exporters_work_side_by_side()
    if make_bad_item is not None:
        check.bad_items_are_dead_letters(make_bad_item)
    if outage is not None:
        check.outage_loses_nothing(outage)


class _Check:
    def __init__(
        self,
        make_exporter: Callable[[], Exporter[Any]],
        receive: Callable[[], Iterable[Hashable]],
        make_item: Callable[[int], Any],
        key: Callable[[Any], Hashable],
    ) -> None:
        self._make, self._receive, self._make_item, self._key = (
            make_exporter,
            receive,
            make_item,
            key,
        )
        self._numbers = itertools.count()

    def each_item_arrives_once_in_order(self) -> None:
        items, arrived = self._items(), self._arrived()
        counts, letters = self._run([self._make()], items)
        self._expect(counts.consumed == _ITEMS and not letters, "all is well, and items failed")
        self._expect(arrived() == self._keys(items), "all is well: each item once, in order")

    def outcomes_fit_the_items(self) -> None:
        items, arrived = self._items(), self._arrived()
        exporter = self._make()
        outcomes = exporter.export(list(items))
        self._expect(
            outcomes is None or len(list(outcomes)) == len(items),
            "export returns None, or an outcome for each item",
        )
        self._expect(
            outcomes is None
            or all(each is None or isinstance(each, NotDelivered) for each in outcomes),
            "an outcome is None or a NotDelivered",
        )
        self._expect(
            exporter.close(_WAIT_S) == [],
            "close returns what was not delivered, and all items have an outcome",
        )
        self._expect(arrived() == self._keys(items), "what export reports as delivered is there")

    def exception_loses_nothing(self) -> None:
        for is_before in True, False:
            items, arrived = self._items(), self._arrived()
            exporter = _Raising(self._make(), is_before)
            counts, letters = self._run([exporter], items)
            self._expect(
                counts.consumed == _ITEMS
                and not letters
                and set(arrived()) == {*self._keys(items)},
                "an exception loses nothing",
            )

    def close_works_at_any_time(self) -> None:
        exporter, items, arrived = self._make(), self._items(), self._arrived()
        self._expect(exporter.close(_WAIT_S) == [], "close before the first item returns []")
        exporter.consume(items[:1])
        self._expect(exporter.close(_WAIT_S) == [], "close returns []: all was delivered")
        self._expect(exporter.close(_WAIT_S) == [], "close twice returns []")
        exporter.consume(items[1:2])
        exporter.close(_WAIT_S)
        self._expect(arrived() == self._keys(items[:2]), "after close, export connects again")

    def close_returns_what_is_inside(self) -> None:
        exporter, items = self._make(), self._items()
        exporter_class = type(exporter)
        entered, leave = threading.Event(), threading.Event()

        class Held(exporter_class):  # type: ignore[misc, valid-type]
            """Stays inside `export` until the check lets it go."""

            def export(self, items: list[Any]) -> Any:
                entered.set()
                leave.wait(_WAIT_S)
                return super().export(items)

        exporter.__class__ = Held
        thread = threading.Thread(target=exporter.consume, args=(list(items),))
        thread.start()
        try:
            self._expect(entered.wait(_WAIT_S), "consume calls export")
            left = exporter.close(0)
        finally:
            leave.set()
            thread.join(_WAIT_S)
            exporter.__class__ = exporter_class
        exporter.close(_WAIT_S)
        self._expect(left == items, "close returns the items of a call that does not end in time")

    def exporters_work_side_by_side(self) -> None:
        items, arrived = self._items(), self._arrived()
        counts, letters = self._run([self._make() for _ in range(_THREADS)], items)
        self._expect(counts.consumed == _ITEMS and not letters, "side by side, and items failed")
        self._expect(
            Counter(arrived()) == Counter(self._keys(items)), "side by side: each item once"
        )

    def bad_items_are_dead_letters(self, make_bad_item: Callable[[int], Any]) -> None:
        items, arrived = self._items(), self._arrived()
        bad = {number: make_bad_item(next(self._numbers)) for number in (0, 57, 58, _ITEMS - 1)}
        mixed = [bad.get(number, item) for number, item in enumerate(items)]
        counts, letters = self._run([self._make()], mixed)
        self._expect(
            [self._key(letter.item) for letter in letters] == self._keys(list(bad.values())),
            "each bad item is a dead letter, and no other",
        )
        self._expect(
            all(letter.attempts == 1 for letter in letters), "a bad item is not tried again"
        )
        good = self._keys([item for number, item in enumerate(items) if number not in bad])
        self._expect(arrived() == good, "beside bad items, each other item arrives once, in order")
        self._expect(counts.consumed + len(letters) == _ITEMS, "outcomes add up")

    def outage_loses_nothing(self, outage: Callable[[], AbstractContextManager[Any]]) -> None:
        items, arrived = self._items(), self._arrived()
        half = _ITEMS // 2
        exporter = _Counting(self._make())
        letters: list[DeadLetter[Any]] = []
        with BatchQueue("check_exporter", _config([exporter], letters)) as queue:
            queue.produce_many(items[:half])
            queue.flush(_WAIT_S)
            with outage():
                queue.produce_many(items[half:])
                self._expect(exporter.failed.wait(_WAIT_S), "in an outage, items are tried again")
        self._expect(not letters, "an outage makes no dead letters")
        self._expect(set(arrived()) == {*self._keys(items)}, "an outage loses nothing")

    def _run(self, exporters: list[Any], items: list[Any]) -> tuple[Any, list[DeadLetter[Any]]]:
        """Send items through a queue; return its counts and dead letters."""
        letters: list[DeadLetter[Any]] = []
        with BatchQueue("check_exporter", _config(exporters, letters)) as queue:
            queue.produce_many(items)
            self._expect(queue.flush(_WAIT_S), f"all items are done within {_WAIT_S:.0f} s")
        counts = queue.stats()
        self._expect(
            counts.consumed + counts.dead_lettered == len(items), f"outcomes add up: {counts}"
        )
        return counts, letters

    def _items(self) -> list[Any]:
        return [self._make_item(next(self._numbers)) for _ in range(_ITEMS)]

    def _keys(self, items: list[Any]) -> list[Hashable]:
        return [self._key(item) for item in items]

    def _arrived(self) -> Callable[[], list[Hashable]]:
        """Return a function that returns what has arrived since now."""
        before = len(list(self._receive()))
        return lambda: list(self._receive())[before:]

    def _expect(self, holds: bool, claim: str) -> None:
        if not holds:
            raise AssertionError(f"the exporter does not keep the contract: {claim}")


class _Raising:
    """Raises at each second call, before the exporter exports or after it."""

    def __init__(self, exporter: Exporter[Any], is_before: bool) -> None:
        self._exporter, self._is_before = exporter, is_before
        self._calls = itertools.count()

    def consume(self, batch: list[Any]) -> Any:
        """Export a batch, and raise."""
        raises = next(self._calls) % 2 == 0
        if raises and self._is_before:
            raise BatchQueueError("raised by check_exporter")
        done = self._exporter.consume(batch)
        if raises:
            raise BatchQueueError("raised by check_exporter")
        return done

    def on_close(self) -> None:
        """Close the exporter."""
        self._exporter.on_close()


class _Counting:
    """Notes that a call of an exporter failed."""

    def __init__(self, exporter: Exporter[Any]) -> None:
        self._exporter = exporter
        self.failed = threading.Event()

    def consume(self, batch: list[Any]) -> Any:
        """Export a batch."""
        try:
            return self._exporter.consume(batch)
        except Exception:
            self.failed.set()
            raise

    def on_close(self) -> None:
        """Close the exporter."""
        self._exporter.on_close()


def _config(exporters: list[Any], letters: list[DeadLetter[Any]]) -> BatchQueueConfig[Any]:
    """Return the settings of a queue with a drain thread for each exporter."""
    made = iter(exporters)
    return BatchQueueConfig(
        threads=ThreadPolicy.fixed(len(exporters)),
        partitions=PartitionPolicy.fixed(len(exporters)),
        consumer_factory=lambda: next(made),
        max_batch_items=50,
        retry=_RETRY,
        dead_letter=letters.extend,
    )
