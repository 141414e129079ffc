"""From a graph to queries of Spark: each sink becomes a query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.errors import NotOnSparkError
from batchqueue.pipeline.graph import Graph
from batchqueue.pipeline.operators import ChainStep
from batchqueue.pipeline.sinks import MetricsSink
from batchqueue.pipeline.spark.arrow_types import arrow_schema, spark_schema
from batchqueue.pipeline.spark.frames import FrameMaker
from batchqueue.pipeline.spark.options import SparkOptions
from batchqueue.pipeline.spark.schemas import (
    check_filter,
    check_pickles,
    schema_after_aggregate,
    schema_after_map,
)
from batchqueue.pipeline.spark.sinks import SinkPlace, SparkSink, does_last_stage, spark_sink
from batchqueue.pipeline.spark.stages import (
    ArrowStage,
    ShuffleStage,
    SinkInput,
    SparkStage,
    StatefulStage,
)
from batchqueue.pipeline.steps import (
    AggregateStep,
    FilterStep,
    KeyByStep,
    MapStep,
    SinkStep,
    SourceStep,
    StageStep,
    StatefulStep,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, eq=False)
class CompiledQuery:
    """What one sink of a graph is on Spark.

    Attributes:
        name: The name of the sink.
        source: Where its rows come from.
        stages: What happens to them.
        sink: Where they end.
    """

    name: str
    source: FrameMaker
    stages: tuple[SparkStage, ...]
    sink: SparkSink

    @property
    def source_step(self) -> SourceStep:
        """The source in the graph."""
        return self.source.step

    def apply(self, df: "DataFrame") -> "DataFrame":
        """Return what reaches the sink, of the rows of the source."""
        for stage in self.stages:
            df = stage.apply(df)
        return df

    @property
    def texts(self) -> Sequence[tuple[str, str]]:
        """For each step between source and sink its text in the graph, and what it is on Spark."""
        return [line for stage in self.stages for line in stage.texts]


def compile_graph(graph: Graph, place: SinkPlace, options: SparkOptions) -> list[CompiledQuery]:
    """Compile a graph; nothing of it runs, except for functions that get an empty batch.

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
    """Return the steps before the sink's own aggregation, and from there on.

    The sink aggregates rows in its tasks, and applies maps and filters of groups there as well.
    """
    for place in range(len(steps) - 1, -1, -1):
        if isinstance(steps[place], AggregateStep):
            return steps[:place], steps[place:]
        if not isinstance(steps[place], MapStep | FilterStep | StageStep):
            break
    return steps, []


class _Branch:
    """Gathers steps into stages, and follows the schema."""

    def __init__(self, source: SourceStep, chunk_rows: int | None) -> None:
        self._stages: list[SparkStage] = []
        self._chunk_rows = chunk_rows
        self._schema: pa.Schema = source.source.schema()
        spark_schema(self._schema, str(source))
        self._steps: list[ChainStep] = []
        self._before = self._schema

    def ended(self) -> tuple[tuple[SparkStage, ...], pa.Schema]:
        """Return the stages, and the schema behind them."""
        self._end_chain()
        return tuple(self._stages), self._schema

    def add(self, step: Any) -> None:
        """Continue with a step."""
        match step:
            case MapStep():
                self._add_operation(step.operation, step)
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

    def _add_operation(self, operation: Any, step: MapStep) -> None:
        if hasattr(operation, "snapshot"):
            raise NotOnSparkError(
                f"{step} keeps state, which would end with each task of Spark; use "
                ".key_by(...).stateful(make, spark=processor) with a StatefulProcessor"
            )
        check_pickles(operation, str(step))

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
        self._stages.append(ShuffleStage.of(step))

    def _add_shuffle_for(self, step: AggregateStep) -> None:
        """Bring the rows of each group together, unless a key_by has just done so."""
        self._end_chain()
        keys = tuple(step.aggregation.keys)
        last = self._shuffled()
        if last is None or not set(last.columns) <= set(keys):
            self._stages.append(ShuffleStage(f"{step}: its keys", keys, None if keys else 1))

    def _shuffled(self) -> ShuffleStage | None:
        """Return the shuffle that was added last, if nothing has followed."""
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


def _struct_of(output: Any, where: str) -> Any:
    from pyspark.sql.types import StructType

    if isinstance(output, pa.Schema):
        return spark_schema(output, where)
    return output if isinstance(output, StructType) else StructType.fromDDL(output)
