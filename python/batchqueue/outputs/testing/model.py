"""What a sink must have after some changes: the model that `check_store` compares a store with."""

import copy
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from batchqueue.aggregation import (
    CountMetrics,
    MaxMetrics,
    Metrics,
    MinMetrics,
    Ranking,
    SumMetrics,
    metric_type,
)
from batchqueue.outputs.store import FIRST_BUCKET, UNMARKED, StoreTransaction

COUNT = metric_type("check_store.count", CountMetrics)
TOTAL = metric_type("check_store.total", SumMetrics, columns={"total": int})
LARGEST = metric_type("check_store.largest", MaxMetrics)
LATEST = metric_type("check_store.latest", MaxMetrics, columns={"value": str})
WORST = metric_type("check_store.worst", Ranking, limit=2)
PRICE = metric_type("check_store.price", SumMetrics, columns={"total": Decimal})
IS_UP = metric_type("check_store.is_up", MinMetrics, columns={"value": bool})
SAME_NAME = metric_type("check_store.price", CountMetrics)
"""In another table than `PRICE`."""
KINDS: tuple[type[Metrics], ...] = (
    *(COUNT, TOTAL, LARGEST, LATEST, WORST, PRICE, IS_UP),
    SAME_NAME,
)

BY_PLACE = metric_type(
    "check_store.by_place",
    CountMetrics,
    keys={"place": str, "number": int, "day": date, "is_open": bool},
)
"""With key columns. It is not one of `KINDS`, whose entities are any text."""

ENTITIES = ("a", "b", "A", "ä 'quoted\" \\")
BUCKETS = (-1, 0, 43_200, 86_400)

Key = tuple[str, int]
Returned = tuple[int | None, int | None]
"""What a method of the transaction has returned, and that of the model."""


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
        """Replace partials; the last of several with equal keys counts."""
        for item in items:
            self.partials[type(item), item.key] = item.copy()

    def merge(self, items: Iterable[Metrics]) -> None:
        """Combine partials with what is there."""
        for item in items:
            there = self.partials.get((type(item), item.key))
            if there is None or not there.to_rows():
                self.save([item])
            else:
                there.combine(item)

    def delete(self, before: int, since: int, keep: Collection[type[Metrics]]) -> int:
        """Delete a range of time buckets, apart from some metrics; return the number of rows."""
        gone = [
            (kind, key)
            for kind, key in self.partials
            if since <= key[1] < before and kind not in keep
        ]
        return sum(len(self.partials.pop(key).to_rows()) for key in gone)

    def record(self, query_id: str, batch_id: int, *, marked: bool) -> None:
        """Enter an epoch."""
        self.marks[query_id if marked else UNMARKED] = batch_id if marked else 0
        self.summaries.append((query_id, batch_id, {"batch": batch_id}))

    def stored(self, kind: type[Metrics]) -> list[Any]:
        """Return the partials of a metric, in their order; those without rows are not there."""
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
    """Random changes, the same to a transaction and to a model."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def step(self, transaction: StoreTransaction, model: Model) -> tuple[str, Returned]:
        """Make one change; return its name, and what was returned."""
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
