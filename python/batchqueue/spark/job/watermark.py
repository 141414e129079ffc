"""When a time bucket is final: `AggregationJob.watermark`."""

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute

from batchqueue import ConfigError
from batchqueue._words import with_article
from batchqueue.aggregation import Window, bucket_start
from batchqueue.spark.errors import SinkError

_compute: Any = pyarrow.compute  # its type hints lack functions
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Watermark:
    """Time buckets of a stream become final, each in one epoch, when late rows have had their time.

    The watermark is the latest time in the rows of all epochs so far, less the delay. A bucket that
    ends at or before it is final. The summary of each epoch has `final_before`: the buckets that
    start before it are final as of that epoch's commit; see `final_before` of the stores. Rows of
    an epoch are compared with the watermark that the epochs before it have left, so that it does
    not matter in which order the rows of one epoch are read. Batch writes move no watermark, and
    may write to final buckets, for instance to compute a day again.

    Attributes:
        time: The column with the times of rows, and the widest buckets of the job, in whole
            seconds. The windows of declared metrics must divide them.
        delay_s: How long a row may be late, in seconds of the rows' times. Default: 0.
        late: What becomes of partials for a bucket that is final. "drop": they are left out.
            "add": they are added to what is stored. Either way the summary of the epoch counts them
            as `late`. Default: "drop".

    Raises:
        ConfigError: A value is invalid; the message names it.

    Example:
        >>> HOUR = Window("at", 3600)
        >>> Watermark(HOUR, delay_s=600)
        Watermark(time=Window(column='at', seconds=3600.0, name=None, zone=None, \
offset_seconds=0.0), delay_s=600, late='drop')
    """

    time: Window
    delay_s: float = 0
    late: Literal["drop", "add"] = "drop"

    def __post_init__(self) -> None:
        time = self.time
        if not isinstance(time, Window) or time.seconds % 1 or time.offset_seconds % 1:
            raise ConfigError(
                f"watermark: time is {time!r}; give a Window of whole seconds, for instance "
                "Window('at', 3600)"
            )
        delay = self.delay_s
        if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay < 1e9:
            raise ConfigError(f"watermark: delay_s is {delay!r}; give seconds, from 0 up to 1e9")
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
            window.zone != widest.zone
            or widest.seconds % window.seconds
            or (widest.offset_seconds - window.offset_seconds) % window.seconds
        ):
            raise ConfigError(
                f"watermark: its buckets of {widest.seconds:g} s are cut by those of "
                f"{window.seconds:g} s of declared metrics, in {widest.zone or 'UTC'} and in "
                f"{window.zone or 'UTC'}, with offsets of {widest.offset_seconds:g} and "
                f"{window.offset_seconds:g} s: give the widest window of the job, in the same zone"
            )

    def newest(self, times: pa.Array | pa.ChunkedArray) -> int | None:
        """Return the latest of the times of rows in whole seconds; None if there is none.

        Args:
            times: Timestamps with a zone, dates, or integers of seconds.

        Raises:
            SinkError: They are of another type.
        """
        kind = times.type
        if pa.types.is_timestamp(kind):
            times = times.cast(pa.timestamp("us", kind.tz), safe=False)
        elif not pa.types.is_date(kind) and not pa.types.is_integer(kind):
            raise SinkError(
                f"the watermark is of column {self.time.column!r}, {with_article(str(kind))}: give "
                "a timestamp, a date, or an integer of seconds"
            )
        latest = _compute.max(times).as_py()
        if isinstance(latest, datetime):
            return (latest - _EPOCH).days * 86_400 + (latest - _EPOCH).seconds
        return self._start(latest) if isinstance(latest, date) else latest

    def final_before(self, newest: int) -> int:
        """Return the first time bucket that is not final when the latest time is `newest`."""
        return self._start(newest - math.ceil(self.delay_s))

    def _start(self, when: int | date) -> int:
        width, offset = int(self.time.seconds), int(self.time.offset_seconds)
        return bucket_start(when, width, zone=self.time.zone, offset_seconds=offset)
