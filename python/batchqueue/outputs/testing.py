"""A conformance test for your own store: call it in a test, on an empty store."""

import copy
import math
import pickle
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any, NoReturn

from batchqueue.aggregation import (
    CountMetrics,
    MaxMetrics,
    Metrics,
    MinMetrics,
    Ranking,
    SumMetrics,
    metric_type,
)
from batchqueue.outputs.reading import Keys, MetricsReader, Selection
from batchqueue.outputs.store import (
    FIRST_BUCKET,
    UNMARKED,
    MetricsStore,
    StoreError,
    StoreTransaction,
    StoreUnavailableError,
)

__all__ = ["check_store"]


# The model that `check_store` compares a store with: what a sink must have after some changes.


COUNT = metric_type("check_store.count", CountMetrics)
TOTAL = metric_type("check_store.total", SumMetrics, columns={"total": int})
LARGEST = metric_type("check_store.largest", MaxMetrics)
LATEST = metric_type("check_store.latest", MaxMetrics, columns={"value": str})
WORST = metric_type("check_store.worst", Ranking, limit=2)
PRICE = metric_type("check_store.price", SumMetrics, columns={"total": Decimal})
IS_UP = metric_type("check_store.is_up", MinMetrics, columns={"value": bool})
SAME_NAME = metric_type("check_store.price", CountMetrics)
"""Has the name of `PRICE`, and another table."""
KINDS: tuple[type[Metrics], ...] = (
    *(COUNT, TOTAL, LARGEST, LATEST, WORST, PRICE, IS_UP),
    SAME_NAME,
)

BY_PLACE = metric_type(
    "check_store.by_place",
    CountMetrics,
    keys={"place": str, "number": int, "day": date, "is_open": bool},
)
"""Has key columns. It is not among `KINDS`, whose entities may be any text."""

ENTITIES = ("a", "b", "A", "ä 'quoted\" \\")
BUCKETS = (-1, 0, 43_200, 86_400)

Key = tuple[str, int]
Returned = tuple[int | None, int | None]
"""The results of a transaction's method and of the model's."""


