"""What `stats` says while a run is busy, held up, and over."""

import threading

import pytest

from batchqueue._core import TimeMeter
from batchqueue.pipeline import FunctionSink, PartitionState, Pipeline, StageConfig
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Gated, Kept


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_counts_after_the_end():
    flow = Pipeline("p")
    numbers = flow.source(Numbers(5_000))
    numbers.filter(lambda chunk: [n % 2 == 0 for n in chunk["n"].to_pylist()]).to(Kept())
    with flow.start() as run:
        run.wait()
    stats = run.stats()
    assert stats.state == "stopped"
    assert list(stats.stages) == ["filter(<lambda>)", "Kept"]
    filtered, kept = stats.stages.values()
    assert (filtered.rows_in_total, filtered.rows_out_total) == (5_000, 2_500)
    assert (kept.rows_in_total, kept.rows_out_total) == (2_500, 2_500)
    assert kept.bytes_in_total == kept.bytes_out_total == filtered.bytes_out_total > 2_500 * 8
    assert stats.sources["numbers"].rows_out_total == 5_000
    assert stats.sources["numbers"].state == "finished"
    assert stats.sources["numbers"].position == {"split": 50}
    assert (stats.cuts_total, stats.cut) == (1, 1)
    assert stats.cut_seconds > 0


def test_the_slow_stage_is_named_as_the_root_by_all_before_it():
    flow, sink = Pipeline("p"), Gated()
    step = flow.source(Numbers(100_000))
    for name in ("one", "two"):
        step = step.stage(name).map(lambda chunk: chunk)
    step.to(sink, name="slow")
    step.to(Kept(), name="quick")
    with flow.start() as run:

        def found():
            stats = run.stats()
            return (
                stats.sources["numbers"].held_up_by,
                *(each.held_up_by for each in stats.stages.values()),
            )

        eventually(lambda: found() == ("slow", "slow", "slow", None, None), f"{found()}")
        stats = run.stats()
        assert list(stats.stages) == ["one", "two", "slow", "quick"]
        assert stats.stages["slow"].queue_rows == 2_000
        eventually(lambda: run.stats().stages["quick"].queue_rows == 0, "an empty quick sink")
        eventually(lambda: run.stats().stages["slow"].busy_ratio > 0.9, "a busy sink")
        assert run.stats().stages["one"].busy_ratio < 0.5
        sink.gate.set()
        run.wait()


def test_a_source_that_waits_before_it_plans_is_held_up():
    flow, sink = Pipeline("p"), Gated()
    flow.source(Numbers(100_000)).to(sink)  # whose splits fill the stage exactly
    with flow.start() as run:
        eventually(lambda: run.stats().stages["Gated"].queue_rows == 2_000, "a full stage")
        eventually(lambda: run.stats().sources["numbers"].held_up_by == "Gated", "the cause")
        sink.gate.set()


def test_a_quick_sink_holds_up_no_source():
    flow = Pipeline("p")
    flow.source(Numbers(100, bounded=False)).to(Kept())
    with flow.start() as run:
        eventually(lambda: run.stats().stages["Kept"].rows_out_total == 100, "the rows")
        eventually(lambda: run.stats().sources["numbers"].held_up_by is None, "no wait")


def test_lag_is_that_behind_the_last_cut():
    flow, source = Pipeline("p", cut_interval_s=0.1), Numbers(1_000, bounded=False)
    flow.source(source).to(Kept())
    with flow.start() as run:
        eventually(lambda: run.stats().sources["numbers"].lag, "the lag")
        eventually(
            lambda: run.stats().sources["numbers"].lag["0"].records == 0, "the end of the lag"
        )


def test_states_of_a_run():
    flow, sink = Pipeline("p"), Gated()
    flow.source(Numbers(10_000)).to(sink)
    run = flow.start()
    assert (run.stats().state, run.running, run.wait(0)) == ("running", True, None)
    run.request_stop()
    assert run.stats().state == "stopping"
    sink.gate.set()
    assert run.wait(WAIT_S).complete
    assert (run.stats().state, run.running, run.failed) == ("stopped", False, None)
    assert run.stop() == run.wait()


def test_seconds_of_a_summary_stand_still():
    flow = Pipeline("p")
    flow.source(Numbers(100)).to(Kept())
    run = flow.start()
    first = run.wait()
    threading.Event().wait(0.05)
    assert run.wait() == first


def test_busy_time_is_that_of_the_sink_and_not_of_the_wait_for_it():
    flow, sink = Pipeline("p"), Gated()
    flow.source(Numbers(100_000)).stage("before").map(lambda chunk: chunk).to(sink)
    with flow.start() as run:
        assert sink.entered.wait(WAIT_S)
        before, behind = run.stages["before"], run.stages["Gated"]
        eventually(lambda: behind.waited_for.is_open, "a full stage")
        busy = before.busy.seconds
        since = behind.busy.seconds
        eventually(lambda: behind.busy.seconds > since + 0.2, "the time of the sink")
        assert before.busy.seconds == pytest.approx(busy, abs=0.05)
        sink.gate.set()
        run.wait()


def test_share_of_a_meter_is_that_of_the_last_seconds():
    clock = Clock()
    meter = TimeMeter(clock=clock)
    for _ in range(100):  # busy for a quarter of 100 s
        with meter:
            clock.now += 0.25
        assert meter.seconds > 0
        clock.now += 0.75
    assert meter.seconds == 25
    assert meter.share == pytest.approx(0.25, abs=0.05)
    meter.enter()
    for _ in range(20):  # then all the time, in a call that does not return
        clock.now += 0.3
        assert meter.is_open
        share = meter.share
    assert share == 1


def test_share_of_a_meter_is_of_all_its_threads():
    clock = Clock()
    meter = TimeMeter(threads=4, clock=clock)
    meter.enter()
    meter.enter()
    clock.now += 1
    assert (meter.seconds, meter.share) == (2, 0.5)


def test_chunk_written_by_a_function_sink_counts():
    flow = Pipeline("p")
    flow.source(Numbers(700)).to(FunctionSink(lambda chunks: None, batch_rows=7))
    assert flow.run().rows_written == 700


def test_each_stage_runs_whatever_least_of_workers_is_wanted():
    flow = Pipeline("p", stage=StageConfig(max_workers=4, min_workers=2, partition_count=3))
    flow.source(Numbers(1_000)).map(lambda chunk: chunk).to(Kept())
    with flow.start() as run:
        states = [run.metrics(name).partition_state.state for name in run.stages]
        assert set(states) <= {PartitionState.RUNNING, PartitionState.STOPPING}
        assert [each.workers for each in run.stats().stages.values()] == [3, 1]


def test_a_queue_that_is_stuck_names_the_stage():
    flow, sink = Pipeline("p"), Gated()
    flow.source(Numbers(10_000)).to(sink, name="totals")
    with flow.start() as run:
        stuck = run.stages["totals"]._queue.stats
        eventually(lambda: stuck().stuck_handlers == ("totals",), "the name of the stage")
        sink.gate.set()
