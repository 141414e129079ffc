"""Buckets in local time: days of 23 and 25 hours, weeks from Monday, and what else clocks do."""

from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aggregation_zones import DAY, MONDAY, WIDTHS, ZONES, minutes, starts, utc_offset
from batchqueue import ConfigError
from batchqueue.aggregation import Aggregation, Aggregator, Count, Window, bucket_start

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

cached_minutes = cache(minutes)


def counts(column: Any, window: Window) -> dict[Any, int]:
    """Returns the rows of each bucket, by its start as a plain number."""
    aggregator = Aggregator(Aggregation(keys=[], window=window, measures={"rows": Count()}))
    aggregator.update(pa.table({window.column: column}))
    result = aggregator.result()
    found = result[window.output]
    if pa.types.is_date(found.type):
        found = found.cast(pa.int32())
    plain = found.cast(pa.int64())
    return dict(zip(plain.to_pylist(), result["rows"].to_pylist(), strict=True))


def day_in(zone: str, *day: int) -> int:
    """Returns the instant of a local midnight."""
    return int(datetime(*day, tzinfo=ZoneInfo(zone)).timestamp())  # type: ignore[misc,arg-type]


@pytest.mark.matrix(4)
@pytest.mark.parametrize(("width", "offset"), WIDTHS)
@pytest.mark.parametrize("zone", ZONES)
def test_every_minute_of_years_is_in_the_bucket_that_zoneinfo_says(
    zone: str, width: int, offset: int
) -> None:
    times, offsets = cached_minutes(zone)
    wanted = starts(times, offsets, width, offset)
    complete = wanted > times[0]  # the first bucket began before the first minute
    times, wanted = times[complete], wanted[complete]
    window = Window("t", width, zone=zone, offset_seconds=offset)
    found, rows = np.unique(wanted, return_counts=True)
    assert counts(pa.array(times), window) == dict(zip(found.tolist(), rows.tolist(), strict=True))
    near_changes = np.flatnonzero(np.diff(offsets[complete]))
    chosen = {
        index
        for change in [0, *near_changes.tolist()]
        for index in range(change, min(change + 2_000, len(times)), 13)
    }
    for index in chosen:
        start = bucket_start(int(times[index]), width, zone=zone, offset_seconds=offset)
        assert start == wanted[index], (index, int(times[index]))


def test_local_days_have_23_and_25_hours_and_a_repeated_hour_is_two() -> None:
    zone = "America/New_York"
    for day, length in (((2024, 3, 10), 23), ((2024, 11, 3), 25), ((2024, 7, 4), 24)):
        first = day_in(zone, *day)
        hours = pa.array([first + 3_600 * hour for hour in range(length)])
        assert counts(hours, Window("t", DAY, zone=zone)) == {first: length}
        assert len(counts(hours, Window("t", 3_600, zone=zone))) == length
        assert bucket_start(first - 1, DAY, zone=zone) < first
        assert bucket_start(first + 3_600 * length, DAY, zone=zone) == first + 3_600 * length


def test_a_week_starts_on_monday_with_an_offset_of_four_days() -> None:
    zone = "America/New_York"
    monday = day_in(zone, 2024, 3, 4)
    sunday = datetime(2024, 3, 10, 23, 59, tzinfo=ZoneInfo(zone))
    week = {"zone": zone, "offset_seconds": MONDAY}
    assert bucket_start(sunday, 7 * DAY, **week) == monday
    assert bucket_start(sunday + timedelta(minutes=1), 7 * DAY, **week) == monday + 7 * DAY - 3_600
    dates = pa.array([date(2024, 3, 4), date(2024, 3, 10), date(2024, 3, 11)])
    days = {(date(2024, 3, day) - date(1970, 1, 1)).days: rows for day, rows in ((4, 2), (11, 1))}
    window = Window("t", 7 * DAY, zone=zone, offset_seconds=MONDAY)
    assert counts(dates, window) == days


