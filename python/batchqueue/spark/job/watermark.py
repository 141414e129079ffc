"""When a time bucket is final: `AggregationJob.watermark`."""

import math
import time
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute

from batchqueue import ConfigError
from batchqueue._words import with_article
from batchqueue.aggregation import Window, bucket_start
from batchqueue.spark.errors import SinkError

_compute: Any = pyarrow.compute  # its type hints lack functions
_EPOCH, _DAY_S = date(1970, 1, 1), 86_400
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class Watermark:
    """Time buckets of a stream become final, each in one epoch, when late rows have had their time.

    The watermark is the latest time in the rows of all epochs so far, less the delay, as in Spark.
    A bucket that ends at or before it is final. The summary of each epoch has `final_before`: the
    buckets that start before it are final as of that epoch's commit; see `final_before` of the
    stores. Rows of an epoch are compared with the watermark that the epochs before it have left, so
    that it does not matter in which order the rows of one epoch are read. Batch writes move no
    watermark, and may write to final buckets, for instance to compute a day again.

    Attributes:
        time: The column with the times of rows, and the widest buckets of the job, in whole
            seconds. The windows of declared metrics must divide them; functions and `items` must
            not make wider ones, whose partials would count as late. A time bucket of 0, which
            stands for all times, is never late.
        delay_s: How long a row may be late, in seconds of the rows' times: also how far the parts
            of a source that are read side by side, such as the partitions of a topic, are apart in
            these times. Default: 0.
        late: What becomes of partials for a bucket that is final. "drop": they are left out, and
            the commit logs a warning. "add": they are added to what is stored. Either way the
            summary of the epoch counts them as `late`. Default: "drop".
        max_ahead_s: Times that are later than the clock of the task by more than so many seconds
            move no watermark, as they are wrong. Default: 86,400, a day.

    Raises:
        ConfigError: A value is invalid; the message names it.

    Example:
        >>> HOUR = Window("at", 3600)
        >>> Watermark(HOUR, delay_s=600).late
        'drop'
    """

    time: Window
    delay_s: float = 0
    late: Literal["drop", "add"] = "drop"
    max_ahead_s: float = 86_400

    def __post_init__(self) -> None:
        time = self.time
        if not isinstance(time, Window) or time.seconds % 1 or time.offset_seconds % 1:
            raise ConfigError(
                f"watermark: time is {time!r}; give a Window of whole seconds, for instance "
                "Window('at', 3600)"
            )
        for name in ("delay_s", "max_ahead_s"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value <= 1e9
            ):
                raise ConfigError(f"watermark: {name} is {value!r}; give seconds, 0 to 1e9")
        if self.late not in ("drop", "add"):
            raise ConfigError(f"watermark: late is {self.late!r}; give 'drop' or 'add'")

    def check_window(self, window: Window | None) -> None:
        """Check that the buckets of declared metrics do not cross those of the watermark.

        Raises:
            ConfigError: They do, or the metrics have none.
        """
        widest = self.time
        if window is None:
            raise ConfigError(
                "a job with a watermark declares metrics without time buckets, which would never "
                "be final: give them a `time`, or leave out the watermark"
            )
        if (
            (window.zone or "UTC") != (widest.zone or "UTC")
            or widest.seconds % window.seconds
            or (widest.offset_seconds - window.offset_seconds) % window.seconds
        ):
            raise ConfigError(
                f"watermark: its buckets of {widest.seconds:g} s are cut by those of "
                f"{window.seconds:g} s of declared metrics, in {widest.zone or 'UTC'} and in "
                f"{window.zone or 'UTC'}, with offsets of {widest.offset_seconds:g} and "
                f"{window.offset_seconds:g} s: give the widest window of the job, in the same zone"
            )

    def latest_that_counts(self) -> int:
        """Return the latest time, in seconds since 1970, that moves the watermark now."""
        return math.ceil(time.time() + self.max_ahead_s)

    def newest(self, times: pa.Array | pa.ChunkedArray) -> int | None:
        """Return the latest of the times of rows in whole seconds; None if there is none.

        Args:
            times: Timestamps, dates, or integers of seconds.

        Raises:
            SinkError: They are of another type.
        """
        kind, limit = times.type, self.latest_that_counts()
        if pa.types.is_timestamp(kind) and (kind.tz is not None or self.time.zone is None):
            # As numbers: Python has fewer years than Spark, and Arrow fewer in a finer unit.
            per_s = _PER_SECOND[kind.unit]
            latest = _latest(times.cast(pa.int64()), limit * per_s)
            return None if latest is None else latest // per_s
        if pa.types.is_date(kind):
            days = times.cast(pa.date32()).cast(pa.int32())
            latest = _latest(days, limit // _DAY_S)
            return None if latest is None else self._midnight(latest)
        if pa.types.is_integer(kind):
            return _latest(times, limit)
        raise SinkError(
            f"the watermark is of column {self.time.column!r}, {with_article(str(kind))}: give a "
            "timestamp with a zone, a date, or an integer of seconds"
        )

    def final_before(self, newest: int) -> int:
        """Return the first time bucket that is not final when the latest time is `newest`."""
        return self.start(newest - math.ceil(self.delay_s))

    def start(self, when: int) -> int:
        """Return the start of the bucket that a time is in."""
        width, offset = int(self.time.seconds), int(self.time.offset_seconds)
        return bucket_start(when, width, zone=self.time.zone, offset_seconds=offset)

    def _midnight(self, day: int) -> int:
        earliest = (date.min - _EPOCH).days
        found = _EPOCH + timedelta(days=max(day, earliest))
        return bucket_start(found, _DAY_S, zone=self.time.zone)


def _latest(numbers: pa.Array | pa.ChunkedArray, limit: int) -> int | None:
    known = numbers.filter(_compute.less_equal(numbers, limit))
    latest: int | None = _compute.max(known).as_py()
    return latest
