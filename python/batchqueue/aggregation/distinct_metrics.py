"""`DistinctMetrics`: how many different values there were, as a metric that combines.

It is HyperLogLog (Flajolet, Fusy, Gandouet and Meunier, HyperLogLog: the analysis of a near-optimal
cardinality estimation algorithm, 2007) in the form of Apache DataSketches, which Spark SQL makes as
well.
"""

import base64
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Self

from batchqueue import _core
from batchqueue._words import a_type
from batchqueue.aggregation.entities import Entity
from batchqueue.aggregation.metrics import Metrics, Row
from batchqueue.exceptions import ConfigError


@cache
def lg_registers(accuracy: float) -> int:
    """Return how many registers give a relative standard error, as a power of two."""
    return math.ceil(2 * math.log2(1.04 / accuracy))


class DistinctMetrics(Metrics):
    """The number of distinct values that are not None, as an estimate.

    Up to a few hundred values it is nearly exact. A partial takes up to 5.5 KB in a store at the
    default accuracy.

    Attributes:
        accuracy: The relative standard error of the estimate, 0.001 to 0.2; 0.02 by default: two of
            three estimates are within it, and nearly all within three times of it. Set it with
            `metric_type(name, DistinctMetrics, accuracy=0.01)`. Halving it takes four times the
            memory.

    Example:
        >>> from batchqueue.aggregation import metric_type
        >>> USERS = metric_type("users", DistinctMetrics)
        >>> today = USERS("shop", 0, "ann")
        >>> for name in ("bob", "ann", "eve"):
        ...     today.combine(USERS("shop", 0, name))
        >>> round(today.estimate)
        3
    """

    __slots__ = ("_sketch",)
    table = "distinct_metrics"
    columns: ClassVar = {"sketch": str, "estimate": float}
    accuracy: ClassVar[float] = 0.02
    accuracies: ClassVar = (0.001, 0.2)

    def __init__(self, entity: Entity, time_bucket: int, value: str | bytes | int | None) -> None:
        """Start with a single value.

        Args:
            entity: What is measured; a tuple if the metric has key columns.
            time_bucket: Start of the bucket, in whole seconds since the epoch, UTC.
            value: What is counted, once: a text, which is its bytes in UTF-8, bytes, or an int of
                64 bits, of which a bool is 0 or 1. None does not count.

        Raises:
            ConfigError: The value is of another type.
        """
        self.key = (entity if isinstance(entity, str) else self.entity_of(entity), time_bucket)
        self._sketch = _core.DistinctSketch(lg_registers(self.accuracy))
        if value is None:
            return
        if not isinstance(value, (str, bytes, int)):
            raise ConfigError(
                f"{type(self).__name__}: value is {value!r}, {a_type(value)}; give a text, bytes "
                "or an int of 64 bits"
            )
        self._sketch.add(value)

    @property
    def estimate(self) -> float:
        """The estimated number of distinct values."""
        return self._sketch.estimate()

    def combine(self, other: Self) -> None:
        """Take the values of `other` into this one."""
        self._sketch.merge(other._sketch.to_bytes())

    def copy(self) -> Self:
        """Return an equal partial that shares nothing mutable with this one."""
        twin: Any = object.__new__(type(self))
        twin.key, twin._sketch = self.key, self._sketch.copy()
        return twin  # type: ignore[no-any-return]

    def to_rows(self) -> list[Row]:
        """Return the single row of value columns: the sketch in base64, and its estimate."""
        return [(base64.b64encode(self._sketch.to_bytes()).decode(), self.estimate)]

    @classmethod
    def row_of(cls, sketch: bytes | None) -> Row:
        """Return the row of value columns for a sketch of DataSketches; None is an empty one.

        Raises:
            ConfigError: It is damaged.
        """
        merged = _core.DistinctSketch(lg_registers(cls.accuracy))
        if sketch is not None:
            merged.merge(sketch)
        return base64.b64encode(merged.to_bytes()).decode(), merged.estimate()

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote.

        Raises:
            ConfigError: The sketch is damaged.
        """
        made = cls(entity, time_bucket, None)
        try:
            made._sketch.merge(base64.b64decode(rows[0][0]))
        except (ConfigError, ValueError) as error:
            raise ConfigError(
                f"metric {cls.name} has a damaged sketch for {entity!r} in time bucket "
                f"{time_bucket}: {error}; restore the store, or delete this time bucket"
            ) from error
        return made
