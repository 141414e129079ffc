"""What the steps of a graph become: transformations of a DataFrame."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from batchqueue._exact_cast import exact_cast_batch
from batchqueue.pipeline.chunks.cutter import ChunkCutter
from batchqueue.pipeline.errors import OperatorError
from batchqueue.pipeline.operators import Chain, ChainStep
from batchqueue.pipeline.spark.arrow_types import arrow_schema, spark_schema
from batchqueue.pipeline.steps import KeyByStep, StatefulStep
from batchqueue.spark.task.arrow import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]


class SparkStage(Protocol):
    """One or more neighbouring steps as a transformation of a DataFrame."""

    @property
    def texts(self) -> Sequence[tuple[str, str]]:
        """For each step its text in the graph, and what it is on Spark."""
        ...

    def apply(self, df: "DataFrame") -> "DataFrame":
        """Return the DataFrame behind the stage, not yet computed."""
        ...


@dataclass(frozen=True, eq=False)
class ArrowStage:
    """Neighbouring maps and filters, and aggregations of whole groups, in one `mapInArrow`.

    Attributes:
        steps: The steps.
        before: The schema that the operators are given.
        after: The schema that they return.
        chunk_rows: The most rows of a chunk; None for the batches of Spark as they are.
    """

    steps: tuple[ChainStep, ...]
    before: pa.Schema
    after: pa.Schema
    chunk_rows: int | None

    @property
    def texts(self) -> Sequence[tuple[str, str]]:
        """See `SparkStage`."""
        first = (str(self.steps[0]), "mapInArrow, in the tasks")
        return [first, *((str(step), "  the same mapInArrow") for step in self.steps[1:])]

    def apply(self, df: "DataFrame") -> "DataFrame":
        """See `SparkStage`."""
        struct: Any = spark_schema(self.after, str(self.steps[-1]))
        return map_in_arrow(df, self.run, struct)

    def run(self, batches: Batches) -> Batches:
        """Return the batches of the last step, in the types of Spark, for those of one task."""
        return run_chain(self.steps, self.before, self.after, self.chunk_rows, batches)


def run_chain(
    steps: Sequence[ChainStep],
    before: pa.Schema,
    after: pa.Schema,
    chunk_rows: int | None,
    batches: Iterable[pa.RecordBatch],
) -> Batches:
    """Apply steps to the rows of one task, and return batches in the types of Spark."""
    chain = Chain(steps)
    last = str(steps[-1])
    wanted = arrow_schema(spark_schema(after, last))
    for chunk in chunks(batches, before, chunk_rows):
        for batch in chain.outputs(chunk):
            yield fitted(batch, after, wanted, last)
    for batch in chain.flushed():
        yield fitted(batch, after, wanted, last)


def chunks(batches: Iterable[pa.RecordBatch], schema: pa.Schema, chunk_rows: int | None) -> Batches:
    """Return the batches of Spark in the types that operators and sinks expect.

    Args:
        batches: The batches of one task.
        schema: The types.
        chunk_rows: Cut and join them into chunks of at most so many rows. None: leave them.
    """
    if chunk_rows is None:
        yield from (exact_cast_batch(batch, schema) for batch in batches if batch.num_rows)
        return
    cutter = ChunkCutter(chunk_rows)
    for batch in batches:
        for chunk in cutter.add(exact_cast_batch(batch, schema)):
            yield chunk.batch
    for chunk in cutter.rest():
        yield chunk.batch


def fitted(batch: pa.RecordBatch, after: pa.Schema, wanted: pa.Schema, what: str) -> pa.RecordBatch:
    """Return a batch in the types of Spark.

    Raises:
        OperatorError: It has other columns than declared to Spark, or values that do not fit them.
    """
    remedy = "declare what it returns with .map(..., schema=pa.schema(...))"
    if batch.schema.names != after.names:
        raise OperatorError(
            f"{what} returned the columns {', '.join(batch.schema.names)}, and for an empty batch "
            f"{', '.join(after.names)}; return the same columns for every batch, or {remedy}",
            what,
        )
    try:
        return exact_cast_batch(batch, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise OperatorError(
            f"{what} returned values that do not fit the schema that Spark expects, "
            f"{', '.join(f'{field.name} {field.type}' for field in after)} ({error}); {remedy}",
            what,
        ) from error


class SinkInput(NamedTuple):
    """What reaches a sink, and what its tasks do before they write.

    Attributes:
        schema: The columns behind `last`, in the types that the graph has.
        last: The stage before the sink, if its tasks do it as well.
        behind: The aggregation that the sink itself does, and maps and filters of its groups.
    """

    schema: pa.Schema
    last: ArrowStage | None
    behind: Sequence[Any]


@dataclass(frozen=True, eq=False)
class ShuffleStage:
    """`repartition` by keys: rows with equal keys meet in one task."""

    text: str
    columns: tuple[str, ...]
    partitions: int | None

    @classmethod
    def of(cls, step: KeyByStep) -> "ShuffleStage":
        """Return what a key_by is on Spark."""
        return cls(str(step), step.columns, step.partitions)

    @property
    def texts(self) -> Sequence[tuple[str, str]]:
        """See `SparkStage`."""
        number = [] if self.partitions is None else [str(self.partitions)]
        return [(self.text, f"repartition({', '.join([*number, *self.columns])})")]

    def apply(self, df: "DataFrame") -> "DataFrame":
        """See `SparkStage`."""
        columns = [df[quoted(column)] for column in self.columns]
        if not columns:
            return df.repartition(1)
        return (
            df.repartition(*columns)
            if self.partitions is None
            else df.repartition(self.partitions, *columns)
        )


@dataclass(frozen=True, eq=False)
class StatefulStage:
    """`transformWithStateInPandas`, with the processor that the graph names.

    Attributes:
        step: The step.
        keys: The columns of the key_by before it.
        struct: The schema of the processor's output.
    """

    step: StatefulStep
    keys: tuple[str, ...]
    struct: Any

    @property
    def texts(self) -> Sequence[tuple[str, str]]:
        """See `SparkStage`."""
        name = type(self.step.spark).__name__
        what = f"transformWithStateInPandas({name}) by {', '.join(self.keys)}"
        return [(str(self.step), what)]

    def apply(self, df: "DataFrame") -> "DataFrame":
        """See `SparkStage`."""
        processor = self.step.spark
        grouped: Any = df.groupBy(*(df[quoted(key)] for key in self.keys))
        output_mode = getattr(processor, "output_mode", "Append")
        time_mode = getattr(processor, "time_mode", "None")
        result: DataFrame = grouped.transformWithStateInPandas(
            processor, self.struct, output_mode, time_mode
        )
        return result


def quoted(column: str) -> str:
    """Return the name of a column so that Spark takes it literally."""
    doubled = column.replace("`", "``")
    return f"`{doubled}`"
