"""The sinks of a graph on Spark."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from batchqueue.aggregation import Metrics
from batchqueue.base.exact_cast import exact_cast_batch
from batchqueue.base.words import a_type
from batchqueue.pipeline.contract import NotOnSparkError, Sink, SinkError, write_to
from batchqueue.pipeline.file_sink import FileSink, check_types
from batchqueue.pipeline.graph import AggregateStep, SinkStep, StageStep
from batchqueue.pipeline.operators import Chain
from batchqueue.pipeline.settings import SparkOptions
from batchqueue.pipeline.sinks import MetricsSink
from batchqueue.pipeline.spark.stages import (
    Batches,
    SinkInput,
    check_pickles,
    chunks,
    schema_after_aggregate,
    spark_name,
)
from batchqueue.spark.driver.metrics_writer import MetricsWriter
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.steps import ArrowAggregation
from batchqueue.spark.task.arrow import map_in_arrow


class SinkPlace(NamedTuple):
    """The context of a sink.

    Attributes:
        pipeline: The pipeline's name.
        chunk_rows: The most rows of a chunk that a sink gets.
        operator_rows: The same for operators; None for Spark's own batches, because passing small
            ones between Spark and Python costs more than most operators do.
    """

    pipeline: str
    chunk_rows: int
    operator_rows: int | None


def spark_sink(
    step: SinkStep, given: SinkInput, place: SinkPlace, options: SparkOptions
) -> "SparkSink":
    """Return the Spark version of a sink.

    Args:
        step: The sink.
        given: What reaches it.
        place: The context of the sink.
        options: The options of `on_spark`.

    Raises:
        NotOnSparkError: The sink does not run on Spark.
    """
    sink: Any = step.sink
    if isinstance(sink, MetricsSink):
        return exactly_once_sink(step, given, place.pipeline, options)
    if isinstance(sink, FileSink):
        return spark_file_sink(step, sink, given.schema)
    if hasattr(sink, "commit") or hasattr(sink, "last_cut"):
        raise NotOnSparkError(
            f"{step} commits cuts of this process, and Spark has its own epochs; use MetricsSink "
            "or FileSink, which are exactly-once on Spark too, or FunctionSink"
        )
    check_pickles(sink, str(step))
    return TaskSink(sink, place.pipeline, given, place.chunk_rows)


def does_last_stage(sink: Any, options: SparkOptions) -> bool:
    """Return whether the tasks of a sink can run the stage before it in their Python worker.

    This saves the trip from one Python worker through Spark to the next.

    Args:
        sink: The sink of the graph.
        options: The options of `on_spark`.
    """
    if isinstance(sink, FileSink):
        return False  # Spark itself writes the files
    # Functions make its metrics, and run in the tasks unless the options say otherwise.
    return not isinstance(sink, MetricsSink) or options.sink.get("l1") != "spark"


@dataclass(frozen=True)
class TaskSink:
    """Any other sink: it is pickled into the tasks of `foreachBatch`, at least once.

    Each task has a separate sink. After a failed task or epoch, rows are delivered again.

    Attributes:
        sink: The sink.
        pipeline: The name of the pipeline.
        given: What reaches it.
        chunk_rows: The most rows of a chunk.
    """

    sink: Sink
    pipeline: str
    given: SinkInput
    chunk_rows: int

    @property
    def steps(self) -> tuple[str, ...]:
        """See `SparkSink`."""
        return tuple(map(str, self.given.last.steps)) if self.given.last else ()

    @property
    def text(self) -> str:
        """See `SparkSink`."""
        return f"at least once: foreachBatch, {a_type(self.sink)} in each task"

    def writer(self, df: DataFrame, checkpoint: str | None) -> Any:
        """See `SparkSink`."""

        def write(epoch_rows: DataFrame, _: int) -> None:
            self.write(epoch_rows, None)

        return df.writeStream.foreachBatch(write)

    def write(self, df: DataFrame, txn_id: str | None) -> Mapping[str, Any]:
        """See `SparkSink`."""
        # Not this object, so that only what tasks need is sent to them.
        sink, pipeline, chunk_rows = self.sink, self.pipeline, self.chunk_rows
        schema, last = self.given.schema, self.given.last
        prepare = last.run if last else None

        def run(batches: Batches) -> Batches:
            prepared = batches if prepare is None else prepare(batches)
            rows = write_task(sink, pipeline, chunks(prepared, schema, chunk_rows))
            yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

        counts = map_in_arrow(df, run, "rows long").collect()
        return {"guarantee": "at-least-once", "rows": sum(count.rows for count in counts)}


def write_task(sink: Sink, pipeline: str, given: Iterable[pa.RecordBatch]) -> int:
    """Write the chunks of one task, in writes of `batch_rows`; return how many rows there were."""
    rows = waiting_rows = 0
    waiting: list[pa.RecordBatch] = []
    with _opened(sink, pipeline):
        for chunk in given:
            waiting.append(chunk)
            waiting_rows += chunk.num_rows
            rows += chunk.num_rows
            if waiting_rows >= sink.batch_rows:
                write_to(sink, waiting)
                waiting, waiting_rows = [], 0
        if waiting:
            write_to(sink, waiting)
    return rows


@contextmanager
def _opened(sink: Sink, pipeline: str) -> Iterator[None]:
    """Call `open` and `close` of sinks that have them."""
    getattr(sink, "open", lambda _: None)(pipeline)
    try:
        yield
    finally:
        getattr(sink, "close", lambda: None)()


_FORMATS = ("parquet", "csv")
_CUTS = "_batchqueue"


def spark_file_sink(step: SinkStep, sink: FileSink, schema: pa.Schema) -> "SparkFileSink":
    """Return the Spark version of a `FileSink`.

    Args:
        step: The sink in the graph.
        sink: The sink.
        schema: The columns that reach it.

    Raises:
        NotOnSparkError: Spark does not write its format, or the format has no type for a column.
    """
    if sink.format not in _FORMATS:
        raise NotOnSparkError(
            f"{step} writes {sink.format!r}, and Spark writes {' and '.join(_FORMATS)}; use one of "
            "these"
        )
    try:
        check_types(schema, sink.format, str(sink.directory))
    except SinkError as error:
        raise NotOnSparkError(f"{step}: {error}") from error
    return SparkFileSink(str(step), sink.directory, sink.format, sink.compression)


@dataclass(frozen=True)
class SparkFileSink:
    """Files that Spark writes.

    A stream is exactly-once for readers that follow Spark's log in the directory, as Spark itself
    does.

    Attributes:
        name: The sink in the graph, for errors.
        directory: Where the files go.
        format: Their format.
        compression: Their compression, or None for that of Spark.
        steps: Empty.
    """

    name: str
    directory: Path
    format: str
    compression: str | None
    steps: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """See `SparkSink`."""
        return f"exactly once for Spark's readers: {self.format} files in {self.directory}"

    def writer(self, df: DataFrame, checkpoint: str | None) -> Any:
        """See `SparkSink`."""
        self._check_directory()
        writer = df.writeStream.format(self.format).options(**self._options)
        return writer.option("path", self.directory.as_uri())

    def write(self, df: DataFrame, txn_id: str | None) -> Mapping[str, Any]:
        """Add files to the directory. `txn_id` has no effect: a repeated write is added again.

        Raises:
            NotOnSparkError: A run in one process has written to the directory.
        """
        self._check_directory()
        writer = df.write.format(self.format).options(**self._options).mode("append")
        writer.save(self.directory.as_uri())
        return {"guarantee": "at-least-once"}

    @property
    def _options(self) -> dict[str, str]:
        return {} if self.compression is None else {"compression": self.compression.lower()}

    def _check_directory(self) -> None:
        if (self.directory / _CUTS).exists():
            raise NotOnSparkError(
                f"{self.name}: {self.directory} belongs to a pipeline that ran in one process, "
                "whose cuts Spark cannot continue; use another directory"
            )


def exactly_once_sink(
    step: SinkStep, given: SinkInput, pipeline: str, options: SparkOptions
) -> "ExactlyOnceSink":
    """Return the Spark version of a `MetricsSink`.

    Args:
        step: The sink.
        given: What reaches it.
        pipeline: The name of the pipeline.
        options: The options of `on_spark`.

    Raises:
        NotOnSparkError: The sink does not declare its metrics, or a step does not fit or does not
            pickle.
        ConfigError: An option is invalid, or the store or `to_metrics` does not pickle.
    """
    sink, behind = step.sink, given.behind
    assert isinstance(sink, MetricsSink)
    if not sink.metrics:
        raise NotOnSparkError(
            f"{step}: Spark has to know which metrics there may be; give MetricsSink(store, "
            "to_metrics, metrics=[...]) all types that to_metrics returns"
        )
    operators = [each for each in behind[1:] if not isinstance(each, StageStep)]
    how: dict[str, Any]
    if behind:
        aggregate = behind[0]
        assert isinstance(aggregate, AggregateStep)
        schema_after_aggregate(aggregate.aggregation, given.schema)
        check_pickles(operators, f"what follows {aggregate}")
        groups = SparkGroupMetrics(tuple(operators), sink.to_metrics)
        how = {"arrow": [ArrowAggregation(aggregation=aggregate.aggregation, metrics=groups)]}
    else:
        how = {"items": RowMetrics(given.schema, sink.to_metrics)}
    name = spark_name(f"{pipeline}-{step.name}")
    if given.last is not None:
        how["prepare"] = given.last.run
    job = AggregationJob(name=name, metrics=sink.metrics, store=sink.store, **how)
    writing = {"sinkId": sink.sink_id, **options.sink}
    GraphWriter(job, **writing)  # checks the options, and that the job pickles
    own = (*(given.last.steps if given.last else ()), *behind)
    return ExactlyOnceSink(job, writing, tuple(map(str, own)))


@dataclass(frozen=True)
class RowMetrics:
    """Turns rows into metrics, in the types that the graph has."""

    schema: pa.Schema
    to_metrics: Any

    def __call__(self, rows: pa.RecordBatch) -> Iterable[Metrics]:
        """Return the metrics of some rows."""
        result: Iterable[Metrics] = self.to_metrics(exact_cast_batch(rows, self.schema))
        return result


@dataclass(frozen=True)
class SparkGroupMetrics:
    """Turns groups that one task aggregated into metrics, after maps and filters of groups."""

    operators: tuple[Any, ...]
    to_metrics: Any

    def __call__(self, groups: pa.RecordBatch) -> Iterator[Metrics]:
        """Return the metrics of some groups."""
        chain = Chain(self.operators)
        for batch in (*chain.process(groups), *chain.flush()):
            yield from self.to_metrics(batch)


class GraphWriter(MetricsWriter):
    """A writer of rows in the types that the graph has, which need no cast.

    A `SparkSource` has turned times without a zone into instants. Those of other sources stay what
    they are on this machine.
    """

    def _with_instants(self, df: DataFrame) -> DataFrame:
        return df


@dataclass(frozen=True)
class ExactlyOnceSink:
    """Metrics of a store: the exactly-once sink for `foreachBatch`, with the ledger of the store.

    Attributes:
        job: What to do with the rows.
        options: The options of the writer.
        steps: The steps that the sink runs itself: the stage before it, an aggregation, and what
            follows that.
    """

    job: AggregationJob
    options: Mapping[str, Any]
    steps: tuple[str, ...]

    @property
    def text(self) -> str:
        """See `SparkSink`."""
        return (
            f"exactly once: MetricsWriter in foreachBatch, sinkId {self.options['sinkId']!r} in "
            f"{self.job.store!r}"
        )

    def writer(self, df: DataFrame, checkpoint: str | None) -> Any:
        """See `SparkSink`."""
        writer = GraphWriter(self.job, checkpoint=checkpoint, **self.options)
        return df.writeStream.foreachBatch(writer.write_epoch)

    def write(self, df: DataFrame, txn_id: str | None) -> Mapping[str, Any]:
        """See `SparkSink`."""
        return GraphWriter(self.job, **self.options).write_batch(df, txn_id=txn_id)


SparkSink = TaskSink | SparkFileSink | ExactlyOnceSink
"""A sink of the graph, on Spark.

`text` describes it for `explain`, and `steps` are the texts of the steps that it runs itself.
`writer` returns the `DataStreamWriter` for a stream of the sink's input; on Connect it needs the
checkpoint of the query. `write` writes a batch, and returns the outcome.
"""
