"""A sink, an operator or a source that hangs: the last cut stands, and the process ends."""

import logging
import threading

import pytest

from batchqueue.pipeline import FunctionSink, Pipeline
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Gated, Kept, Ledger


def started(flow, sink):
    run = flow.start()
    assert sink.entered.wait(WAIT_S)
    return run


def test_stop_gives_a_hung_sink_up_and_the_next_run_reads_again(tmp_path, caplog):
    ledger, hung = Ledger(tmp_path / "ledger.db"), Gated(after=3)
    flow = Pipeline("p", checkpoint=str(tmp_path / "state"), cut_interval_s=0.1)
    numbers = flow.source(Numbers(20_000))
    numbers.to(ledger, name="ledger")
    numbers.to(hung, name="hung")
    run = started(flow, hung)
    summary = run.stop(0.3)
    assert not summary.complete
    assert summary.waited_for == "hung"
    assert "no time is left to wait for hung" in caplog.text
    assert run.stats().state == "stopped"
    hung.gate.set()
    again = Pipeline("p", checkpoint=str(tmp_path / "state"))
    numbers = again.source(Numbers(20_000))
    numbers.to(Ledger(tmp_path / "ledger.db"), name="ledger")
    numbers.to(Kept(), name="hung")
    assert again.run().complete
    assert ledger.numbers == list(range(20_000))


def test_what_hangs_commits_nothing_when_it_comes_back(tmp_path):
    class Late(Ledger):
        entered, gate = threading.Event(), threading.Event()

        def write(self, chunks):
            self.entered.set()
            self.gate.wait(10 * WAIT_S)
            super().write(chunks)

    flow, late = Pipeline("p", checkpoint=str(tmp_path / "state")), Late(tmp_path / "ledger.db")
    flow.source(Numbers(5_000)).to(late)
    run = started(flow, late)
    assert not run.stop(0).complete
    late.gate.set()
    # What the thread had not taken is abandoned; what it had in hand comes back.
    queue = run.stages["Late"]._queue
    eventually(lambda: queue.stats().in_flight == 0, "the thread has nothing in hand")
    assert late.cuts == []
    assert len(late.held) <= 500


def test_operator_that_hangs():
    entered, gate = threading.Event(), threading.Event()

    def hang(chunk):
        entered.set()
        gate.wait(10 * WAIT_S)
        return chunk

    flow = Pipeline("p")
    flow.source(Numbers(5_000)).map(hang).to(Kept())
    run = flow.start()
    assert entered.wait(WAIT_S)
    summary = run.stop(0.2)
    gate.set()
    assert (summary.complete, summary.waited_for) == (False, "map(hang)")


@pytest.mark.parametrize("method", ["read", "plan"])
def test_source_that_hangs(method):
    entered, gate = threading.Event(), threading.Event()
    source = Numbers(500)

    def hang(*args):
        entered.set()
        gate.wait(10 * WAIT_S)
        return iter(())

    setattr(source, method, hang)
    flow = Pipeline("p")
    flow.source(source).to(Kept())
    run = flow.start()
    assert entered.wait(WAIT_S)
    summary = run.stop(0.2)
    gate.set()
    # A plan that does not return has begun nothing: there is nothing to wait for.
    assert summary.complete is (method == "plan")
    assert summary.waited_for == (None if method == "plan" else "numbers")


def test_plan_that_waits_for_input_does_not_delay_cuts(tmp_path):
    source, gate = Numbers(1_000, bounded=False), threading.Event()
    plan = source.plan

    def waiting(start, limit):
        found = plan(start, limit)
        if not found.splits:
            gate.wait(10 * WAIT_S)
        return found

    source.plan = waiting
    flow, ledger = Pipeline("p", cut_interval_s=0.1), Ledger(tmp_path / "ledger.db")
    flow.source(source).to(ledger)
    with flow.start() as run:
        eventually(lambda: len(ledger.numbers) == 1_000, "the cut")
        assert run.stop().complete
    gate.set()


