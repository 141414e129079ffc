"""Longer and overlapping time buckets, against sums over all partials in them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue import ConfigError
from batchqueue.aggregation import (
    CountMetrics,
    DistinctMetrics,
    Metrics,
    QuantileMetrics,
    metric_type,
    roll_up,
)

HITS = metric_type("hits", CountMetrics, keys={"city": str, "kind": int})
VISITS = metric_type("visits", CountMetrics)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-20, 20), st.integers(1, 9))),
    st.sampled_from([(1, 1), (3, 1), (6, 2), (4, 4)]),
    st.integers(0, 3),
)
def test_each_window_has_the_partials_in_it(
    found: list[tuple[str, int, int]], widths: tuple[int, int], offset: int
) -> None:
    width, every = widths
    offset %= every
    partials = [
        kind(entity, bucket * 10, count)
        for entity, bucket, count in found
        for kind in (VISITS, CountMetrics)
    ]
    model: dict[tuple[str, str, int], int] = {}
    for start in range(-30 * every + offset, 31 * every, every):
        for item in partials:
            if start * 10 <= item.time_bucket < (start + width) * 10:
                key = (item.name, item.entity, start * 10)
                model[key] = model.get(key, 0) + item.count
    before = [(item.key, item.count) for item in partials]
    rolled = roll_up(partials, width * 10, every=every * 10, offset_seconds=offset * 10)
    assert [((item.name, *item.key), item.count) for item in rolled] == sorted(model.items())
    assert [(item.key, item.count) for item in partials] == before


def test_local_days_have_their_hours() -> None:
    """Of 23 and of 25 hours where the clock is changed, and sliding over three of them."""
    zone = ZoneInfo("America/New_York")
    for first in (datetime(2024, 3, 8, tzinfo=zone), datetime(2024, 11, 1, tzinfo=zone)):
        begin = int(first.timestamp())
        end = int((first + timedelta(days=5)).timestamp())  # on the same clock
        hours = [HITS(("rome", 1), at) for at in range(begin, end, 3_600)]
        days = roll_up(hours, 86_400, zone="America/New_York")
        assert [item.count for item in days] == (
            [24, 24, 23, 24, 24] if first.month == 3 else [24, 24, 25, 24, 24]
        )
        assert {item.key_values for item in days} == {("rome", 1)}
        starts = [datetime.fromtimestamp(item.time_bucket, zone).hour for item in days]
        assert starts == [0] * 5
        sliding = roll_up(hours, 3 * 86_400, every=86_400, zone="America/New_York")
        whole = [item.count for item in sliding][2:5]
        assert whole == ([71, 71, 71] if first.month == 3 else [73, 73, 73])


def test_sketches_roll_up_to_those_of_all_values() -> None:
    at = int(datetime(2024, 3, 10, tzinfo=UTC).timestamp())
    for kind, values in ((QuantileMetrics, range(1, 500)), (DistinctMetrics, range(500))):
        make: Any = kind
        hours: list[Metrics] = [make("a", at + value % 24 * 3_600, value) for value in values]
        whole = make("a", at, values[0])
        for value in values[1:]:
            whole.combine(make("a", at, value))
        assert roll_up(hours, 86_400) == [whole]


@pytest.mark.parametrize(
    ("seconds", "settings", "words"),
    [
        (0, {}, "seconds is 0 and every is None; give whole seconds"),
        (1.5, {}, "seconds is 1.5"),
        (60, {"every": 7}, "every is 7; give whole seconds, and a width that is a multiple"),
        (60, {"every": 0}, "every is 0"),
        (60, {"every": 120}, "every is 120"),
        (60, {"offset_seconds": 60}, "offset_seconds is 60; give whole seconds, 0 to 59"),
        (60, {"zone": "Rome"}, "Rome"),
    ],
)
def test_widths_that_cannot_be_are_refused(
    seconds: Any, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        roll_up([CountMetrics("a", 0)], seconds, **settings)
