"""The job that you declare, its watermark and its dead letters. Made in the driver; pickles."""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, timedelta
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute
from pyspark import cloudpickle

from batchqueue.aggregation import Metrics, Window, bucket_start
from batchqueue.base.checks import check_finite, check_switch
from batchqueue.base.words import a_type, with_article
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import BadRows, ChangedKeys
from batchqueue.outputs.layout import table_layout
from batchqueue.outputs.reading import MetricsReader
from batchqueue.outputs.store import MetricsStore
from batchqueue.presets import l1_aggregation, l2_persistence
from batchqueue.queues.config import BatchQueueConfig, BufferStrategy, RetryPolicy, ThreadPolicy
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.steps import ArrowAggregation, ArrowHandler, HandlerFactory

# When a time bucket is final: `AggregationJob.watermark`.


_compute: Any = pyarrow.compute  # its type hints lack functions
_EPOCH, _DAY_S = date(1970, 1, 1), 86_400
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class Watermark:
    """The rule by which the time buckets of a stream become final, each in one epoch.

    The watermark is the latest time in the rows of all epochs so far, less the delay, as in Spark.
    A bucket that ends at or before it is final. The summary of each epoch has `final_before`: the
    buckets that start before it are final as of that epoch's commit; see `final_before` of the
    stores. Rows of an epoch are compared with the watermark as of the epochs before it, so the
    order in which the rows of one epoch are read does not matter. Batch writes do not move the
    watermark, and may write to final buckets, for instance to recompute a day.

    Attributes:
        time: The column with the times of rows, and the widest buckets of the job, in whole
            seconds. The windows of declared metrics must divide them; functions and `items` must
            not make wider ones, whose partials would count as late. A time bucket of 0, which
            stands for all times, is never late.
        delay_s: How late a row may be, in seconds of the rows' times. It also covers how far apart
            in these times parts of a source may be that are read concurrently, such as the
            partitions of a topic. Default: 0.
        late: What becomes of partials for a bucket that is final. "drop": they are left out, and
            the commit logs a warning. "add": they are added to what is stored. Either way the
            summary of the epoch counts them as `late`. Default: "drop".
        max_ahead_s: How far a time may be ahead of the task's clock, in seconds; a later one is
            taken for an error, and does not move the watermark. Default: 86,400, a day.

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
            value, remedy = getattr(self, name), "seconds, 0 to 1e9"
            check_finite(f"watermark: {name}", value, 0, most=1e9, give=remedy)
        if self.late not in ("drop", "add"):
            raise ConfigError(f"watermark: late is {self.late!r}; give 'drop' or 'add'")

    def check_window(self, window: Window | None) -> None:
        """Check that the buckets of declared metrics do not cross those of the watermark.

        Raises:
            ConfigError: They do, or the metrics have no buckets.
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
        """Return the latest time of rows that counts, in whole seconds; None if there is none.

        Args:
            times: Timestamps, dates, or integers of seconds.

        Raises:
            SinkError: The times are of another type.
        """
        kind, limit = times.type, self.latest_that_counts()
        if pa.types.is_timestamp(kind) and (kind.tz is not None or self.time.zone is None):
            # As numbers: Python covers fewer years than Spark, as does Arrow in a finer unit.
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


# What becomes of a row that a job cannot read: `AggregationJob.on_bad_row`.


_MOST = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """The rule that the store keeps rows that the job cannot read, as `batchqueue.outputs.BadRows`.

    They are written in the transaction of their epoch, so each is stored exactly once, and are read
    like any metric, for instance with `store.read_table(BadRows, sink_id)`. A write that replaces
    time buckets leaves them; `store.delete(before=...)` deletes those of tasks that began before
    that time, and an overwrite deletes them all.

    Attributes:
        limit: The most bad rows that one task may have in one epoch. With more the epoch fails,
            because then the function or the source is broken, not some rows. Default: 10,000.

    Raises:
        ConfigError: The limit is below 1.
    """

    limit: int = 10_000

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= _MOST:
            raise ConfigError(
                f"DeadLetters: limit is {self.limit!r}; give 1 to {_MOST:_} bad rows of a task"
            )


