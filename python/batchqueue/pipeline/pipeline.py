"""`Pipeline`: a named graph, with the settings that all of its runs share."""

from typing import TYPE_CHECKING, Any

from batchqueue.base.checks import LocalPath, local_path
from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.pipeline.compiling import CompiledGraph, compile_graph
from batchqueue.pipeline.contract import Source
from batchqueue.pipeline.drawing import explained, svg
from batchqueue.pipeline.graph import Flow, Graph, StageConfig
from batchqueue.pipeline.runner.run import PipelineRun, RunSummary, run_in_foreground
from batchqueue.pipeline.settings import BackpressureConfig, RunSettings
from batchqueue.pipeline.spark.pipeline import SparkPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ELSEWHERE = (
    "a run in one process keeps it on a disk; for runs on Spark alone, give the URI to "
    "on_spark(checkpoint=...)"
)


class Pipeline:
    """A graph of sources, operators and sinks, which runs in this process or on Spark."""

    def __init__(
        self,
        name: str,
        *,
        checkpoint: LocalPath | None = None,
        stage: StageConfig | None = None,
        backpressure: BackpressureConfig | None = None,
        skew: SkewDetectionConfig | None = None,
        cut_interval_s: float = 5,
        max_bytes: int = 256 << 20,
    ) -> None:
        """Begin with an empty graph.

        Args:
            name: The name in checkpoints, statistics and logs; printable characters.
            checkpoint: A directory for the positions and the state of the last cuts. It is created
                if missing, and belongs to one pipeline. Required if a stage has state and a sink is
                transactional. Default: None, a run starts at the beginning of its sources, or where
                a transactional sink left off.
            stage: The settings of stages without their own. Default: None, `StageConfig()`; on
                Spark, operators then get Spark's own batches, and otherwise chunks of `chunk_rows`.
            backpressure: When stages signal that they are under pressure, and which sources obey.
                Refused on Spark, where no stage signals. Default: None, `BackpressureConfig()`.
            skew: When partitions of a source count as hot. Refused on Spark, which balances them
                itself. Default: None, `SkewDetectionConfig()`.
            cut_interval_s: Seconds between cuts, at least 0.1. After a crash, what came after the
                last cut is read again. On Spark, epochs take the place of cuts: see `trigger_ms`.
                Default: 5.
            max_bytes: The most bytes of data in all stages together, at least 1 MB; each may hold
                an equal share of it. One chunk always fits, however large. On Spark,
                `max_epoch_bytes` applies instead. Default: 256 MB.

        Raises:
            ConfigError: A setting is invalid.
        """
        self.settings = RunSettings(
            name=name,
            graph=Graph(),
            checkpoint=None
            if checkpoint is None
            else str(local_path("checkpoint", checkpoint, _ELSEWHERE)),
            stage=stage,
            backpressure=backpressure,
            skew=skew,
            cut_interval_s=cut_interval_s,
            max_bytes=max_bytes,
        )

    @property
    def name(self) -> str:
        """The name in checkpoints, statistics and logs."""
        return self.settings.name

    @property
    def graph(self) -> Graph:
        """The sources, steps and sinks declared so far."""
        return self.settings.graph

    def source(self, source: Source, *, name: str | None = None) -> Flow:
        """Add a source, and return its flow.

        Args:
            source: What to read, for instance `FileSource("orders/*.parquet")`.
            name: Its name in checkpoints and statistics. Default: None, the source's own.

        Raises:
            GraphError: `source` is not a source, or the name is in use.
        """
        return Flow(self.graph, self.graph.add_source(source, name))

    def on_spark(self, spark: "SparkSession", **options: Any) -> SparkPipeline:
        """Return the same graph as Spark queries; nothing runs yet.

        Args:
            spark: The session that runs them.
            options: `checkpoint`, `trigger_ms`, `target_epoch_ms` and others, see `SparkOptions`;
                and those of `MetricsWriter`, such as `onNewQuery`, for its exactly-once sinks.

        Raises:
            ConfigError: An option is invalid.
            GraphError: The graph is not complete.
            NotOnSparkError: A part of it does not run on Spark, or `backpressure` or `skew` was
                given; the message names it.
            SourcePickleError: A source cannot be sent to Spark's processes.
            MissingPackageError: pyspark is not installed.

        Example:
            pipeline.on_spark(spark).start().awaitTermination()
        """
        return SparkPipeline(spark, self.settings, **options)

    def start(self) -> PipelineRun:
        """Run in the background of this process, from the last cut on.

        Returns:
            The run. Use it in a `with` block, which stops it, or call `stop`.

        Raises:
            GraphError: The graph cannot run, or is not that of the checkpoint.
            CheckpointError: The checkpoint is in use, belongs to another pipeline, or cannot be
                used.
            CutError: The checkpoint and the sinks do not belong together.
            StageFailedError: A sink or an operator could not be made ready.
        """
        return PipelineRun(self.settings)

    def run(self, timeout: float | None = None, *, grace: float = 30) -> RunSummary:
        """Run in this process until the sources end, or until SIGTERM or Ctrl-C.

        The signals are handled if this is the main thread. After the first, nothing more is read,
        and what was read is processed and included in a last cut. A second signal abandons that,
        and the previous cut stands.

        Args:
            timeout: Stop after this many seconds, as after a signal. Default: None, no limit.
            grace: Seconds from a signal or the timeout to the end. If that is not enough, for
                instance because a sink hangs, the last cut stands, what came after it is read again
                by the next run, and the summary is not `complete`. Default: 30.

        Returns:
            A summary of the run.

        Raises:
            ConfigError: A setting is invalid.
            GraphError: See `start`, which raises further errors.
            StageFailedError: An operator, a sink or a source raised.

        Example:
            >>> from batchqueue.pipeline import FunctionSink, IterableSource, Pipeline
            >>> total = 0
            >>> def add(chunks):
            ...     global total
            ...     total += sum(sum(chunk["cents"].to_pylist()) for chunk in chunks)
            >>> flow = Pipeline("orders")
            >>> orders = IterableSource(lambda: ({"cents": cents} for cents in range(1000)))
            >>> flow.source(orders).to(FunctionSink(add))
            >>> flow.run().rows_written
            1000
            >>> total
            499500
        """
        return run_in_foreground(self.settings, timeout, grace)

    def explain(self) -> str:
        """Return the graph as text: a line per source, stage and sink, with its guarantees.

        Raises:
            GraphError: The graph cannot run.
        """
        return explained(self.compiled())

    def picture(self, path: LocalPath) -> None:
        """Draw the graph. `PipelineRun.picture` also draws its current activity.

        Args:
            path: The SVG file to write.

        Raises:
            GraphError: The graph cannot run.
            OSError: The file cannot be written.
        """
        local_path("path", path).write_text(svg(self.name, self.compiled()), encoding="utf-8")

    def compiled(self) -> CompiledGraph:
        """Return the sources and stages that run in this process.

        Raises:
            GraphError: The graph cannot run.
        """
        return compile_graph(self.graph, self.settings.stage)

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"
