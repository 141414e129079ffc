"""Decimals and bools in stores: exact, the same in each, and refused where they do not fit."""

from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue.aggregation import (
    MaxMetrics,
    MeanMetrics,
    MinMetrics,
    Ranking,
    SumMetrics,
    metric_type,
)
from batchqueue.outputs import StoreError
from batchqueue.outputs.layout import FITTING, plain

TOTAL = metric_type("total", SumMetrics, columns={"total": Decimal})
MEAN = metric_type("mean", MeanMetrics, columns={"total": Decimal})
LEAST = metric_type("least", MinMetrics, columns={"value": Decimal})
BEST = metric_type("best", Ranking, limit=2, columns={"score": Decimal})
ANY = metric_type("any", MaxMetrics, columns={"value": bool})
FLOATS = metric_type("floats", SumMetrics)

TEXTS = ["0", "0.1", "-0.10", "100", "1E+3", "12.345", f"{'9' * 20}.{'9' * 18}", f"-{'9' * 20}"]
LARGEST = Decimal(TEXTS[-2])


def write(store, *metrics):
    with store.transaction() as transaction:
        transaction.merge(metrics)


@pytest.mark.parametrize("text", TEXTS)
def test_decimal_comes_back_as_it_was_without_zeros_at_its_end(store, text):
    value = Decimal(text)
    write(store, TOTAL("a", 0, value), LEAST("a", 0, value), TOTAL("b", 0, None))
    a, b = store.read(TOTAL)
    assert (a.total, b.total) == (value, None)
    assert str(a.total) == str(plain(value))
    assert [item.value for item in store.read(LEAST)] == [value]
    with store.transaction() as transaction:
        (loaded,) = transaction.load(TOTAL, [("a", 0)])
        assert (loaded.total, type(loaded.total)) == (value, Decimal)


def test_sums_are_exact_whatever_the_context_of_a_thread_is(store):
    with localcontext(prec=3):
        for _ in range(3):
            write(
                store, TOTAL("a", 0, Decimal("0.1")), TOTAL("a", 0, Decimal("12345678901234567.89"))
            )
    (total,) = store.read(TOTAL)
    assert total.total == Decimal("37037036703703703.97")
    write(store, TOTAL("b", 0, LARGEST), TOTAL("b", 0, 5), TOTAL("b", 0, LARGEST.copy_negate()))
    assert store.read(TOTAL, entities=["b"])[0].total == 5


def test_other_kinds_hold_decimals_too(store):
    write(store, MEAN("a", 0, Decimal("0.1")), MEAN("a", 0, Decimal("0.2")))
    write(store, *(BEST("a", 0, Decimal(score), score) for score in ("1.5", "2.25", "-1")))
    (mean,), (best,) = store.read(MEAN), store.read(BEST)
    assert (mean.total, mean.count, mean.value) == (Decimal("0.3"), 2, 0.15)
    assert [(entry.score, entry.id) for entry in best.entries] == [
        (Decimal("2.25"), "2.25"),
        (Decimal("1.5"), "1.5"),
    ]


def test_bools_come_back_as_bools(store):
    write(store, ANY("a", 0, False), ANY("a", 0, True), ANY("b", 0, False), ANY("c", 0, None))
    assert [item.value for item in store.read(ANY)] == [True, False, None]
    assert store.read(ANY)[0].value is True
    assert store.read_table(ANY).column("value").to_pylist() == [True, False, None]


def test_arrow_has_decimals_of_38_digits(store):
    write(store, *(TOTAL("a", number, Decimal(text)) for number, text in enumerate(TEXTS)))
    total = store.read_table(TOTAL).column("total")
    assert total.type == pa.decimal128(38, 18)
    assert total.to_pylist() == [Decimal(text) for text in TEXTS]


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (TOTAL("a", 0, Decimal("1E-19")), "1E-19 has more than 20 digits before .* or 18 after it"),
        (TOTAL("a", 0, Decimal("1E+20")), "has more than 20 digits before the point"),
        (TOTAL("a", 0, Decimal("NaN")), "NaN is not finite"),
        (TOTAL("a", 0, Decimal("Infinity")), "Infinity is not finite"),
        (TOTAL("a", 0, 0.5), "0.5 is not a Decimal or an int"),
        (LEAST("a", 0, "1"), "'1' is not a Decimal or an int"),
        (LEAST("a", 0, True), "True is not a Decimal or an int"),
        (ANY("a", 0, 1), "1 is not a bool"),
        (FLOATS("a", 0, Decimal("0.5")), r"columns="),
    ],
)
def test_value_that_does_not_fit_is_refused_and_named(store, metric, words):
    with pytest.raises(StoreError, match=words) as refused:
        write(store, metric)
    assert metric.name in str(refused.value)
    assert "columns=" in str(refused.value)
    assert store.read(type(metric)) == []


def test_column_that_was_of_another_type_is_named_by_sqlite(open_sqlite):
    """The other stores have a table for each type."""
    store = open_sqlite()
    write(store, metric_type("total", SumMetrics)("a", 0, 0.5))
    with pytest.raises(StoreError, match=r"total was stored with 0.5 in a column that is now of d"):
        store.read(TOTAL)


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_fit_if_scaling_them_is_exact(value):
    with localcontext(prec=500):
        scaled = value.scaleb(18)
        fits = abs(scaled) < 10**38 and scaled == scaled.to_integral_value()
    try:
        stored = FITTING[Decimal](value)
    except OverflowError:
        assert not fits
        return
    assert fits
    assert stored == value
    assert "E" not in str(stored).upper() or -stored.as_tuple().exponent <= 18
