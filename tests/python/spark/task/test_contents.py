"""What an epoch contained: the same number for the same rows in any order, another for others."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchqueue.aggregation import Count, Max, Sum, SumMetrics, Window, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.spark import AggregationJob, ArrowAggregation
from batchqueue.spark.job import OnBadRow
from batchqueue.spark.options import SinkOptions
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.contents import Contents, contents_of_rows, differ, total

SCHEMA = pa.schema(
    {
        "text": pa.string(),
        "raw": pa.large_binary(),
        "n": pa.int32(),
        "is_last": pa.bool_(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(20, 2),
        "tags": pa.list_(pa.string()),
        "place": pa.struct({"city": pa.string(), "floor": pa.int8()}),
    }
)
TEXTS = st.one_of(st.none(), st.text(max_size=20))
ROWS = st.fixed_dictionaries(
    {
        "text": TEXTS,
        "raw": st.one_of(st.none(), st.binary(max_size=20)),
        "n": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        "is_last": st.one_of(st.none(), st.booleans()),
        "day": st.one_of(st.none(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
        "at": st.one_of(
            st.none(),
            st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
        ),
        "price": st.one_of(st.none(), st.decimals(-(10**15), 10**15, places=2)),
        "tags": st.one_of(st.none(), st.lists(st.text(max_size=10), max_size=3)),
        "place": st.fixed_dictionaries({"city": st.text(max_size=9), "floor": st.integers(0, 9)}),
    }
)


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


@settings(deadline=None, max_examples=50)
@given(st.lists(ROWS, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_order_and_tasks_do_not_count(rows: list[dict[str, Any]], random: random.Random) -> None:
    whole = contents_of_rows(batch(rows))
    shuffled = rows[:]
    random.shuffle(shuffled)
    table = batch(shuffled)
    cut = random.randrange(len(rows) + 1)
    parts = [contents_of_rows(table.slice(0, cut)), contents_of_rows(table.slice(cut))]
    assert total(parts) == whole


@settings(deadline=None, max_examples=100)
@given(st.lists(ROWS, min_size=1, max_size=4), st.lists(ROWS, min_size=1, max_size=4))
def test_other_rows_have_another_number(left: list[Any], right: list[Any]) -> None:
    as_columns = [
        [sorted((row[name] for row in rows), key=repr) for name in SCHEMA.names]
        for rows in (left, right)
    ]
    is_same = contents_of_rows(batch(left)) == contents_of_rows(batch(right))
    assert is_same == (as_columns[0] == as_columns[1])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["a", "a"], ["b", "b"]),
        (["", None], [None, None]),
        (["x" * 100], ["x" * 99 + "y"]),
        (["x" * 5_000], ["x" * 4_999 + "y"]),
        ([1, 4], [2, 3]),
        ([Decimal("1.5")], [Decimal("1.6")]),
        ([["a", "b"]], [["a"]]),
        ([{"a": "b"}], [{"b": "a"}]),
    ],
)
def test_like_values_are_distinguished(left: list[Any], right: list[Any]) -> None:
    kind = pa.array([*left, *right]).type
    found = [
        contents_of_rows(pa.RecordBatch.from_pydict({"v": pa.array(values, kind)}))
        for values in (left, right)
    ]
    assert differ(str(found[0]), found[1])
    assert not differ(str(found[0]), found[0])


def test_floats_do_not_count_because_their_sums_depend_on_the_order() -> None:
    exact, other = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert exact != other
    first, second = (
        contents_of_rows(pa.RecordBatch.from_pydict({"k": ["a"], "v": [value]}))
        for value in (exact, other)
    )
    assert first == second


def test_contents_of_another_kind_and_those_of_an_earlier_version_do_not_compare() -> None:
    now = Contents("rows-1", 1)
    assert not differ(None, now)
    assert not differ(str(Contents("rows-2", 2)), now)
    assert not differ(str(now), None)
    assert total([now, None]) is None
    assert total([now, Contents("rows-2", 2)]) is None
    assert total([]) is None


def attempt(
    rows: pa.RecordBatch, step: ArrowAggregation, on_bad_row: OnBadRow = "fail"
) -> Contents | None:
    job = AggregationJob(name="job", arrow=[step], store=SqliteStore("m.db"), on_bad_row=on_bad_row)
    options = SinkOptions.parse({}, job, stream=True)
    return run_attempt(job, options, [rows] if rows.num_rows else []).summary.contents


PRICES = metric_type("prices", SumMetrics, columns={"total": Decimal})
STEPS = [
    ArrowAggregation(keys=["k"], metrics={"hits": Count(), "cents": Sum("n")}),
    ArrowAggregation(keys=["k"], metrics={"last": Max("n")}),
    ArrowAggregation(keys=["k"], null_keys="skip", metrics={"mean": Sum("f")}),
    ArrowAggregation(keys=["k"], time=Window("at", 60), metrics={"hits": Count()}),
    ArrowAggregation(metrics={"hits": Count("n"), PRICES: Sum("price")}),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: ", ".join(step.types))
def test_groups_of_any_tasks_stand_for_their_rows(step: ArrowAggregation) -> None:
    chosen = random.Random(7)
    rows = pa.RecordBatch.from_pydict(
        {
            "k": [chosen.choice("abc") for _ in range(100)],
            "n": [chosen.randrange(-1_000, 1_000) for _ in range(100)],
            "f": [chosen.random() for _ in range(100)],
            "at": [chosen.randrange(1_000) for _ in range(100)],
            "price": [Decimal(chosen.randrange(10_000)) / 100 for _ in range(100)],
        }
    )
    whole = attempt(rows, step)
    assert whole is not None
    for cut in (1, 50, 99):
        assert total([attempt(rows.slice(cut), step), attempt(rows.slice(0, cut), step)]) == whole
    others = rows.set_column(0, "k", pa.array(["d", *rows["k"].to_pylist()[1:]]))
    others = others.set_column(4, "price", pa.array([Decimal("99999.99")] * 100))
    assert differ(str(whole), attempt(others, step))


def test_maps_of_a_slice_are_those_that_it_shows() -> None:
    counts = [[("a", 1), ("b", 2)], None, [], [("c", 3)]]
    rows = pa.record_batch({"counts": pa.array(counts, pa.map_(pa.string(), pa.int32()))})
    parts = [contents_of_rows(rows.slice(place, 1)) for place in range(len(counts))]
    assert total(parts) == contents_of_rows(rows)
    assert differ(str(parts[0]), parts[3])


def test_rows_that_are_all_bad_leave_the_contents_of_the_others_known() -> None:
    step = ArrowAggregation(keys=["k"], metrics={"cents": Sum("n")})
    good, bad = (
        attempt(pa.record_batch({"k": pa.array([key], pa.string()), "n": [1]}), step, "skip")
        for key in ("a", None)
    )
    assert good is not None
    assert total([good, bad]) == good


def test_groups_whose_key_is_null_count() -> None:
    step = ArrowAggregation(keys=["k"], null_keys={"k": "none"}, metrics={"cents": Sum("n")})
    key = pa.array([None], pa.string())
    five, seven = (attempt(pa.record_batch({"k": key, "n": [cents]}), step) for cents in (5, 7))
    assert five is not None
    assert differ(str(five), seven)
