"""What a cut has: whole splits, all that was kept back for it, and nothing trimmed early."""

import threading

import pyarrow as pa
import pytest

from batchqueue.pipeline import Pipeline, StageFailedError
from batchqueue.pipeline.runner import PipelineRun
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Kept, Ledger

SPLIT_ROWS = 1_000


class Halting(Numbers):
    """Numbers whose second split stops halfway, with a chunk of it handed on, until `go` is set."""

    def __init__(self):
        super().__init__(4 * SPLIT_ROWS, split_rows=SPLIT_ROWS, batch_rows=SPLIT_ROWS // 2)
        self.is_halfway, self.go = threading.Event(), threading.Event()

    def read(self, split):
        for number, batch in enumerate(super().read(split)):
            if number == 1 and split.start == {"split": 1}:
                self.is_halfway.set()
                assert self.go.wait(WAIT_S)
            yield batch


class Checking(Ledger):
    """A ledger that checks, at each cut, that it was given just the splits before the position."""

    def commit(self, cut, positions):
        super().commit(cut, positions)
        assert self.numbers == list(range(positions["numbers"]["split"] * SPLIT_ROWS))


def cut_while_halfway(flow, source):
    """Starts a pipeline, and has it take a cut while the source is halfway in a split."""
    run = PipelineRun(flow.settings)
    assert source.is_halfway.wait(WAIT_S)
    run._coordinator.cut_soon()
    return run


def test_a_cut_waits_for_the_split_in_hand_and_has_all_of_it(tmp_path):
    source, ledger = Halting(), Checking(tmp_path / "ledger.db")
    flow = Pipeline("p", cut_interval_s=1_000)
    flow.source(source).to(ledger)
    run = cut_while_halfway(flow, source)
    cutter = run._parts.cutter
    eventually(lambda: cutter.holder or cutter.count or run.failed, "the cut")
    holder, cuts = cutter.holder, ledger.cuts
    source.go.set()
    assert (holder, cuts) == ("numbers", [])
    assert run.wait(WAIT_S).complete
    assert ledger.numbers == list(range(4 * SPLIT_ROWS))
    assert len(ledger.cuts) == 2


def test_nothing_is_held_for_a_cut_where_nothing_is_stored_exactly_once(tmp_path):
    source, sink = Halting(), Kept()
    flow = Pipeline("p", checkpoint=tmp_path / "state", cut_interval_s=1_000)
    flow.source(source).to(sink)
    run = cut_while_halfway(flow, source)
    cutter = run._parts.cutter
    eventually(lambda: cutter.count or cutter.holder == "numbers", "the cut")
    count = cutter.count
    source.go.set()
    assert count == 1
    assert run.wait(WAIT_S).complete
    assert sink.numbers == list(range(4 * SPLIT_ROWS))


class OneBehind:
    """Keeps the last chunk back until the next one, or a flush."""

    def __init__(self):
        self.kept = None

    def process(self, chunk):
        self.kept, before = chunk, self.kept
        return before

    def flush(self):
        kept, self.kept = self.kept, None
        return [] if kept is None else [kept]


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_what_is_flushed_by_one_stage_is_flushed_by_those_behind_it(stages, tmp_path):
    ledger = Checking(tmp_path / "ledger.db")
    flow = Pipeline("p", cut_interval_s=0.1)
    rows = flow.source(Numbers(20 * SPLIT_ROWS, split_rows=SPLIT_ROWS))
    for number in range(stages):
        rows = rows.stage(f"stage {number}").map(OneBehind())
    rows.to(ledger)
    flow.run()
    assert ledger.numbers == list(range(20 * SPLIT_ROWS))


def test_a_source_trims_nothing_that_a_sink_lacks(tmp_path):
    class Failing(Ledger):
        def commit(self, cut, positions):
            if cut == 3:
                raise OSError("the disk is full")
            super().commit(cut, positions)

    source, ledger = Numbers(10**9, bounded=False), Failing(tmp_path / "ledger.db")
    flow = Pipeline("p", cut_interval_s=0.1)
    flow.source(source).map(lambda chunk: pa.record_batch({"n": chunk["n"]})).to(ledger)
    with pytest.raises(StageFailedError, match="disk is full"):
        flow.run()
    assert ledger.cuts == [1, 2]
    rows = len(ledger.numbers)
    assert all(end["split"] * 100 <= rows for end in source.commits)
