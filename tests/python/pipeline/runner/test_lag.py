"""The lag of a source is read on its own thread: also while a sink is blocked, and for no price."""

import threading

import pytest

from batchqueue.groups import SkewDetectionConfig
from batchqueue.pipeline import BackpressureConfig, Lag, Pipeline, SkewState
from batchqueue.pipeline.runner import source as lag_reader
from core_support.held_log import calling_log
from core_support.scripts import run_script
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Gated, Kept, Ledger

QUICK = BackpressureConfig(check_interval_s=0.01)


class Lagging(Numbers):
    """Numbers whose lag is what a function of the position returns."""

    def __init__(self, rows, lag, **settings):
        super().__init__(rows, **settings)
        self.lag = lag


class HangingLag:
    """A lag that hangs from the n-th call on."""

    def __init__(self, after=0):
        self.calls = 0
        self.after = after
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, at):
        self.calls += 1
        if self.calls > self.after:
            self.entered.set()
            self.go.wait(10 * WAIT_S)
        return {"0": Lag(7, None)}


def lag_of(run):
    return run.stats().sources["numbers"].lag


def test_lag_is_known_while_a_sink_is_blocked_and_no_cut_was_taken():
    flow, sink = Pipeline("p", backpressure=QUICK, cut_interval_s=100), Gated()
    flow.source(Numbers(20_000)).to(sink)
    with flow.start() as run:
        assert sink.entered.wait(WAIT_S)
        eventually(lambda: lag_of(run) == {"0": Lag(20_000, None)}, "the lag behind the last cut")
        eventually(
            lambda: run.metrics("numbers").partition_lags == {"0": 20_000}, "the lag in the metrics"
        )
        assert run.stats().cuts_total == 0
        sink.gate.set()


def test_lag_of_the_end_is_known_after_it():
    flow = Pipeline("p", backpressure=BackpressureConfig(check_interval_s=100))
    flow.source(Numbers(1_000)).to(Kept())
    with flow.start() as run:
        assert run.wait().complete
    assert lag_of(run) == {"0": Lag(0, None)}


def test_rows_alone_decide_on_skew_where_the_seconds_are_not_known():
    def lag(at):
        return {str(number): Lag(4_000 if number == 0 else 0, None) for number in range(4)}

    skew = SkewDetectionConfig(check_interval_s=0.1)
    flow, sink = Pipeline("p", backpressure=QUICK, skew=skew), Gated()
    flow.source(Lagging(20_000, lag, partitions=4)).to(sink)
    with calling_log(lambda line: None, "Partition skew detected") as handler, flow.start() as run:
        eventually(lambda: run.metrics("numbers").hot_partitions == {"0"}, "the hot partition")
        metrics = run.metrics("numbers")
        assert (metrics.skew_ratio, metrics.skew_state.state) == (4.0, SkewState.MITIGATING)
        assert handler.returned.wait(WAIT_S)
        sink.gate.set()


@pytest.mark.parametrize("odd", [None, {"0": 3}, {"0": (1.5, None)}, {"0": Lag("many", None)}])
def test_an_odd_lag_is_unknown_and_the_run_continues(odd):
    flow = Pipeline("p", backpressure=QUICK)
    flow.source(Lagging(5_000, lambda at: odd)).to(kept := Kept())
    assert flow.run().complete
    assert len(kept.numbers) == 5_000


def test_lag_that_raises_is_unknown_and_logged_once(tmp_path):
    is_known, lines = threading.Event(), []

    def lag(at):
        if not is_known.is_set():
            raise ConnectionError("no broker")
        return {"0": Lag(3, 1.5)}

    flow = Pipeline("p", backpressure=QUICK, cut_interval_s=0.1)
    ledger = Ledger(tmp_path / "ledger.db")
    flow.source(Lagging(20_000, lag, bounded=False)).to(ledger)
    with calling_log(lines.append, "lag"), flow.start() as run:
        eventually(lambda: len(ledger.numbers) == 20_000, "the cuts")
        eventually(lambda: lines, "the line")
        assert lag_of(run) == {}
        is_known.set()
        eventually(lambda: lag_of(run) == {"0": Lag(3, 1.5)}, "the lag")
        is_known.clear()
        eventually(lambda: lag_of(run) == {"0": Lag(None, None)}, "an unknown lag")
        assert run.stop().complete
    assert lines == [
        "source 'numbers': its lag is not known, because lag() failed: ConnectionError: no broker"
    ]


