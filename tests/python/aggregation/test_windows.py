"""Windows: timestamps, dates and integers cut into equal spans, as keys."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from batchqueue import ConfigError
from batchqueue.aggregation import (
    Aggregation,
    Aggregator,
    Count,
    Window,
)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_window_is_a_key(unit, zone):
    start = datetime(1969, 12, 31, 22, tzinfo=UTC)
    times = [start + timedelta(minutes=15 * step) for step in range(16)] + [None]
    seconds = [time and int(time.timestamp()) for time in times]
    column = pa.array(
        [
            second and second * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
            for second in seconds
        ],
        pa.int64(),
    )
    data = pa.table({"time": column.cast(pa.timestamp(unit, zone)), "key": ["a"] * 17})
    aggregation = Aggregation(
        keys=["key"], window=Window("time", 3_600, "hour"), measures={"n": Count()}
    )
    aggregator = Aggregator(aggregation)
    aggregator.update(data)
    result = aggregator.result()
    assert result.schema.field("hour").type == pa.timestamp(unit, zone)
    hours = [
        hour and int(hour.timestamp())
        for hour in result["hour"].cast(pa.timestamp(unit, "UTC")).to_pylist()
    ]
    assert hours == [-7_200, -3_600, 0, 3_600, None]
    assert result["n"].to_pylist() == [4, 4, 4, 4, 1]


@pytest.mark.parametrize(
    ("column", "seconds", "bucket"),
    [
        (
            pa.array([date(1970, 1, 9), date(1969, 12, 31)]),
            7 * 86_400,
            [date(1970, 1, 8), date(1969, 12, 25)],
        ),
        (pa.array([3_700, -1], pa.int32()), 3_600, [3_600, -3_600]),
        (pa.array([-100, 100], pa.int8()), 1_000, [-1_000, 0]),
        (pa.array([-100, 100], pa.int64()).dictionary_encode(), 1_000, [-1_000, 0]),
        (
            pa.array([2_500, 400], pa.timestamp("ms")),
            0.5,
            [datetime(1970, 1, 1, 0, 0, 2, 500_000), datetime(1970, 1, 1)],
        ),
    ],
    ids=["date", "integer", "narrow", "dictionary", "half a second"],
)
def test_windows_of_dates_and_integers_keep_their_types(column, seconds, bucket):
    aggregator = Aggregator(
        Aggregation(keys=[], window=Window("t", seconds), measures={"n": Count()})
    )
    aggregator.update(pa.table({"t": column}))
    assert aggregator.result()["t"].to_pylist() == bucket
    is_plain = pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
    wanted = column.type if is_plain else pa.int64()
    assert aggregator.result().schema.field("t").type == wanted


@pytest.mark.parametrize(
    "column", [pa.array([1.5]), pa.array([date(2013, 1, 1)]), pa.array([1], pa.timestamp("s"))]
)
def test_invalid_window_is_rejected(column):
    aggregator = Aggregator(Aggregation(keys=[], window=Window("t", 0.5), measures={"n": Count()}))
    with pytest.raises(
        ConfigError, match=r'column "t" is of type .* of which 500000000 ns are a multiple'
    ):
        aggregator.update(pa.table({"t": column}))
