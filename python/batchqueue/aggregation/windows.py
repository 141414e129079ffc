"""Time buckets, for the rows of an `Aggregation` and for single times in your own code.

A bucket starts when the clock of its zone first reaches a multiple of the width, or jumps past it.
So a local day is one bucket, of 23 or 25 hours if the clock changes. A change by a whole number of
buckets leaves them alone: the hour that a clock shows twice in autumn is two buckets of an hour.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, time
from functools import lru_cache
from typing import Any, TypeVar

from batchqueue import _core
from batchqueue.aggregation.metrics import MergeBuffer, Metrics
from batchqueue.base.checks import check_whole
from batchqueue.exceptions import ConfigError

_MOST_SECONDS = 9_000_000_000


@dataclass(frozen=True)
class Window:
    """Time buckets of a fixed width, which start at multiples of it on the clock of a zone.

    Attributes:
        column: A timestamp, a date, or a signed integer of seconds since the epoch.
        seconds: The width, above 0; a multiple of the column's unit, and with a zone whole seconds.
        name: The name of the column with each bucket's start, of the same type as `column`, int64
            for integers; `None`: the name of `column`.
        zone: The zone whose clock the buckets follow, so that a bucket of 86,400 s is a local day,
            of 23 or 25 hours if the clock changes: a name of the IANA database such as
            "America/New_York", or an offset such as "+05:30". Timestamps without a zone are then
            times on that clock, and bucket starts are instants, timestamps with that zone; dates
            are days of that zone. `None`: UTC, and timestamps without a zone stay without.
        offset_seconds: The start of a bucket, in seconds after 1970-01-01 00:00 on that clock: from
            0 up, and below `seconds`. Default: 0. 1970-01-05 was a Monday, so weeks from Monday are
            `seconds=7 * 86_400, offset_seconds=4 * 86_400`.

    Raises:
        ConfigError: A value is invalid; the message names it.

    Example:
        >>> from batchqueue.aggregation import Aggregation, Count
        >>> day = Window("time", 86_400, "day", zone="America/New_York")
        >>> aggregation = Aggregation(keys=[], window=day, measures={"rows": Count()})
    """

    column: str
    seconds: float
    name: str | None = None
    zone: str | None = field(default=None, kw_only=True)
    offset_seconds: float = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, int | float) or not 1e-9 <= self.seconds <= _MOST_SECONDS:
            raise ConfigError(
                f"the window is {self.seconds!r} s; give a number, 1e-9 to {_MOST_SECONDS:_}"
            )
        object.__setattr__(self, "seconds", float(self.seconds))
        if not _is_number(self.offset_seconds) or not 0 <= self.offset_seconds < self.seconds:
            raise ConfigError(
                f"offset_seconds is {self.offset_seconds!r}; give a number from 0 up and below the "
                f"width of the window, {self.seconds} s: what starts earlier starts as much later "
                "too, modulo the width"
            )
        object.__setattr__(self, "offset_seconds", float(self.offset_seconds))
        if self.zone is None:
            return
        for name, value in (("seconds", self.seconds), ("offset_seconds", self.offset_seconds)):
            if not float(value).is_integer():
                raise ConfigError(
                    f"{name} is {value!r} and zone is {self.zone!r}; give whole seconds, or leave "
                    "out the zone"
                )
        _buckets(int(self.seconds), int(self.offset_seconds), _checked_zone(self.zone))

    @property
    def output(self) -> str:
        """The name of the bucket's column in partials and results."""
        return self.column if self.name is None else self.name

    @property
    def description(self) -> dict[str, Any]:
        """The window in the text of an aggregation.

        A zone and an offset appear only if they are set, so that other windows have the same text
        as in versions without them.
        """
        defaults = {"zone": None, "offset_seconds": 0}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in defaults or value != defaults[name]
        }

    @property
    def in_core(self) -> tuple[str, str, int, int, str | None]:
        """The window as the core takes it: columns, width and offset in nanoseconds, zone."""
        width, offset = (round(seconds * 1e9) for seconds in (self.seconds, self.offset_seconds))
        return self.column, self.output, width, offset, self.zone


