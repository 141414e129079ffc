"""`QuantileMetrics`: accurate, the same in any order, and equal to those of an aggregator."""

import math
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Aggregator,
    MergeBuffer,
    QuantileBuckets,
    QuantileMetrics,
    Quantiles,
    SumMetrics,
    metric_type,
)

ACCURACIES = (0.01, 0.001, 0.2)
TYPES = {of: metric_type(f"within {of}", QuantileMetrics, accuracy=of) for of in ACCURACIES}

numbers = st.floats(-1e12, 1e12) | st.integers(-1_000, 1_000).map(float)
lists = st.lists(numbers, min_size=1, max_size=50)


def sketch(values, kind=QuantileMetrics):
    made = kind("a", 0, None)
    for value in values:
        made.combine(kind("a", 0, value))
    return made


def assert_close(found, wanted, accuracy):
    if abs(wanted) < 1.1e-9:
        assert abs(found) < 1.3e-9
    else:
        assert found == pytest.approx(wanted, rel=accuracy * (1 + 1e-9))


@given(lists, st.floats(0, 1), st.sampled_from(ACCURACIES))
@example([0.0, -0.0, 5e-324, -1e-9, 1e-9], 0.5, 0.01)
def test_quantile_is_within_the_accuracy_of_the_value_of_that_rank(values, rank, accuracy):
    wanted = sorted(values)[math.floor(rank * (len(values) - 1))]
    assert_close(sketch(values, TYPES[accuracy]).quantile(rank), wanted, accuracy)


@given(lists, lists, lists)
def test_order_and_grouping_do_not_matter(a, b, c):
    forwards = sketch(a)
    forwards.combine(sketch(b))
    forwards.combine(sketch(c))
    backwards = sketch(c)
    rest = sketch(b)
    rest.combine(sketch(a))
    backwards.combine(rest)
    assert forwards == backwards == sketch([*b, *c, *a])
    assert forwards.count == len(a) + len(b) + len(c)


@given(lists)
def test_rows_have_all_of_it(values):
    made = sketch(values)
    rows = made.to_rows()
    assert rows == sorted(rows)
    assert QuantileMetrics.from_rows("a", 0, rows) == made
    assert pickle.loads(pickle.dumps(made)) == made
    twin = made.copy()
    twin.combine(made)
    assert (made.count, twin.count) == (len(values), 2 * len(values))


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_a_finite_number_does_not_count(value):
    made = QuantileMetrics("a", 0, value)
    assert (made.count, made.quantile(0.5), made.to_rows()) == (0, None, [])


def test_largest_and_smallest_numbers_have_buckets():
    made = sketch([1.7e308, -1.7e308, 5e-324])
    assert made.quantile(1) == pytest.approx(1.7e308, rel=0.01)
    assert made.quantile(0) == pytest.approx(-1.7e308, rel=0.01)
    assert made.quantile(0.5) == 0


def test_merge_buffers_and_queues_take_them_like_any_metric():
    buffer = MergeBuffer()
    buffer.accept_all(QuantileMetrics("a", 0, number) for number in range(1, 101))
    (merged,) = buffer.drain()
    assert merged.quantile(0.9) == pytest.approx(90, rel=0.02)


@given(st.lists(numbers | st.none() | st.sampled_from([math.nan, math.inf]), max_size=60))
def test_aggregator_fills_the_same_buckets(values):
    """At the limit of two buckets the logarithms of Python and Rust may differ by a rounding."""
    aggregator = Aggregator(Aggregation(keys=[], measures={"b": QuantileBuckets("x")}))
    table = pa.table({"x": pa.array(values, pa.float64())})
    l1 = Aggregator(aggregator.aggregation)
    l1.update(table)
    if (partials := l1.partials()) is not None:
        aggregator.update(partials)
    aggregator.update(table)
    result = aggregator.result()
    rows = [] if result is None else result.column("b").to_pylist()[0]
    found = QuantileMetrics.from_rows(
        "a", 0, [(bucket["bucket"], bucket["count"], 0.01) for bucket in rows]
    )
    wanted = sketch([*values, *values])
    assert found.count == wanted.count
    for rank in (0, 0.3, 0.5, 1) if wanted.count else ():
        assert_close(found.quantile(rank), wanted.quantile(rank), 0.021)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2, None, 30], pa.int32()),
        pa.array([1, 2, None, 30], pa.uint64()),
        pa.array([1.0, 2.0, None, 30.0], pa.float32()),
        pa.array([Decimal("1.00"), Decimal("2.00"), None, Decimal("30.00")]),
        pa.array([1, 2, None, 30]).dictionary_encode(),
    ],
    ids=str,
)
def test_aggregator_takes_numbers_of_any_type(values):
    aggregator = Aggregator(Aggregation(keys=[], measures={"b": QuantileBuckets("x")}))
    aggregator.update(pa.table({"x": values}))
    (row,) = aggregator.result().to_pylist()
    wanted = [(bucket, count) for bucket, count, _ in sketch([1, 2, 30]).to_rows()]
    assert [(bucket["bucket"], bucket["count"]) for bucket in row["b"]] == wanted


def test_group_without_values_has_no_buckets():
    aggregator = Aggregator(Aggregation(keys=["k"], measures={"b": QuantileBuckets("x")}))
    aggregator.update(pa.table({"k": ["a", "b"], "x": pa.array([None, 1.0])}))
    assert [len(row["b"]) for row in aggregator.result().to_pylist()] == [0, 1]


def test_rows_of_another_accuracy_are_refused_and_both_are_named():
    with pytest.raises(ConfigError, match=r"accuracy=0.01, and 'a' was stored with accuracy=0.2"):
        QuantileMetrics.from_rows("a", 0, sketch([1], TYPES[0.2]).to_rows())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: metric_type("q", QuantileMetrics, accuracy=0), "accuracy=0 .*0.0001 to 0.5"),
        (lambda: metric_type("q", QuantileMetrics, accuracy=0.9), "0.0001 to 0.5"),
        (lambda: metric_type("q", SumMetrics, accuracy=0.1), "only QuantileMetrics, 0.0001"),
        (lambda: QuantileBuckets("x", 0.0), "accuracy is 0.0; give 0.0001 to 0.5"),
        (lambda: QuantileBuckets("x", 1), "accuracy is 1"),
        (lambda: QuantileMetrics("a", 0, "12"), "value is '12', a str; give a number"),
        (lambda: sketch([1]).quantile(1.5), "rank of a quantile is 1.5; give 0 to 1"),
        (lambda: sketch([1]).quantile(math.nan), "is nan; give 0 to 1"),
        (
            lambda: Aggregation(keys=[], measures={"q": Quantiles("x")}),
            "'q' is Quantiles.*give the quantiles to compute",
        ),
    ],
)
def test_invalid_settings_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_same_settings_are_the_same_type():
    assert metric_type("q", QuantileMetrics, accuracy=0.02) is metric_type(
        "q", QuantileMetrics, accuracy=0.02
    )
    assert pickle.loads(pickle.dumps(TYPES[0.2])) is TYPES[0.2]
