"""`IterableSource` of dicts: no value changes, and no column is lost, without an error."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

from batchqueue.pipeline import IterableSource, Limit, SourceDataError

NOON = datetime(2026, 3, 29, 12)
EAST = timezone(timedelta(hours=5))


def read(rows, schema=None, split_rows=2):
    source = IterableSource(lambda: rows, schema=schema, split_rows=split_rows)
    found, at = [], source.initial()
    while splits := source.plan(at, Limit(rows=10, bytes=1 << 20)).splits:
        found += [row for batch in source.read(splits[0]) for row in batch.to_pylist()]
        at = splits[0].end
    return found


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, 1.5),
        (1, Decimal("1.5")),
        (1, 2**63),
        (True, 2),
        (date(2026, 3, 29), NOON),
        (NOON, NOON.replace(tzinfo=EAST)),
        (NOON.replace(tzinfo=EAST), NOON),
        ({"x": 1}, {"x": 2, "y": 3}),
        ({"x": [1]}, {"x": [1.5]}),
        ([{"x": 1}], [{"x": 1, "y": 2}]),
        (None, 1),
    ],
)
def test_later_value_that_its_column_would_change_is_refused(first, later):
    with pytest.raises(SourceDataError, match=r"source 'iterable': column 'a' cannot .*schema="):
        read([{"a": first}] * 2 + [{"a": later}])


@pytest.mark.parametrize(
    "values", [(date(2026, 3, 29), NOON), (NOON, NOON.replace(tzinfo=EAST)), (1, "x"), (0.5, "x")]
)
def test_values_of_the_first_split_that_do_not_go_together_are_refused(values):
    with pytest.raises(SourceDataError, match=r"column 'a' cannot have .*; give schema="):
        read([{"a": value} for value in values])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (-1.9, pa.int32()),
        (300, pa.int8()),
        (NOON.replace(microsecond=5), pa.timestamp("ms")),
        (NOON, pa.timestamp("us", "UTC")),
        (time(1, 2, 3, 4), pa.time32("s")),
        (timedelta(microseconds=5), pa.duration("s")),
        (Decimal("1.25"), pa.decimal128(5, 1)),
        ([1.5], pa.list_(pa.int64())),
        (1.7, pa.timestamp("us")),
        ("x" * 100, pa.int64()),
        (1e300, pa.float32()),
        ([1e300], pa.list_(pa.float32())),
        ([1.5], pa.list_view(pa.int64())),
        ({"a": 1.5}, pa.map_(pa.string(), pa.int32())),
        ([{"a": NOON}], pa.list_(pa.map_(pa.string(), pa.date32()))),
        ((1, 2.5), pa.struct({"x": pa.int64(), "y": pa.int64()})),
        ([("x", 1.5)], pa.struct({"x": pa.int64()})),
        ({"x": NOON}, pa.struct({"x": pa.timestamp("us", "UTC")})),
        (time(1, 2, tzinfo=EAST), pa.time64("us")),
        (NOON.replace(hour=0, tzinfo=EAST), pa.date32()),
        (pd.NaT, pa.date32()),
        (pd.Timestamp(1), pa.timestamp("us")),
        (pd.Timestamp(1), pa.date32()),
        (pd.Timedelta(1), pa.duration("us")),
    ],
)
def test_value_that_a_given_type_would_change_is_refused(value, kind):
    with pytest.raises(SourceDataError, match=r"column 'a' cannot have .* as .*; give schema="):
        read([{"a": value}], pa.schema({"a": kind}))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2, pa.int8()),
        (2.0, pa.int64()),
        (2**64 - 1, pa.uint64()),
        (0.5, pa.float32()),
        ([0.5, None], pa.list_(pa.float32(), 2)),
        ({"x": 0.5}, pa.struct({"y": pa.int64(), "x": pa.float32()})),
        ([("k", 1)], pa.map_(pa.string(), pa.int64())),
        ("x", pa.dictionary(pa.int32(), pa.string())),
        (b"x", pa.binary(1)),
        (NOON.replace(tzinfo=UTC), pa.timestamp("ms", "UTC")),
        (date(2026, 3, 29), pa.date32()),
        (Decimal("1.5"), pa.decimal128(9, 3)),
        (None, pa.int64()),
        ({"x": 1, "z": None}, pa.struct({"y": pa.int64(), "x": pa.int64()})),
        (pd.Timestamp(1), pa.timestamp("ns")),
        (pd.Timestamp(1, tz="UTC"), pa.timestamp("ns", "Asia/Tokyo")),
        (pd.Timedelta(1), pa.duration("ns")),
        (float("inf"), pa.float32()),
        (1, pa.dictionary(pa.int32(), pa.float64())),
    ],
)
def test_value_that_a_given_type_holds_is_kept(value, kind):
    found = read([{"a": value}, {}], pa.schema({"a": kind}))
    if isinstance(value, dict):
        value = {"y": None, "x": value["x"]}
    assert found == [{"a": value}, {"a": None}]


@pytest.mark.parametrize(
    "values", [[[NOON, NOON.replace(tzinfo=EAST)]], [{"x": date(2026, 3, 29)}, {"x": NOON}]]
)
def test_times_below_the_top_do_not_change_either(values):
    with pytest.raises(SourceDataError, match="column 'a' cannot have"):
        read([{"a": value} for value in values])


def test_value_beside_another_that_only_its_type_holds_is_refused():
    with pytest.raises(SourceDataError, match=r"cannot have 1.9 as uint64 \(the value would ch"):
        read([{"a": 2**63}, {"a": 1.9}], pa.schema({"a": pa.uint64()}))


def test_fields_of_structs_that_are_null_do_not_count():
    kind = pa.struct({"x": pa.list_(pa.int32(), 2)})
    rows = [{"a": {"x": [1, 2]}}, {"a": None}, {"a": {"x": None}}]
    assert read(rows, pa.schema({"a": kind}), split_rows=3) == rows


def test_null_in_a_column_without_nulls_is_refused():
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(SourceDataError, match="column 'a' has a null, and schema= says that it"):
        read([{"a": 1}, {}], schema)


def test_long_value_is_shortened_in_the_error():
    with pytest.raises(SourceDataError) as raised:
        read([{"a": "x" * 100_000}], pa.schema({"a": pa.int64()}))
    assert len(str(raised.value).partition(" as int64")[0]) < 200


def test_float_column_rounds_to_its_width():
    [row] = read([{"a": 0.1}], pa.schema({"a": pa.float32()}))
    assert row == {"a": pytest.approx(0.1)}


def test_columns_are_those_of_all_rows_of_the_first_split():
    rows = [{}, {"a": 1}, {"b": 2, "a": 3}, {}]
    assert read(rows, split_rows=4) == [
        {"a": None, "b": None},
        {"a": 1, "b": None},
        {"a": 3, "b": 2},
        {"a": None, "b": None},
    ]


def test_rows_without_any_column_are_refused():
    with pytest.raises(SourceDataError, match=r"'iterable' gave 2 rows without a column; give sch"):
        read([{}, {}, {"a": 1}])


def test_name_that_is_not_a_text_is_refused():
    with pytest.raises(SourceDataError, match="gave a column named 3; give texts as names"):
        read([{3: 1}])