def test_lag_that_hangs_is_unknown_and_holds_up_nothing(tmp_path):
    lag = HangingLag(after=1)
    flow = Pipeline("p", backpressure=QUICK, cut_interval_s=0.1)
    ledger = Ledger(tmp_path / "ledger.db")
    flow.source(Lagging(20_000, lag, bounded=False)).to(ledger)
    with flow.start() as run:
        assert lag.entered.wait(WAIT_S)
        eventually(lambda: lag_of(run) == {"0": Lag(None, None)}, "an unknown lag")
        eventually(lambda: len(ledger.numbers) == 20_000, "the cuts")
        eventually(lambda: run.metrics("numbers").partition_lags == {"0": None}, "the metrics")
        assert run.stats().sources["numbers"].lag_stuck_s > 0
        assert run.stop().complete
    assert lag.calls == 2
    lag.go.set()
    # What comes back after the end does not count.
    eventually(lambda: run.stats().sources["numbers"].lag_stuck_s == 0, "the end of the call")
    assert lag_of(run) == {"0": Lag(None, None)}


def test_lag_that_hangs_for_long_is_logged(monkeypatch):
    monkeypatch.setattr(lag_reader, "_LATE_S", 0.05)
    lag, lines = HangingLag(), []
    flow = Pipeline("p", backpressure=QUICK)
    flow.source(Lagging(5_000, lag, bounded=False)).to(Kept())
    with calling_log(lines.append, "lag() has not returned for"), flow.start() as run:
        eventually(lambda: lines, "the line")
        lag.go.set()
        eventually(lambda: lag_of(run) == {"0": Lag(7, None)}, "the lag")
    assert len(lines) == 1


def test_lag_of_a_source_that_is_slow_stays_known():
    asked, answer, seen = threading.Semaphore(0), threading.Semaphore(0), []

    def lag(at):
        asked.release()
        assert answer.acquire(timeout=WAIT_S)
        return {"0": Lag(5, None)}

    flow, sink = Pipeline("p", backpressure=QUICK), Gated()
    flow.source(Lagging(20_000, lag)).to(sink)
    with flow.start() as run:
        for _ in range(3):
            assert asked.acquire(timeout=WAIT_S)
            threading.Event().wait(0.1)  # ten checks
            answer.release()
            eventually(lambda: run.stats().sources["numbers"].lag_stuck_s < 0.1, "an answer")
            seen.append(lag_of(run))
        for _ in range(1_000):
            answer.release()
        sink.gate.set()
    assert seen == [{"0": Lag(5, None)}] * 3


def test_a_source_that_closes_what_its_lag_needs_ends_in_silence(tmp_path):
    lines, path = [], tmp_path / "needed"
    path.touch()

    def lag(at):
        return {"0": Lag(path.stat().st_size, None)}

    flow = Pipeline("p", backpressure=QUICK)
    flow.source(Lagging(5_000, lag)).to(Kept())
    with calling_log(lines.append, "lag"):
        with flow.start() as run:
            run.wait()
        path.unlink()
        eventually(lambda: not any("lag of" in each.name for each in threading.enumerate()))
    assert lines == []


def test_a_forked_child_does_not_wait_for_the_lag():
    code, out, err = run_script(
        """
        from batchqueue.pipeline import *
        from batchqueue.pipeline.runner.run import PipelineRun

        entered, go = threading.Event(), threading.Event()

        class Slow(PushSource):
            def lag(self, at):
                entered.set()
                go.wait()
                return {}

        flow = Pipeline("p", backpressure=BackpressureConfig(check_interval_s=0.01))
        flow.source(Slow()).to(FunctionSink(lambda chunks: None))
        run = flow.start()
        assert entered.wait(30)
        child = os.fork()
        if child == 0:
            try:
                run.stats()
            except QueueForkedError:
                sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert run.stop().complete
        say("stopped")
        """
    )
    assert (code, out) == (0, ["stopped"]), err
