"""`AggregationJob`: everything that turns rows into stored metrics."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from batchqueue import BatchQueueConfig, BufferStrategy, ConfigError, RetryPolicy, ThreadPolicy
from batchqueue._words import a_type
from batchqueue.aggregation import Metrics
from batchqueue.outputs import BadRows, ChangedKeys, MetricsStore
from batchqueue.outputs.layout import table_layout
from batchqueue.outputs.reading import MetricsReader
from batchqueue.presets import l1_aggregation, l2_persistence
from batchqueue.spark.job.bad_rows import DeadLetters, OnBadRow
from batchqueue.spark.job.pickling import check_pickles
from batchqueue.spark.job.steps import ArrowAggregation, ArrowHandler, HandlerFactory
from batchqueue.spark.job.watermark import Watermark

_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class AggregationJob:
    """How rows become metrics, and where those are kept. Spark pickles it for the tasks.

    Attributes:
        name: Letters, digits, "_" and "-". The default `sinkId`, and part of the format name.
        items: Turns one `pyarrow.RecordBatch` into items: observations of the metrics below, or
            items of your own that have a handler. Prefer a generator: a full list takes memory, and
            time for garbage collection. Default: None, `arrow` does everything.
        prepare: Takes an iterator over the `pyarrow.RecordBatch`es of a task, and returns those
            that `items` and `arrow` get: a filter, a parser, a join with a small table. The same as
            `df.mapInArrow(prepare, ...)` before the write, without the way through the JVM that
            this costs. Default: None, they get the rows as they are.
        arrow: What to do with the rows themselves, without items: built-in aggregations, and
            handlers of your own that take record batches. A tag may appear in one of them only.
            Where a job has aggregations only, `MetricsWriter` reads no other columns than theirs.
            Default: nothing.
        metrics: The metric types that may reach the store, each name once. Each type has its own
            workers. Those that steps of `arrow` declare need not be here.
        store: The store that L2 merges into.
        columns: Columns that `items` and `prepare` read. If a column is missing, the query fails
            before any task runs. Default: none are checked.
        on_bad_row: What becomes of a row for which `items` raises, or makes a metric that the store
            cannot hold; of a row whose key or text a declared metric cannot be stored with: null
            without `null_keys`, text that is not UTF-8, or has NUL or too many bytes for the store,
            a date that Python does not have; and of a row with a tag that no step names. "fail"
            (default): its task fails, and so does the epoch. "skip": `items` and all steps of
            `arrow` go without the row, and it is counted as `bad_rows` in the summary of the epoch;
            a batch of 100 rows or more that has no other rows fails. `DeadLetters()`: the store
            keeps the row. Unless rows fail, `items` gets a batch that has such a row once more in
            parts, down to single rows, so the items of a row must not depend on other rows. What a
            handler, or a function as `metrics`, makes of many rows and the store cannot hold is
            left out or kept in the same way, and counts as one row.
        watermark: When the time buckets of a stream are final, and what becomes of rows that come
            later. Default: None, no bucket is ever final.
        changed_keys: Whether each epoch lists the keys that it changes, in its transaction, as
            `batchqueue.outputs.ChangedKeys`. Default: False.
        handlers: For an item type, the function that makes its L1 handler for one attempt. The
            argument is a callable that takes the handler's partials (lists of `metrics`), at the
            latest in `on_close`. Types in `metrics` without an entry here are merged.
        l1: Config of each attempt's queue; BLOCKING, without consumer or error handler. Default:
            two drain threads, because each core of an executor runs its own attempt, and no
            balancer, because a queue that lives for one attempt ends before its loads are known.
        l2: Config of each commit's queue, which declared metrics do not need; the same rules
            apply.
        store_retry: How often and when a commit is retried while the store is busy or down.
            Default: 4 attempts, with waits of 1, 2 and 4 s. Then the query fails, and can be
            resumed. Only a `StoreUnavailableError` is retried.

    Raises:
        ConfigError: A value is invalid; the message names it.

    Example:
        >>> from batchqueue.aggregation import CountMetrics, metric_type
        >>> from batchqueue.outputs import SqliteStore
        >>> DEPARTURES = metric_type("departures", CountMetrics)
        >>> def items(flights: pa.RecordBatch) -> Iterable[CountMetrics]:
        ...     columns = flights["carrier"].to_pylist(), flights["hour"].to_pylist()
        ...     for carrier, hour in zip(*columns):
        ...         yield DEPARTURES(carrier, hour)
        >>> job = AggregationJob(
        ...     name="flights",
        ...     items=items,
        ...     metrics=[DEPARTURES],
        ...     store=SqliteStore("metrics.db"),
        ...     columns=["carrier", "hour"],
        ... )
        >>> job.check_columns(["carrier", "hour", "distance"])
    """

    name: str
    items: Callable[[pa.RecordBatch], Iterable[Any]] | None = None
    prepare: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]] | None = None
    arrow: Sequence[ArrowAggregation | ArrowHandler] = ()
    metrics: Sequence[type[Metrics]] = ()
    store: MetricsStore
    columns: Sequence[str] = ()
    on_bad_row: OnBadRow = "fail"
    watermark: Watermark | None = None
    changed_keys: bool = False
    handlers: Mapping[type, HandlerFactory] = field(default_factory=dict)
    l1: BatchQueueConfig[Any] = field(
        default_factory=lambda: l1_aggregation(
            threads=ThreadPolicy.fixed(2), strategy=BufferStrategy.BLOCKING, balancer=None
        )
    )
    l2: BatchQueueConfig[Any] = field(default_factory=lambda: l2_persistence(balancer=None))
    store_retry: RetryPolicy = field(
        default_factory=lambda: RetryPolicy(attempts=4, backoff_ms=1_000, max_backoff_ms=10_000)
    )

    def __post_init__(self) -> None:
        self._check_kinds()
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "arrow", tuple(self.arrow))
        declared = [
            metric
            for step in self.arrow
            if isinstance(step, ArrowAggregation)
            for metric in step.types.values()
        ]
        given = tuple(self.metrics)
        more = dict.fromkeys(metric for metric in declared if metric not in given)
        object.__setattr__(self, "metrics", (*given, *more))
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"job name {self.name!r} cannot be used: take letters, digits, '_' and '-'"
            )
        if not self.metrics:
            raise ConfigError(f"job {self.name!r} has no metrics: give the types that it may store")
        if self.items is None and not self.arrow:
            raise ConfigError(
                f"job {self.name!r} does nothing with its rows: give items, arrow, or both"
            )
        tags = [tag for step in self.arrow for tag in step.tags]
        shared = sorted({tag for tag in tags if tags.count(tag) > 1})
        if shared:
            raise ConfigError(
                f"job {self.name!r} has tag {shared[0]!r} twice in arrow, and a tag has one "
                "handler: put its measures into one aggregation, or name the values of one column "
                "differently"
            )
        names = [metric_type.name for metric_type in self.metrics]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigError(
                f"job {self.name!r} has two metrics named {repeated[0]!r}, and the store goes by "
                "name"
            )
        if isinstance(self.store, MetricsReader):
            for metric_type in self.metrics:
                table_layout(metric_type)  # a name that no store could have is refused now
        self._check_declared()
        self._check_bad_rows()
        self._check_changed_keys()
        self._check_watermark()
        for stage, config in (("l1", self.l1), ("l2", self.l2)):
            if config.consumer is not None or config.consumer_factory is not None:
                raise ConfigError(
                    f"the {stage} queue of job {self.name!r} has a consumer, which would take "
                    "every item away from the metrics' own workers; leave it out, and give "
                    "handlers for types of your own"
                )
            if config.error_handler is not None:
                raise ConfigError(
                    f"the {stage} queue of job {self.name!r} has an error_handler, and here an "
                    "error fails the epoch: leave it out, and give handlers of your own an on_error"
                )
            if config.strategy is not BufferStrategy.BLOCKING:
                raise ConfigError(
                    f"the {stage} queue of job {self.name!r} has strategy {config.strategy.name}: "
                    "what it refuses would be missing from the result; use BufferStrategy.BLOCKING"
                )

    def _check_kinds(self) -> None:
        """Check what would fail in a task only, or with an error that names nothing."""
        if not isinstance(self.name, str):
            raise ConfigError(f"the job's name is {self.name!r}; give a str")
        if self.items is not None and not callable(self.items):
            raise ConfigError(
                f"items of job {self.name!r} is {self.items!r}; give a function that takes a "
                "record batch and returns the items in it"
            )
        if self.prepare is not None and not callable(self.prepare):
            raise ConfigError(
                f"prepare of job {self.name!r} is {self.prepare!r}; give a function that takes an "
                "iterator over record batches and returns record batches"
            )
        if isinstance(self.metrics, (type, str)) or not isinstance(self.metrics, Iterable):
            raise ConfigError(
                f"metrics of job {self.name!r} is {self.metrics!r}; give a list of metric types: "
                f"metrics=[{getattr(self.metrics, '__name__', 'HITS')}]"
            )
        for metric in tuple(self.metrics):
            if not isinstance(metric, type) or not issubclass(metric, Metrics):
                raise ConfigError(
                    f"metrics of job {self.name!r} has {metric!r}, which is not a metric type; "
                    'make one with metric_type("hits", CountMetrics)'
                )
        if not callable(getattr(self.store, "transaction", None)):
            raise ConfigError(
                f"store of job {self.name!r} is {self.store!r}, {a_type(self.store)}; "
                'give a store, for instance SqliteStore("metrics.db")'
            )

    def _check_declared(self) -> None:
        """Check that no two steps count the same rows for one metric, or other values for it."""
        meant: dict[str, tuple[Any, ...]] = {}
        for step in self.arrow:
            if not isinstance(step, ArrowAggregation):
                continue
            for name in step.types:
                means = (step.type_column, step.keys, step.time, step.aggregation.measures[name])
                if name in meant and (means[0] is None or means != meant[name]):
                    raise ConfigError(
                        f"job {self.name!r} declares metric {name!r} in two steps, whose results "
                        "would be added up: rename one; steps by the tags of one column may share "
                        "a metric if they declare the same keys, time and measure"
                    )
                meant[name] = means

    def _check_bad_rows(self) -> None:
        rule = self.on_bad_row
        if rule == "fail":
            return
        if rule != "skip" and not isinstance(rule, DeadLetters):
            raise ConfigError(
                f"on_bad_row of job {self.name!r} is {rule!r}; give 'fail', 'skip' or DeadLetters()"
            )
        if rule != "skip" and BadRows.name in (metric.name for metric in self.metrics):
            raise ConfigError(
                f"job {self.name!r} has a metric named {BadRows.name!r}, under which DeadLetters "
                "keeps rows: rename it"
            )

    def _check_changed_keys(self) -> None:
        if not isinstance(self.changed_keys, bool):
            raise ConfigError(
                f"changed_keys of job {self.name!r} is {self.changed_keys!r}; give True or False"
            )
        if self.changed_keys and ChangedKeys.name in (metric.name for metric in self.metrics):
            raise ConfigError(
                f"job {self.name!r} has a metric named {ChangedKeys.name!r}, under which "
                "changed_keys=True lists keys: rename it"
            )

    def _check_watermark(self) -> None:
        if self.watermark is None:
            return
        if not isinstance(self.watermark, Watermark):
            raise ConfigError(
                f"watermark of job {self.name!r} is {self.watermark!r}; give a Watermark, for "
                "instance Watermark(Window('at', 3600), delay_s=600)"
            )
        for step in self.arrow:
            # The time buckets of a function are its own.
            if isinstance(step, ArrowAggregation) and isinstance(step.metrics, Mapping):
                self.watermark.check_window(step.time)

    @property
    def stored_metrics(self) -> tuple[type[Metrics], ...]:
        """The metric types that reach the store: those that were given, and those of bad rows."""
        kept = (BadRows,) if isinstance(self.on_bad_row, DeadLetters) else ()
        return (*self.metrics, *kept)

    def tags_by_column(self) -> dict[str, set[str]]:
        """Return for each type column the tags of all its steps."""
        columns: dict[str, set[str]] = {}
        for step in self.arrow:
            if step.type_column is not None:
                columns.setdefault(step.type_column, set()).update(step.tags)
        return columns

    def columns_read(self) -> list[str] | None:
        """Return the columns that the job reads, each once; None if it may read any.

        Functions may, and rows that are kept have all of their columns.
        """
        keeps_rows = isinstance(self.on_bad_row, DeadLetters)
        if self.items is not None or self.prepare is not None or keeps_rows:
            return None
        names = {} if self.watermark is None else {self.watermark.time.column: None}
        for step in self.arrow:
            if not isinstance(step, ArrowAggregation):
                return None
            names.update(dict.fromkeys(step.aggregation.columns))
            if step.type_column is not None:
                names[step.type_column] = None
        return list(names)

    def check_columns(self, available: Sequence[str]) -> None:
        """Check that the rows have the columns that `items`, aggregations and the watermark read.

        Args:
            available: The columns of the rows. Case matters, also where Spark SQL reads them.

        Raises:
            ConfigError: A column is missing.
        """
        missing = [column for column in self.columns if column not in available]
        if self.prepare is None:  # which may make columns
            declared = [] if self.watermark is None else [self.watermark.time.column]
            for step in self.arrow:
                declared += [] if step.type_column is None else [step.type_column]
                if isinstance(step, ArrowAggregation):
                    declared += step.aggregation.columns
            lacking = [name for name in declared if name not in available]
            missing = list(dict.fromkeys([*missing, *lacking]))
        if missing:
            raise ConfigError(
                f"job {self.name!r} needs column {', '.join(missing)}, but the rows have "
                f"{', '.join(available)}: select or rename it before the write (case matters)"
            )

    def check_pickles(self) -> None:
        """Check that the job can be pickled for the workers.

        Raises:
            ConfigError: An attribute does not pickle.
        """
        check_pickles(self, f" of job {self.name!r}", "the function that uses it")
