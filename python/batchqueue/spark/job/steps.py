"""What L1 does with rows as they are: aggregations and handlers that take Arrow batches."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from batchqueue import ConfigError, SupportsConsume
from batchqueue.aggregation import Aggregation, Metrics

Emit = Callable[[list[Metrics]], None]
"""Takes the partials of an L1 handler, at the latest in its `on_close`."""

HandlerFactory = Callable[[Emit], SupportsConsume[Any]]
"""Makes the L1 handler of one attempt."""


@dataclass(frozen=True, kw_only=True)
class ArrowStep:
    """The rows that one handler of an attempt takes: all of them, or those with certain tags.

    Attributes:
        type_column: The column whose values, the tags, split the rows. Default: None, all rows.
        tags: All values of that column that occur in this job. A row with another value fails the
            epoch.
    """

    type_column: str | None = None
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.tags, str):
            raise ConfigError(
                f"tags is {self.tags!r}; give a list of the values of {self.type_column!r}"
            )
        object.__setattr__(self, "tags", tuple(self.tags))
        if self.type_column is None and self.tags:
            raise ConfigError(
                f"tags {', '.join(self.tags)} without type_column: name the column that has them, "
                "or leave them out"
            )
        if self.type_column is not None and not self.tags:
            raise ConfigError(
                f"the step by {self.type_column!r} has no tags: give the values of that column, or "
                "leave out type_column to take all rows"
            )


@dataclass(frozen=True, kw_only=True)
class ArrowAggregation(ArrowStep):
    """An L1 without Python objects: an `Aggregator` takes the rows as they are, without the GIL.

    Spark SQL can do the same work, see `MetricsWriter(l1="spark")`.

    Attributes:
        aggregation: What to aggregate. One aggregator of an attempt takes the rows of all tags.
        metrics: Turns what one task aggregated, a `pyarrow.RecordBatch` with a row for each group,
            into partials. L2 combines partials of the same key across tasks and epochs, so yield
            what can be combined: a mean as its sum and count, no quantiles.
    """

    aggregation: Aggregation
    metrics: Callable[[pa.RecordBatch], Iterable[Metrics]]


@dataclass(frozen=True, kw_only=True)
class ArrowHandler(ArrowStep):
    """An L1 of your own on Arrow: a Python handler takes lists of `pyarrow.RecordBatch`.

    Attributes:
        make: Makes the handler of one attempt. Its argument is a callable that takes the handler's
            partials (lists of the job's metrics), at the latest in `on_close`. The handler serves
            all tags.
    """

    make: HandlerFactory
