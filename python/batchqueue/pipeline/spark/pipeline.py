"""`SparkPipeline`: a pipeline as it runs on Spark."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchqueue.base.checks import check_finite
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import NotOnSparkError
from batchqueue.pipeline.graph import StageConfig
from batchqueue.pipeline.settings import RunSettings, SparkOptions
from batchqueue.pipeline.spark.control import LiveControl, RunControl
from batchqueue.pipeline.spark.epoch_size import EpochGoal
from batchqueue.pipeline.spark.epochs import EpochSettings

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from batchqueue.pipeline.spark.compile import CompiledQuery


_log = logging.getLogger("batchqueue.pipeline")


_TASKS_PER_CORE = 4
_TASKS_ON_CONNECT = 64


class SparkPipeline:
    """A pipeline as Spark queries, one per sink. `Pipeline.on_spark` makes it.

    Each query has a separate checkpoint, below that of the pipeline, and reads the source
    separately, so a slow sink does not hold up the others. A source learns what has been stored,
    and may trim it, only if a single sink reads it.

    Example:
        on_spark = pipeline.on_spark(spark, checkpoint="checkpoints/revenue")
        print(on_spark.explain())
        on_spark.start().awaitTermination()
    """

    def __init__(self, spark: "SparkSession", settings: RunSettings, **options: Any) -> None:
        """Compile a pipeline; nothing runs, except functions, which get an empty batch.

        Args:
            spark: The session that runs it.
            settings: The graph, and the settings of the pipeline.
            options: See `SparkOptions`; and options of `MetricsWriter` for the exactly-once sinks.

        Raises:
            ConfigError: An option is invalid.
            GraphError: The graph is not complete.
            NotOnSparkError: A part of it does not run on Spark, or `backpressure` or `skew` was
                given; the message names it.
            SourcePickleError: A source cannot be sent to Spark's processes.
            MissingPackageError: pyspark is not installed.
        """
        import batchqueue.spark  # noqa: F401 - names a missing package
        from batchqueue.pipeline.spark.compile import compile_graph
        from batchqueue.pipeline.spark.sinks import SinkPlace

        _check_settings(settings)
        self._spark = spark
        self._name = settings.name
        self._options = SparkOptions.parse(options, settings.checkpoint)
        given = None if settings.stage is None else settings.stage.chunk_rows
        place = SinkPlace(settings.name, given or StageConfig().chunk_rows, given)
        self._queries = compile_graph(settings.graph, place, self._options)
        self._control = LiveControl(self._options.control)

    def explain(self) -> str:
        """Return the graph and what each step becomes on Spark, side by side."""
        from batchqueue.pipeline.spark.compile import explain

        return explain(self._name, self._queries, self._options)

    def start(self, *, available_now: bool = False, once: bool = False) -> "SparkRun":
        """Start a streaming query for each sink; it continues at its checkpoint.

        Args:
            available_now: End when everything that exists now has been written. Default: False, run
                until `stop`.
            once: The same in a single epoch, however large. Use `available_now` instead where you
                can. Default: False.

        Returns:
            The running queries.

        Raises:
            ConfigError: There is no session or no checkpoint, or both arguments are true.
            NotOnSparkError: A source is a DataFrame that is not a stream.
        """
        from batchqueue.spark.job import check_session

        if available_now and once:
            raise ConfigError("available_now and once are both true; give one of them")
        if self._options.checkpoint is None:
            raise ConfigError(
                f"pipeline {self._name!r} has no checkpoint, so a restart would read everything "
                "again; give Pipeline(checkpoint=...) or on_spark(spark, checkpoint=...)"
            )
        check_session(self._spark, "on_spark", "readStream")
        if once:
            _log.warning(
                "pipeline %s: once reads everything in a single epoch, however large; "
                "available_now ends as well, in epochs of the usual size",
                self._name,
            )
        trigger: dict[str, Any] = {
            "processingTime": f"{round(self._options.trigger_ms)} milliseconds"
        }
        if available_now or once:
            trigger = {"availableNow": True} if available_now else {"once": True}
        run = self._control.begin()
        started: list[StreamingQuery] = []
        forget = self._listen(run)

        def end() -> None:
            forget()
            self._control.end(run)

        try:
            for query in self._queries:
                started.append(self._start(query, run, trigger))
        except BaseException:
            for other in started:
                other.stop()
            end()
            raise
        return SparkRun(started, end, lambda: self._control.stop(run))

    def run(self) -> None:
        """Write everything that exists now, and return; the next run continues at the checkpoint.

        Raises:
            ConfigError: There is no checkpoint.
            NotOnSparkError: A source is a DataFrame that is not a stream.
            pyspark.errors.StreamingQueryException: A query failed.
        """
        self.start(available_now=True).awaitTermination()

    def run_batch(self, txn_id: str | None = None) -> dict[str, Mapping[str, Any]]:
        """Write all input as one batch, without a checkpoint.

        Args:
            txn_id: Names the write, so that exactly-once sinks apply it once. Default: None, rows
                count again when the write is repeated.

        Returns:
            The outcome, by the name of the sink; each has `guarantee` and `rows`, if known.

        Raises:
            ConfigError: There is no session.
            NotOnSparkError: A source does not end.
            pyspark.errors.PySparkException: A job failed. Sinks before it have been written.
        """
        from batchqueue.spark.job import check_session

        for query in self._queries:
            source = query.source.step.source
            if not source.bounded:
                raise NotOnSparkError(
                    f"{query.source.step} has no end, and a batch needs one; use run(), which ends "
                    "at what is there now"
                )
        check_session(self._spark, "on_spark", "readStream")
        run = self._control.begin()
        try:
            return {
                query.name: query.sink.write(
                    query.apply(
                        query.source.frame(
                            self._spark, self._epochs(query), run.control, stream=False
                        )
                    ),
                    txn_id,
                )
                for query in self._queries
            }
        finally:
            self._control.end(run)

    @property
    def paused(self) -> str | None:
        """Why the pipeline is paused; None if it is not."""
        return self._control.reason

    def pause(self, reason: str) -> None:
        """Begin no more epochs, in current and in later runs, until `resume`.

        Epochs in progress are finished, and no rows are skipped. A run with `available_now` waits.
        The readers learn of the pause from a file, see the option `control`.

        Args:
            reason: For `paused`, and for the log.

        Raises:
            NotOnSparkError: All sources are DataFrames, whose readers are Spark's.
        """
        foreign = [query for query in self._queries if query.source.pickled is None]
        if len(foreign) == len(self._queries):
            raise NotOnSparkError(
                f"{foreign[0].source.step} is a DataFrame, and Spark's own readers cannot pause; "
                "stop the run, and start it again"
            )
        for query in foreign:
            _log.warning("%s is a DataFrame and does not pause", query.source.step)
        _log.info("pipeline %s: paused (%s)", self._name, reason)
        self._control.pause(reason)

    def resume(self) -> None:
        """Continue after `pause`."""
        _log.info("pipeline %s: resumed", self._name)
        self._control.resume()

    def _start(
        self, query: "CompiledQuery", run: RunControl, trigger: dict[str, Any]
    ) -> "StreamingQuery":
        checkpoint = self._options.checkpoint_of(query.name)
        epochs = self._epochs(query)
        df = query.apply(query.source.frame(self._spark, epochs, run.control, stream=True))
        writer = query.sink.writer(df, checkpoint if _is_remote(self._spark) else None)
        started: StreamingQuery = (
            writer.queryName(epochs.query)
            .option("checkpointLocation", checkpoint)
            .trigger(**trigger)
            .start()
        )
        return started

    def _epochs(self, query: "CompiledQuery") -> EpochSettings:
        options = self._options
        readers = [other for other in self._queries if other.source.step is query.source.step]
        return EpochSettings(
            query=f"{self._name}: {query.name}",
            goal=EpochGoal(
                target_s=options.target_epoch_ms / 1000,
                trigger_s=options.trigger_ms / 1000,
                first_rows=options.first_epoch_rows,
                max_rows=options.max_epoch_rows,
            ),
            max_bytes=options.max_epoch_bytes,
            max_tasks=options.max_tasks or _most_tasks(self._spark),
            commits=len(readers) == 1,
        )

    def _listen(self, run: RunControl) -> Any:
        """Report the busy time of epochs to the readers; return a function that ends this."""
        read = [query for query in self._queries if query.source.pickled is not None]
        # On Connect the listener would run in the client, whose files the readers may not see.
        if not read or _is_remote(self._spark):
            return lambda: None
        from batchqueue.pipeline.spark.reader import BusyListener

        listener = BusyListener(run, [self._epochs(query).query for query in read])
        self._spark.streams.addListener(listener)
        return lambda: self._spark.streams.removeListener(listener)


def _check_settings(settings: RunSettings) -> None:
    """Refuse settings that nothing on Spark obeys."""
    remedies = {
        "backpressure": "bound its epochs with target_epoch_ms, max_epoch_rows and max_epoch_bytes",
        "skew": "see its own setting spark.sql.adaptive.enabled",
    }
    for name, remedy in remedies.items():
        if getattr(settings, name) is not None:
            raise NotOnSparkError(
                f"pipeline {settings.name!r} was made with {name}=, which nothing on Spark obeys; "
                f"leave it out there, and {remedy}"
            )


def _is_remote(spark: "SparkSession") -> bool:
    """Return whether this is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _most_tasks(spark: "SparkSession") -> int:
    if _is_remote(spark):
        return _TASKS_ON_CONNECT
    return _TASKS_PER_CORE * spark.sparkContext.defaultParallelism