OnBadRow = Literal["fail", "skip"] | DeadLetters


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
            `df.mapInArrow(prepare, ...)` before the write, without the extra trip through the JVM.
            Default: None, they get the rows unchanged.
        arrow: What to do with the rows themselves, without items: built-in aggregations, and
            handlers of your own that take record batches. A tag may appear in one of them only.
            If a job has only aggregations, `MetricsWriter` reads only their columns. Default:
            nothing.
        metrics: The metric types that may reach the store, each name once. Each type has its own
            workers. Those that steps of `arrow` declare need not be listed.
        store: The store that L2 merges into.
        columns: Columns that `items` and `prepare` read. If a column is missing, the query fails
            before any task runs. Default: none are checked.
        on_bad_row: What becomes of a bad row. A row is bad if `items` raises for it, or makes a
            metric that the store cannot hold; if a declared metric cannot be stored with its key or
            text: null without `null_keys`, text that is not UTF-8, or has NUL or too many bytes for
            the store, a date that Python does not have; or if no step names its tag. "fail"
            (default): its task fails, and so does the epoch. "skip": neither `items` nor a step of
            `arrow` gets the row, and it is counted as `bad_rows` in the summary of the epoch; a
            batch of 100 rows or more that are all bad fails. `DeadLetters()`: the store keeps the
            row. Except with "fail", `items` gets a batch that has a bad row once more in parts,
            down to single rows, so the items of a row must not depend on other rows. A metric that
            a handler, or a function as `metrics`, makes of many rows, and that the store cannot
            hold, is left out or kept in the same way, and counts as one row.
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
        """Check what would otherwise fail only in a task, or with an error that names no cause."""
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
        """Check that steps that share a metric count different rows for it, in the same way."""
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
        check_switch(f"changed_keys of job {self.name!r}", self.changed_keys)
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

        A job may read any if it has functions, or keeps bad rows, which are kept with all columns.
        """
        keeps_rows = isinstance(self.on_bad_row, DeadLetters)
        if self.items is not None or self.prepare is not None or keeps_rows:
            return None
        if not all(isinstance(step, ArrowAggregation) for step in self.arrow):
            return None
        return list(dict.fromkeys(self._declared_columns()))

    def _declared_columns(self) -> Iterator[str]:
        """Yield the columns that steps and the watermark name."""
        if self.watermark is not None:
            yield self.watermark.time.column
        for step in self.arrow:
            if step.type_column is not None:
                yield step.type_column
            if isinstance(step, ArrowAggregation):
                yield from step.aggregation.columns

    def check_columns(self, available: Sequence[str]) -> None:
        """Check that the rows have the columns that `items`, aggregations and the watermark read.

        Args:
            available: The columns of the rows. Case matters, even where Spark SQL reads them.

        Raises:
            ConfigError: A column is missing.
        """
        missing = [column for column in self.columns if column not in available]
        if self.prepare is None:  # which may make columns
            missing += [name for name in self._declared_columns() if name not in available]
            missing = list(dict.fromkeys(missing))
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


# Checks of the objects that functions of this package are given.


def check_session(spark: object, where: str, used: str) -> None:
    """Check that `spark` is a session of Spark, or of Spark Connect, by the attribute to be used.

    Raises:
        ConfigError: It is not; the message begins with `where`.
    """
    if isinstance(spark, type) or not hasattr(spark, used):
        raise ConfigError(f"{where} got {a_type(spark)}; give a SparkSession")


def check_dataframe(df: object, where: str) -> None:
    """Check that `df` is a DataFrame of Spark, or of Spark Connect.

    Raises:
        ConfigError: It is not; the message begins with `where`.
    """
    if isinstance(df, type) or not hasattr(df, "mapInArrow"):
        raise ConfigError(
            f"{where} got {a_type(df)}; give a DataFrame of Spark, for instance "
            "spark.createDataFrame(rows)"
        )


def check_job(job: object, where: str) -> None:
    """Check that `job` is an `AggregationJob`.

    Raises:
        ConfigError: It is not; the message begins with `where`.
    """
    if not isinstance(job, AggregationJob):
        raise ConfigError(f"{where} got {a_type(job)}; give an AggregationJob")


# Finds in the driver what cannot be pickled for the workers.


def check_pickles(instance: Any, owner: str, place: str) -> None:
    """Check that every attribute of a dataclass can be pickled.

    Args:
        instance: The dataclass.
        owner: Follows the name of the attribute in the message, such as " of job 'shop'".
        place: Where to create what cannot be pickled, for the message.

    Raises:
        ConfigError: An attribute does not pickle; the message names it.
    """
    for attribute in fields(instance):
        try:
            cloudpickle.dumps(getattr(instance, attribute.name))  # type: ignore[no-untyped-call]
        # Pickling runs code of the objects, which may raise anything.
        except Exception as error:
            raise ConfigError(
                f"{attribute.name}{owner} cannot be pickled ({error}): make what it holds, such as "
                f"connections, locks and sessions, inside {place}"
            ) from error
