"""Each kind against plain Python: any order, any grouping, nulls as in Spark SQL."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue.aggregation import CountMetrics, MaxMetrics, MeanMetrics, MinMetrics, SumMetrics

INTS = st.lists(st.none() | st.integers(-(2**80), 2**80), min_size=1, max_size=30)
FLOATS = st.lists(st.none() | st.floats(-1e12, 1e12), min_size=1, max_size=30)
# Also NaN and the infinities; None is null.
ANY_FLOATS = st.lists(st.none() | st.floats(), min_size=1, max_size=20)


def combined(kind, values, data):
    """Combines partials of one value each pairwise, in an order that hypothesis picks."""
    partials = [kind("entity", 60, value) for value in values]
    while len(partials) > 1:
        other = partials.pop(data.draw(st.integers(0, len(partials) - 1)))
        partials[data.draw(st.integers(0, len(partials) - 1))].combine(other)
    return partials[0]


def same(left, right):
    return left == right or (left != left and right != right)


@given(st.lists(st.integers(0, 10), min_size=1), st.data())
def test_counts_add_up(values, data):
    assert combined(CountMetrics, values, data).count == sum(values)


@given(INTS, st.data())
def test_sums_of_ints_are_exact_ints_and_null_only_if_all_values_are(values, data):
    total = combined(SumMetrics, values, data).total
    present = [value for value in values if value is not None]
    assert total == (sum(present) if present else None)
    assert total is None or type(total) is int


@given(FLOATS, st.data())
def test_sums_of_floats_are_within_1e_9_even_if_they_cancel(values, data):
    total = combined(SumMetrics, values, data).total
    present = [value for value in values if value is not None]
    if present:
        assert total == pytest.approx(float(sum(map(Fraction, present))), rel=1e-9, abs=1e-18)
    else:
        assert total is None


@given(st.permutations([1e16, 1.0, -1e16, 1e-3, 3e15, -3e15]), st.data())
def test_large_values_that_cancel_leave_the_small_ones(values, data):
    assert combined(SumMetrics, values, data).total == pytest.approx(1.001, rel=1e-9)


@given(
    st.lists(st.sampled_from([math.inf, -math.inf, math.nan, 1.0, -2.5]), min_size=1, max_size=6),
    st.data(),
)
def test_sum_with_nan_or_infinities_is_that_of_float_addition(values, data):
    assert same(combined(SumMetrics, values, data).total, sum(values))


@given(INTS, st.data())
def test_means_are_the_exact_sum_divided_by_the_number_of_values(values, data):
    mean = combined(MeanMetrics, values, data)
    present = [value for value in values if value is not None]
    assert mean.count == len(present)
    assert mean.value == (sum(present) / len(present) if present else None)


@pytest.mark.parametrize(("kind", "best"), [(MaxMetrics, max), (MinMetrics, min)])
@given(
    st.lists(st.none() | st.integers() | st.floats(allow_nan=False), min_size=1, max_size=20),
    st.data(),
)
def test_extremes_ignore_nulls(kind, best, values, data):
    present = [value for value in values if value is not None]
    assert combined(kind, values, data).value == (best(present) if present else None)


@given(ANY_FLOATS, st.data())
def test_nan_is_larger_than_any_number(values, data):
    numbers = [value for value in values if value is not None and value == value]
    has_nan = any(value is not None and value != value for value in values)
    largest = math.nan if has_nan else max(numbers, default=None)
    smallest = min(numbers) if numbers else (math.nan if has_nan else None)
    assert same(combined(MaxMetrics, values, data).value, largest)
    assert same(combined(MinMetrics, values, data).value, smallest)


def test_extremes_of_strings_are_in_code_point_order():
    first, second = MaxMetrics("entity", 0, "AA"), MaxMetrics("entity", 0, "UA")
    first.combine(second)
    assert first.value == "UA"


@pytest.mark.parametrize("kind", [SumMetrics, MeanMetrics, MaxMetrics, MinMetrics])
@given(ANY_FLOATS | INTS, st.data())
def test_rows_and_copies_carry_the_whole_state(kind, values, data):
    """A partial that went through rows, as through a store, continues like the original."""
    whole = combined(kind, values, data)
    twin, stored = whole.copy(), kind.from_rows("entity", 60, whole.to_rows())
    assert twin is not whole
    for partial in (whole, twin, stored):
        partial.combine(kind("entity", 60, 0.1))
        partial.combine(kind("entity", 60, -1e16))
    assert same(whole.to_rows()[0][0], twin.to_rows()[0][0])
    left, right = whole.to_rows()[0][0], stored.to_rows()[0][0]
    assert same(left, right) or left == pytest.approx(right, rel=1e-12)
    assert whole.to_rows()[0][2:] == stored.to_rows()[0][2:] == twin.to_rows()[0][2:]


def test_rounding_errors_survive_the_store():
    partial = SumMetrics("entity", 0, 1e16)
    partial.combine(SumMetrics("entity", 0, 1.0))
    again = SumMetrics.from_rows("entity", 0, partial.to_rows())
    again.combine(SumMetrics("entity", 0, -1e16))
    assert again.total == 1.0