def test_stop_during_a_put_that_waits_handles_what_was_read():
    flow, sink = Pipeline("p"), Gated()
    source = Numbers(100_000, bounded=False)
    flow.source(source).map(lambda chunk: chunk).to(sink)
    run = started(flow, sink)
    eventually(lambda: run.stages["Gated"].waited_for.is_open, "a put that waits")
    stopper = threading.Thread(target=run.stop)
    stopper.start()
    eventually(lambda: run.stats().state == "stopping", "the stop")
    sink.gate.set()
    stopper.join(WAIT_S)
    assert run.wait(WAIT_S).complete
    assert sink.numbers == list(range(len(source.reads) * 100))


def test_one_hung_worker_of_eight_does_not_hold_up_the_others():
    first, gate, lock = [], threading.Event(), threading.Lock()
    others = []

    def work(chunk):
        with lock:
            is_first = not first
            first.append(None)
        if is_first:
            gate.wait(10 * WAIT_S)
        else:
            others.append(chunk.num_rows)
        return chunk

    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(50_000)).map(work, workers=8).to(sink)
    with flow.start() as run:
        # All but what waits behind the worker that hangs, which is bounded.
        eventually(lambda: sum(others) >= 50_000 - 2_000, "the healthy workers")
        gate.set()
        assert run.wait(WAIT_S).complete
    assert sorted(sink.numbers) == list(range(50_000))


def test_one_hung_key_of_eight_stops_the_source_and_nothing_is_lost():
    gate, entered, seen = threading.Event(), threading.Event(), []

    def work(chunk):
        if "3" in chunk["partition"].to_pylist():
            entered.set()
            gate.wait(10 * WAIT_S)
        seen.append(chunk.num_rows)
        return chunk

    flow, sink = Pipeline("p"), Kept()
    source = Numbers(50_000, partitions=8)
    flow.source(source).key_by(partition=by_partition, partitions=8).map(work).to(sink)
    with flow.start() as run:
        assert entered.wait(WAIT_S)
        eventually(lambda: run.stages["key_by(by_partition)"].waited_for.share > 0, "the wait")
        assert run.stats().sources["numbers"].rows_out_total < 50_000
        gate.set()
        assert run.wait(WAIT_S).complete
    assert sorted(sink.numbers) == list(range(50_000))


def by_partition(chunk):
    return [int(partition) for partition in chunk["partition"].to_pylist()]


def test_a_cut_that_waits_names_the_stage_and_is_logged(monkeypatch, caplog):
    from batchqueue.pipeline.runner import cuts

    monkeypatch.setattr(cuts, "LATE_S", 0.2)
    caplog.set_level(logging.WARNING, "batchqueue")
    flow, sink = Pipeline("p", cut_interval_s=0.1), Gated()
    flow.source(Numbers(20_000)).map(lambda chunk: chunk).to(sink)
    run = started(flow, sink)
    eventually(lambda: "cut 1 has waited" in caplog.text, "the log")
    assert "'Gated'" in caplog.text
    assert run.stats().cut_waits_for == "Gated"
    sink.gate.set()
    assert run.stop().complete
    assert sink.numbers == list(range(len(sink.numbers)))


def test_second_stop_with_less_time_wins():
    flow, sink = Pipeline("p"), Gated()
    flow.source(Numbers(20_000)).to(sink)
    run = started(flow, sink)
    first = []
    waiting = threading.Thread(target=lambda: first.append(run.stop(None)))
    waiting.start()
    assert not run.stop(0).complete
    waiting.join(WAIT_S)
    sink.gate.set()
    assert not first[0].complete


def test_slow_sink_is_only_slow():
    flow, seen = Pipeline("p", cut_interval_s=0.1), []
    pause = threading.Event()

    def slow(chunks):
        pause.wait(0.4)
        seen.extend(n for chunk in chunks for n in chunk["n"].to_pylist())

    flow.source(Numbers(2_500)).to(FunctionSink(slow))
    with flow.start() as run:
        run.stop()
    assert seen == list(range(len(seen)))