_POLL_S = 0.1

_GRACE_S = 30.0
"""The same as for a run in one process."""

_STOP_POLL_S = 0.02
"""Short, because Spark's own readers begin the next epoch immediately."""

_IDLE_POLLS = 5
"""Polls without an epoch in progress after which the reader has certainly seen the pause."""

_AT_WORK = frozenset(
    {"Writing offsets to log", "Processing new data", "No new data but cleaning up state"}
)
"""The status of a query while an epoch is in progress (Spark's MicroBatchExecution)."""


class SparkRun:
    """The queries of a pipeline on Spark: one per sink, with the methods of a single query.

    When a query fails, `awaitTermination` stops the others. Without it they continue.

    Attributes:
        queries: Spark's own objects, in the order of the sinks.
    """

    def __init__(
        self,
        queries: "Sequence[StreamingQuery]",
        on_end: Callable[[], None],
        pause: Callable[[], None] | None = None,
    ) -> None:
        """Take over queries that have been started.

        Args:
            queries: At least one.
            on_end: Called once when this object notices that all have ended.
            pause: Makes their readers begin no more epochs. Default: None, the readers are Spark's
                own.
        """
        self.queries = tuple(queries)
        self._lock = threading.Lock()
        self._on_end: Callable[[], None] | None = on_end
        self._pause = pause

    @property
    def isActive(self) -> bool:
        """Whether a query is running."""
        return any(query.isActive for query in self.queries)

    def exception(self) -> "StreamingQueryException | None":
        """Return why a query failed; None if none did."""
        return next((error for query in self.queries if (error := query.exception())), None)

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until all queries have ended.

        Ctrl-C ends the wait, and leaves the queries running.

        Args:
            timeout: The longest wait, in seconds. Default: None, no limit.

        Returns:
            Whether they have ended.

        Raises:
            pyspark.errors.StreamingQueryException: A query failed; the others have been stopped.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # Read first, so that a query that fails in between is seen in the next round.
            is_active = self.isActive
            for query in self.queries:
                if not query.isActive and query.exception() is not None:
                    self.stop(timeout=0)
                    query.awaitTermination()  # raises
            if not is_active:
                self._end()
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            # A wait in the JVM would not react to Ctrl-C cleanly.
            time.sleep(_POLL_S)

    def stop(self, timeout: float | None = _GRACE_S) -> None:
        """Begin no more epochs, finish those in progress, and end.

        Spark's own readers cannot pause: an epoch that begins after the current one is stopped, and
        replayed.

        Args:
            timeout: Seconds for that; then the epochs in progress are stopped, and the next start
                replays them. 0 stops them immediately, None means no limit. Default: 30.

        Raises:
            ConfigError: `timeout` is invalid.
        """
        if timeout is not None:
            check_finite("timeout", timeout, 0, ", or None to wait")
        try:
            if timeout != 0:
                self._finish_epochs(timeout)
        finally:
            for query in self.queries:
                query.stop()
            self._end()

    def _finish_epochs(self, timeout: float | None) -> None:
        """Stop each query when its epoch is done; return when time runs out."""
        if self._on_end is None:
            return  # all have ended
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._pause is not None:
            try:
                self._pause()
            except OSError as error:
                _log.warning("stop: the readers could not be paused (%s)", error)
        last = {query: _last_epoch(query) for query in self.queries}
        idle_polls = dict.fromkeys(self.queries, 0)
        while last:
            time.sleep(_STOP_POLL_S)
            for query, epoch in list(last.items()):
                idle_polls[query] = 0 if _is_at_work(query) else idle_polls[query] + 1
                if idle_polls[query] >= _IDLE_POLLS or _last_epoch(query) != epoch:
                    query.stop()
                    del last[query]
            if deadline is not None and time.monotonic() >= deadline:
                break
        for query in last:
            if not idle_polls[query]:
                _log.warning(
                    "query %r: an epoch is at work after %g s, and is stopped; the next start "
                    "replays it; give stop(timeout=...) more seconds, or None",
                    query.name,
                    timeout,
                )

    def _end(self) -> None:
        with self._lock:
            on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()


def _is_at_work(query: "StreamingQuery") -> bool:
    return query.isActive and query.status["message"] in _AT_WORK


def _last_epoch(query: "StreamingQuery") -> object:
    """Return when the last finished epoch began; None before the first."""
    last = query.lastProgress
    return None if last is None else last["timestamp"]
