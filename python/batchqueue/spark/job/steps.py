"""What L1 does with rows as they are: aggregations and handlers that take Arrow batches."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import pyarrow as pa

from batchqueue import ConfigError, SupportsConsume
from batchqueue.aggregation import Aggregation, Metrics, Window
from batchqueue.spark.job.declared import Declared, aggregation_of, key_types, stored_types

Emit = Callable[[list[Metrics]], None]
"""Takes the partials of an L1 handler, at the latest in its `on_close`."""

HandlerFactory = Callable[[Emit], SupportsConsume[Any]]
"""Makes the L1 handler of one attempt."""


_DECLARED = cast(Aggregation, None)
"""Stands for the aggregation of declared metrics, until that is made."""


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
        metrics: The metrics to compute and to store, each by its name or its metric type: a
            `Count`, `Sum`, `Mean`, `Min`, `Max`, `Quantiles` or `Distinct`. Sums, means and
            extremes by a name are stored as floats; `metric_type("cents", SumMetrics,
            columns={"total": int})` is one of ints. Or, beside `aggregation`, a function that turns
            what one task aggregated, a `pyarrow.RecordBatch` with a row for each group, into
            partials. L2 combines partials of the same key across tasks and epochs, so yield what
            can be combined: a mean as its sum and count, no quantiles.
        keys: The columns whose values are the entities of declared metrics. A list of one: its
            values as text. A list of several: the metrics have these key columns, of text. A dict
            from columns to their types, str, int, bool or `datetime.date`: key columns of these
            types, see `metric_type`. Default: none, and the entity is "all".
        time: The time buckets of declared metrics, of whole seconds. Default: None, and the time
            bucket is 0.
        aggregation: What to aggregate, if `metrics` is a function. One aggregator of an attempt
            takes the rows of all tags. Default: that of the declared metrics.
        null_keys: What becomes of groups whose key or time bucket is null, which no store can hold.
            "skip": they are left out, and their rows counted as `skipped` in the summary of the
            epoch. A mapping from keys to values, such as `{"carrier": "unknown"}`: the value stands
            for null, and the group is merged with that of the value. Default: None, `metrics` gets
            them as they are.
    """

    metrics: Declared | Callable[[pa.RecordBatch], Iterable[Metrics]]
    keys: Sequence[str] | Mapping[str, type] = ()
    time: Window | None = None
    aggregation: Aggregation = _DECLARED
    null_keys: Literal["skip"] | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._declare()
        self._check_null_keys()

    def _declare(self) -> None:
        """Make the aggregation of declared metrics."""
        given = cast(Aggregation | None, self.aggregation)
        if isinstance(self.metrics, Mapping):
            object.__setattr__(self, "metrics", dict(self.metrics))
            if not isinstance(self.keys, str | Mapping | set | frozenset):
                object.__setattr__(self, "keys", tuple(self.keys))
            keys = key_types(self.keys)
            stored_types(self.metrics, keys)
            declared = aggregation_of(self.metrics, self.keys, self.time)
            if given not in (None, declared):
                raise ConfigError(
                    "there are an aggregation and declared metrics: give a function as `metrics`, "
                    "or leave out the aggregation and give keys and time"
                )
            object.__setattr__(self, "keys", keys or declared.keys)
            object.__setattr__(self, "aggregation", declared)
            return
        if not callable(self.metrics):
            raise ConfigError(
                f"metrics is {self.metrics!r}: give metrics with their measures, for instance "
                '{"orders": Count()}, or a function of a record batch'
            )
        if not isinstance(given, Aggregation):
            raise ConfigError(
                f"aggregation is {given!r}: give the Aggregation whose groups the function "
                "`metrics` gets, or declare the metrics, for instance {'orders': Count()}"
            )
        if self.keys or self.time is not None:
            raise ConfigError(
                "keys and time are for declared metrics: give them to the aggregation"
            )

    @property
    def types(self) -> dict[str, type[Metrics]]:
        """The types of declared metrics by name, to read them with; empty with a function."""
        if not isinstance(self.metrics, Mapping):
            return {}
        return stored_types(self.metrics, key_types(self.keys))

    def _check_null_keys(self) -> None:
        rule, keys = self.null_keys, self.key_columns
        if rule is None:
            return
        if not keys:
            raise ConfigError(
                f"null_keys={rule!r}, and the aggregation has no keys and no window: leave it out"
            )
        if rule != "skip" and not (isinstance(rule, Mapping) and rule):
            raise ConfigError(
                f"null_keys={rule!r}: give 'skip', or a value for null by key, for instance "
                f"{{{keys[0]!r}: 'unknown'}}"
            )
        for key, value in {} if rule == "skip" else rule.items():
            if key not in keys or value is None:
                raise ConfigError(
                    f"null_keys has {value!r} for {key!r}: give a value other than None, for a key "
                    f"of the aggregation: {', '.join(keys)}"
                )

    @property
    def key_columns(self) -> list[str]:
        """The columns of the result that identify a group."""
        window = self.aggregation.window
        return [*self.aggregation.keys, *([] if window is None else [window.output])]


@dataclass(frozen=True, kw_only=True)
class ArrowHandler(ArrowStep):
    """An L1 of your own on Arrow: a Python handler takes lists of `pyarrow.RecordBatch`.

    Attributes:
        make: Makes the handler of one attempt. Its argument is a callable that takes the handler's
            partials (lists of the job's metrics), at the latest in `on_close`. The handler serves
            all tags.
    """

    make: HandlerFactory