def test_a_day_starts_at_one_where_midnight_is_skipped_and_at_the_first_of_two() -> None:
    skipped = datetime(2018, 11, 4, 12, tzinfo=ZoneInfo("America/Sao_Paulo"))
    start = bucket_start(skipped, DAY, zone="America/Sao_Paulo")
    assert datetime.fromtimestamp(start, UTC) == datetime(2018, 11, 4, 3, tzinfo=UTC)
    twice = datetime(2024, 11, 3, 12, tzinfo=ZoneInfo("America/Havana"))
    start = bucket_start(twice, DAY, zone="America/Havana")
    assert datetime.fromtimestamp(start, UTC) == datetime(2024, 11, 3, 4, tzinfo=UTC)


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("column_zone", ["UTC", "Asia/Tokyo"])
def test_timestamps_with_any_zone_are_instants(unit: Any, column_zone: str) -> None:
    times, offsets = cached_minutes("America/New_York")
    wanted = starts(times, offsets, DAY, 0)
    times, wanted = times[wanted > times[0]], wanted[wanted > times[0]]
    column = pa.array(times * PER_SECOND[unit]).cast(pa.timestamp(unit, column_zone))
    window = Window("t", DAY, zone="America/New_York")
    found, rows = np.unique(wanted * PER_SECOND[unit], return_counts=True)
    assert counts(column, window) == dict(zip(found.tolist(), rows.tolist(), strict=True))


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("zone", ["America/New_York", "America/Sao_Paulo", "Pacific/Apia"])
def test_timestamps_without_a_zone_are_times_on_its_clock(zone: str, unit: Any) -> None:
    # Every quarter of an hour that a clock could show: also those that it skipped or showed twice.
    clock = np.arange(cached_minutes(zone)[0][0], cached_minutes(zone)[0][-1], 900)
    as_instants = [
        int(datetime.fromtimestamp(second, UTC).replace(tzinfo=ZoneInfo(zone)).timestamp())
        for second in clock.tolist()
    ]
    window = Window("t", 1_800, zone=zone)
    column = pa.array(clock * PER_SECOND[unit]).cast(pa.timestamp(unit))
    found = counts(column, window)
    assert found == {
        start * PER_SECOND[unit]: rows
        for start, rows in counts(pa.array(as_instants), window).items()
    }
    aggregator = Aggregator(Aggregation(keys=[], window=window, measures={"rows": Count()}))
    aggregator.update(pa.table({"t": column}))
    assert aggregator.result().schema.field("t").type == pa.timestamp(unit, zone)
    naive = datetime.fromtimestamp(int(clock[4_000]), UTC).replace(tzinfo=None)
    assert bucket_start(naive, 1_800, zone=zone) == bucket_start(
        as_instants[4_000], 1_800, zone=zone
    )


def test_null_is_a_separate_bucket_and_rows_merge_with_partials_of_rows() -> None:
    window = Window("t", DAY, zone="America/New_York")
    aggregation = Aggregation(keys=[], window=window, measures={"rows": Count()})
    first, total = Aggregator(aggregation), Aggregator(aggregation)
    naive = pa.array([datetime(2024, 3, 10, 2, 30), None], pa.timestamp("us"))
    first.update(pa.table({"t": naive}))
    total.update(first.partials())
    total.update(pa.table({"t": naive}))
    midnight = datetime(2024, 3, 10, tzinfo=ZoneInfo("America/New_York"))
    assert total.result().to_pylist() == [{"t": midnight, "rows": 2}, {"t": None, "rows": 2}]


zones = st.sampled_from(sorted(ZONES)) | st.sampled_from(sorted(available_timezones()))
widths = st.sampled_from(WIDTHS) | st.tuples(st.integers(1, 40 * DAY), st.just(0))


# Of later times another release of the database may know better.
@settings(deadline=None)
@given(zones, widths, st.integers(-3_000_000_000, 1_700_000_000))
def test_buckets_are_intervals_and_start_on_a_multiple_or_where_the_clock_was_changed(
    zone: str, width: tuple[int, int], second: int
) -> None:
    # Before 1970, what a name stands for depends on how a release of the database was built.
    assume(second >= 0 or zone in ZONES)
    seconds, offset = width

    def start_of(time: int) -> int:
        return bucket_start(time, seconds, zone=zone, offset_seconds=offset)

    try:
        start = start_of(second)
    except ConfigError:
        assert zone not in ZONES  # a name that this machine adds, such as "localtime"
        return
    assert start <= second
    assert start_of(start - 1) < start
    for time in {start, (start + second) // 2, second - (second - start) % 3_600}:
        assert start_of(time) == start
    is_multiple = (start + utc_offset(start, zone) - offset) % seconds == 0
    assert is_multiple or utc_offset(start, zone) != utc_offset(start - 1, zone)


def test_a_time_may_be_a_datetime_a_date_or_seconds() -> None:
    noon = datetime(2024, 3, 10, 12, tzinfo=UTC)
    midnight = day_in("America/New_York", 2024, 3, 10)
    new_york = {"zone": "America/New_York"}
    for time in (
        noon,
        noon.astimezone(ZoneInfo("Asia/Tokyo")),
        noon.timestamp(),
        int(noon.timestamp()),
        datetime(2024, 3, 10, 8),
        date(2024, 3, 10),
    ):
        assert bucket_start(time, DAY, **new_york) == midnight
    assert bucket_start(date(2024, 3, 10), DAY) == int(noon.timestamp()) - DAY // 2
    assert bucket_start(-0.5, 3_600) == -3_600
    assert bucket_start(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), 3_600) == -3_600
    assert bucket_start(7_200, 3_600, offset_seconds=1_800) == 5_400


