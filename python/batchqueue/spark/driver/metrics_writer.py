"""`MetricsWriter`: the sink for `foreachBatch`, L1 in Spark SQL, shards. Runs in the driver."""

import json
import logging
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace as replaced_in
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException

from batchqueue.aggregation import bucket_start
from batchqueue.base.checks import is_whole
from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.sqlite_store import SqliteStore
from batchqueue.outputs.store import bucket_limit
from batchqueue.spark.column_types import check_reaches_python, check_rows, spark_columns
from batchqueue.spark.commit.commit import EpochCommit
from batchqueue.spark.commit.summary import open_store
from batchqueue.spark.driver.pushdown import (
    SqlPartials,
    choose_l1,
    collect_partials,
    pushdown_steps,
    quoted,
)
from batchqueue.spark.driver.shards import ShardedWrite
from batchqueue.spark.job import AggregationJob, check_dataframe, check_job
from batchqueue.spark.options import OPTION_NAMES, L1Choice, L1Place, SinkOptions
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.steps import ArrowAggregation
from batchqueue.spark.task.arrow import cast_to_instants, map_in_arrow
from batchqueue.spark.task.attempt import run_attempt
from batchqueue.spark.task.message import QUERY_ID, EpochId, empty_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_log = logging.getLogger("batchqueue.spark")


_MOST_SHARDS = 10_000


