"""`PipelineCollector`: every metric that is named has values, and they are those of the run."""

import pytest
from prometheus_client import CollectorRegistry

from batchqueue.pipeline import (
    BackpressureConfig,
    FunctionSink,
    Lag,
    Pipeline,
    PipelineMetric,
    StageFailedError,
)
from batchqueue.pipeline.prometheus import PipelineCollector, samples_of_run
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Gated, Ledger


class Behind(Numbers):
    """Numbers that know their lag."""

    def lag(self, at):
        return {"0": Lag(7, 0.5)}


def fail(chunks):
    raise ValueError("bad")


def values(run):
    """What a scrape of a run reads, by name and labels."""
    registry = CollectorRegistry()
    registry.register(PipelineCollector(run))
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_every_metric_has_a_value_in_some_run(tmp_path):
    gated = Gated()
    config = BackpressureConfig(check_interval_s=0.05, gate="signal")
    flow = Pipeline("p", backpressure=config, cut_interval_s=0.1)
    numbers = flow.source(Behind(30_000))
    numbers.to(gated)
    numbers.to(Ledger(tmp_path / "ledger.db"))
    found = []

    def is_every_metric_seen():  # a reading that comes late is unknown, and not in every sample
        found.extend(samples_of_run(run))
        return {metric for _, (metric, _, _) in found} == set(PipelineMetric)

    with flow.start() as run:
        eventually(lambda: run.metrics("numbers").paused_seconds, "a pause by the signal")
        gated.gate.set()
        run.pause("numbers", "maintenance")
        eventually(is_every_metric_seen, "every metric has had a value")
        run.resume("numbers", "maintenance")
    causes = {labels for _, (metric, labels, _) in found if metric is PipelineMetric.PAUSED_SECONDS}
    assert {("Gated",), ("maintenance",)} <= causes
    for _, (metric, labels, _) in found:
        assert len(labels) == len(metric.value.labels), metric


def test_a_scrape_reads_what_stats_says(tmp_path):
    flow, ledger = Pipeline("p"), Ledger(tmp_path / "ledger.db")
    flow.source(Numbers(1_234)).map(lambda chunk: chunk).to(ledger, name="store")
    with flow.start() as run:
        run.wait()
    found, stats = values(run), run.stats()
    for stage in ("map(<lambda>)", "store"):
        labels = (("pipeline", "p"), ("stage", stage))
        assert found["batchqueue_pipeline_rows_in_total", *labels] == 1_234
        assert found["batchqueue_pipeline_rows_out_total", *labels] == 1_234
        assert found["batchqueue_pipeline_queue_bytes", *labels] == 0
    whole = (("pipeline", "p"), ("stage", ""))
    assert found["batchqueue_pipeline_cuts_total", *whole] == stats.cuts_total == 1
    assert found["batchqueue_pipeline_cut_seconds", *whole] == stats.cut_seconds


def test_failed_chunks_are_counted():
    flow = Pipeline("p")
    flow.source(Numbers(100)).to(FunctionSink(fail), name="board")
    run = flow.start()
    with pytest.raises(StageFailedError):
        run.wait(WAIT_S)
    labels = (("pipeline", "p"), ("stage", "board"))
    assert values(run)["batchqueue_pipeline_chunks_failed_total", *labels] == 1