def bucket_start(
    when: datetime | date | float,
    seconds: int,
    *,
    zone: str | None = None,
    offset_seconds: int = 0,
) -> int:
    """Return the start of the bucket that contains a time, as in a `Window`.

    Args:
        when: An aware datetime, or seconds since the epoch; with a zone also a naive datetime,
            which is a time on that zone's clock. A time that the clock showed twice is the earlier
            instant, and a time that it skipped is later by the skip, as in Spark SQL. A date is its
            first instant, in `zone` or UTC.
        seconds: The width, in whole seconds, at least 1.
        zone: See `Window`. Default: None, UTC.
        offset_seconds: See `Window`; whole seconds. Default: 0.

    Returns:
        Seconds since the epoch, for instance the `time_bucket` of a metric.

    Raises:
        ConfigError: A value is invalid, or `when` is a naive datetime and there is no zone.

    Example:
        >>> from datetime import UTC, datetime
        >>> noon = datetime(2024, 3, 10, 12, tzinfo=UTC)
        >>> day = bucket_start(noon, 86_400, zone="America/New_York")
        >>> datetime.fromtimestamp(day, UTC).isoformat()
        '2024-03-10T05:00:00+00:00'
    """
    buckets = _buckets(seconds, offset_seconds, zone if zone is None else _checked_zone(zone))
    if type(when) is int and -_MOST_TIME <= when <= _MOST_TIME:
        return buckets.start(when)
    if isinstance(when, datetime):
        if when.tzinfo is not None:
            # Subtraction is exact, and independent of the platform.
            return buckets.start(_whole_seconds(when - _EPOCH))
        if zone is None:
            raise ConfigError(
                f"{when!r} has no zone, so it could be any of two dozen instants: give an aware "
                "datetime, or the zone whose clock showed it"
            )
        return buckets.start_on_clock(_whole_seconds(when - _EPOCH_ON_A_CLOCK))
    if isinstance(when, date):
        midnight = datetime.combine(when, time())
        return buckets.start_on_clock(_whole_seconds(midnight - _EPOCH_ON_A_CLOCK))
    if not _is_number(when) or not abs(when) <= _MOST_TIME:
        raise ConfigError(
            f"the time is {when!r}; give a datetime, a date, or seconds since the epoch, at most "
            f"{_MOST_TIME:_} before or after it; leave out rows without a time"
        )
    return buckets.start(math.floor(when))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ON_A_CLOCK = datetime(1970, 1, 1)
_MOST_TIME = 1_000_000_000_000_000


def _whole_seconds(since: Any) -> int:
    """Return a timedelta in seconds, rounded down."""
    return int(since.days * 86_400 + since.seconds)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked_zone(zone: object) -> str:
    if not isinstance(zone, str):
        raise ConfigError(
            f"zone is {zone!r}; give the name of a zone as a str, such as 'America/New_York'"
        )
    return zone


@lru_cache(maxsize=256, typed=True)
def _buckets(seconds: int, offset_seconds: int, zone: str | None) -> _core.TimeBuckets:
    for name, value, least in (("seconds", seconds, 1), ("offset_seconds", offset_seconds, 0)):
        most = _MOST_SECONDS if least else seconds - 1
        check_whole(name, value, least, most, f"whole seconds, {least} to {most:_}")
    return _core.TimeBuckets(seconds, offset_seconds, zone)


M = TypeVar("M", bound=Metrics)


def roll_up(
    partials: Iterable[M],
    seconds: int,
    *,
    every: int | None = None,
    zone: str | None = None,
    offset_seconds: int = 0,
) -> list[M]:
    """Combine partials of time buckets into those of longer ones, for instance hours into days.

    Whatever combines without error does so here, including quantiles and distinct counts. So a
    store needs only the shortest buckets, and sliding windows are made when they are read.

    Args:
        partials: Partials of any metrics, such as `store.read` returns; they are not changed.
        seconds: The width of the longer buckets, a multiple of that of the partials.
        every: Seconds from the start of a bucket to the next: a divisor of `seconds`, and a
            multiple of the width of the partials. Less than `seconds` makes sliding windows, and
            each partial counts in several. Default: `seconds`.
        zone: The zone on whose clock buckets start, as in a `Window`. A sliding window of days then
            has that many local days. The partials' buckets must not cross its midnights: for a zone
            that is half an hour off UTC, give half hours. Default: UTC.
        offset_seconds: See `Window`; below `every`. Default: 0.

    Returns:
        A partial for each metric, entity and longer bucket with a partial in it, ordered by metric,
        entity and bucket. They include windows in which the data only begins or ends, as in Spark
        SQL.

    Raises:
        ConfigError: A value is invalid.

    Example:
        >>> from batchqueue.aggregation import CountMetrics
        >>> minutes = [CountMetrics("a", at) for at in (0, 60, 120)]
        >>> [(hits.time_bucket, hits.count) for hits in roll_up(minutes, 120, every=60)]
        [(-60, 1), (0, 2), (60, 2), (120, 1)]
    """
    step = seconds if every is None else every
    if type(seconds) is not int or type(step) is not int or step < 1 or seconds % step:
        raise ConfigError(
            f"roll_up: seconds is {seconds!r} and every is {every!r}; give whole seconds, and a "
            "width that is a multiple of `every`"
        )
    steps = seconds // step

    bucket_start(0, step, zone=zone, offset_seconds=offset_seconds)  # rejects invalid values

    def starts(time_bucket: int) -> Iterator[int]:
        """Yield the starts of the buckets that contain a shorter one, the latest first."""
        start = time_bucket + 1
        for _ in range(steps):
            start = bucket_start(start - 1, step, zone=zone, offset_seconds=offset_seconds)
            yield start

    known: dict[int, tuple[int, ...]] = {}
    buffer = MergeBuffer()
    for item in partials:
        entity, time_bucket = item.key
        if time_bucket not in known:
            known[time_bucket] = tuple(starts(time_bucket))
        twins = [item.copy() for _ in range(steps)]
        for twin, start in zip(twins, known[time_bucket], strict=True):
            twin.key = (entity, start)
        buffer.accept_all(twins)
    found: list[M] = buffer.drain()  # type: ignore[assignment]  # only these were put in
    return sorted(found, key=lambda item: (item.name, item.key))