class MetricsWriter:
    """Writes DataFrames and the micro-batches of streams into the store of a job, exactly once.

    It keeps the same ledger in the same store as the format that `register` makes, and takes the
    same options; a sink can switch between the two. The differences:

    - The commit runs where `write_epoch` is called: in the driver, or with Spark Connect in a
      process of the server.
    - L1 can run in Spark SQL: see `l1` and `explain`.
    - It does not use a data source, so it works with pyspark 3.5 and later.

    Example:
        writer = MetricsWriter(job)
        stream = df.writeStream.foreachBatch(writer.write_epoch)
        query = stream.option("checkpointLocation", path).start()
        summary = writer.write_batch(table, txn_id="orders-2026-01-31")
    """

    def __init__(
        self,
        job: AggregationJob,
        *,
        l1: Literal["auto"] | L1Place = "tasks",
        shards: int | None = None,
        checkpoint: str | None = None,
        **options: Any,
    ) -> None:
        """Describe a writer; nothing runs yet.

        Args:
            job: What to do with the rows.
            l1: Where rows become partials. "tasks" (default): in the tasks, as the job says.
                "spark": Spark SQL groups the rows in the JVM, and only the groups reach Python; the
                job may consist of `ArrowAggregation` only. Sums of floats are then Spark's, without
                compensation; of rows with equal `by`, `First` takes the smallest value and `Last`
                the largest. "auto": in Spark SQL if it has the same results as the tasks for these
                columns, else in the tasks; `explain` says which, and why.
            shards: None (default): L2 merges in one process, where this object is used. A number:
                Spark's shuffle brings the partials of a key together, and tasks merge and commit
                that many shards. Each shard is a separate sink, see `sink_ids`; the number, or
                None, is fixed for the life of the checkpoint and the sink. The executors must be
                able to open the store.
            checkpoint: The `checkpointLocation` of the stream; only Spark Connect needs it.
            options: `sinkId`, `onNewQuery`, `onJobChange`, `onMissingEpochs`, `onChangedEpoch`,
                `maxCommitBytes`, as for the format, see `register`.

        Raises:
            ConfigError: A value is invalid, the job cannot be pickled, or Spark SQL cannot run it.
        """
        check_job(job, "MetricsWriter")
        if l1 not in ("auto", "tasks", "spark"):
            raise ConfigError(f"l1={l1!r}: use 'auto', 'tasks' or 'spark'")
        if l1 == "spark":
            pushdown_steps(job)
        if shards is not None:
            _check_shards(shards, job)
        job.check_pickles()
        self._job = job
        self._l1: Literal["auto"] | L1Place = l1
        self._why_not_sql: str | None = None
        self._checkpoint = checkpoint
        given = {name.lower(): str(value) for name, value in options.items() if value is not None}
        parsed = SinkOptions.parse(given, job, stream=True)
        for name, value in options.items():
            if name.lower() not in OPTION_NAMES:
                raise ConfigError(
                    f"{name}={value!r} is not an argument of MetricsWriter; see its docstring"
                )
        self._options = replaced_in(parsed, shards=shards)

    @property
    def sink_ids(self) -> list[str]:
        """The sinks of this writer in the store: one, or one for each shard."""
        sink_id, shards = self._options.sink_id, self._options.shards
        return [sink_id] if shards is None else [f"{sink_id}/{shard}" for shard in range(shards)]

    def write_epoch(self, df: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch of a stream, unless the sink has it; pass this to `foreachBatch`.

        Call it once for every epoch, even one without rows. A second call in an epoch, by this
        writer or by another one of the same sink, is an error: its rows would be mistaken for a
        replay. The stream must be in output mode append, or update if it aggregates nothing: else
        an epoch repeats rows of earlier epochs. With Spark Connect, which does not report the mode,
        a warning is logged.

        Args:
            df: The micro-batch.
            batch_id: Its number, as Spark passes it.

        Raises:
            ConfigError: `df` is not a DataFrame of Spark, or lacks a column, or has one of a type
                that the job does not take.
            SinkError: The query is new to a sink that has data, Spark does not say which query it
                is, its output mode repeats rows, epochs before this one are missing, this epoch was
                written in this run or is replayed with other rows, the job has changed, or an item
                was lost.
        """
        df, options = self._prepare(df)
        epoch = EpochId(query_id_of(df, self._checkpoint), batch_id)
        place = EpochPlace(repr(self._job.store), self._options.sink_id)
        with written_once(place, epoch, run_of(df), self._job.name) as wrote:
            if wrote is None:
                check_output_mode(df, epoch.query_id, self._options.sink_id)
            if options.shards is not None:
                self._write_shards(df, options, epoch, wrote=wrote)
                return
            if wrote is None or wrote != batch_id - 1:  # else its last epoch was checked
                EpochCommit(self._job, options, []).check_epoch(epoch, wrote)
            self._results(df, options, epoch).apply_epoch(batch_id, wrote=wrote)

    def write_batch(
        self,
        df: "DataFrame",
        *,
        txn_id: str | None = None,
        overwrite: bool = False,
        replace: tuple[int | datetime, int | datetime] | None = None,
    ) -> dict[str, Any]:
        """Write one DataFrame.

        Args:
            df: The rows.
            txn_id: Names the write, so that it is applied once. Without it, rows count again when
                the write is repeated; with shards, the rows of a shard also count again when Spark
                repeats its task after the commit.
            overwrite: Delete the sink's earlier results first.
            replace: Time buckets to recompute, from the first limit up to but excluding the second:
                each in seconds since 1970, or a datetime with a zone. What the sink has for them is
                deleted, whatever its metric, in the transaction that stores the results of `df`;
                the ledger stays. So give all rows of these buckets, and limits at which a bucket of
                every metric starts: a day for hours and days. A result for another time bucket is
                an error. Default: None, the results are added to what is there.

        Returns:
            The summary of the epoch, with `guarantee`: "exactly-once" or "at-least-once", and
            `applied`: False if the sink already had the write. With shards, `shards` has the
            summary of each.

        Raises:
            ConfigError: `df` is not a DataFrame of Spark, lacks a column, or has one of a type that
                the job does not take; `txn_id` is blank; or `replace` is not an interval, or is
                given with `overwrite`.
            SinkError: A stream has written to the sink, and `sinkId` was not given; the sink was
                written with another number of shards, or by another job; a result is outside
                `replace`; or an item was lost.
        """
        if txn_id is not None and not isinstance(txn_id, str):
            raise ConfigError(
                f"txn_id={txn_id!r} is {a_type(txn_id)}: give a text, or leave it out"
            )
        if txn_id is not None and not txn_id.strip():
            raise ConfigError(f"txn_id={txn_id!r} is blank: give a name, or leave it out")
        replaced = None
        if replace is not None:
            replaced = _buckets(replace, overwrite=overwrite)
            _check_bucket_starts(replaced, self._job)
        df, options = self._prepare(df)
        options = replaced_in(options, txn_id=txn_id, replaced=replaced)
        if options.shards is not None:
            summaries = self._write_shards(df, options, None, overwrite=overwrite)
            return {
                "guarantee": "at-least-once" if txn_id is None else "exactly-once",
                **{
                    name: sum(summary.get(name, 0) for summary in summaries)
                    for name in ("rows", "skipped", "bad_rows")
                },
                "applied": any(summary["applied"] for summary in summaries),
                "shards": summaries,
            }
        found = EpochCommit(self._job, options, []).check_batch(overwrite=overwrite)
        if found is not None:
            return found
        return self._results(df, options, None).apply_batch(overwrite=overwrite)

    def explain(self, df: "DataFrame") -> str:
        """Return where L1 runs for such rows, and why, in one line; nothing runs.

        The summary of each epoch says the same, as `l1_place` and `l1_why`.

        Args:
            df: The rows, or a stream of them.

        Raises:
            ConfigError: `df` is not a DataFrame of Spark, or lacks a column, or has one of a type
                that the job does not take.
        """
        _, (place, why) = self._planned(df)
        return f"L1 runs in {'Spark SQL' if place == 'spark' else 'the tasks'}: {why}"

    def _planned(self, df: "DataFrame") -> "tuple[DataFrame, L1Choice]":
        """Return the columns that are read, and where L1 runs."""
        check_dataframe(df, "MetricsWriter")
        check_rows(self._job, spark_columns(df.schema))
        columns = with_columns_read(df, self._job)
        instants = self._with_instants(columns)
        if self._l1 == "auto" and self._why_not_sql is not None:
            choice = L1Choice("tasks", self._why_not_sql)
        elif self._l1 == "auto":
            choice = choose_l1(instants, self._job, in_shards=self._options.shards is not None)
        else:
            choice = L1Choice(self._l1, f"the writer has l1={self._l1!r}")
        if choice.place == "tasks":
            check_reaches_python(spark_columns(columns.schema), "the tasks")
        return instants, choice

    def _prepare(self, df: "DataFrame") -> "tuple[DataFrame, SinkOptions]":
        df, choice = self._planned(df)
        open_store(self._job)
        return df, replaced_in(self._options, l1=choice)

    def _with_instants(self, df: "DataFrame") -> "DataFrame":
        return cast_to_instants(df)

    def _write_shards(
        self,
        df: "DataFrame",
        options: SinkOptions,
        epoch: EpochId | None,
        *,
        overwrite: bool = False,
        wrote: int | None = None,
    ) -> list[dict[str, Any]]:
        write = ShardedWrite.prepare(df.sparkSession, self._job, options, epoch)
        found = write.check(overwrite=overwrite, wrote=wrote)
        if found is not None:
            return found
        if options.l1.place == "spark":
            partials = write.plan_in_spark(df, names_overflow=self._l1 == "auto")
        else:
            partials = write.plan_in_tasks(df)
        summaries = write.commit(partials, overwrite=overwrite)
        _warn_of_bad_rows(options.sink_id, summaries)
        return summaries

    def _results(self, df: "DataFrame", options: SinkOptions, epoch: EpochId | None) -> EpochCommit:
        """Run L1, and return the commit of what it leaves."""
        job = self._job
        if options.l1.place == "spark":
            partials = self._in_spark(df, options, epoch)
            if partials is not None:
                return EpochCommit(job, options, [partials])
            check_reaches_python(spark_columns(df.schema), "the tasks")
            options = replaced_in(options, l1=L1Choice("tasks", str(self._why_not_sql)))

        def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            message = run_attempt(job, options, batches, epoch)
            yield pa.RecordBatch.from_pydict(
                {"message": pa.array([pickle.dumps(message)], pa.binary())}
            )

        rows = map_in_arrow(df, attempt, "message binary").collect()
        messages = [pickle.loads(row.message) for row in rows] or [empty_message(job, epoch)]
        return EpochCommit(job, options, messages)

    def _in_spark(
        self, df: "DataFrame", options: SinkOptions, epoch: EpochId | None
    ) -> SqlPartials | None:
        """Run L1 in Spark SQL; return None if the tasks have to run it, from now on."""
        job, sink_id = self._job, options.sink_id
        if self._l1 == "spark":
            return collect_partials(df, job, sink_id, epoch)
        try:
            found = collect_partials(df, job, sink_id, epoch, names_overflow=True)
            found.columns(job)  # A sum that does not fit its column may fit in the parts of tasks.
        except SinkError as error:
            self._why_not_sql = f"Spark SQL refused an epoch: {str(error).partition(', so')[0]}"
            return None
        if found.size > options.max_commit_bytes:
            self._why_not_sql = (
                f"the groups of an epoch took {found.size} bytes in Spark SQL, more than "
                "maxCommitBytes"
            )
            return None
        return found


def _warn_of_bad_rows(sink_id: str, summaries: Iterable[Mapping[str, Any]]) -> None:
    """Log here what the tasks that commit shards log on their machines."""
    bad = [each for each in summaries if each["applied"] and each["bad_rows"]]
    if bad:
        rows = counted(sum(each["bad_rows"] for each in bad), "bad row")
        _log.warning("sink %s: %s (%s)", sink_id, rows, bad[0]["bad_row_error"])


def with_columns_read(df: "DataFrame", job: AggregationJob) -> "DataFrame":
    """Return the columns that a job reads, so that Spark scans no others.

    Returns:
        `df` itself if functions may read any column.
    """
    read = job.columns_read()
    names = df.columns
    if read is None:
        return df
    # Without any column Spark would not report the number of rows.
    kept = [name for name in names if name in read] or names[:1]
    if kept == names:
        return df
    if len({name.lower() for name in names}) == len(names):
        return df.select(*map(quoted, kept))
    # Spark SQL does not distinguish some of the names.
    numbered = df.toDF(*(f"column {position}" for position in range(len(names))))
    return numbered.select(*(quoted(f"column {names.index(name)}") for name in kept)).toDF(*kept)


def _buckets(interval: Any, *, overwrite: bool) -> range:
    if overwrite:
        raise ConfigError(
            f"replace={interval!r} beside overwrite=True, which deletes all results: leave one out"
        )
    if not isinstance(interval, tuple) or len(interval) != 2:
        raise ConfigError(
            f"replace={interval!r}: give the first time bucket and the one after the last as a "
            "tuple, for instance (datetime(2026, 1, 30, tzinfo=UTC), datetime(2026, 1, 31, "
            "tzinfo=UTC))"
        )
    first, end = (bucket_limit("replace", limit) for limit in interval)
    if first >= end:
        raise ConfigError(
            f"replace={interval!r}: no time bucket is from {first} on and before {end}; give the "
            "earlier time first"
        )
    return range(first, end)


def _check_bucket_starts(replaced: range, job: AggregationJob) -> None:
    """Check that no bucket of a declared window is replaced in part."""
    for step in job.arrow:
        window = step.aggregation.window if isinstance(step, ArrowAggregation) else None
        if window is None or not (window.seconds.is_integer() and window.offset_seconds % 1 == 0):
            continue
        for limit in (replaced.start, replaced.stop):
            start = bucket_start(
                limit,
                int(window.seconds),
                zone=window.zone,
                offset_seconds=int(window.offset_seconds),
            )
            if start != limit:
                raise ConfigError(
                    f"replace= has the limit {limit}, inside of a bucket of {window.seconds:g} s "
                    f"of {window.column!r} that starts at {start}: give limits at which the "
                    "buckets of all windows start, and all rows between them"
                )


def _check_shards(shards: int, job: AggregationJob) -> None:
    if not is_whole(shards, 1, _MOST_SHARDS):
        raise ConfigError(f"shards={shards!r}: give 1 to {_MOST_SHARDS:_}, or None for one commit")
    if isinstance(job.store, SqliteStore):
        raise ConfigError(
            f"shards={shards} with a SqliteStore: the tasks of a cluster cannot open a file of one "
            "machine; use a PostgresStore, or a ParquetStore on a file system that all of them "
            "share"
        )


def query_id_of(df: "DataFrame", checkpoint: str | None) -> str:
    """Return the id of the query of a micro-batch, which its checkpoint keeps across restarts.

    Args:
        df: The micro-batch.
        checkpoint: The `checkpointLocation`, or None. With Spark Connect it is the only source of
            the id.

    Raises:
        SinkError: Neither Spark nor the checkpoint says which query it is.
    """
    session = df.sparkSession
    if checkpoint is not None:
        ((metadata,),) = session.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
        return str(json.loads(metadata)["id"])
    try:
        query_id = session.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkException:  # Spark Connect has no context
        query_id = None
    if query_id is None:
        raise SinkError(
            "Spark did not say which query this micro-batch belongs to, so an epoch could not be "
            "distinguished from its replay: give write_epoch to writeStream.foreachBatch, on Spark "
            "Connect with MetricsWriter(checkpoint=...), and use write_batch with txn_id for other "
            "DataFrames"
        )
    return str(query_id)


# The epochs that this process writes, so that a second write is not mistaken for a replay.
#
# Spark calls the function of foreachBatch once per epoch and run of a query. A replay follows a
# restart, so it is in another run or another process. A second write into one sink within a run
# therefore has other rows, which the ledger would drop as a replay.


_RUN_ID = "spark.jobGroup.id"
"""The local property that Spark sets to the id of a query's run, as the group of its jobs."""


class EpochPlace(NamedTuple):
    """The sink that a query writes into.

    Attributes:
        store: The description of the store.
        sink_id: The sink.
    """

    store: str
    sink_id: str


class _Write(NamedTuple):
    run: str
    batch_id: int
    job: str


_lock = threading.Lock()
_last: dict[tuple[EpochPlace, str], _Write] = {}
"""The last write of each place and query id, newest last. Accessed under the lock."""

_MOST_WRITES = 10_000
"""The most writes to remember, for a program that starts one query after another."""


def run_of(df: "DataFrame") -> str:
    """Return a name for the run of the query whose micro-batch this is.

    With Spark Connect, each process of the server counts as one run.
    """
    session = df.sparkSession
    try:
        context = session.sparkContext
        run_id = context.getLocalProperty(_RUN_ID)
    except PySparkException:  # Spark Connect has no context
        return ""
    # Each run has its own session. The id alone may be a job group that the function has set.
    java = context._jvm.System.identityHashCode(session._jsparkSession)  # type: ignore[union-attr]
    return f"{run_id} {java}"


@contextmanager
def written_once(place: EpochPlace, epoch: EpochId, run: str, job: str) -> Iterator[int | None]:
    """Claim an epoch for the block that writes it; if it raises, the epoch may be written again.

    Args:
        place: Where the epoch is written.
        epoch: The epoch.
        run: See `run_of`.
        job: The name of the job that writes.

    Returns:
        The number of the epoch that the run last wrote into this place; None if this is the first.

    Raises:
        SinkError: The run has already written this epoch into this place, or is writing it now.
    """
    key, write = (place, epoch.query_id), _Write(run, epoch.batch_id, job)
    with _lock:
        before = _last.get(key)
        if before is not None and before[:2] == write[:2]:
            raise SinkError(
                f"epoch {epoch.batch_id} of query {epoch.query_id} was written into sink "
                f"{place.sink_id!r} by job {before.job!r} in this run, and now by job {job!r}: the "
                "ledger would drop these rows as a replay. Call write_epoch once per epoch and "
                "sinkId: join the DataFrames with unionByName before, or give each writer its own "
                "sinkId"
            )
        _last.pop(key, None)
        _last[key] = write
        if len(_last) > _MOST_WRITES:
            del _last[next(iter(_last))]
    try:
        yield before.batch_id if before is not None and before.run == run else None
    except BaseException:
        with _lock:
            if before is None:
                _last.pop(key, None)
            else:
                _last[key] = before
        raise


# The output mode of a stream, which `foreachBatch` does not pass on.
#
# In the modes complete and update an aggregation of the query returns groups that it returned
# before, with new values, and a sink that adds would count their rows again.


def check_output_mode(df: "DataFrame", query_id: str, sink_id: str) -> None:
    """Check that the epochs of a query do not repeat rows of earlier epochs.

    A query without an aggregation may be in mode update, which is then the same as append. Logs a
    warning if Spark does not report the mode, as with Spark Connect.

    Args:
        df: A micro-batch of the query.
        query_id: The query.
        sink_id: The sink, for messages.

    Raises:
        SinkError: They do.
    """
    try:
        session: Any = df.sparkSession
        java: Any = session._jvm
        queries = session._jsparkSession.sharedState().activeStreamingQueries()
        execution: Any = queries.get(java.java.util.UUID.fromString(query_id))
        mode, repeats = None, False
        if execution is not None:
            mode = str(execution.outputMode().toString())
            plan = execution.logicalPlan()
            repeats = mode == "Complete" or (mode == "Update" and _aggregates(plan))
    # Spark Connect has no JVM here, and another version of Spark may have no such methods; Spark
    # raises errors of py4j as well as its own.
    except Exception:
        mode, repeats = None, False
    if repeats:
        raise SinkError(
            f"query {query_id} is in outputMode({str(mode).lower()!r}), whose epochs repeat groups "
            f"of earlier epochs with new values, and sink {sink_id!r} would add them up: give the "
            "job the rows instead of their aggregates, or use outputMode('append')"
        )
    if mode is None:
        _log.warning(
            "sink %s: Spark does not say the output mode of query %s; it must be append, because "
            "other modes repeat rows of earlier epochs, which would count again",
            *(sink_id, query_id),
        )


def _aggregates(plan: Any) -> bool:
    """Return whether a plan of Spark aggregates rows of a stream."""
    if plan.isStreaming() and plan.nodeName() == "Aggregate":
        return True
    children = plan.children()
    return any(_aggregates(children.apply(place)) for place in range(children.size()))
