"""Decimals in an `Aggregator`: exact sums, their order, keys; against Python's own decimals."""

from collections import defaultdict
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Aggregator,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Quantiles,
    Sum,
    TopN,
)

MONEY = pa.decimal128(12, 2)

amounts = st.none() | st.integers(-(10**12) + 1, 10**12 - 1).map(lambda cents: Decimal(cents) / 100)
rows = st.lists(st.tuples(st.sampled_from(["a", "b", None]), amounts), max_size=40)


def table(of: list[tuple[Any, Any]], kind: pa.DataType = MONEY) -> pa.Table:
    names, values = zip(*of, strict=True) if of else ((), ())
    return pa.table({"name": pa.array(names, pa.string()), "value": pa.array(values, kind)})


MEASURES = {
    "rows": Count(),
    "values": Count("value"),
    "total": Sum("value"),
    "mean": Mean("value"),
    "least": Min("value"),
    "most": Max("value"),
}


def results(aggregator: Aggregator) -> dict[Any, dict[str, Any]]:
    result = aggregator.result()
    return {row["name"]: row for row in ([] if result is None else result.to_pylist())}


@given(rows, st.integers(0, 40))
def test_sums_means_and_extremes_are_those_of_python(of: list[Any], cut: int) -> None:
    """In one aggregator, and in two whose partials a third one merges."""
    aggregation = Aggregation(keys=["name"], measures=MEASURES)
    whole, merged = Aggregator(aggregation), Aggregator(aggregation)
    whole.update(table(of))
    for part in (of[:cut], of[cut:]):
        l1 = Aggregator(aggregation)
        l1.update(table(part))
        if (partials := l1.partials()) is not None:
            merged.update(partials)
    by_name: dict[Any, list[Any]] = defaultdict(list)
    for name, value in of:
        by_name[name].append(value)
    for aggregator in (whole, merged):
        found = results(aggregator)
        assert found.keys() == by_name.keys()
        for name, values in by_name.items():
            known = [value for value in values if value is not None]
            assert (found[name]["rows"], found[name]["values"]) == (len(values), len(known))
            assert found[name]["total"] == (sum(known) if known else None)
            assert found[name]["least"] == min(known, default=None)
            assert found[name]["most"] == max(known, default=None)
            mean = float(sum(known)) / len(known) if known else None
            assert found[name]["mean"] == mean


def test_results_have_the_scale_of_the_column_and_sums_all_digits() -> None:
    aggregator = Aggregator(Aggregation(keys=["name"], measures=MEASURES))
    aggregator.update(table([("a", Decimal("1.20"))]))
    schema = aggregator.result().schema
    assert schema.field("total").type == pa.decimal128(38, 2)
    assert schema.field("least").type == schema.field("most").type == MONEY
    assert schema.field("mean").type == pa.float64()


@given(rows)
def test_decimals_can_be_keys(of: list[Any]) -> None:
    aggregator = Aggregator(Aggregation(keys=["value"], measures={"rows": Count()}))
    aggregator.update(table(of))
    expected: dict[Any, int] = defaultdict(int)
    for _, value in of:
        expected[value] += 1
    result = aggregator.result()
    found = [] if result is None else result.to_pylist()
    assert {row["value"]: row["rows"] for row in found} == expected


def test_decimals_order_rankings_and_first_and_last() -> None:
    measures = {
        "best": TopN("value", 2, label="name"),
        "first": First("name", by="value"),
        "last": Last("value", by="value"),
    }
    aggregator = Aggregator(Aggregation(keys=[], measures=measures))
    values = ["-7.01", "0", "12.30", "-12.30", "12.29"]
    aggregator.update(table([(f"n{text}", Decimal(text)) for text in values]))
    (row,) = aggregator.result().to_pylist()
    best = [(entry["value"], entry["label"]) for entry in row["best"]]
    assert best == [(Decimal("12.30"), "n12.30"), (Decimal("12.29"), "n12.29")]
    assert (row["first"], row["last"]) == ("n-12.30", Decimal("12.30"))


def test_quantiles_of_decimals_are_within_one_percent() -> None:
    aggregator = Aggregator(Aggregation(keys=[], measures={"p": Quantiles("value", [0.5, 0.99])}))
    aggregator.update(table([("a", Decimal(n) / 100) for n in range(1, 1_001)]))
    ((row),) = aggregator.result().to_pylist()
    assert row["p"] == pytest.approx([5.0, 9.9], rel=0.02)


@pytest.mark.parametrize("scale", [0, 2, 38])
def test_largest_decimals_are_summed_exactly_until_no_decimal_holds_the_sum(scale: int) -> None:
    kind = pa.decimal128(38, scale)
    largest, least = (Decimal((sign, (9,) * 38, -scale)) for sign in (0, 1))
    aggregator = Aggregator(Aggregation(keys=["name"], measures={"total": Sum("value")}))
    aggregator.update(table([("a", largest), ("a", least), ("a", largest)], kind))
    assert results(aggregator)["a"]["total"] == largest
    aggregator.update(table([("a", largest)], kind))
    with pytest.raises(
        OverflowError, match=r'"total" is 1\.?9[9.]*8, which does not fit into decimal128'
    ):
        aggregator.result()
    partials = aggregator.partials()
    (partial,) = partials.to_pylist()
    assert partial["total"]["sum"] == Decimal((0, (1, *(9,) * 37, 8), -scale))
    aggregator.update(partials)
    aggregator.update(table([("a", least)], kind))
    assert results(aggregator)["a"]["total"] == largest


def test_dictionary_of_decimals_is_read_as_its_values() -> None:
    values = pa.array([Decimal("1.50"), None, Decimal("2.00"), Decimal("1.50")], MONEY)
    aggregator = Aggregator(Aggregation(keys=["key"], measures={"total": Sum("value")}))
    encoded = values.dictionary_encode()
    aggregator.update(pa.table({"key": encoded, "value": encoded}))
    found = {row["key"]: row["total"] for row in aggregator.result().to_pylist()}
    assert found == {Decimal("1.50"): Decimal("3.00"), None: None, Decimal("2.00"): Decimal("2.00")}


def test_other_scale_in_a_later_batch_is_refused() -> None:
    aggregator = Aggregator(Aggregation(keys=["name"], measures={"total": Sum("value")}))
    aggregator.update(table([("a", Decimal("1.5"))]))
    with pytest.raises(ConfigError, match=r"Decimal256\(76, 2\).*as before"):
        aggregator.update(table([("a", Decimal("1.5"))], pa.decimal128(12, 3)))
    assert results(aggregator)["a"]["total"] == Decimal("1.5")


@pytest.mark.parametrize("kind", [pa.decimal256(40, 2), pa.decimal64(12, 2)])
def test_other_widths_are_refused_with_the_remedy(kind: pa.DataType) -> None:
    aggregator = Aggregator(Aggregation(keys=["name"], measures={"total": Sum("value")}))
    with pytest.raises(ConfigError, match=r"decimals of 128.*cast it first"):
        aggregator.update(table([("a", Decimal("1.5"))], kind))
