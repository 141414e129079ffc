"""Declared metrics go from Arrow columns to the store as rows, with the same result as objects."""

import math
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from batchqueue.aggregation import (
    Count,
    CountMetrics,
    Distinct,
    Max,
    MaxMetrics,
    Mean,
    Metrics,
    Min,
    QuantileMetrics,
    Quantiles,
    Sum,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.outputs import BadRows, StoreError, StoreTransaction
from batchqueue.outputs.sqlite_store import SqliteTransaction
from batchqueue.queues.queue import live_queues, live_stats
from batchqueue.spark import AggregationJob, ArrowAggregation, DeadLetters, SinkError
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.groups import ColumnPartials
from batchqueue.spark.task.message import EpochId

OPTIONS = SinkOptions(sink_id="rows", on_new_query=None, txn_id=None, max_commit_bytes=10_000_000)
CENTS = metric_type("cents", SumMetrics, columns={"total": int})
PRICE = metric_type("price", SumMetrics, columns={"total": Decimal})
LATEST = metric_type("latest", MaxMetrics, columns={"value": str})
IS_OPEN = metric_type("is open", MaxMetrics, columns={"value": bool})
MEASURES: dict[Any, Any] = {
    "rows": Count(),
    "weights": Count("weight"),
    "weight": Sum("weight"),
    "mean": Mean("weight"),
    "heaviest": Max("weight"),
    "lightest": Min("weight"),
    "quantiles": Quantiles("weight"),
    "names": Distinct("name"),
    CENTS: Sum("cents"),
    PRICE: Sum("price"),
    LATEST: Max("name"),
    IS_OPEN: Max("is_open"),
}
BY_NAME = ArrowAggregation(keys=["name"], time=Window("at", 60), metrics=MEASURES)
KEYS: dict[str, Any] = {"name": str, "number": int, "day": date, "is_open": bool}
ROUTES = metric_type("routes", CountMetrics, keys=KEYS)
BY_KEYS = ArrowAggregation(keys=KEYS, time=Window("at", 60), metrics={ROUTES: Count()})


def job(store: Any, **changes: Any) -> AggregationJob:
    parts: dict[str, Any] = {"name": "rows", "arrow": [BY_NAME, BY_KEYS], "store": store}
    return AggregationJob(**{**parts, **changes})


def rows(seed: int, count: int = 60) -> pa.RecordBatch:
    chance = random.Random(seed)
    weights = (0.1, 1e300, -1e300, math.nan, math.inf, -0.0, None)
    columns = {
        "name": pa.array([chance.choice(("", "a|b", "ä\\", "c")) for _ in range(count)]),
        "number": pa.array([chance.choice((-(2**63), 7)) for _ in range(count)], pa.int64()),
        "day": pa.array([chance.choice((date(1, 1, 1), date(2024, 2, 29))) for _ in range(count)]),
        "is_open": pa.array([chance.random() < 0.5 for _ in range(count)]),
        "at": pa.array([chance.randrange(60 * seed, 60 * seed + 120) for _ in range(count)]),
        "weight": pa.array([chance.choice(weights) for _ in range(count)], pa.float64()),
        "cents": pa.array([chance.randrange(-(2**50), 2**50) for _ in range(count)]),
        "price": pa.array([Decimal(chance.randrange(10**9)).scaleb(-2) for _ in range(count)]),
    }
    return pa.RecordBatch.from_pydict(columns)


def apply_epoch(of: AggregationJob, number: int) -> dict[str, Any]:
    epoch = EpochId("q", number)
    tasks = [rows(number), rows(number + 1)]
    messages = [run_attempt(of, OPTIONS, [batch], epoch) for batch in tasks]
    return EpochCommit(of, OPTIONS, messages).apply_epoch(number)


def contents(store: Any) -> dict[str, list[str]]:
    types = [*BY_NAME.types.values(), ROUTES]
    return {kind.name: list(map(repr, store.read(kind, "rows"))) for kind in types}


def counts(summary: dict[str, Any]) -> dict[str, Any]:
    return {stage: summary["stages"][stage]["consumed"] for stage in ("l2", "persist")}


def test_rows_have_the_same_result_as_objects(
    any_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch has keys of the one before, and new ones."""
    for transaction_type in (StoreTransaction, SqliteTransaction):
        monkeypatch.setattr(transaction_type, "rows_at_once", 3)
    store, found = any_store, []
    for are_rows in (True, False):
        if not are_rows:
            monkeypatch.setattr(ColumnPartials, "are_rows", False)
        with store.transaction("rows") as transaction:
            transaction.clear()
        summaries = [apply_epoch(job(store), number) for number in range(3)]
        found.append((contents(store), list(map(counts, summaries))))
    for name in found[0][0]:
        assert found[0][0][name] == found[1][0][name]
    assert found[0][1] == found[1][1]
    assert len(found[0][0]["rows"]) > 8


def no_objects(_: ColumnPartials) -> Iterator[Metrics]:
    raise AssertionError("partials became objects")


def test_no_objects_are_made_of_rows(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {name: of for name, of in MEASURES.items() if name not in ("quantiles", "names")}
    by_name = ArrowAggregation(keys=["name"], time=Window("at", 60), metrics=plain)
    monkeypatch.setattr(ColumnPartials, "__iter__", no_objects)
    summary = apply_epoch(job(store, arrow=[by_name, BY_KEYS]), 0)
    assert summary["stages"]["persist"]["consumed"] == sum(
        len(store.read(kind, "rows")) for kind in [*by_name.types.values(), ROUTES]
    )


class Doubled(CountMetrics):
    """A kind that stores another number."""

    __slots__ = ()

    def to_rows(self) -> list[tuple[Any, ...]]:
        return [(2 * self.count,)]

    def copy(self) -> Any:
        return type(self)(*self.key, self.count)


class Shouted(CountMetrics):
    """A kind that changes the key."""

    __slots__ = ()

    def __init__(self, entity: Any, time_bucket: int, count: int = 1) -> None:
        super().__init__(entity.upper(), time_bucket, count)


class Rounded(SumMetrics):
    """A kind that stores the sum in thousands."""

    __slots__ = ()

    @property
    def total(self) -> Any:
        return round(super().total, -3)


@pytest.mark.parametrize("kind", [Doubled, Shouted, Rounded])
def test_kind_that_changes_its_rows_gets_objects(store: Any, kind: Any) -> None:
    derived = metric_type("derived", kind)
    measure = Sum("cents") if kind is Rounded else Count()
    step = ArrowAggregation(keys=["name"], time=Window("at", 60), metrics={derived: measure})
    apply_epoch(job(store, arrow=[step]), 0)
    found = store.read(derived, "rows")
    if kind is Doubled:
        assert sum(item.count for item in found) == 2 * 120
    elif kind is Shouted:
        assert {item.entity for item in found} == {"", "A|B", "Ä\\", "C"}
    else:
        assert {item.to_rows()[0][0] % 1_000 for item in found} == {0}


def test_changed_keys_of_rows_are_listed(store: Any) -> None:
    of = job(store, changed_keys=True)
    apply_epoch(of, 0)
    before = contents(store)
    apply_epoch(of, 1)
    _, changed = store.changed("rows")
    added = [item.key for item in store.read(ROUTES, "rows") if repr(item) not in before["routes"]]
    assert changed.keys["routes"] == added
    assert len(changed.keys) == len(MEASURES) + 1


@pytest.mark.parametrize("replaced", [range(60), range(60, 120)])
def test_rows_outside_of_what_is_replaced_are_refused(store: Any, replaced: range) -> None:
    options = replace(OPTIONS, txn_id="t", replaced=replaced)
    of = job(store, arrow=[BY_KEYS])
    commit = EpochCommit(of, options, [run_attempt(of, OPTIONS, [rows(0)], None)])
    with pytest.raises(SinkError, match=r"and `replace` is from \d+ until before \d+"):
        commit.apply_batch(overwrite=False)
    assert contents(store)["routes"] == []
    replacing = replace(options, replaced=range(120))
    replace(commit, options=replacing).apply_batch(overwrite=False)
    assert sum(item.count for item in store.read(ROUTES, "rows")) == 60


def test_entity_without_values_of_its_key_columns_is_refused() -> None:
    broken = pa.array(["no separator"])
    columns = ColumnPartials(ROUTES, broken, pa.array([0]), (pa.array([1]),), pa.array([0, 1]))
    with pytest.raises(StoreError, match="metric routes: the entity 'no separator' does not stand"):
        columns.rows()


def test_store_that_does_not_take_rows_fails_the_commit(store: Any) -> None:
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("CREATE TABLE count_metrics (count)")
    counting = ArrowAggregation(keys=["name"], metrics={"rows": Count()})
    message = "'rows' was not stored, so nothing of this epoch is committed; first error: StoreErr"
    with pytest.raises(SinkError, match=message):
        apply_epoch(job(store, arrow=[counting]), 0)
    assert store.summaries("rows") == []


class Watching(CountMetrics):
    """A kind that notes which new queues of a commit there are when it is stored."""

    __slots__ = ()
    queues: ClassVar[set[str]] = set()
    before: ClassVar[list[Any]] = []
    """Queues of earlier commits, which live until they are collected."""

    def to_rows(self) -> list[tuple[Any, ...]]:
        names = {stats.name for queue, stats in live_stats() if queue not in self.before}
        self.queues.update(name for name in names if name.endswith(("-l2", "-persist")))
        return super().to_rows()


WATCHED = metric_type("watched", Watching)


def watched(store: Any, **changes: Any) -> AggregationJob:
    """A job whose metrics take all ways: rows, objects, objects of a single task, bad rows."""
    by_name = ArrowAggregation(
        keys=["name"], time=Window("at", 60), metrics={**MEASURES, WATCHED: Count()}
    )
    of = {"name": "watched", "arrow": [by_name, BY_KEYS], "on_bad_row": DeadLetters(), **changes}
    return job(store, **of)


def apply_watched(of: AggregationJob, number: int) -> dict[str, Any]:
    """Commit three tasks, one of which has another type of column, and one a bad row."""
    first, second = rows(number), rows(number + 1)
    wide = rows(number + 2)
    cents = wide.schema.get_field_index("cents")
    wide = wide.set_column(cents, "cents", wide.column("cents").cast(pa.float64()))
    name = second.schema.get_field_index("name")
    names = ["nul\0", *second.column("name").to_pylist()[1:]]
    second = second.set_column(name, "name", pa.array(names))
    epoch = EpochId("q", number)
    messages = [run_attempt(of, OPTIONS, [batch], epoch) for batch in (first, second, wide)]
    return EpochCommit(of, OPTIONS, messages).apply_epoch(number)


def test_commit_of_declared_metrics_starts_no_queue_and_has_the_same_result(
    any_store: Any,
) -> None:
    store, found = any_store, []
    # A job with a function has the queues, also if the function makes nothing.
    for items in (None, lambda _: []):
        with store.transaction("rows") as transaction:
            transaction.clear()
        Watching.queues.clear()
        Watching.before = live_queues()
        summaries = [apply_watched(watched(store, items=items), number) for number in range(2)]
        Watching.before = []
        assert {name.rpartition("-")[2] for name in Watching.queues} == (
            set() if items is None else {"l2", "persist"}
        )
        assert (summaries[1]["commit_drain_cpu_s"] == 0) == (items is None)
        bad_rows = [row for item in store.read(BadRows, "rows") for row in item.rows]
        keys = [repr(item) for item in store.read(WATCHED, "rows")]
        found.append((contents(store), keys, sorted(bad_rows), list(map(counts, summaries))))
    assert found[0] == found[1]
    assert found[0][3][0]["l2"] > 0


def test_declared_metric_that_cannot_be_stored_fails_the_commit(store: Any) -> None:
    with closing(sqlite3.connect(store.path)) as other:
        other.execute(f"CREATE TABLE {QuantileMetrics.table} (value)")
    spread = ArrowAggregation(keys=["name"], metrics={"spread": Quantiles("weight")})
    message = "'spread' was not stored, so nothing of this epoch is committed; first error: Sto"
    with pytest.raises(SinkError, match=message):
        apply_epoch(job(store, arrow=[spread]), 0)
    assert store.summaries("rows") == []
