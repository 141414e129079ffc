"""The steps of a graph as transformations of a DataFrame."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from batchqueue.aggregation import Aggregation, Aggregator
from batchqueue.base.exact_cast import exact_cast_batch
from batchqueue.pipeline.chunks import ChunkCutter
from batchqueue.pipeline.contract import NotOnSparkError, OperatorError
from batchqueue.pipeline.graph import FilterStep, MapStep, StatefulStep
from batchqueue.pipeline.operators import Chain, ChainStep, FilterOperator, batches_of
from batchqueue.pipeline.spark.source import dumps
from batchqueue.spark.task.arrow import map_in_arrow

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, eq=False)
class ArrowStage:
    """Adjacent maps and filters, and aggregations of whole groups, in one `mapInArrow`.

    Attributes:
        steps: The steps.
        before: The schema that the operators are given.
        after: The schema that they return.
        chunk_rows: The most rows of a chunk; None for Spark's own batches.
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

    def apply(self, df: DataFrame) -> DataFrame:
        """See `SparkStage`."""
        struct: Any = spark_schema(self.after, str(self.steps[-1]))
        return map_in_arrow(df, self.run, struct)

    def run(self, batches: Batches) -> Batches:
        """Return the output of the last step for the batches of one task, in the types of Spark."""
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
        chunk_rows: The most rows of a chunk, into which batches are cut and joined; None to leave
            them.
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
        OperatorError: The batch has other columns than declared to Spark, or values that do not fit
            them.
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
    """The input of a sink, and what its tasks do before they write.

    Attributes:
        schema: The columns after `last`, in the types that the graph has.
        last: The stage before the sink, if its tasks run it, too.
        behind: The aggregation that the sink runs itself, and maps and filters of its groups.
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

    @property
    def texts(self) -> Sequence[tuple[str, str]]:
        """See `SparkStage`."""
        number = [] if self.partitions is None else [str(self.partitions)]
        return [(self.text, f"repartition({', '.join([*number, *self.columns])})")]

    def apply(self, df: DataFrame) -> DataFrame:
        """See `SparkStage`."""
        number: list[Any] = [] if self.partitions is None else [self.partitions]
        return df.repartition(*number, *(df[quoted(column)] for column in self.columns))


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

    def apply(self, df: DataFrame) -> DataFrame:
        """See `SparkStage`."""
        processor = self.step.spark
        grouped: Any = df.groupBy(*(df[quoted(key)] for key in self.keys))
        output_mode = getattr(processor, "output_mode", "Append")
        time_mode = getattr(processor, "time_mode", "None")
        result: DataFrame = grouped.transformWithStateInPandas(
            processor, self.struct, output_mode, time_mode
        )
        return result


SparkStage = ArrowStage | ShuffleStage | StatefulStage
"""One or more adjacent steps as a transformation of a DataFrame.

`texts` has for each step its text in the graph, and what it is on Spark. `apply` returns the
DataFrame after the stage, not yet computed.
"""


def spark_name(text: str) -> str:
    """Return a text reduced to the letters that names of formats and jobs may have."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)


def quoted(column: str) -> str:
    """Return the name of a column, quoted so that Spark takes it literally."""
    doubled = column.replace("`", "``")
    return f"`{doubled}`"


# Arrow schemas and those of Spark, which has fewer types.
#
# A column travels through Spark in the nearest type that holds all of its values, and regains its
# own type in the operators.


_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.timestamp("ms"),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}


def spark_schema(schema: pa.Schema, where: str) -> StructType:
    """Return the schema of Spark that holds the values of an Arrow schema.

    Args:
        schema: The columns.
        where: Whose columns they are, for the error, such as "source 'orders'".

    Raises:
        NotOnSparkError: A column has a type that Spark lacks, or two columns have the same name.
    """
    if len(set(schema.names)) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise NotOnSparkError(
            f"{where} has two columns {twice!r}, and Spark goes by name; rename one of them"
        )
    columns = []
    for field in schema:
        column = pa.field(field.name, _wider(field.type), field.nullable)
        try:
            from_arrow_schema(pa.schema([column]))
        # Raised by pyspark in different classes, depending on its version.
        except Exception as error:
            raise NotOnSparkError(
                f"{where}: Spark has no type for column {field.name!r}, {field.type} ({error}); "
                "convert or leave out the column in the source"
            ) from error
        columns.append(column)
    return from_arrow_schema(pa.schema(columns))


def arrow_schema(struct: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark's Python workers take and give rows."""
    convert: Any = to_arrow_schema
    try:
        schema = convert(struct, timezone="UTC")
    except TypeError:  # before pyspark 4.1 it is always UTC
        schema = convert(struct)
    return pa.schema(list(schema))


def _wider(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _wider(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return _WIDER.get(kind, kind)


# The schema after each step, which Spark has to know before any row arrives.


def schema_after_map(step: MapStep, before: pa.Schema) -> pa.Schema:
    """Return the schema of what a map returns: the declared one, or that for an empty batch.

    Raises:
        NotOnSparkError: The schema is not declared, and the operation fails on an empty batch or
            returns nothing.
    """
    if step.schema is not None:
        return step.schema
    remedy = "declare its result with .map(..., schema=pa.schema(...))"
    try:
        # A copy, because an object may count its calls.
        operation = cloudpickle.loads(dumps(step.operation))
        process = getattr(operation, "process", operation)
        results = list(batches_of(str(step), process(_no_rows(before))))
    # The operation is the user's, and may raise anything.
    except Exception as error:
        raise NotOnSparkError(
            f"Spark needs the schema of {step}, which fails on an empty batch "
            f"({type(error).__name__}: {error}); {remedy}"
        ) from error
    if not results:
        raise NotOnSparkError(
            f"Spark needs the schema of {step}, which returns nothing for an empty batch; {remedy}"
        )
    return results[0].schema.remove_metadata()


def check_filter(step: FilterStep, before: pa.Schema) -> None:
    """Check an expression against the columns; a function is not called.

    Raises:
        NotOnSparkError: The expression does not fit.
    """
    if not isinstance(step.keep, pc.Expression):
        return
    try:
        FilterOperator(str(step), step.keep).process(_no_rows(before))
    except Exception as error:
        raise NotOnSparkError(
            f"{step} does not fit the columns {', '.join(before.names)} ({error}); change the "
            "expression, or the step before it"
        ) from error


def schema_after_aggregate(aggregation: Aggregation, before: pa.Schema) -> pa.Schema:
    """Return the schema of the groups of an aggregation.

    Raises:
        NotOnSparkError: The aggregation does not fit the columns.
    """
    aggregator = Aggregator(aggregation)
    # Without any row there would be no result. Columns that may not be null do not matter here.
    columns = [pa.nulls(1, field.type) for field in before]
    try:
        aggregator.update(pa.RecordBatch.from_arrays(columns, names=before.names))
        return aggregator.result().schema
    except Exception as error:
        raise NotOnSparkError(
            f"aggregate({', '.join(aggregation.measures)}) does not fit the columns "
            f"{', '.join(before.names)} ({error}); change it, or the step before it"
        ) from error


def check_pickles(value: Any, what: str) -> None:
    """Check that something can be sent to the tasks.

    Raises:
        NotOnSparkError: It does not pickle.
    """
    try:
        dumps(value)
    except Exception as error:
        raise NotOnSparkError(
            f"{what} has to be sent to Spark's tasks and does not pickle ({error}); make "
            "connections, locks and files with the first call, in the task"
        ) from error


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)