class Model:
    """The content of one sink."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.partials: dict[tuple[type[Metrics], Key], Any] = {}
        self.marks: dict[str, int] = {}
        self.summaries: list[tuple[str, int, dict[str, Any]]] = []
        self.description: dict[str, Any] | None = None

    def save(self, items: Iterable[Metrics]) -> None:
        """Replace partials; of several with equal keys, the last counts."""
        for item in items:
            self.partials[type(item), item.key] = item.copy()

    def merge(self, items: Iterable[Metrics]) -> None:
        """Combine partials with the stored ones."""
        for item in items:
            there = self.partials.get((type(item), item.key))
            if there is None or not there.to_rows():
                self.save([item])
            else:
                there.combine(item)

    def delete(self, before: int, since: int, keep: Collection[type[Metrics]]) -> int:
        """Delete a range of time buckets, except some metrics; return the number of rows."""
        gone = [
            (kind, key)
            for kind, key in self.partials
            if since <= key[1] < before and kind not in keep
        ]
        return sum(len(self.partials.pop(key).to_rows()) for key in gone)

    def record(self, query_id: str, batch_id: int, *, marked: bool) -> None:
        """Record an epoch."""
        self.marks[query_id if marked else UNMARKED] = batch_id if marked else 0
        self.summaries.append((query_id, batch_id, {"batch": batch_id}))

    def stored(self, kind: type[Metrics]) -> list[Any]:
        """Return the partials of a metric that have rows, sorted by key."""
        items = [item for (of, _), item in self.partials.items() if of is kind and item.to_rows()]
        return sorted(items, key=lambda item: item.key)


def row_of(item: Metrics) -> tuple[Any, ...]:
    """Return a partial of one row as `merge_rows` takes it."""
    values = zip(type(item).columns.values(), *item.to_rows(), strict=True)
    typed = (value if value is None else kind(value) for kind, value in values)
    return (*item.key, *item.key_values, *typed)


def _price(number: int) -> Decimal:
    """Return a decimal with up to 19 digits before the point and 18 after it."""
    return Decimal((int(number < 0), tuple(map(int, str(number**3)[-37:].strip("-"))), -18))


class History:
    """Random changes, applied to both a transaction and a model."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def step(self, transaction: StoreTransaction, model: Model) -> tuple[str, Returned]:
        """Make one change; return its name and its two results."""
        change: Callable[[StoreTransaction, Model], Returned] = self._chance.choice(
            [
                self._merge,
                self._merge,
                self._merge_rows,
                self._save,
                self._record,
                self._describe,
                self._delete,
            ]
        )
        return change.__name__.strip("_"), change(transaction, model)

    def commits(self) -> bool:
        """Choose whether the transaction commits."""
        return self._chance.random() < 0.7

    def _items(self) -> Sequence[Metrics]:
        chance = self._chance
        made: list[Callable[[str, int, int], Metrics]] = [
            COUNT,
            TOTAL,
            lambda entity, bucket, number: LARGEST(entity, bucket, number / 7),
            lambda entity, bucket, number: LATEST(entity, bucket, f"{number:+}"),
            lambda entity, bucket, number: WORST(entity, bucket, number, str(number)),
            lambda entity, bucket, number: PRICE(entity, bucket, _price(number)),
            lambda entity, bucket, number: IS_UP(entity, bucket, number % 2 == 0),
            SAME_NAME,
        ]
        return [
            chance.choice(made)(
                chance.choice(ENTITIES), chance.choice(BUCKETS), chance.randrange(-9, 2**40)
            )
            for _ in range(chance.randrange(6))
        ]

    def _merge(self, transaction: StoreTransaction, model: Model) -> Returned:
        items = self._items()
        transaction.merge(copy.deepcopy(items))
        model.merge(items)
        return None, None

    def _merge_rows(self, transaction: StoreTransaction, model: Model) -> Returned:
        by_kind: dict[type[Metrics], list[Metrics]] = {}
        for item in self._items():
            if not item.multi_row:
                by_kind.setdefault(type(item), []).append(item)
        for kind, items in by_kind.items():
            transaction.merge_rows(kind, list(map(row_of, items)))
            model.merge(items)
        return None, None

    def _save(self, transaction: StoreTransaction, model: Model) -> Returned:
        items = self._items()
        transaction.save(copy.deepcopy(items))
        model.save(items)
        return None, None

    def _record(self, transaction: StoreTransaction, model: Model) -> Returned:
        query_id, marked = self._chance.choice("pq"), self._chance.random() < 0.8
        batch_id = model.marks.get(query_id, -1) + 1 if marked else 0
        transaction.record(query_id, batch_id, {"batch": batch_id}, marked=marked)
        model.record(query_id, batch_id, marked=marked)
        return None, None

    def _describe(self, transaction: StoreTransaction, model: Model) -> Returned:
        model.description = {"number": self._chance.randrange(9), "text": "ä", "none": None}
        transaction.describe(model.description)
        return None, None

    def _delete(self, transaction: StoreTransaction, model: Model) -> Returned:
        before = self._chance.choice(BUCKETS) + self._chance.choice((0, 1))
        since = self._chance.choice((FIRST_BUCKET, *BUCKETS))
        keep = self._chance.sample(KINDS, self._chance.choice((0, 0, 1)))
        deleted = transaction.delete(before, since=since, keep=keep)
        return deleted, model.delete(before, since, keep)


_SINKS = ("check/store", "check store 'ä'")
_HISTORIES, _TRANSACTIONS, _STEPS = 5, 8, 5
_THREADS, _ADDITIONS = 4, 5
_PATIENCE_S, _PAUSE_S = 60.0, 0.01


class _Rolledback(Exception):
    """Raised to end a transaction that must leave nothing behind."""


def check_store(make: Callable[[], MetricsStore]) -> None:
    """Check that a store keeps the contract of `MetricsStore` and `StoreTransaction`.

    It writes to two sinks, in random histories that it compares with a model, and from several
    threads, and clears the sinks at the end. Optional methods are checked where they exist:
    `ledger`, `summaries`, and those of a `MetricsReader`.

    Args:
        make: Returns a new `MetricsStore`, each time for the same store.

    Raises:
        AssertionError: The store broke a rule; the message says which, and after which steps.
        StoreUnavailableError: The store stayed unavailable; beside other threads, for a minute.

    Example:
        >>> from batchqueue.outputs import SqliteStore
        >>> check_store(lambda: SqliteStore("checked.db"))
    """
    check = _StoreCheck(make)
    for step in (
        check.prepares_and_pickles,
        check.keeps_values,
        check.combines_rows,
        check.rolls_back,
        check.refuses_after_an_error,
        check.guards_marks,
        check.excludes_writers,
        *(lambda seed=seed: check.follows_a_history(seed) for seed in range(_HISTORIES)),
        check.keeps_key_columns,
    ):
        check.clear()
        step()
    check.clear()


