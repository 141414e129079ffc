"""`QuantileMetrics`: a distribution as a metric, from which quantiles are read.

It is a DDSketch (Masson, Rim and Lee, DDSketch: a fast and fully-mergeable quantile sketch with
relative-error guarantees, PVLDB 12(12), 2019): values are counted in buckets whose limits grow by a
constant factor, and two sketches are combined by adding the counts.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar, Self

from batchqueue.aggregation.entities import Entity
from batchqueue.aggregation.kinds import check_number
from batchqueue.aggregation.metrics import Metrics, Row
from batchqueue.exceptions import ConfigError

LEAST = 1e-9
"""Values closer to 0 than this count as 0."""


@cache
def _mapping(accuracy: float) -> tuple[float, int]:
    """Return the logarithm of the factor between the limits of buckets, and the first number."""
    log_gamma = math.log((1 + accuracy) / (1 - accuracy))
    return log_gamma, 1 - int(math.log(LEAST) / log_gamma)


class QuantileMetrics(Metrics):
    """The distribution of the values that are not None; NaN and infinities do not count.

    It takes as many stored rows as there are buckets with values: a hundred for values within a
    factor of ten, and two thousand within a factor of 10^18, at the default accuracy.

    Attributes:
        accuracy: The relative error of a quantile, 0.0001 to 0.5; 0.01 by default. Set it with
            `metric_type(name, QuantileMetrics, accuracy=0.02)`. It cannot be changed afterwards:
            stored buckets of another accuracy are an error.

    Example:
        >>> from batchqueue.aggregation import metric_type
        >>> MS = metric_type("ms", QuantileMetrics)
        >>> latency = MS("search", 0, 12)
        >>> for value in (3, 250, 14, 9):
        ...     latency.combine(MS("search", 0, value))
        >>> round(latency.quantile(0.5)), latency.count
        (12, 5)
    """

    __slots__ = ("_counts",)
    table = "quantile_metrics"
    columns: ClassVar = {"bucket": int, "count": int, "accuracy": float}
    multi_row = True
    accuracy: ClassVar[float] = 0.01
    accuracies: ClassVar = (0.0001, 0.5)

    def __init__(self, entity: Entity, time_bucket: int, value: float | None) -> None:
        """Start a distribution with a single value.

        Args:
            entity: What is measured; a tuple if the metric has key columns.
            time_bucket: Start of the bucket, in whole seconds since the epoch, UTC.
            value: The value; None, NaN and infinities count as no value.
        """
        if not isinstance(value, (int, float)):
            check_number(type(self).__name__, "value", value)
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)
        self._counts: dict[int, int] = {}
        if value is not None and math.isfinite(value):
            self._counts[self._bucket_of(float(value))] = 1

    @classmethod
    def _bucket_of(cls, value: float) -> int:
        """Return the number of a bucket: numbers are in the order of values, and 0 is about 0."""
        distance = abs(value)
        if distance < LEAST:
            return 0
        log_gamma, offset = _mapping(cls.accuracy)
        number = math.floor(math.log(distance) / log_gamma) + offset
        return -number if value < 0 else number

    @classmethod
    def bucket_value(cls, bucket: int) -> float:
        """Return the value that stands for those of a stored bucket."""
        if bucket == 0:
            return 0.0
        log_gamma, offset = _mapping(cls.accuracy)
        lower = math.exp((abs(bucket) - offset) * log_gamma)
        return math.copysign(lower * (1 + cls.accuracy), bucket)

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self._counts.values())

    def quantile(self, rank: float) -> float | None:
        """Return the value of a rank, with a relative error of at most `accuracy`.

        Args:
            rank: From 0, the smallest value, to 1, the largest.

        Returns:
            The value; None if there are no values.

        Raises:
            ConfigError: The rank is not from 0 to 1.
        """
        if not 0 <= rank <= 1:
            raise ConfigError(f"the rank of a quantile is {rank!r}; give 0 to 1")
        if not self._counts:
            return None
        buckets = sorted(self._counts)
        counts = list(accumulate(self._counts[bucket] for bucket in buckets))
        return self.bucket_value(buckets[bisect_right(counts, rank * (counts[-1] - 1))])

    def combine(self, other: Self) -> None:
        """Take the values of `other` into this one."""
        counts = self._counts
        for bucket, count in other._counts.items():
            counts[bucket] = counts.get(bucket, 0) + count

    def to_rows(self) -> list[Row]:
        """Return a row of value columns for each bucket, in the order of values."""
        accuracy = self.accuracy
        return [(bucket, count, accuracy) for bucket, count in sorted(self._counts.items())]

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote.

        Raises:
            ConfigError: The rows are of another accuracy.
        """
        made: Any = cls(entity, time_bucket, None)
        for bucket, count, accuracy in rows:
            if accuracy != cls.accuracy:
                raise ConfigError(
                    f"metric {cls.name} has accuracy={cls.accuracy}, and {entity!r} was stored "
                    f"with accuracy={accuracy}, whose buckets are others: keep the accuracy, or "
                    "give the metric another name"
                )
            made._counts[bucket] = count
        return made  # type: ignore[no-any-return]
