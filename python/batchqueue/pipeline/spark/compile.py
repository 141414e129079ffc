"""Compilation of a graph to Spark queries: each sink becomes a query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import NotOnSparkError
from batchqueue.pipeline.graph import (
    AggregateStep,
    FilterStep,
    Graph,
    KeyByStep,
    MapStep,
    SinkStep,
    SourceStep,
    StageStep,
    StatefulStep,
)
from batchqueue.pipeline.operators import ChainStep
from batchqueue.pipeline.settings import SparkOptions
from batchqueue.pipeline.sinks import MetricsSink
from batchqueue.pipeline.spark.control import DriverControl
from batchqueue.pipeline.spark.epochs import EpochSettings
from batchqueue.pipeline.spark.sinks import SinkPlace, SparkSink, does_last_stage, spark_sink
from batchqueue.pipeline.spark.source import PickledSource, SparkSource
from batchqueue.pipeline.spark.stages import (
    ArrowStage,
    ShuffleStage,
    SinkInput,
    SparkStage,
    StatefulStage,
    arrow_schema,
    check_filter,
    check_pickles,
    schema_after_aggregate,
    schema_after_map,
    spark_name,
    spark_schema,
)


@dataclass(frozen=True, eq=False)
class CompiledQuery:
    """One sink of a graph as a Spark query.

    Attributes:
        name: The name of the sink.
        source: Where its rows come from.
        stages: What happens to them.
        sink: Where they end.
    """

    name: str
    source: "FrameMaker"
    stages: tuple[SparkStage, ...]
    sink: SparkSink

    def apply(self, df: DataFrame) -> DataFrame:
        """Return the rows that reach the sink, given those of the source."""
        for stage in self.stages:
            df = stage.apply(df)
        return df

    @property
    def texts(self) -> Sequence[tuple[str, str]]:
        """Each step between source and sink: its text in the graph, and what it is on Spark."""
        return [line for stage in self.stages for line in stage.texts]


def compile_graph(graph: Graph, place: SinkPlace, options: SparkOptions) -> list[CompiledQuery]:
    """Compile a graph; nothing runs, except functions, which get an empty batch.

    Args:
        graph: The graph.
        place: The pipeline's name and chunk size.
        options: The options of `on_spark`.

    Raises:
        GraphError: The graph is not complete.
        NotOnSparkError: A part of it does not run on Spark.
        SourcePickleError: A source cannot be sent to Spark's processes.
        ConfigError: An option is for a kind of sink that the graph does not have.
    """
    graph.check()
    _check_sink_options(graph, options)
    return [_query([node.step for node in sink.path()], place, options) for sink in graph.sinks]


def _check_sink_options(graph: Graph, options: SparkOptions) -> None:
    steps = [node.step for node in graph.sinks]
    if any(isinstance(each, SinkStep) and isinstance(each.sink, MetricsSink) for each in steps):
        return
    for name, value in options.sink.items():
        raise ConfigError(
            f"on_spark has {name}={value!r}, an option of exactly-once sinks, and no sink of the "
            f"pipeline is a MetricsSink ({', '.join(map(str, steps))}); leave it out"
        )


def _query(path: Sequence[Any], place: SinkPlace, options: SparkOptions) -> CompiledQuery:
    source, *steps, sink = path
    assert isinstance(source, SourceStep)
    assert isinstance(sink, SinkStep)
    behind: list[Any] = []
    if isinstance(sink.sink, MetricsSink):
        steps, behind = _split_for_metrics(steps)
    frames = FrameMaker.of(source)
    branch = _Branch(source, place.operator_rows)
    for step in steps:
        branch.add(step)
    stages, schema = branch.ended()
    last = stages[-1] if stages and does_last_stage(sink.sink, options) else None
    if isinstance(last, ArrowStage):
        stages = stages[:-1]
    else:
        last = None
    return CompiledQuery(
        sink.name,
        frames,
        stages,
        spark_sink(sink, SinkInput(schema, last, behind), place, options),
    )


def _split_for_metrics(steps: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the steps before the sink's own aggregation, and the steps from there on.

    The sink aggregates rows in its tasks, and applies maps and filters of groups there, too.
    """
    for place in range(len(steps) - 1, -1, -1):
        if isinstance(steps[place], AggregateStep):
            return steps[:place], steps[place:]
        if not isinstance(steps[place], MapStep | FilterStep | StageStep):
            break
    return steps, []


