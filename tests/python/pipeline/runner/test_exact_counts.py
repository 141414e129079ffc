"""Each row arrives once: every shape of a graph, and inputs that are empty or odd."""

import threading
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue.aggregation import Aggregation, Count, Sum
from batchqueue.pipeline import FunctionSink, IterableSource, Pipeline, StageConfig
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Kept, Ledger

ROWS = 10_000


def doubled(chunk):
    return chunk.set_column(0, "n", pc.multiply(chunk["n"], 2))


def test_source_straight_to_sink():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(ROWS)).to(sink)
    summary = flow.run()
    assert sink.numbers == list(range(ROWS))
    assert (summary.rows_read, summary.rows_written, summary.complete) == (ROWS, ROWS, True)


def test_operators_share_a_stage():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(ROWS)).filter(keep_thirds).map(doubled).to(sink)
    flow.run()
    assert sink.numbers == [2 * n for n in range(0, ROWS, 3)]


def keep_thirds(chunk):
    return pa.array([n % 3 == 0 for n in chunk["n"].to_pylist()])


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_several_workers(workers):
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(ROWS)).map(doubled, workers=workers).to(sink)
    flow.run()
    assert sorted(sink.numbers) == [2 * n for n in range(ROWS)]


def test_fan_out_gives_each_branch_everything():
    flow, plain, odd, keyed = Pipeline("p"), Kept(), Kept(), Kept()
    numbers = flow.source(Numbers(ROWS))
    numbers.to(plain, name="plain")
    mapped = numbers.map(doubled)
    mapped.to(odd, name="doubled")
    mapped.key_by("n", partitions=3).map(doubled).to(keyed, name="keyed")
    summary = flow.run()
    assert plain.numbers == list(range(ROWS))
    assert odd.numbers == [2 * n for n in range(ROWS)]
    assert sorted(keyed.numbers) == [4 * n for n in range(ROWS)]
    assert summary.rows_written == 3 * ROWS


@pytest.mark.parametrize("spread", [1, 3])
def test_aggregate_counts_each_row_once_over_all_cuts(spread):
    flow, groups = Pipeline("p", cut_interval_s=0.1), []
    by_partition = Aggregation(keys=["partition"], measures={"rows": Count(), "sum": Sum("n")})
    source = Numbers(ROWS, partitions=4)
    flow.source(source).aggregate(by_partition, spread=spread).to(FunctionSink(groups.extend))
    flow.run()
    rows, sums = Counter(), Counter()
    for group in (row for chunk in groups for row in chunk.to_pylist()):
        rows[group["partition"]] += group["rows"]
        sums[group["partition"]] += group["sum"]
    expected = {p: [n for n in range(ROWS) if n // 100 % 4 == p] for p in range(4)}
    assert rows == {str(p): len(numbers) for p, numbers in expected.items()}
    assert sums == {str(p): sum(numbers) for p, numbers in expected.items()}


def test_one_row_per_group_and_cut_behind_several_workers():
    flow, groups = Pipeline("p", cut_interval_s=100), []
    everything = Aggregation(keys=[], measures={"rows": Count()})
    flow.source(Numbers(ROWS)).map(doubled, workers=4).aggregate(everything).to(
        FunctionSink(groups.extend)
    )
    flow.run()
    assert [chunk.to_pylist() for chunk in groups] == [[{"rows": ROWS}]]


def test_empty_source():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(0)).map(doubled, workers=2).to(sink)
    summary = flow.run()
    assert (sink.writes, summary.rows_read, summary.cuts, summary.complete) == ([], 0, 0, True)


def test_batches_without_rows_vanish():
    flow, sink = Pipeline("p"), Kept()
    full = pa.record_batch({"n": [1, 2]})
    source = IterableSource(lambda: [full.slice(0, 0), full, full.slice(0, 0), full])
    flow.source(source).map(lambda chunk: [chunk.slice(0, 0), chunk]).to(sink)
    flow.run()
    assert sink.numbers == [1, 2, 1, 2]


def test_operator_that_returns_nothing():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(ROWS)).map(lambda chunk: None).to(sink)
    assert flow.run().rows_written == 0
    assert sink.writes == []


