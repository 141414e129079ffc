"""Reads a source as a run does, with a pause before every split, and writes rows to compare."""

import json
import pickle
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pyarrow as pa

from batchqueue.pipeline.contract import Limit, Position, Source, Split

ALL = Limit(1 << 40, 1 << 50)
LIMITS = (Limit(1, 1), Limit(250, 1 << 20), Limit(1_000, 1 << 14), ALL)


def numbers(first: int, behind: int) -> pa.Table:
    """Rows with the columns `id` and `text`, which contains the id."""
    ids = range(first, behind)
    texts = pa.array([f"row {number}" for number in ids], pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "text": texts})


def rows_of(source: Source, split: Split) -> list[dict[str, Any]]:
    return [row for batch in source.read(split) for row in batch.to_pylist()]


def read_on(
    source: Source, at: Position, limits: tuple[Limit, ...] = LIMITS
) -> tuple[list[dict[str, Any]], Position]:
    """Read up to the first empty plan; return the rows and the position behind them."""
    rows: list[dict[str, Any]] = []
    for limit in cycle(limits):
        plan = source.plan(at, limit)
        if not plan.splits:
            return rows, at
        for split in plan.splits:
            rows += rows_of(source, split)
        at = plan.end
    raise AssertionError


def read_until_error(source: Source, at: Position) -> tuple[list[dict[str, Any]], Exception]:
    """Read up to the first error; return the rows before it, and the error."""
    rows: list[dict[str, Any]] = []
    while True:
        try:
            plan = source.plan(at, ALL)
        except Exception as error:
            return rows, error
        assert plan.splits, "the source ended, or waits"
        for split in plan.splits:
            rows += rows_of(source, split)
        at = plan.end


def restarted_before_every_split(source: Source) -> Iterator[dict[str, Any]]:
    """Read with a new process's copy of the source, and a stored position, before every split."""
    at = source.initial()
    while True:
        copy = pickle.loads(pickle.dumps(source))
        plan = copy.plan(json.loads(json.dumps(at)), Limit(1, 1))
        if not plan.splits:
            return
        assert len(plan.splits) == 1
        yield from rows_of(copy, pickle.loads(pickle.dumps(plan.splits[0])))
        at = plan.end


def ids(rows: Any) -> list[int]:
    return [row["id"] for row in rows]