class _Branch:
    """Gathers steps into stages, and tracks the schema."""

    def __init__(self, source: SourceStep, chunk_rows: int | None) -> None:
        self._stages: list[SparkStage] = []
        self._chunk_rows = chunk_rows
        self._schema: pa.Schema = source.source.schema()
        spark_schema(self._schema, str(source))
        self._steps: list[ChainStep] = []
        self._before = self._schema

    def ended(self) -> tuple[tuple[SparkStage, ...], pa.Schema]:
        """Return the stages, and the schema after them."""
        self._end_chain()
        return tuple(self._stages), self._schema

    def add(self, step: Any) -> None:
        """Continue with a step."""
        match step:
            case MapStep():
                _check_operation(step)
                self._extend(step, schema_after_map(step, self._schema))
            case FilterStep():
                check_pickles(step.keep, str(step))
                check_filter(step, self._schema)
                self._extend(step, self._schema)
            case KeyByStep():
                self._add_key(step)
            case AggregateStep():
                self._add_shuffle_for(step)
                self._extend(step, schema_after_aggregate(step.aggregation, self._schema))
            case StatefulStep():
                self._add_stateful(step)
            case StageStep():
                pass  # a task is what a stage would be
            case _:
                raise NotOnSparkError(f"{step} does not run on Spark; leave it out there")

    def _add_key(self, step: KeyByStep) -> None:
        if step.partition is not None:
            raise NotOnSparkError(
                f"{step} has a function for the partition, and Spark's shuffle goes by columns; "
                "put the number into a column with .map(...), and give its name to key_by"
            )
        missing = [column for column in step.columns if column not in self._schema.names]
        if missing:
            raise NotOnSparkError(
                f"{step}: there is no column {missing[0]!r} among "
                f"{', '.join(self._schema.names)}; change the name, or the step before it"
            )
        self._end_chain()
        self._stages.append(ShuffleStage(str(step), step.columns, step.partitions))

    def _add_shuffle_for(self, step: AggregateStep) -> None:
        """Bring the rows of each group together, unless a key_by has just done so."""
        self._end_chain()
        keys = tuple(step.aggregation.keys)
        last = self._shuffled()
        if last is None or not set(last.columns) <= set(keys):
            self._stages.append(ShuffleStage(f"{step}: its keys", keys, None if keys else 1))

    def _shuffled(self) -> ShuffleStage | None:
        """Return the shuffle that was added last, if nothing followed it."""
        last = self._stages[-1] if self._stages and not self._steps else None
        return last if isinstance(last, ShuffleStage) else None

    def _add_stateful(self, step: StatefulStep) -> None:
        processor = step.spark
        if processor is None:
            raise NotOnSparkError(
                f"{step} keeps its state in this process; for Spark give .stateful(make, "
                "spark=processor) a StatefulProcessor that does the same"
            )
        try:
            from pyspark.sql.streaming.stateful_processor import StatefulProcessor
        except ImportError as error:
            raise NotOnSparkError(f"{step} needs pyspark 4.0 or later ({error})") from error
        output = getattr(processor, "output_schema", None)
        if not isinstance(processor, StatefulProcessor) or output is None:
            raise NotOnSparkError(
                f"{step}: spark= is {processor!r}; give a StatefulProcessor with an attribute "
                "output_schema, a pyarrow.Schema or Spark's own, such as 'city string, total long'"
            )
        shuffled = self._shuffled()
        if shuffled is None:
            raise NotOnSparkError(
                f"{step} needs a key directly before it, as its state on Spark is by key; use "
                ".key_by(...).stateful(...)"
            )
        check_pickles(processor, str(step))
        # Spark shuffles by these keys on its own.
        self._stages.pop()
        struct = _struct_of(output, str(step))
        self._stages.append(StatefulStage(step, shuffled.columns, struct))
        self._schema = arrow_schema(struct)

    def _extend(self, step: ChainStep, schema: pa.Schema) -> None:
        if not self._steps:
            self._before = self._schema
        spark_schema(schema, str(step))
        self._steps.append(step)
        self._schema = schema

    def _end_chain(self) -> None:
        if self._steps:
            self._stages.append(
                ArrowStage(tuple(self._steps), self._before, self._schema, self._chunk_rows)
            )
            self._steps = []


def _check_operation(step: MapStep) -> None:
    if hasattr(step.operation, "snapshot"):
        raise NotOnSparkError(
            f"{step} keeps state, which would end with each task of Spark; use "
            ".key_by(...).stateful(make, spark=processor) with a StatefulProcessor"
        )
    check_pickles(step.operation, str(step))


