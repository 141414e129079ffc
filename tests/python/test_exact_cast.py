"""Casts of Arrow data give the same value or an error, also where Arrow's own do neither."""

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchqueue.base.exact_cast import exact_cast, exact_cast_batch

WIDE = Decimal("613601318631385075249268")
STORED = pa.decimal128(38, 18)


@st.composite
def decimal_casts(draw: st.DrawFn) -> tuple[Decimal, pa.DataType, pa.DataType]:
    """Returns a decimal, a type that has it, and another type."""
    kinds = []
    for _ in range(2):
        make, most = draw(st.sampled_from([(pa.decimal128, 38), (pa.decimal256, 76)]))
        precision = draw(st.integers(1, most))
        kinds.append(make(precision, draw(st.integers(0, precision))))
    digits = draw(st.integers(1, kinds[0].precision))
    number = draw(st.integers(10 ** (digits - 1), 10**digits - 1)) * draw(st.sampled_from([1, -1]))
    return Decimal(number).scaleb(-kinds[0].scale), kinds[0], kinds[1]


def fits(value: Decimal, kind: pa.DataType) -> bool:
    scaled = value.scaleb(kind.scale)
    return scaled == int(scaled) and abs(scaled) < 10**kind.precision


@settings(deadline=None)
@given(decimal_casts())
def test_decimal_is_cast_exactly_if_it_fits_and_else_refused(
    cast: tuple[Decimal, pa.DataType, pa.DataType],
) -> None:
    value, kind, wanted = cast
    array = pa.array([value, None], kind)
    if fits(value, wanted):
        assert exact_cast(array, wanted).to_pylist() == [value, None]
    else:
        with pytest.raises(pa.ArrowInvalid):
            exact_cast(array, wanted)


@settings(deadline=None)
@given(
    st.one_of(
        st.integers(-(2**63), 2**64 - 1),
        st.sampled_from([2**53 + 1, 2**63, -(2**63), 10**18]),
        st.floats(width=64, allow_nan=False),
    ),
    st.sampled_from(
        [
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
            *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
            *(STORED, pa.decimal128(38, 0), pa.decimal256(76, 10)),
        ]
    ),
)
def test_number_is_the_nearest_of_its_type_or_refused(number: float, wanted: pa.DataType) -> None:
    is_float = isinstance(number, float)
    kind = pa.float64() if is_float else pa.uint64() if number >= 2**63 else pa.int64()
    try:
        (made,) = exact_cast(pa.array([number], kind), wanted).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return
    if is_float and not isinstance(made, int):  # rounded at most
        unit = 10.0**-wanted.scale if pa.types.is_decimal(wanted) else 1e-7
        assert float(made) == pytest.approx(number, rel=1e-3, abs=unit)
    else:
        assert made == number


