"""`DistinctMetrics`: accurate, each value once however often it comes, equal to an aggregator's."""

import base64
import pickle
import random
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Aggregator,
    Distinct,
    DistinctMetrics,
    DistinctSketch,
    MergeBuffer,
    SumMetrics,
    metric_type,
)

USERS = metric_type("users", DistinctMetrics)
FINE = metric_type("fine", DistinctMetrics, accuracy=0.004)


def sketch(values, kind=USERS):
    made = kind("a", 0, None)
    for value in values:
        made.combine(kind("a", 0, value))
    return made


def as_bytes(value):
    """A text is its bytes in UTF-8, and an int its eight bytes."""
    if isinstance(value, int):
        return value.to_bytes(8, "little", signed=True)
    return value.encode() if isinstance(value, str) else value


@given(st.lists(st.text() | st.binary() | st.integers(-(2**63), 2**63 - 1), max_size=60))
def test_few_values_are_counted_once_however_often_they_come(values):
    wanted = len({as_bytes(value) for value in values})
    found = sketch([*values, *values])
    assert found.estimate == pytest.approx(wanted, abs=0.01)
    twin = found.copy()
    twin.combine(sketch(["another one"]))
    assert found.estimate == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize(("kind", "accuracy"), [(USERS, 0.02), (FINE, 0.004)])
def test_many_values_are_within_four_standard_errors(kind, accuracy):
    chance = random.Random(7)
    whole = kind("a", 0, None)
    parts = []
    for _ in range(10):
        part = sketch((f"user {chance.randrange(20_000)}" for _ in range(1_500)), kind)
        parts.append(part)
        whole.combine(part)
    chance = random.Random(7)
    wanted = len({chance.randrange(20_000) for _ in range(15_000)})
    assert whole.estimate == pytest.approx(wanted, rel=4 * accuracy)
    backwards = kind("a", 0, None)
    for part in reversed(parts):
        backwards.combine(part)
    assert backwards.estimate == whole.estimate


@given(st.lists(st.integers(0, 500), max_size=80))
def test_rows_have_all_of_it(values):
    made = sketch(values)
    ((text, estimate),) = made.to_rows()
    assert (type(text), estimate) == (str, made.estimate)
    restored = USERS.from_rows("a", 0, [(text, estimate)])
    assert restored.estimate == pytest.approx(made.estimate, abs=1e-6)
    assert pickle.loads(pickle.dumps(made)).estimate == pytest.approx(made.estimate, abs=1e-6)


def test_merge_buffers_take_them_like_any_metric():
    buffer = MergeBuffer()
    buffer.accept_all(USERS("a", 0, number % 30) for number in range(300))
    (merged,) = buffer.drain()
    assert merged.estimate == pytest.approx(30, abs=0.01)


VALUES = {
    "texts": pa.array(["ann", "bob", None, "ann"]),
    "bytes": pa.array([b"ann", b"bob", None, b"ann"]),
    "integers": pa.array([1, -2, None, 1], pa.int16()),
    "booleans": pa.array([True, False, None, True]),
    "dictionary": pa.array(["ann", "bob", None, "ann"]).dictionary_encode(),
}


@pytest.mark.parametrize("name", VALUES)
def test_aggregator_counts_the_same_values_as_the_metric(name):
    values = VALUES[name]
    aggregator = Aggregator(
        Aggregation(keys=[], measures={"count": Distinct("x"), "sketch": DistinctSketch("x")})
    )
    partial = Aggregator(aggregator.aggregation)
    partial.update(pa.table({"x": values}))
    aggregator.update(partial.partials())
    aggregator.update(pa.table({"x": values}))
    (row,) = aggregator.result().to_pylist()
    assert row["count"] == 2
    merged = sketch(values.to_pylist())
    merged.combine(USERS.from_rows("a", 0, [(base64.b64encode(row["sketch"]).decode(), 2.0)]))
    assert merged.estimate == pytest.approx(2, abs=0.01)


def test_dates_count_by_day_and_groups_without_values_are_0():
    aggregator = Aggregator(Aggregation(keys=["k"], measures={"days": Distinct("x")}))
    days = pa.array([date(2024, 1, 1), date(2024, 1, 1), date(2024, 1, 2), None])
    aggregator.update(pa.table({"k": ["a", "a", "a", "b"], "x": days}))
    assert [row["days"] for row in aggregator.result().to_pylist()] == [2, 0]


@pytest.mark.parametrize(
    "values",
    [pa.array([1.5]), pa.array([Decimal("1.5")]), pa.array([1], pa.uint64())],
    ids=["floats", "decimals", "unsigned"],
)
def test_values_of_several_forms_are_refused_with_the_remedy(values):
    aggregator = Aggregator(Aggregation(keys=[], measures={"d": Distinct("x")}))
    with pytest.raises(ConfigError, match=r'"x" is of type.*integers up to int64, or cast it fir'):
        aggregator.update(pa.table({"x": values}))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: USERS("a", 0, 1.5), ConfigError, "value is 1.5, a float; give a text, bytes or"),
        (lambda: USERS("a", 0, ["x"]), ConfigError, "give a text, bytes or an int"),
        (lambda: USERS("a", 0, 2**63), OverflowError, ""),
        (lambda: metric_type("d", DistinctMetrics, accuracy=0.5), ConfigError, "0.001 to 0.2"),
        (lambda: metric_type("d", SumMetrics, accuracy=0.02), ConfigError, "only Quantile"),
        (lambda: Distinct("x", 0.9), ConfigError, "accuracy is 0.9; give 0.001 to 0.2"),
        (lambda: USERS.from_rows("a", 0, [("AAAA", 1.0)]), ConfigError, "damaged sketch for 'a'"),
        (lambda: USERS.from_rows("a", 0, [("A", 1.0)]), ConfigError, "restore the store, or del"),
    ],
)
def test_invalid_values_and_settings_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_damaged_partials_are_refused_and_leave_the_groups_alone():
    aggregation = Aggregation(keys=["k"], measures={"d": Distinct("x")})
    aggregator, other = Aggregator(aggregation), Aggregator(aggregation)
    for each in (aggregator, other):
        each.update(pa.table({"k": ["a", "b"], "x": ["ann", "bob"]}))
    partials = other.partials()
    damaged = pa.StructArray.from_arrays(
        [pa.array([partials.column(1).to_pylist()[0]["sketch"], b"damaged"])],
        fields=list(partials.schema.field("d").type),
    )
    with pytest.raises(Exception, match="distinct values is damaged"):
        aggregator.update(partials.set_column(1, partials.schema.field("d"), damaged))
    assert [row["d"] for row in aggregator.result().to_pylist()] == [1, 1]