class _StoreCheck:
    def __init__(self, make: Callable[[], MetricsStore]) -> None:
        self.make = make

    def clear(self) -> None:
        """Empty the sinks, and check that they are empty."""
        for sink_id in _SINKS:
            with self.make().transaction(sink_id) as transaction:
                transaction.clear()
                self.compare(transaction, Model(), "in the transaction of clear()")
            self.compare_stored(sink_id, Model(), "after clear()")

    def prepares_and_pickles(self) -> None:
        """A store can be sent to another process."""
        for _ in range(2):
            self.make().prepare()
        with self.make().transaction(_SINKS[0]) as transaction:
            transaction.save([COUNT("a", 0, 7)])
        sent: MetricsStore = pickle.loads(pickle.dumps(self.make()))
        with sent.transaction(_SINKS[0]) as transaction:
            if transaction.load(COUNT, [("a", 0)]) != [COUNT("a", 0, 7)]:
                self.fail("a pickled copy does not find what was committed")

    def keeps_values(self) -> None:
        """Values and keys are read back unchanged."""
        floats = (0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan, None)
        texts = ("", "NaN", "ä 𝄞 \u202e", "a'\"\\\n\t\r,", "x" * 10_000, None)
        items: list[Metrics] = [LARGEST("f", number, value) for number, value in enumerate(floats)]
        items += [LATEST("t", number, value) for number, value in enumerate(texts)]
        for number, total in enumerate((2**63 - 1, -(2**63), 2**53 + 1, None)):
            items.append(TOTAL("i", number, total))
        keys = [(entity, bucket) for entity in ("", " ", "k" * 500) for bucket in _LIMITS]
        items += [COUNT(*key, number) for number, key in enumerate(keys)]
        wanted = [repr(item) for item in items]
        rows = [(type(item), row_of(item)) for item in items]
        with self.make().transaction(_SINKS[0]) as transaction:
            transaction.save(items)
        self.compare_values(items, wanted, "saved")
        with self.make().transaction(_SINKS[0]) as transaction:
            transaction.clear()
            for kind, of_kind in groupby(rows, itemgetter(0)):
                transaction.merge_rows(kind, [row for _, row in of_kind])
        self.compare_values(items, wanted, "merged as a row")
        with self.make().transaction(_SINKS[0]) as transaction:
            for item in (WORST("r", 0, 1, "x"), WORST("r", 0, None, "nothing ranked")):
                transaction.save([item])
            if transaction.load(WORST, [("r", 0)]):
                self.fail(
                    "a ranking without entries was saved, and the one before it is still there"
                )

    def combines_rows(self) -> None:
        """Partials given as rows are combined with what is stored, and with each other."""
        model, steps = Model(), ([("a", 1), ("b", 2)], [("b", 3), ("A", 4)], [("A", 5), ("A", 6)])
        for number, step in enumerate(steps):
            items = [COUNT(entity, 0, count) for entity, count in step]
            model.merge(items)
            with self.make().transaction(_SINKS[0]) as transaction:
                transaction.merge_rows(COUNT, list(map(row_of, items)))
                self.compare(transaction, model, f"after call {number + 1} of merge_rows()")
        self.compare_stored(_SINKS[0], model, "after merge_rows()")

    def compare_values(self, items: Sequence[Metrics], wanted: Sequence[str], how: str) -> None:
        """Compare each stored partial with its former text."""
        with self.make().transaction(_SINKS[0]) as transaction:
            for item, shown in zip(items, wanted, strict=True):
                found = transaction.load(type(item), [item.key])
                if [repr(part) for part in found] != [shown]:
                    self.fail(f"{shown} was {how}, and comes back as {found!r}")

    def keeps_key_columns(self) -> None:
        """Key columns are stored beside the entity, and rows can be selected by them."""
        places = [
            (text, number, day, is_open)
            for text in ("", "ä 'quoted\" \\", "a|b", "a", "NULL")
            for number in (-(2**63), 2**63 - 1)
            for day in (date(1, 1, 1), date(9999, 12, 31))
            for is_open in (False, True)
        ]
        items = [BY_PLACE(place, 0, number) for number, place in enumerate(places)]
        saved, as_rows = items[::2], items[1::2]
        with self.make().transaction(_SINKS[0]) as transaction:
            transaction.save(saved)
            transaction.merge_rows(BY_PLACE, list(map(row_of, as_rows)))
        with self.make().transaction(_SINKS[0]) as transaction:
            found = transaction.load(BY_PLACE, [item.key for item in items])
            self.same("load(check_store.by_place)", _by_key(found), _by_key(items), "after save()")
        store: Any = self.make()
        if not isinstance(store, MetricsReader):
            return
        rows = [
            (item.entity, 0, *item.key_values, item.count)
            for item in sorted(items, key=lambda item: item.entity.encode())
        ]
        selection = Selection.checked(BY_PLACE, _SINKS[0])
        self.same("rows(check_store.by_place)", list(store.rows(selection)), rows, "after save()")
        selections: tuple[Keys, ...] = (
            {"place": ["", "a|b"]},
            {"number": 2**63 - 1},
            {"day": [date(1, 1, 1)], "is_open": [True]},
            {"place": []},
        )
        for wanted in selections:
            selection = Selection.checked(BY_PLACE, _SINKS[0], keys=wanted)
            part = [item for item in items if selection.wants(*item.key)]
            found = store.read(BY_PLACE, _SINKS[0], keys=wanted)
            self.same(f"read(keys={wanted!r})", _by_key(found), _by_key(part), "after save()")

    def rolls_back(self) -> None:
        """A transaction that ends with an error leaves nothing behind, and the error propagates."""
        with self.make().transaction(_SINKS[0]) as transaction:
            transaction.save([COUNT("a", 0, 1)])
        try:
            with self.make().transaction(_SINKS[0]) as transaction:
                transaction.save([COUNT("a", 0, 2), COUNT("b", 0, 2)])
                transaction.record("q", 0, {})
                transaction.describe({"number": 1})
                raise _Rolledback
        except _Rolledback:
            pass
        else:
            self.fail("an error in the block of a transaction must be passed on")
        model = Model()
        model.save([COUNT("a", 0, 1)])
        self.compare_stored(_SINKS[0], model, "after a transaction that ended with an error")

    def refuses_after_an_error(self) -> None:
        """A transaction is not committed after one of its methods raised."""
        try:
            with self.make().transaction(_SINKS[0]) as transaction:
                transaction.save([COUNT("a", 0, 1)])
                try:
                    transaction.record("q", 0, {"not in JSON": object()})
                except StoreError:
                    pass
                else:
                    self.fail("record() must raise a StoreError for what JSON cannot represent")
        except StoreError:
            pass
        else:
            self.fail("a transaction must not commit after an error of a method that was caught")
        self.compare_stored(_SINKS[0], Model(), "after an error of a method that was caught")

    def guards_marks(self) -> None:
        """An epoch is applied once, and only above the mark of its query."""
        with self.make().transaction(_SINKS[0]) as transaction:
            transaction.record("q", 3, {})
        for batch_id, expected in ((2, True), (3, True), (4, False)):
            with self.make().transaction(_SINKS[0]) as transaction:
                if transaction.applied("q", batch_id) is not expected:
                    self.fail(f"the mark is 3, and applied({batch_id}) is not {expected}")
        try:
            with self.make().transaction(_SINKS[0]) as transaction:
                transaction.record("q", 3, {})
        except StoreError:
            return
        self.fail("record() of an epoch that is not above the mark must raise a StoreError")

    def excludes_writers(self) -> None:
        """Transactions of one sink never overlap, whatever threads run them."""
        errors: list[BaseException] = []

        def add() -> None:
            try:
                for _ in range(_ADDITIONS):
                    self._add()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=add, daemon=True) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        model = Model()
        model.save([COUNT("a", 0, _THREADS * _ADDITIONS)])
        self.compare_stored(_SINKS[0], model, f"after additions by {_THREADS} threads")

    def _add(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                with self.make().transaction(_SINKS[0]) as transaction:
                    transaction.merge([COUNT("a", 0, 1)])
                return
            except StoreUnavailableError:  # it may refuse to wait for the other threads
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def follows_a_history(self, seed: int) -> None:
        """Random changes in both sinks, some of them rolled back."""
        history = History(seed)
        models = {sink_id: Model() for sink_id in _SINKS}
        for number in range(_TRANSACTIONS):
            sink_id = _SINKS[number % 2]
            changed, steps = copy.deepcopy(models[sink_id]), []
            commits = history.commits()
            try:
                with self.make().transaction(sink_id) as transaction:
                    for _ in range(_STEPS):
                        name, (found, wanted) = history.step(transaction, changed)
                        steps.append(name)
                        when = f"after {', '.join(steps)} in a transaction"
                        if found != wanted:
                            self.fail(f"{name}() returned {found!r}, and not {wanted!r}, {when}")
                        self.compare(transaction, changed, when)
                    if not commits:
                        raise _Rolledback
            except _Rolledback:
                pass
            else:
                models[sink_id] = changed
            ended = "committed" if commits else "rolled back"
            for each, model in models.items():
                where = "of its sink" if each == sink_id else "of the other sink"
                self.compare_stored(each, model, f"{where} after {', '.join(steps)}, {ended}")

    def compare_stored(self, sink_id: str, model: Model, when: str) -> None:
        """Compare what is committed with a model."""
        with self.make().transaction(sink_id) as transaction:
            self.compare(transaction, model, when)
        store: Any = self.make()
        if hasattr(store, "ledger"):
            with store.ledger(sink_id) as ledger:
                if ledger is not None:
                    self.compare_ledger(ledger, model, f"by ledger() {when}")
        if hasattr(store, "summaries"):
            self.compare_summaries(store.summaries(sink_id), model, f"by summaries() {when}")
        if isinstance(store, MetricsReader):
            self.compare_reads(store, sink_id, model, when)

    def compare_reads(self, store: MetricsReader, sink_id: str, model: Model, when: str) -> None:
        """Compare a full read and a read of a selection with a model."""
        for kind in KINDS:
            stored = model.stored(kind)
            self.same(f"read({kind.name})", store.read(kind, sink_id), stored, when)
            part = [item for item in stored if item.key == ("a", 0)]
            found = store.read(kind, sink_id, entities=["a"], since=0, before=43_200)
            self.same(f"read({kind.name}) of a selection", found, part, when)
        names = [metric.metric_type.name for metric in store.metrics(sink_id)]
        wanted = sorted(kind.name for kind in KINDS if model.stored(kind))
        self.same("the names of metrics()", names, wanted, when)

    def compare(self, transaction: StoreTransaction, model: Model, when: str) -> None:
        """Compare what a transaction sees with a model."""
        keys = [(entity, bucket) for entity in ENTITIES for bucket in BUCKETS]
        for kind in KINDS:
            found = sorted(transaction.load(kind, keys), key=lambda item: item.key)
            self.same(f"load({kind.name})", found, model.stored(kind), when)
        self.compare_ledger(transaction, model, when)

    def compare_ledger(self, transaction: StoreTransaction, model: Model, when: str) -> None:
        """Compare the ledger with a model."""
        marks = {query: transaction.last_batch(query) for query in transaction.known_queries()}
        self.same("the marks", marks, model.marks, when)
        self.same("last_batch() of an unknown query", transaction.last_batch("?"), None, when)
        self.compare_summaries(transaction.summaries(), model, when)
        newest = model.summaries[-1:]
        self.same("the newest summary", transaction.summaries(1), newest, when)
        self.same("the description", transaction.description(), model.description, when)

    def compare_summaries(self, found: Sequence[Any], model: Model, when: str) -> None:
        """Compare summaries; a store keeps only the newest, and at least one."""
        kept = min(max(len(found), 1), len(model.summaries))
        self.same("summaries", list(found), model.summaries[len(model.summaries) - kept :], when)

    def same(self, what: str, found: object, wanted: object, when: str) -> None:
        """Compare what was found with what is wanted."""
        if found != wanted:
            self.fail(f"{what} is {_shown(found)}, and not {_shown(wanted)}, {when}")

    def fail(self, message: str) -> NoReturn:
        """Raise an AssertionError that names the store."""
        raise AssertionError(f"store {type(self.make()).__name__}: {message}")


_LIMITS = (-(2**63), -1, 0, 86_399, 2**63 - 1)
_LONGEST = 500


def _by_key(items: Iterable[CountMetrics]) -> dict[tuple[str, int], int]:
    return {item.key: item.count for item in items}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