REFUSED = {
    "decimals that Arrow wraps": ([WIDE], pa.decimal128(38, 0), STORED),
    "decimals within a struct": (
        [{"a": WIDE}],
        pa.struct([("a", pa.decimal128(38, 0))]),
        pa.struct([("a", STORED)]),
    ),
    "decimals within a list": ([[1, WIDE]], pa.list_(pa.decimal128(38, 0)), pa.list_(STORED)),
    "decimals within a map": (
        [[("a", WIDE)]],
        pa.map_(pa.string(), pa.decimal128(38, 0)),
        pa.map_(pa.string(), STORED),
    ),
    "a float beyond float32": ([1e300], pa.float64(), pa.float32()),
    "a text beyond float64": (["1", "1e400"], pa.string(), pa.float64()),
    "a decimal beyond float32": ([Decimal(10) ** 40], pa.decimal256(76, 0), pa.float32()),
    "an int beyond float16": ([2049], pa.int64(), pa.float16()),
    "an int as a bool": ([0, 1, 7], pa.int64(), pa.bool_()),
    "a float as a bool": ([0.5], pa.float64(), pa.bool_()),
    "a time as its date": ([datetime(2026, 1, 31, 5)], pa.timestamp("us"), pa.date32()),
    "a time without its date": ([datetime(2026, 1, 31, 5)], pa.timestamp("us"), pa.time64("us")),
    "an int beyond int64": ([2**63], pa.uint64(), pa.int64()),
    "a float beyond int64": ([2.0**63], pa.float64(), pa.int64()),
    "an instant beyond nanoseconds": (
        [datetime(9999, 1, 1)],
        pa.timestamp("s"),
        pa.timestamp("ns"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    values, kind, wanted = REFUSED[name]
    for array in (pa.array(values, kind), pa.chunked_array([values], kind)):
        with pytest.raises(pa.ArrowInvalid):
            exact_cast(array, wanted)
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["x"])
    with pytest.raises(pa.ArrowInvalid):
        exact_cast_batch(batch, pa.schema([("x", wanted)]))


ZONE = "America/New_York"
KEPT: dict[str, tuple[Any, pa.DataType, pa.DataType, Any]] = {
    "a wide decimal": ([WIDE], pa.decimal128(38, 0), pa.decimal256(76, 18), [WIDE]),
    "a decimal as a float": ([Decimal("0.1")], pa.decimal128(5, 1), pa.float64(), [0.1]),
    "infinity": ([float("inf")], pa.float64(), pa.float32(), [float("inf")]),
    "a text": (["-inf", "1.5"], pa.string(), pa.float64(), [float("-inf"), 1.5]),
    "bools": ([0, 1, None], pa.int64(), pa.bool_(), [False, True, None]),
    "a midnight": ([datetime(2026, 1, 31)], pa.timestamp("us"), pa.date32(), [date(2026, 1, 31)]),
    "a coarser unit": ([time(1, 2, 3)], pa.time64("us"), pa.time32("s"), [time(1, 2, 3)]),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_fits_is_kept(name: str) -> None:
    values, kind, wanted, made = KEPT[name]
    assert exact_cast(pa.array(values, kind), wanted).to_pylist() == made


def test_dictionary_is_cast_as_its_values() -> None:
    texts = pa.array([Decimal(1), None, WIDE], pa.decimal128(38, 0)).dictionary_encode()
    assert exact_cast(texts[:2], pa.decimal128(38, 18)).to_pylist() == [Decimal(1), None]
    with pytest.raises(pa.ArrowInvalid, match=str(WIDE)):
        exact_cast(texts, STORED)


def test_midnight_is_that_of_the_zone() -> None:
    midnight = pa.array(["2026-01-31T05:00:00Z"]).cast(pa.timestamp("s", "UTC"))
    local = midnight.cast(pa.timestamp("s", ZONE))
    assert exact_cast(local, pa.date32()).to_pylist() == [date(2026, 1, 31)]
    with pytest.raises(pa.ArrowInvalid, match="does not fit date32"):
        exact_cast(midnight, pa.date32())


WRAPPED = Decimal("768003825538626644899")
"""Arrow refuses `WIDE`, and returns another number for this one."""


@pytest.mark.parametrize("number", [WIDE, WRAPPED])
def test_message_has_the_value_and_both_types(number: Decimal) -> None:
    with pytest.raises(pa.ArrowInvalid) as raised:
        exact_cast(pa.array([Decimal(1), None, number, number], pa.decimal128(38, 0)), STORED)
    assert str(raised.value) == (
        f"{number} of type decimal128(38, 0) does not fit decimal128(38, 18)"
    )


def test_message_about_a_batch_has_the_value_too() -> None:
    batch = pa.record_batch([pa.array([Decimal(1), WIDE], pa.decimal128(38, 0))], ["x"])
    with pytest.raises(pa.ArrowInvalid, match=f"{WIDE} of type decimal128"):
        exact_cast_batch(batch, pa.schema([("x", STORED)]))


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_null_that_the_schema_forbids_is_refused_with_its_column(kind: pa.DataType) -> None:
    batch = pa.record_batch([pa.array([1, None], pa.int64())], ["x"])
    with pytest.raises(pa.ArrowInvalid, match="column 'x' has a null"):
        exact_cast_batch(batch, pa.schema([pa.field("x", kind, nullable=False)]))


def test_batch_with_other_columns_is_refused() -> None:
    batch = pa.record_batch([[1], [2]], ["x", "y"])
    with pytest.raises(ValueError, match=r"\['x', 'y'\], not \['y', 'x'\]"):
        exact_cast_batch(batch, pa.schema([("y", pa.int64()), ("x", pa.int64())]))
