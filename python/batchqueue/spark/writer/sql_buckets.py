"""Time buckets in Spark SQL, equal to those of an `Aggregator`.

A zone's UTC offset at an instant is what `from_utc_timestamp` adds to it, whatever the session's
zone is. Spark has no function for when the offset changed, so that is searched for, in the few rows
whose bucket may have begun before a change.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from batchqueue import ConfigError
from batchqueue._words import with_article
from batchqueue.aggregation import Window

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_SECOND = 1_000_000
_DAY_S = 86_400
"""No clock was ever changed by more."""

_LAST, _STEP, _CHANGE = "`batchqueue last`", "`batchqueue step`", "`batchqueue change`"
"""Variables of lambdas, which would hide columns of the same name."""


def bucket(fn: Any, window: Window, schema: "StructType") -> "Column":
    """Return the start of a row's time bucket, in the type of the column; a long for integers.

    Args:
        fn: Spark's functions, for the kind of session.
        window: The window.
        schema: The schema of the rows.

    Raises:
        ConfigError: Spark SQL cannot cut the column into these buckets.
    """
    column, kind = quoted(window.column), schema[window.column].dataType
    width, offset = timedelta(seconds=window.seconds), timedelta(seconds=window.offset_seconds)
    is_whole = window.seconds.is_integer() and float(window.offset_seconds).is_integer()
    is_micros = all(
        round(seconds * 1e9) % 1_000 == 0 for seconds in (window.seconds, window.offset_seconds)
    )
    if isinstance(kind, T.TimestampType) and is_micros:
        micros = f"unix_micros({column})"
        start = _start(window, micros, round(width / _MICRO), round(offset / _MICRO))
        sql = f"timestamp_micros({start})"
    elif isinstance(kind, T.DateType) and not (width % _DAY or offset % _DAY):
        start = _floor(f"unix_date({column})", width.days, offset.days)
        sql = f"date_from_unix_date({start})"
    elif isinstance(kind, T.ByteType | T.ShortType | T.IntegerType | T.LongType) and is_whole:
        seconds = f"CAST({column} AS bigint)"
        if window.zone is None:
            sql = _floor(seconds, int(window.seconds), int(window.offset_seconds))
        else:
            micros = f"{seconds} * {_SECOND}L"
            start = _start(window, micros, round(width / _MICRO), round(offset / _MICRO))
            sql = f"({start}) DIV {_SECOND}L"
    else:
        after = f" after {window.offset_seconds} s" if window.offset_seconds else ""
        raise ConfigError(
            f"l1='spark' cannot make buckets of {window.seconds} s{after} of column "
            f"{window.column!r}, {with_article(kind.simpleString())}: use a timestamp with whole "
            "microseconds, a date with whole days or an integer with whole seconds, or l1='tasks'"
        )
    made: Column = fn.expr(sql)
    return made


_MICRO, _DAY = timedelta(microseconds=1), timedelta(days=1)


def quoted(column: str) -> str:
    """Return the name of a column as Spark SQL reads it."""
    return f"`{column.replace('`', '``')}`"


def _floor(time: str, width: int, offset: int, ahead: str = "") -> str:
    """Round a time down to a multiple of the width, on a clock that is ahead of it."""
    on_clock = f"({time})" + (f" + {ahead}" if ahead else "") + (f" - {offset}" if offset else "")
    return f"({time}) - pmod({on_clock}, {width})"


def _start(window: Window, micros: str, width: int, offset: int) -> str:
    """Return the start of the bucket of an instant, all in microseconds since the epoch."""
    if window.zone is None:
        return _floor(micros, width, offset)
    zone = window.zone

    def ahead(time: str) -> str:
        local = f"from_utc_timestamp(timestamp_micros({time}), '{zone}')"
        return f"unix_micros({local}) - ({time})"

    now = ahead(micros)
    regular = _floor(micros, width, offset, now)
    long_before = f"({regular}) - {_DAY_S * _SECOND}L"
    # The last second with another offset, by bisection.
    steps = ", ".join(
        f"{2**step}L" for step in reversed(range((width // _SECOND + _DAY_S).bit_length()))
    )
    later = f"({_LAST} + {_STEP}) * {_SECOND}L"
    last_before = (
        f"aggregate(array({steps}), ({long_before}) DIV {_SECOND}L, ({_LAST}, {_STEP}) -> "
        f"IF({later} <= {micros} AND {ahead(later)} <> {now}, {_LAST} + {_STEP}, {_LAST}))"
    )
    # A lambda is how SQL gives a value a name.
    change = f"({last_before} + 1L) * {_SECOND}L"
    before = ahead(f"{_CHANGE} - 1L")
    set_back = f"({before} - ({now}))"
    multiple = f"{_CHANGE} - pmod({_CHANGE} + ({now}) - {offset}L, {width}L) + ({now})"
    earlier_start = _floor(f"{_CHANGE} - 1L", width, offset, before)
    multiple_before = f"{earlier_start} + {before}"
    around_a_change = (
        f"transform(array({change}), {_CHANGE} -> CASE "
        f"WHEN {set_back} % {width}L = 0 THEN {regular} "
        # What the clock showed before it was set back has had its start.
        f"WHEN {regular} >= {_CHANGE} + greatest({set_back}, 0L) THEN {regular} "
        # It jumped past a start.
        f"WHEN {multiple} > {multiple_before} THEN {_CHANGE} "
        f"ELSE {earlier_start} END)[0]"
    )
    return f"IF({ahead(long_before)} = {now}, {regular}, {around_a_change})"
