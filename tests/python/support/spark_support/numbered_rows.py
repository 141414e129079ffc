"""`NumberedRows`: a source whose rows follow from their numbers, so that tests can count them."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Metrics,
    Sum,
    SumMetrics,
    metric_type,
)
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import Lag, Limit, MetricsSink, Pipeline, Plan, Position, Split

CITIES = ("rome", "oslo", "lima", "cairo", "quito")
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("cents", pa.int64())])

ORDERS = metric_type("orders", CountMetrics)
REVENUE = metric_type("revenue", SumMetrics, columns={"total": int})
BY_CITY = Aggregation(keys=["city"], measures={"orders": Count(), "cents": Sum("cents")})


def revenue(groups: pa.RecordBatch) -> Iterator[Metrics]:
    """The metrics of each city."""
    for group in groups.to_pylist():
        yield ORDERS(group["city"], 0, group["orders"])
        yield REVENUE(group["city"], 0, group["cents"])


def stored(store: SqliteStore, sink_id: str) -> dict[str, tuple[int, int]]:
    """Orders and cents of each city in a store, to compare with `oracle`; none before the first."""
    if not store.path.exists():
        return {}
    orders = {found.entity: found.count for found in store.read(ORDERS, sink_id)}
    cents = {found.entity: found.total for found in store.read(REVENUE, sink_id)}
    return {city: (orders[city], cents[city]) for city in orders}


def rows_of(first: int, last: int) -> pa.RecordBatch:
    """The rows with these numbers, the last one excluded."""
    return rows_with(list(range(first, last)))


def rows_with(ids: list[int]) -> pa.RecordBatch:
    """The rows with these numbers."""
    return pa.RecordBatch.from_pydict(
        {
            "id": ids,
            "city": [CITIES[number * 7 % 11 % len(CITIES)] for number in ids],
            "cents": [number * 37 % 1000 for number in ids],
        },
        schema=SCHEMA,
    )


def oracle(rows: int) -> dict[str, tuple[int, int]]:
    """Orders and cents of each city in the first rows, counted without any of the code in test."""
    orders: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    for number in range(rows):
        city = CITIES[number * 7 % 11 % len(CITIES)]
        orders[city] += 1
        cents[city] += number * 37 % 1000
    return {city: (orders[city], cents[city]) for city in orders}


class NumberedRows:
    """A source of the rows 0, 1, 2 and so on.

    Args:
        rows: How many there are; or a file that says so, for a source that does not end.
        split_rows: Rows of a split.
        notes: A folder for notes of its calls, which any process may make.
        counts: Whether splits know their rows.
    """

    def __init__(
        self,
        rows: int | Path,
        split_rows: int = 500,
        notes: Path | None = None,
        counts: bool = True,
    ) -> None:
        self.rows = rows
        self.split_rows = split_rows
        self.notes = notes
        self.counts = counts

    @property
    def name(self) -> str:
        return "numbers"

    @property
    def bounded(self) -> bool:
        return isinstance(self.rows, int)

    def schema(self) -> pa.Schema:
        return SCHEMA

    def initial(self) -> Position:
        self.note("initial")
        return {"row": 0}

    def plan(self, start: Position, limit: Limit) -> Plan:
        self.note("plan", start["row"], limit.rows)
        splits: list[Split] = []
        for split in self._splits(start["row"], self._there()):
            taken = split.end["row"] - start["row"]
            if splits and taken > limit.rows:
                break
            splits.append(split)
            if not self.counts:
                break
        return Plan(tuple(splits), splits[-1].end if splits else start)

    def between(self, start: Position, end: Position) -> Sequence[Split]:
        self.note("between", start["row"], end["row"])
        return list(self._splits(start["row"], end["row"]))

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        self.note("read", split.start["row"])
        yield rows_of(split.start["row"], split.end["row"])

    def lag(self, at: Position) -> dict[str, Lag]:
        return {"all": Lag(self._there() - at["row"], None)}

    def commit(self, end: Position) -> None:
        self.note("commit", end["row"])

    def noted(self, word: str) -> list[list[str]]:
        """Return the calls of one method: process, object and arguments, in order."""
        assert self.notes is not None
        lines = (self.notes / word).read_text().splitlines() if (self.notes / word).exists() else []
        return [line.split() for line in lines]

    def note(self, word: str, *arguments: Any) -> None:
        if self.notes is not None:
            with (self.notes / word).open("a") as file:
                file.write(" ".join(map(str, (os.getpid(), id(self), *arguments))) + "\n")

    def _there(self) -> int:
        return self.rows if isinstance(self.rows, int) else int(self.rows.read_text())

    def _splits(self, start: int, end: int) -> Iterator[Split]:
        while start < end:
            after = min(end, start + self.split_rows)
            known = after - start if self.counts else None
            yield Split("all", {"row": start}, {"row": after}, known, None, None)
            start = after


def into_store(source: NumberedRows, store: SqliteStore) -> Pipeline:
    """A pipeline that counts the rows of a source in a store, under the sink id "shop"."""
    flow = Pipeline("revenue")
    sink = MetricsSink(store, revenue, sink_id="shop", metrics=[ORDERS, REVENUE])
    flow.source(source).map(HalfAndHalf()).key_by("city").aggregate(BY_CITY).to(sink)
    return flow


class HalfAndHalf:
    """An operator with a flush: returns each chunk in two parts, the second one with the flush."""

    def __init__(self) -> None:
        self._kept: list[pa.RecordBatch] = []

    def process(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        middle = chunk.num_rows // 2
        if chunk.num_rows:
            self._kept.append(chunk.slice(middle))
        return chunk.slice(0, middle)

    def flush(self) -> list[pa.RecordBatch]:
        kept, self._kept = self._kept, []
        return kept
