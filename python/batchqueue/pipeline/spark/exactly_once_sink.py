"""`ExactlyOnceSink`: `MetricsSink` on Spark, with the ledger of its store."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchqueue._exact_cast import exact_cast_batch
from batchqueue.aggregation import Metrics
from batchqueue.pipeline.errors import NotOnSparkError
from batchqueue.pipeline.operators import Chain
from batchqueue.pipeline.sinks import MetricsSink
from batchqueue.pipeline.spark.options import SparkOptions
from batchqueue.pipeline.spark.schemas import check_pickles, schema_after_aggregate
from batchqueue.pipeline.spark.stages import SinkInput
from batchqueue.pipeline.steps import AggregateStep, SinkStep, StageStep
from batchqueue.spark.driver.metrics_writer import MetricsWriter
from batchqueue.spark.job import AggregationJob
from batchqueue.spark.steps import ArrowAggregation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_LETTER = re.compile(r"[^A-Za-z0-9_-]+")


def exactly_once_sink(
    step: SinkStep, given: SinkInput, pipeline: str, options: SparkOptions
) -> "ExactlyOnceSink":
    """Return what a `MetricsSink` is on Spark.

    Args:
        step: The sink.
        given: What reaches it.
        pipeline: The name of the pipeline.
        options: The options of `on_spark`.

    Raises:
        NotOnSparkError: It does not name its metrics, or a step does not fit or does not pickle.
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
        groups = GroupMetrics(tuple(operators), sink.to_metrics)
        how = {"arrow": [ArrowAggregation(aggregation=aggregate.aggregation, metrics=groups)]}
    else:
        how = {"items": RowMetrics(given.schema, sink.to_metrics)}
    name = _NO_LETTER.sub("-", f"{pipeline}-{step.name}")
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
class GroupMetrics:
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

    A `SparkSource` has made instants of times without a zone. Those of other sources stay what they
    are on this machine.
    """

    def _with_instants(self, df: "DataFrame") -> "DataFrame":
        return df


@dataclass(frozen=True)
class ExactlyOnceSink:
    """Metrics of a store: the exactly-once sink for `foreachBatch`, with the ledger of the store.

    Attributes:
        job: What to do with the rows.
        options: The options of the writer.
        steps: The steps that the sink does itself: the stage before it, an aggregation, and what
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

    def writer(self, df: "DataFrame", checkpoint: str | None) -> Any:
        """See `SparkSink`."""
        writer = GraphWriter(self.job, checkpoint=checkpoint, **self.options)
        return df.writeStream.foreachBatch(writer.write_epoch)

    def write(self, df: "DataFrame", txn_id: str | None) -> Mapping[str, Any]:
        """See `SparkSink`."""
        return GraphWriter(self.job, **self.options).write_batch(df, txn_id=txn_id)
