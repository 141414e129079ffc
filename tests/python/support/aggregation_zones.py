"""What buckets in local time must be, from `zoneinfo` and minute by minute; nothing of the core."""

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]

DAY = 86_400
MONDAY = 4 * DAY

ZONES = {
    "America/New_York": (2023, 2024),
    "America/Sao_Paulo": (2017, 2019),  # the clock skips midnight
    "America/Havana": (2024, 2024),  # shows midnight twice
    "Australia/Lord_Howe": (2024, 2024),  # is changed by half an hour
    "America/St_Johns": (2010, 2011),  # at one minute past midnight
    "Pacific/Apia": (2011, 2011),  # skips a day
    "Antarctica/Casey": (2009, 2010),  # is changed by three hours
    "Africa/Casablanca": (2024, 2024),  # for the month of Ramadan
    "Asia/Kolkata": (2024, 2024),
    "UTC": (2024, 2024),
}
"""Zones, with the first and the last year to check."""

WIDTHS = [
    (3_600, 0),
    (1_800, 0),
    (7_200, 0),
    (7_200, 1_800),
    (21_600, 0),
    (DAY, 0),
    (DAY, 6 * 3_600),
    (DAY, 9_000),
    (7 * DAY, MONDAY),
    (5_400, 0),
    (2_400, 0),
    (30 * DAY, 0),
]
"""Widths with an offset, in seconds."""


def minutes(zone: str) -> tuple[Array, Array]:
    """Returns the minutes of the zone's years and two months before, and the UTC offset of each."""
    first, last = ZONES[zone]
    start = int(datetime(first - 1, 11, 1, tzinfo=UTC).timestamp())
    end = int(datetime(last + 1, 1, 1, tzinfo=UTC).timestamp())
    hours = [utc_offset(hour, zone) for hour in range(start, end + 1, 3_600)]
    offsets = np.repeat(np.array(hours[:-1]), 60)
    for number, (before, after) in enumerate(pairwise(hours)):
        if before != after:
            begin = start + 3_600 * number
            offsets[60 * number : 60 * number + 60] = [
                utc_offset(begin + 60 * minute, zone) for minute in range(60)
            ]
    return np.arange(start, end, 60), offsets


def utc_offset(second: int, zone: str) -> int:
    offset = datetime.fromtimestamp(second, ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def starts(times: Array, offsets: Array, width: int, offset: int) -> Array:
    """Returns the start of each time's bucket.

    A bucket starts when the clock first comes to a multiple of the width, or jumps past it. A
    change by a whole number of buckets does not count as one.
    """
    changes = np.diff(offsets, prepend=offsets[0])
    unnoticed = np.cumsum(np.where(changes % width == 0, changes, 0))
    multiples = (times + offsets - unnoticed - offset) // width
    reached = np.maximum.accumulate(multiples)
    return times[np.searchsorted(reached, reached)]
