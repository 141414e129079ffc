"""A log that hangs, or that hands rows to the pipeline whose line it gets, holds up no thread."""

import threading

import pyarrow as pa
import pytest

from batchqueue.pipeline import BackpressureConfig, Pipeline, PipelineError, PushSource
from batchqueue.pipeline.runner import cuts
from core_support.held_log import calling_log, held_log
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Gated, Kept, Ledger

QUICK = BackpressureConfig(check_interval_s=0.01)


def test_a_cut_that_logs_that_it_waits_is_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(cuts, "LATE_S", 0.01)
    flow, hung = Pipeline("p", cut_interval_s=0.1), Gated()
    numbers = flow.source(Numbers(20_000))
    numbers.to(Ledger(tmp_path / "ledger.db"), name="ledger")
    numbers.to(hung, name="hung")
    with held_log("continues to wait") as handler:
        run = flow.start()
        assert handler.entered.wait(WAIT_S)
        hung.gate.set()
        assert run.wait(WAIT_S).complete
        stats = run.stats()
        assert (stats.cut > 0, stats.log_stuck_s > 0) == (True, True)


def test_a_log_may_push_into_the_pipeline_whose_cut_logs(monkeypatch):
    monkeypatch.setattr(cuts, "LATE_S", 0.01)
    flow, sink = Pipeline("p"), Gated()
    flow.source(PushSource()).to(sink)
    with flow.start() as run:

        def push(line):
            run.push(pa.record_batch({"n": [2]}), timeout=10 * WAIT_S)

        with calling_log(push, "continues to wait") as handler:
            pushed = threading.Thread(target=run.push, args=(pa.record_batch({"n": [1]}),))
            pushed.start()
            assert handler.entered.wait(WAIT_S)
            sink.gate.set()
            assert handler.returned.wait(WAIT_S)
            pushed.join(WAIT_S)
        assert run.stop().complete
    assert sink.numbers == [1, 2]


def test_the_pressure_is_checked_on():
    flow, sink = Pipeline("p", backpressure=QUICK), Gated()
    flow.source(Numbers(10_000, bounded=False)).to(sink)
    with held_log("Backpressure activated") as handler, flow.start() as run:
        assert handler.entered.wait(WAIT_S)
        assert run.metrics("Gated").backpressure_active
        sink.gate.set()
        eventually(lambda: not run.metrics("Gated").backpressure_active, "the release")


def test_a_source_that_a_signal_paused_continues():
    config = BackpressureConfig(check_interval_s=0.01, gate="signal")
    flow, sink = Pipeline("p", backpressure=config), Gated()
    flow.source(Numbers(20_000, bounded=False)).to(sink)
    with held_log("pausing numbers") as handler, flow.start() as run:
        assert handler.entered.wait(WAIT_S)
        sink.gate.set()
        eventually(lambda: len(sink.numbers) == 20_000, "all rows")
        eventually(lambda: not run.metrics("Gated").backpressure_active, "the release")


def test_stop_gives_a_hung_sink_up():
    flow, sink = Pipeline("p"), Gated()
    flow.source(Numbers(10_000)).to(sink)
    run = flow.start()
    assert sink.entered.wait(WAIT_S)
    with held_log("no time is left", "batchqueue.pipeline") as handler:
        assert not run.stop(0.1).complete
        assert handler.entered.wait(WAIT_S)
    sink.gate.set()


def test_lines_are_in_the_log_when_the_run_is_over(caplog):
    flow, sink = Pipeline("p"), Gated()
    flow.source(Numbers(10_000)).to(sink)
    run = flow.start()
    assert sink.entered.wait(WAIT_S)
    run.stop(0.1)
    assert "no time is left to wait for Gated" in caplog.text
    sink.gate.set()


def test_a_sink_that_hangs_when_it_is_opened_holds_up_no_other_pipeline():
    entered, go = threading.Event(), threading.Event()

    class Slow(Kept):
        def open(self, pipeline):
            entered.set()
            assert go.wait(10 * WAIT_S)

    slow, quick, kept = Pipeline("slow"), Pipeline("quick"), Kept()
    slow.source(Numbers(100)).to(Slow())
    quick.source(Numbers(100)).to(kept)
    starting = threading.Thread(target=slow.run)
    starting.start()
    assert entered.wait(WAIT_S)
    done = threading.Event()
    threading.Thread(target=lambda: (quick.run(), done.set()), daemon=True).start()
    try:
        assert done.wait(WAIT_S)
    finally:
        go.set()
        starting.join(WAIT_S)
    assert len(kept.numbers) == 100


def test_a_pipeline_that_is_being_started_is_not_started_twice():
    entered, go = threading.Event(), threading.Event()

    class Slow(Kept):
        def open(self, pipeline):
            entered.set()
            assert go.wait(10 * WAIT_S)

    flow = Pipeline("slow")
    flow.source(Numbers(100)).to(Slow())
    starting = threading.Thread(target=flow.run)
    starting.start()
    assert entered.wait(WAIT_S)
    try:
        with pytest.raises(PipelineError, match="runs already"):
            flow.start()
    finally:
        go.set()
        starting.join(WAIT_S)
    assert flow.run().complete
