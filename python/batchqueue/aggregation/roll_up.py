"""`roll_up`: partials of short time buckets as those of longer ones, also of overlapping ones."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from batchqueue.aggregation.buffer import MergeBuffer
from batchqueue.aggregation.metrics import Metrics
from batchqueue.aggregation.windows import bucket_start
from batchqueue.exceptions import ConfigError

M = TypeVar("M", bound=Metrics)


def roll_up(
    partials: Iterable[M],
    seconds: int,
    *,
    every: int | None = None,
    zone: str | None = None,
    offset_seconds: int = 0,
) -> list[M]:
    """Combine partials of time buckets into those of longer ones: hours into days, for instance.

    Whatever combines without error does so here, quantiles and distinct counts among them. So a
    store needs the shortest buckets only, and a sliding window is a question of reading.

    Args:
        partials: Of any metrics, such as `store.read` returns; they are not changed.
        seconds: The width of the longer buckets, a multiple of that of the partials.
        every: A bucket starts so many seconds after the one before: a number of which `seconds` is
            a multiple, and which is a multiple of the width of the partials. Less than `seconds`
            makes sliding windows, and each partial counts in several. Default: `seconds`.
        zone: The zone on whose clock buckets start, as in a `Window`. A sliding window of days is
            then so many local days. The partials' buckets must not cross its midnights: of a zone
            that is half an hour from UTC, give half hours. Default: UTC.
        offset_seconds: See `Window`; below `every`. Default: 0.

    Returns:
        A partial of each metric, entity and longer bucket with a partial in it, ordered by metric,
        entity and bucket. At the beginning and at the end these are windows in which the data
        begins and ends, as in Spark SQL.

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

    bucket_start(0, step, zone=zone, offset_seconds=offset_seconds)  # refuses bad ones

    def starts(time_bucket: int) -> Iterator[int]:
        """Return the starts of the buckets that a shorter one is in, the latest first."""
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
