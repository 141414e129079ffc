"""What the sinks of a graph are on Spark."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from batchqueue.pipeline.errors import NotOnSparkError
from batchqueue.pipeline.sinks import MetricsSink
from batchqueue.pipeline.sinks.files import FileSink
from batchqueue.pipeline.spark.exactly_once_sink import exactly_once_sink
from batchqueue.pipeline.spark.file_sink import spark_file_sink
from batchqueue.pipeline.spark.options import SparkOptions
from batchqueue.pipeline.spark.schemas import check_pickles
from batchqueue.pipeline.spark.task_sink import TaskSink
from batchqueue.pipeline.steps import SinkStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SinkPlace(NamedTuple):
    """Where a sink is: the pipeline's name, and the most rows of a chunk."""

    pipeline: str
    chunk_rows: int


class SparkSink(Protocol):
    """A sink of the graph, on Spark."""

    @property
    def text(self) -> str:
        """What it is, for `explain`."""
        ...

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that it does itself."""
        ...

    def writer(self, df: "DataFrame", checkpoint: str | None) -> Any:
        """Return the `DataStreamWriter` for a stream.

        Args:
            df: What reaches the sink.
            checkpoint: The checkpoint of the query where the sink has to know it: on Connect.
        """
        ...

    def write(self, df: "DataFrame", txn_id: str | None) -> Mapping[str, Any]:
        """Write a batch, and return how it went."""
        ...


def spark_sink(
    step: SinkStep,
    behind: Sequence[Any],
    schema: pa.Schema,
    place: SinkPlace,
    options: SparkOptions,
) -> SparkSink:
    """Return what a sink is on Spark.

    Args:
        step: The sink.
        behind: The aggregation that the sink itself does, and maps and filters of its groups.
        schema: What reaches the sink.
        place: Where the sink is.
        options: The options of `on_spark`.

    Raises:
        NotOnSparkError: It does not run on Spark.
    """
    sink: Any = step.sink
    if isinstance(sink, MetricsSink):
        return exactly_once_sink(step, behind, schema, place.pipeline, options)
    if isinstance(sink, FileSink):
        return spark_file_sink(step, sink)
    if hasattr(sink, "commit") or hasattr(sink, "last_cut"):
        raise NotOnSparkError(
            f"{step} commits cuts of this process, and Spark has its own epochs; use MetricsSink "
            "or FileSink, which are exactly-once on Spark too, or FunctionSink"
        )
    check_pickles(sink, str(step))
    return TaskSink(sink, place.pipeline, schema, place.chunk_rows)