def _struct_of(output: Any, where: str) -> Any:
    from pyspark.sql.types import StructType

    if isinstance(output, pa.Schema):
        return spark_schema(output, where)
    return output if isinstance(output, StructType) else StructType.fromDDL(output)


# The rows of a source as a DataFrame.


@dataclass(frozen=True)
class FrameMaker:
    """Makes DataFrames from the rows of one source.

    Attributes:
        step: The source, under its name in the graph.
        pickled: The source as it is sent to Spark's processes; None for a DataFrame.
    """

    step: SourceStep
    pickled: PickledSource | None

    @classmethod
    def of(cls, step: SourceStep) -> "FrameMaker":
        """Check that Spark can read a source.

        Raises:
            NotOnSparkError: This pyspark cannot read it, or not these columns.
            SourcePickleError: It does not pickle.
        """
        if isinstance(step.source, SparkSource):
            return cls(step, None)
        try:
            from pyspark.sql.streaming.datasource import ReadLimit  # noqa: F401
        except ImportError as error:
            raise NotOnSparkError(
                f"{step} needs pyspark 4.2 or later, and here is {pyspark.__version__}, whose "
                "Python data sources cannot limit an epoch; use Spark's own reader: "
                "SparkSource(spark.readStream...)"
            ) from error
        spark_schema(step.source.schema(), str(step))
        return cls(step, PickledSource.of(step.source, step.name))

    @property
    def text(self) -> str:
        """What the source is on Spark, for `explain`."""
        if isinstance(self.step.source, SparkSource):
            kind = "a stream" if self.step.source.df.isStreaming else "a table"
            return f"DataFrame, {kind}; Spark's own reader and limits"
        return "data source in Python; a task reads one or more splits"

    def frame(
        self, spark: SparkSession, epochs: EpochSettings, control: DriverControl, *, stream: bool
    ) -> DataFrame:
        """Return the rows as a DataFrame, not yet read.

        Args:
            spark: The session.
            epochs: How to plan epochs; the name of the query is part of the name of the format.
            control: The directory of the run.
            stream: Whether to make a stream, or else one batch of everything that exists.

        Raises:
            NotOnSparkError: The source is a DataFrame of the other kind.
        """
        source = self.step.source
        if isinstance(source, SparkSource):
            if source.df.isStreaming != stream:
                raise NotOnSparkError(
                    f"{self.step} is "
                    + (
                        "a table; use run_batch(), or spark.readStream"
                        if stream
                        else "a stream; use start() or run(), or spark.read"
                    )
                )
            return source.df
        from batchqueue.pipeline.spark.reader import ReaderSettings, data_source

        assert self.pickled is not None
        settings = ReaderSettings(
            source=self.pickled,
            struct=spark_schema(source.schema(), str(self.step)),
            epochs=epochs,
            control=control,
        )
        made: Any = data_source(spark_name(f"batchqueue-{epochs.query}"), settings)
        spark.dataSource.register(made)
        reader = spark.readStream if stream else spark.read
        return reader.format(made.name()).load()


# The text of `SparkPipeline.explain`.


def explain(name: str, queries: "Sequence[CompiledQuery]", options: SparkOptions) -> str:
    """Return what each step of each query is on Spark, side by side."""
    lines = [f"pipeline {name!r} on pyspark {pyspark.__version__}: {_counted(len(queries))}"]
    for query in queries:
        rows = [
            (str(query.source.step), query.source.text),
            *([("", _epochs(options))] if query.source.pickled is not None else []),
            *query.texts,
            *((step, "in the tasks of the sink") for step in query.sink.steps),
            (f"sink {query.name!r}", query.sink.text),
            ("", f"checkpoint {options.checkpoint_of(query.name) or 'is missing'}"),
        ]
        width = max(len(left) for left, _ in rows)
        lines += ["", *(f"  {left:<{width}}  {right}" for left, right in rows)]
    return "\n".join(lines)


def _counted(queries: int) -> str:
    return "1 query" if queries == 1 else f"{queries} queries, each reads its source for itself"


def _epochs(options: SparkOptions) -> str:
    trigger = f", one each {options.trigger_ms:,.0f} ms" if options.trigger_ms else ""
    return (
        f"epochs of about {options.target_epoch_ms:,.0f} ms, from {options.first_epoch_rows:,} to "
        f"{options.max_epoch_rows:,} rows{trigger}"
    )