def test_operator_that_multiplies_rows():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(300)).map(lambda chunk: (chunk for _ in range(50))).to(sink)
    flow.run()
    assert Counter(sink.numbers) == Counter(dict.fromkeys(range(300), 50))


def test_two_sources_in_one_pipeline():
    flow, left, right = Pipeline("p"), Kept(), Kept()
    flow.source(Numbers(ROWS), name="left").to(left)
    flow.source(Numbers(500), name="right").map(doubled).to(right)
    flow.run()
    assert (left.numbers, right.numbers) == (list(range(ROWS)), [2 * n for n in range(500)])


def test_a_source_that_ends_early_does_not_end_the_others(tmp_path):
    flow, right = Pipeline("p", cut_interval_s=1_000), Kept()
    left = Ledger(tmp_path / "ledger.db")
    slow, is_over = Numbers(ROWS), threading.Event()
    read = slow.read

    def waiting(split):
        assert is_over.wait(WAIT_S)
        return read(split)

    slow.read = waiting
    flow.source(slow, name="left").to(left)
    flow.source(Numbers(500), name="right").to(right)
    with flow.start() as run:
        eventually(lambda: run.stats().sources["right"].state == "finished", "the short source")
        eventually(lambda: right.numbers, "its rows")
        is_over.set()
        assert run.wait(WAIT_S).complete
    assert (left.numbers, right.numbers) == (list(range(ROWS)), list(range(500)))


@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
def test_chunks_have_at_most_chunk_rows(chunk_rows):
    flow, sink = Pipeline("p", stage=StageConfig(chunk_rows=chunk_rows)), Kept()
    flow.source(Numbers(3_000, split_rows=1_500)).map(doubled, workers=2).to(sink)
    flow.run()
    assert max(chunk.num_rows for chunk in sink.chunks) <= chunk_rows
    assert sorted(sink.numbers) == [2 * n for n in range(3_000)]


def test_many_small_batches_are_joined():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(1_000, split_rows=500, batch_rows=1)).to(sink)
    flow.run()
    assert [chunk.num_rows for chunk in sink.chunks] == [500, 500]


def test_a_graph_with_hundreds_of_stages():
    flow, sink = Pipeline("p"), Kept()
    step = flow.source(Numbers(1_000))
    for number in range(200):
        step = step.stage(f"stage {number}").map(lambda chunk: chunk)
    step.to(sink)
    flow.run()
    assert sink.numbers == list(range(1_000))


def test_a_pipeline_runs_again_from_the_beginning_without_a_checkpoint():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(300)).to(sink)
    flow.run()
    flow.run()
    assert sink.numbers == [*range(300), *range(300)]


def test_a_checkpoint_continues_behind_what_was_handled(tmp_path):
    flow, sink = Pipeline("p", checkpoint=tmp_path / "state"), Kept()
    source = Numbers(1_000)
    flow.source(source).to(sink)
    flow.run()
    source.rows = 1_700
    flow.run()
    assert sink.numbers == list(range(1_700))
    assert source.commits == [{"split": 10}, {"split": 17}]


def test_a_transactional_sink_alone_remembers_the_positions(tmp_path):
    source = Numbers(1_000)
    for rows in (1_000, 1_000, 2_300):
        source.rows = rows
        flow = Pipeline("p")
        flow.source(source).to(Ledger(tmp_path / "ledger.db"))
        flow.run()
    assert Ledger(tmp_path / "ledger.db").numbers == list(range(2_300))
    assert Ledger(tmp_path / "ledger.db").cuts == [1, 2]


def test_a_source_is_called_from_one_thread():
    flow, source = Pipeline("p", cut_interval_s=0.1), Numbers(50_000)
    flow.source(source).to(Kept())
    flow.run()
    assert len(source.threads) == 1
