"""Groups of declared metrics are merged across tasks in columns, and equal to a plain loop."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchqueue.aggregation import (
    Count,
    Distinct,
    Max,
    Mean,
    Metrics,
    Min,
    MinMetrics,
    Quantiles,
    Sum,
    SumMetrics,
    Window,
    metric_type,
)
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation, SinkError
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.groups import merged_groups
from batchqueue.spark.task.message import AttemptMessage, EpochId

CENTS = metric_type("cents", SumMetrics, columns={"total": int})
EXACT = metric_type("exact", SumMetrics, columns={"total": Decimal})
STEP = ArrowAggregation(
    keys=["city"],
    time=Window("at", 10),
    metrics={
        "rows": Count(),
        "values": Count("x"),
        "total": Sum("x"),
        CENTS: Sum("cents"),
        "mean": Mean("x"),
        "least": Min("x"),
        "most": Max("x"),
        "users": Distinct("user"),
        "quantiles": Quantiles("x"),
    },
)


def job(step: ArrowAggregation, path: Path | str = "unused.db", **changes: Any) -> AggregationJob:
    return AggregationJob(name="sales", arrow=[step], store=SqliteStore(path), **changes)


def message(of: AggregationJob, task: Any, epoch: int = 0) -> AttemptMessage:
    options = SinkOptions.parse({}, of, stream=True)
    batch = task if isinstance(task, pa.RecordBatch) else pa.RecordBatch.from_pylist(task, ROWS)
    return run_attempt(of, options, [batch], EpochId("q", epoch))


def commit(of: AggregationJob, tasks: Sequence[Any], epoch: int = 0) -> dict[str, Any]:
    messages = [message(of, task, epoch) for task in tasks]
    return EpochCommit(of, SinkOptions.parse({}, of, stream=True), messages).apply_epoch(epoch)


def stored(of: AggregationJob) -> list[Any]:
    store: Any = of.store
    return [item for kind in of.stored_metrics for item in store.read(kind, of.name)]


ROWS = pa.schema(
    [
        ("city", pa.string()),
        ("at", pa.int64()),
        ("x", pa.float64()),
        ("cents", pa.int64()),
        ("user", pa.int64()),
    ]
)

rows = st.fixed_dictionaries(
    {
        "city": st.sampled_from(["A", "B", "", "|"]),
        "at": st.integers(-20, 40),
        "x": st.none() | st.floats(-1e9, 1e9),
        "cents": st.integers(-(2**40), 2**40),
        "user": st.integers(0, 50),
    }
)


def merged(messages: Sequence[AttemptMessage], step: ArrowAggregation) -> list[Metrics]:
    groups = [of_task for message in messages for of_task in message.groups]
    return list(merged_groups(groups, [step]))


@settings(deadline=None)
@given(st.lists(st.lists(rows, min_size=1), min_size=1, max_size=5))
def test_groups_of_many_tasks_are_those_of_a_plain_loop(tasks: list[Any]) -> None:
    found: dict[Any, Any] = {}
    for item in merged([message(job(STEP), task) for task in tasks], STEP):
        assert (item.name, item.key) not in found, "each key comes once"
        found[item.name, item.key] = item
    groups: dict[Any, list[Any]] = {}
    for row in (row for task in tasks for row in task):
        groups.setdefault((row["city"], row["at"] // 10 * 10), []).append(row)
    assert found.keys() == {(name, key) for name in STEP.types for key in groups}
    for key, members in groups.items():
        values = [row["x"] for row in members if row["x"] is not None]
        exact = sum(map(Fraction, values))
        of = {name: found[name, key] for name in STEP.types}
        assert (of["rows"].count, of["values"].count) == (len(members), len(values))
        assert of["cents"].total == sum(row["cents"] for row in members)
        assert type(of["cents"].total) is int
        assert (of["least"].value, of["most"].value) == (
            min(values, default=None),
            max(values, default=None),
        )
        assert of["total"].total == (float(exact) if values else None)
        assert of["mean"].count == len(values)
        assert of["mean"].total == of["total"].total
        assert round(of["users"].estimate) == len({row["user"] for row in members})
        in_python = STEP.types["quantiles"](*key, None)  # type: ignore[call-arg]
        for value in values:
            in_python.combine(type(in_python)(*key, value))  # type: ignore[call-arg]
        assert of["quantiles"] == in_python


def test_what_a_task_counts_as_partials_does_not_depend_on_the_merge(tmp_path: Path) -> None:
    row = {"city": "A", "at": 0, "x": 1.0, "cents": 1, "user": 1}
    summary = commit(job(STEP, tmp_path / "metrics.db"), [[row], [row], [{**row, "city": "B"}]])
    assert summary["partials"] == 3 * len(STEP.types)
    stages = summary["stages"]
    assert stages["l2"]["produced"] == stages["l2"]["consumed"] == summary["partials"]
    assert stages["persist"]["consumed"] == 2 * len(STEP.types)


@pytest.mark.parametrize(
    ("metric", "cents"),
    [("total", [2**53, 1]), (EXACT, [2**62] * 3 + [1])],
)
def test_sum_that_is_too_large_for_a_column_is_added_in_the_store(
    tmp_path: Path, metric: Any, cents: list[int]
) -> None:
    """The sum of each task fits; that of all does not fit 64 bits, or is not exact as a float."""
    step = ArrowAggregation(keys=["city"], metrics={metric: Sum("cents")})
    of = job(step, tmp_path / "metrics.db")
    commit(of, [pa.RecordBatch.from_pydict({"city": ["A"], "cents": [each]}) for each in cents])
    (item,) = stored(of)
    assert sum(map(Fraction, item.to_rows()[0])) == sum(cents)


def test_sum_that_is_too_large_in_one_task_is_refused() -> None:
    step = ArrowAggregation(keys=["city"], metrics={CENTS: Sum("cents")})
    task = pa.RecordBatch.from_pydict({"city": ["A"] * 2, "cents": [2**62] * 2})
    small = pa.RecordBatch.from_pydict({"city": ["A"], "cents": [1]})
    assert len(merged([message(job(step), small)], step)) == 1
    with pytest.raises(SinkError, match=r"does not fit into int64, in a group of one task"):
        message(job(step), task)


@st.composite
def amounts(draw: st.DrawFn) -> tuple[pa.DataType, Decimal]:
    scale = draw(st.integers(0, 38))
    digits = draw(st.integers(1, 38))
    number = draw(st.integers(10 ** (digits - 1), 10**digits - 1)) * draw(st.sampled_from([1, -1]))
    return pa.decimal128(38, scale), Decimal(number).scaleb(-scale)


@settings(deadline=None)
@example((pa.decimal128(38, 0), Decimal("768003825538626644899")))  # 128 bits of it would fit
@given(amounts())
def test_decimals_are_stored_exactly_or_refused(amount: tuple[pa.DataType, Decimal]) -> None:
    kind, value = amount
    least = metric_type("least", MinMetrics, columns={"value": Decimal})
    step = ArrowAggregation(metrics={EXACT: Sum("x"), least: Min("x")})
    task = pa.RecordBatch.from_pydict({"x": pa.array([value], kind)})
    scaled = value.scaleb(18)
    if scaled == int(scaled) and abs(scaled) < 10**38:
        found = merged([message(job(step), task)], step)
        assert [item.to_rows()[0][0] for item in found] == [value] * 2
    else:
        with pytest.raises(SinkError, match=r"does not fit its column"):
            message(job(step), task)


def test_decimals_that_fit_in_each_task_only_are_refused_by_the_store(tmp_path: Path) -> None:
    step = ArrowAggregation(metrics={EXACT: Sum("x")})
    of = job(step, tmp_path / "metrics.db")
    for most in (Decimal("99999999999999999999"), Decimal("38400191276931332244")):
        tasks = [
            pa.RecordBatch.from_pydict({"x": pa.array([most], pa.decimal128(38, 0))})
            for _ in range(20)
        ]
        with pytest.raises(SinkError, match="has more than 20 digits before the point"):
            commit(of, tasks)
    assert stored(of) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (pa.array([1, None], pa.int64()), 1.5),
        (pa.array([date(2026, 1, 31), None], pa.date32()), datetime(2026, 1, 31, 5)),
        (
            pa.array([datetime(2026, 1, 31, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            datetime(2026, 1, 31, 5),
        ),
    ],
)
def test_what_stands_for_null_is_not_changed_to_fit(key: pa.Array, value: Any) -> None:
    step = ArrowAggregation(keys=["city"], metrics={"rows": Count()}, null_keys={"city": value})
    task = pa.RecordBatch.from_pydict({"city": key})
    with pytest.raises(SinkError, match=r"null_keys has .* give a value of that type"):
        message(job(step), task)


def test_what_does_not_merge_in_columns_is_combined_before_the_store(tmp_path: Path) -> None:
    step = ArrowAggregation(keys=["city"], metrics={"total": Sum("cents"), "rows": Count()})
    tasks = [
        pa.RecordBatch.from_pydict({"city": ["A", "B", "C"], "cents": [2**52, 1, 2]})
        for _ in range(6)
    ]
    summary = commit(job(step, tmp_path / "metrics.db"), tasks)
    stages = summary["stages"]
    assert summary["partials"] == stages["l2"]["consumed"] == 6 * 3 * 2
    assert stages["persist"]["consumed"] == 3 * 2


class Peak(SumMetrics):
    def combine(self, other: Any) -> None:
        self._sum = max(self._sum, other._sum)


def test_kind_that_combines_in_its_own_way_does_so_across_tasks(tmp_path: Path) -> None:
    peak = metric_type("peak", Peak)
    step = ArrowAggregation(keys=["city"], metrics={peak: Sum("x")})
    of = job(step, tmp_path / "metrics.db")
    tasks = [pa.RecordBatch.from_pydict({"city": ["A"], "x": [x]}) for x in (1.0, 5.0, 2.0)]
    commit(of, tasks)
    (item,) = stored(of)
    assert item.total == 5


def test_large_values_cancel_across_tasks_and_epochs(tmp_path: Path) -> None:
    step = ArrowAggregation(keys=["city"], metrics={"total": Sum("x"), "mean": Mean("x")})
    of = job(step, tmp_path / "metrics.db")
    for epoch, values in enumerate([[1e17, 1.0, 0.5], [-1e17, math.pi]]):
        tasks = [pa.RecordBatch.from_pydict({"city": ["A"], "x": [value]}) for value in values]
        commit(of, tasks, epoch)
    assert [item.total for item in stored(of)] == [1.5 + math.pi] * 2


@pytest.mark.parametrize("values", [[math.inf, 1.0], [math.nan, 1.0], [None, None], [1e308] * 3])
def test_sum_without_a_known_error_has_none(values: list[Any]) -> None:
    step = ArrowAggregation(metrics={"total": Sum("x")})
    tasks = [pa.RecordBatch.from_pydict({"x": pa.array([x], pa.float64())}) for x in values]
    (item,) = merged([message(job(step), task) for task in tasks], step)
    ((total, error),) = item.to_rows()
    plain = sum(value for value in values if value is not None) if values[0] else None
    assert error == 0
    assert total == plain or (math.isnan(total) and math.isnan(plain))  # type: ignore[arg-type]


def test_columns_of_another_type_in_another_task_meet_in_the_store(tmp_path: Path) -> None:
    def widened(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            kind = pa.float64() if batch.num_rows == 2 else pa.int32()
            yield batch.set_column(1, "cents", batch.column(1).cast(kind))

    step = ArrowAggregation(keys=["city"], metrics={"total": Sum("cents")})
    of = job(step, tmp_path / "metrics.db", prepare=widened)
    tasks = [
        pa.RecordBatch.from_pydict({"city": ["A"] * n, "cents": [1] * n}) for n in (2, 3, 2, 4)
    ]
    commit(of, tasks)
    (item,) = stored(of)
    assert item.total == 11


def test_limit_of_groups_is_that_of_a_task() -> None:
    step = replace(STEP)
    object.__setattr__(step, "aggregation", replace(STEP.aggregation, max_groups=2))
    row = {"city": "A", "at": 0, "x": 1.0, "cents": 1, "user": 1}
    tasks = [[{**row, "at": 20 * task}, {**row, "at": 20 * task + 10}] for task in range(3)]
    found = merged([message(job(step), task) for task in tasks], step)
    assert len(found) == 6 * len(step.types)
    with pytest.raises(SinkError, match="lost 3 of 3"):
        message(job(step), [{**row, "at": 10 * at} for at in range(3)])
