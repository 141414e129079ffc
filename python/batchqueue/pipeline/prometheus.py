"""`PipelineCollector`: a run as Prometheus metrics."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from batchqueue.base.checks import require
from batchqueue.metrics.names import families
from batchqueue.pipeline.runner.controller import PAUSE_REASON
from batchqueue.pipeline.runner.run import PipelineRun
from batchqueue.pipeline.runner.stage_flow import PipelineMetric, samples_of
from batchqueue.pipeline.runner.stats import PipelineStats, SourceStats, StageStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

RunSample = tuple[str, PipelineMetric, tuple[str, ...], float]
"""The stage, a metric, the values of its labels but `pipeline` and `stage`, and its value."""

_WHOLE_RUN = ""
"""The stage of a metric that is of the run, and of none of its stages."""


class PipelineCollector:
    """A collector for `prometheus_client`, which reads a run at each scrape.

    See `PipelineMetric` for the names. It works after the end of the run, too.

    Example:
        REGISTRY.register(PipelineCollector(run))
        start_http_server(9109, addr="127.0.0.1")
    """

    def __init__(self, run: PipelineRun) -> None:
        """Describe what to read; nothing is read yet.

        Args:
            run: The run.

        Raises:
            MissingPackageError: prometheus_client is not installed.
        """
        require("prometheus_client.core", "PipelineCollector", "metrics")
        self._run = run

    def describe(self) -> "Iterable[Metric]":
        """Return the metrics without values; the registry calls this when it gets the collector."""
        return self._families("", [])

    def collect(self) -> "Iterable[Metric]":
        """Read the run."""
        return self._families(self._run.stats().name, samples_of_run(self._run))

    def _families(self, pipeline: str, samples: Iterable[RunSample]) -> "list[Metric]":
        found = families(PipelineMetric, ("pipeline", "stage"))
        for stage, metric, values, value in samples:
            found[metric].add_metric((pipeline, stage, *values), float(value))
        return list(found.values())


def samples_of_run(run: PipelineRun) -> Iterator[RunSample]:
    """Return the samples of a run. What is not known has none."""
    stats = run.stats()
    yield from _of_cuts(stats)
    for source in stats.sources.values():
        yield from ((source.name, *sample) for sample in samples_of(run.metrics(source.name)))
        yield from _of_source(source)
    for stage in stats.stages.values():
        yield from ((stage.name, *sample) for sample in samples_of(run.metrics(stage.name)))
        yield from _of_stage(stage)


def _of_cuts(stats: PipelineStats) -> Iterator[RunSample]:
    yield _WHOLE_RUN, PipelineMetric.CUTS, (), stats.cuts_total
    if stats.cut_seconds is not None:
        yield _WHOLE_RUN, PipelineMetric.CUT_SECONDS, (), stats.cut_seconds


def _of_source(source: SourceStats) -> Iterator[RunSample]:
    yield source.name, PipelineMetric.ROWS_OUT, (), source.rows_out_total
    yield source.name, PipelineMetric.BYTES_OUT, (), source.bytes_out_total
    for reason, seconds in source.paused_seconds_total.items():
        if reason != PAUSE_REASON:  # of those there are samples by stage
            yield source.name, PipelineMetric.PAUSED_SECONDS, (reason,), seconds


def _of_stage(stage: StageStats) -> Iterator[RunSample]:
    yield stage.name, PipelineMetric.ROWS_IN, (), stage.rows_in_total
    yield stage.name, PipelineMetric.ROWS_OUT, (), stage.rows_out_total
    yield stage.name, PipelineMetric.BYTES_IN, (), stage.bytes_in_total
    yield stage.name, PipelineMetric.BYTES_OUT, (), stage.bytes_out_total
    yield stage.name, PipelineMetric.QUEUE_BYTES, (), stage.queue_bytes
    yield stage.name, PipelineMetric.CHUNKS_FAILED, (), stage.chunks_failed_total