def test_an_offset_moves_the_buckets_of_utc_too() -> None:
    seconds = pa.array([-1, 0, 1_799, 1_800, 5_399])
    window = Window("t", 3_600, offset_seconds=1_800)
    assert counts(seconds, window) == {-1_800: 3, 1_800: 2}
    micros = pa.array([0, 1_800_000_000], pa.timestamp("us"))
    assert counts(micros, window) == {-1_800_000_000: 1, 1_800_000_000: 1}
    dates = pa.array([date(1970, 1, 4), date(1970, 1, 5)])
    assert counts(dates, Window("t", 7 * DAY, offset_seconds=MONDAY)) == {-3: 1, 4: 1}


def test_what_a_window_without_a_zone_says_of_itself_has_not_changed() -> None:
    """Stores and partials hold this text."""
    before = '{"keys": ["k"], "window": {"column": "t", "seconds": 60.0, "name": null}, "measures"'
    aggregations = [
        Aggregation(keys=["k"], window=window, measures={"n": Count()})
        for window in (
            Window("t", 60),
            Window("t", 60, zone="UTC"),
            Window("t", 60, offset_seconds=1),
        )
    ]
    assert aggregations[0].text.startswith(before)
    assert len({aggregation.text for aggregation in aggregations}) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window("t", 60, zone="Mars/Base"), r'zone "Mars/Base" is not known; give a name'),
        (lambda: Window("t", 60, zone="america/new_york"), "in its upper and lower case"),
        (lambda: Window("t", 60, zone="+19:00"), r"an offset from UTC such as '\+05:30'"),
        (lambda: Window("t", 60, zone=5), "zone is 5; give the name of a zone as a str"),
        (lambda: Window("t", 0.5, zone="UTC"), r"seconds is 0\.5 and zone is 'UTC'; give whole"),
        (
            lambda: Window("t", 60, zone="UTC", offset_seconds=0.5),
            r"offset_seconds is 0\.5 and zone is 'UTC'; give whole seconds, or leave out",
        ),
        (lambda: Window("t", 60, offset_seconds=60), r"offset_seconds is 60; give .* below the"),
        (lambda: Window("t", 60, offset_seconds=-1), r"offset_seconds is -1; give .* from 0 up"),
        (lambda: Window("t", 60, offset_seconds="1"), r"offset_seconds is '1'; give a number"),
        (lambda: bucket_start(datetime(2024, 1, 1), 60), "has no zone.*: give an aware datetime"),
        (lambda: bucket_start(None, 60), "the time is None; give a datetime.*leave out rows"),
        (lambda: bucket_start(float("nan"), 60), "the time is nan; give a datetime"),
        (lambda: bucket_start(True, 60), "the time is True; give a datetime"),
        (lambda: bucket_start(10**16, 60), "at most 1_000_000_000_000_000 before or after"),
        (lambda: bucket_start(0, 0), "seconds is 0; give whole seconds, 1 to 9_000_000_000"),
        (lambda: bucket_start(0, 60.0), r"seconds is 60\.0; give whole seconds"),
        (lambda: bucket_start(0, 60, offset_seconds=60), "offset_seconds is 60; .* 0 to 59"),
        (lambda: bucket_start(0, 60, zone=["UTC"]), r"zone is \['UTC'\]; give the name"),
    ],
)
def test_what_cannot_be_a_bucket_is_refused_with_the_remedy(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("column", "window"),
    [
        (pa.array([1], pa.timestamp("s")), Window("t", 60, offset_seconds=0.5)),
        (pa.array([date(2024, 1, 1)]), Window("t", DAY, offset_seconds=3_600)),
        (pa.array([date(2024, 1, 1)]), Window("t", 3_600, zone="UTC")),
    ],
)
def test_a_column_that_is_too_coarse_for_its_buckets_is_refused(
    column: Any, window: Window
) -> None:
    aggregator = Aggregator(Aggregation(keys=[], window=window, measures={"rows": Count()}))
    with pytest.raises(ConfigError, match=r'column "t" is of type .* in a unit of which'):
        aggregator.update(pa.table({"t": column}))
