"""A pause skips nothing, reads at most one split further, and lets cuts and stops through."""

import threading

import pytest

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline import Pipeline
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Gated, Kept, Ledger

ROWS = 2_000


def test_paused_before_every_split_is_exact():
    flow, sink, source = Pipeline("p"), Kept(), Numbers(ROWS)
    read, box = source.read, []
    pauser = threading.Event()

    def pausing(split):
        box[0].pause("numbers", f"split {split.what}")
        pauser.set()
        yield from read(split)

    source.read = pausing
    plan = source.plan
    begun = threading.Event()

    def planning(start, limit):
        assert begun.wait(WAIT_S)
        return plan(start, limit)

    source.plan = planning
    flow.source(source).map(lambda chunk: chunk).to(sink)
    with flow.start() as run:
        box.append(run)
        begun.set()
        for number in range(source.splits):
            assert pauser.wait(WAIT_S)
            pauser.clear()
            # Paused within a split: no other one is begun.
            assert len(source.reads) <= number + 1
            run.resume("numbers")
        assert run.wait(WAIT_S).complete
    assert sink.numbers == list(range(ROWS))


def test_a_paused_source_reads_nothing_and_continues_where_it_was():
    flow, sink = Pipeline("p"), Kept()
    source = Numbers(10**9, bounded=False)
    flow.source(source).to(sink)
    with flow.start() as run:
        eventually(lambda: sink.numbers, "the first rows")
        run.pause("numbers", "by the test")
        eventually(lambda: run.stats().sources["numbers"].state == "paused")
        settled = wait_until_settled(source)
        read = len(source.reads)
        assert settled == read
        run.resume("numbers")
        eventually(lambda: len(source.reads) > read, "the next split")
    assert sink.numbers == list(range(len(source.reads) * 100))


def wait_until_settled(source):
    """Waits until no split has been read for a while; returns how many there were."""
    before, pause = -1, threading.Event()
    while before != len(source.reads):
        before = len(source.reads)
        pause.wait(0.2)
    return before


def test_a_source_waits_while_any_reason_is_left():
    flow = Pipeline("p")
    flow.source(Numbers(ROWS)).to(Kept())
    with flow.start() as run:
        control = run.sources["numbers"].control
        run.pause("numbers", "one")
        run.pause("numbers", "two")
        run.pause("numbers", "two")
        run.resume("numbers", "two")
        run.resume("numbers", "none of them")
        assert control.reasons == ("one",)
        run.resume("numbers")
        assert control.reasons == ()


def test_pauses_are_counted_by_reason():
    flow = Pipeline("p")
    flow.source(Numbers(10**9, bounded=False)).to(Kept())
    with flow.start() as run:
        run.pause("numbers", "lunch")

        def paused():
            return run.stats().sources["numbers"].paused_seconds_total.get("lunch", 0)

        eventually(lambda: paused() > 0.05, "the count")
        run.resume("numbers")
        after = paused()
        assert paused() == after
        assert run.stats().sources["numbers"].paused_reasons == ()


@pytest.mark.parametrize("method", ["pause", "resume"])
def test_unknown_source(method):
    flow = Pipeline("p")
    flow.source(Numbers(10)).to(Kept())
    with (
        flow.start() as run,
        pytest.raises(ConfigError, match=r"no source 'orders'; the pipeline has 'numbers'"),
    ):
        getattr(run, method)("orders")


def test_a_cut_takes_the_rest_of_a_paused_split_with_it(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    source = Numbers(5_000, split_rows=1_000, batch_rows=100)
    read, box, ready = source.read, [], threading.Event()

    def pausing(split):
        for number, batch in enumerate(read(split)):
            if number == 6:
                assert ready.wait(WAIT_S)
                box[0].pause("numbers")
            yield batch

    source.read = pausing
    flow = Pipeline("p", cut_interval_s=0.2)
    flow.source(source).to(ledger)
    with flow.start() as run:
        box.append(run)
        ready.set()
        eventually(lambda: run.stats().sources["numbers"].state == "paused", "the pause")
        assert run.stop().complete
    # Whole splits only, however far the first one had come when the pause began.
    assert ledger.numbers == list(range(len(source.reads) * 1_000))


def test_cuts_continue_in_a_pause(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    source = Numbers(5_000, split_rows=1_000, batch_rows=100)
    read, box, ready = source.read, [], threading.Event()

    def pausing(split):
        for number, batch in enumerate(read(split)):
            if number == 6 and split.start == {"split": 1}:
                assert ready.wait(WAIT_S)
                box[0].pause("numbers")
            yield batch

    source.read = pausing
    flow = Pipeline("p", cut_interval_s=0.1)
    flow.source(source).to(ledger)
    with flow.start() as run:
        box.append(run)
        ready.set()
        eventually(lambda: len(ledger.numbers) == 2_000, "the split that the pause has met")
        assert run.stats().sources["numbers"].state == "paused"
    assert ledger.numbers == list(range(2_000))


def test_a_pause_behind_a_split_begins_no_other_of_the_plan_and_skips_none():
    source = Numbers(5_000, split_rows=500)
    read, box, ready = source.read, [], threading.Event()

    def pausing(split):
        yield from read(split)
        if split.start == {"split": 0}:
            assert ready.wait(WAIT_S)
            box[0].pause("numbers")

    source.read = pausing
    flow, sink = Pipeline("p"), Kept()
    flow.source(source).to(sink)
    with flow.start() as run:
        box.append(run)
        ready.set()
        eventually(lambda: sink.numbers, "the first split")
        assert wait_until_settled(source) == 1
        run.resume("numbers")
        assert run.wait(WAIT_S).complete
    assert sink.numbers == list(range(5_000))


def test_stop_ends_a_pause():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(10**9, bounded=False)).to(sink)
    with flow.start() as run:
        run.pause("numbers")
        assert run.stop().complete
    assert sink.numbers == list(range(len(sink.numbers)))


class Noting:
    """Notes what it is called with, in order."""

    def __init__(self):
        self.calls = []

    def process(self, chunk):
        self.calls.append("chunk")
        return chunk

    def on_pause(self, reason):
        self.calls.append(f"pause {reason}")

    def on_resume(self):
        self.calls.append("resume")


def test_operators_hear_of_a_pause_once_and_of_its_end_before_the_next_chunk():
    noting = Noting()
    flow, source = Pipeline("p"), Numbers(10**9, bounded=False)
    flow.source(source).map(noting).to(Kept())
    with flow.start() as run:
        eventually(lambda: noting.calls, "the first chunk")
        run.pause("numbers", "one")
        run.pause("numbers", "two")
        eventually(lambda: "pause one" in noting.calls, "the pause")
        wait_until_settled(source)
        run.resume("numbers", "one")
        run.resume("numbers", "two")
        eventually(lambda: noting.calls[-1] == "chunk" and "resume" in noting.calls, "a chunk")
    heard = [call for call in noting.calls if call != "chunk"]
    assert heard == ["pause one", "resume"]


def test_thousands_of_pauses_behind_a_hung_sink_wait_for_nothing():
    flow, sink = Pipeline("p"), Gated()
    flow.source(Numbers(50_000)).map(Noting()).to(sink)
    with flow.start() as run:
        assert sink.entered.wait(WAIT_S)
        for _ in range(3_000):
            run.pause("numbers")
            run.resume("numbers")
        sink.gate.set()
        assert run.wait(WAIT_S).complete
    assert sink.numbers == list(range(50_000))
