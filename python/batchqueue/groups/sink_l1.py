"""L1 of a `MetricsSink`: what makes metrics of records, a function or an aggregation of columns.

The stores and the aggregations are imported where they are used: they take longer than all of this
package.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from batchqueue.exceptions import ConfigError
from batchqueue.groups.errors import quoted_value
from batchqueue.groups.record import Record

if TYPE_CHECKING:
    from batchqueue.aggregation import Aggregation, Metrics


class L1(Protocol):
    """Makes metrics of records."""

    def metrics(self, records: "Sequence[Record[Any]]") -> "Iterator[Metrics]":
        """Return the metrics of records, of which there is at least one."""
        ...


@dataclass(frozen=True)
class ByFunction:
    """A function makes metrics of each value.

    Attributes:
        to_metrics: The function.

    Raises:
        ConfigError: It is not callable.
    """

    to_metrics: "Callable[[Any], Iterable[Metrics]]"

    def __post_init__(self) -> None:
        if not callable(self.to_metrics):
            raise ConfigError(
                f"to_metrics is {quoted_value(self.to_metrics)}; give a function that takes a "
                "value and returns a list of metrics"
            )

    def metrics(self, records: "Sequence[Record[Any]]") -> "Iterator[Metrics]":
        """Return the metrics of records."""
        for record in records:
            made = self.to_metrics(record.value)
            yield from _checked("to_metrics", made, f"the record at offset {record.offset}")


@dataclass(frozen=True)
class ByAggregation:
    """An aggregator takes values as Arrow rows, and a function makes metrics of its groups.

    Attributes:
        aggregation: What to aggregate.
        to_metrics: The function.

    Raises:
        ConfigError: One of them is invalid.
    """

    aggregation: "Aggregation"
    to_metrics: "Callable[[Any], Iterable[Metrics]]"

    def __post_init__(self) -> None:
        from batchqueue.aggregation import Aggregation

        if not isinstance(self.aggregation, Aggregation):
            raise ConfigError(
                f"aggregation is {quoted_value(self.aggregation)}; give an Aggregation"
            )
        if not callable(self.to_metrics):
            raise ConfigError(
                f"metrics is {quoted_value(self.to_metrics)}; give a function that takes a "
                "pyarrow.RecordBatch of groups and returns a list of metrics"
            )

    def metrics(self, records: "Sequence[Record[Any]]") -> "Iterator[Metrics]":
        """Return the metrics of records."""
        from batchqueue.aggregation import Aggregator

        # An aggregator wants the same types in all rows, which those of another producer may lack.
        for _, run in groupby(records, key=_schema):
            same = list(run)
            aggregator = Aggregator(self.aggregation)
            aggregator.consume([record.value for record in same])
            groups = aggregator.result()
            if groups is not None:  # there were rows
                where = f"the groups of offsets {same[0].offset}..{same[-1].offset}"
                yield from _checked("metrics", self.to_metrics(groups), where)


def _schema(record: Record[Any]) -> object:
    return getattr(record.value, "schema", None)


def _checked(function: str, made: object, where: str) -> "Iterator[Metrics]":
    from batchqueue.aggregation import Metrics

    if not isinstance(made, Iterable):
        raise TypeError(
            f"{function} returned {quoted_value(made)} for {where}; return a list of metrics, an "
            "empty one for none"
        )
    for item in made:
        if not isinstance(item, Metrics):
            raise TypeError(
                f"{function} gave {quoted_value(item)} for {where}; give metrics, which "
                "metric_type makes classes of"
            )
        yield item
