"""What the sinks of a graph are on Spark."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from batchqueue.pipeline.errors import NotOnSparkError
from batchqueue.pipeline.sinks import MetricsSink
from batchqueue.pipeline.sinks.files import FileSink
from batchqueue.pipeline.spark.exactly_once_sink import exactly_once_sink
from batchqueue.pipeline.spark.file_sink import spark_file_sink
from batchqueue.pipeline.spark.options import SparkOptions
from batchqueue.pipeline.spark.schemas import check_pickles
from batchqueue.pipeline.spark.stages import SinkInput
from batchqueue.pipeline.spark.task_sink import TaskSink
from batchqueue.pipeline.steps import SinkStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SinkPlace(NamedTuple):
    """Where a sink is.

    Attributes:
        pipeline: The pipeline's name.
        chunk_rows: The most rows of a chunk that a sink gets.
        operator_rows: The same for operators; None for the batches of Spark as they are, because
            small ones cost more between Spark and Python than most operators do.
    """

    pipeline: str
    chunk_rows: int
    operator_rows: int | None


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
    step: SinkStep, given: SinkInput, place: SinkPlace, options: SparkOptions
) -> SparkSink:
    """Return what a sink is on Spark.

    Args:
        step: The sink.
        given: What reaches it.
        place: Where the sink is.
        options: The options of `on_spark`.

    Raises:
        NotOnSparkError: It does not run on Spark.
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
    """Return whether the tasks of a sink can do the stage before it in their Python worker.

    That saves the way from one Python worker through Spark into the next.

    Args:
        sink: The sink of the graph.
        options: The options of `on_spark`.
    """
    if isinstance(sink, FileSink):
        return False  # Spark itself writes the files
    return not isinstance(sink, MetricsSink) or options.sink.get("l1", "tasks") == "tasks"
