"""What a run holds stays within `max_bytes`, and one chunk always passes."""

import threading

import pyarrow as pa

from batchqueue.pipeline import FunctionSink, IterableSource, Pipeline
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Gated, Kept

MEGABYTE = 1 << 20


def peaks(run):
    return {name: stage.gate.most_bytes for name, stage in run.stages.items()}


def test_stages_share_max_bytes_equally():
    flow, sink = Pipeline("p", max_bytes=2 * MEGABYTE), Gated()
    source = Numbers(20_000, bytes_of_row=1_000, split_rows=1_000)
    flow.source(source).map(lambda chunk: chunk).to(sink)
    with flow.start() as run:
        assert set(run.stages) == {"map(<lambda>)", "Gated"}
        for name, stage in run.stages.items():
            eventually(lambda stage=stage: stage.waited_for.is_open, f"a put that waits for {name}")
        sink.gate.set()
        assert run.wait(WAIT_S).complete
    assert sink.numbers == list(range(20_000))
    assert max(peaks(run).values()) <= MEGABYTE


def test_max_bytes_may_be_more_than_there_is():
    flow, sink = Pipeline("p", max_bytes=1 << 80), Kept()
    flow.source(Numbers(1_000)).to(sink)
    flow.run()
    assert sink.numbers == list(range(1_000))


def test_bytes_count_until_a_chunk_is_completed():
    flow, sink = Pipeline("p", max_bytes=MEGABYTE), Gated()
    flow.source(Numbers(20_000, bytes_of_row=1_000, split_rows=500)).to(sink)
    with flow.start() as run:
        assert sink.entered.wait(WAIT_S)
        gate = run.stages["Gated"].gate
        eventually(lambda: run.stages["Gated"].waited_for.is_open, "a put that waits")
        held = gate.held()
        assert 0 < held.bytes <= MEGABYTE
        assert held.rows == run.stats().stages["Gated"].queue_rows
        sink.gate.set()
        assert run.wait(WAIT_S).complete
        assert gate.held() == (0, 0)
    assert sink.numbers == list(range(20_000))


def test_records_that_are_larger_than_everything_pass_alone():
    size, inside, most = 8 * MEGABYTE, [0], [0]
    lock = threading.Lock()

    def rows():
        for number in range(6):
            yield {"n": number, "blob": b"x" * size}
            yield {"n": number, "blob": b"small"}

    def work(chunk):
        with lock:
            inside[0] += sum(len(blob) for blob in chunk["blob"].to_pylist())
            most[0] = max(most[0], inside[0])
        threading.Event().wait(0.01)
        with lock:
            inside[0] -= sum(len(blob) for blob in chunk["blob"].to_pylist())
        return chunk

    flow, sizes = Pipeline("p", max_bytes=2 * MEGABYTE), []

    def note(chunks):
        sizes.extend(len(blob) for chunk in chunks for blob in chunk["blob"].to_pylist())

    source = IterableSource(rows, split_rows=1)
    flow.source(source).map(work, workers=4).to(FunctionSink(note))
    with flow.start() as run:
        assert run.wait(WAIT_S).complete
    assert sorted(sizes) == [5] * 6 + [size] * 6
    # Two never pile up, neither in a stage nor inside its workers.
    assert size <= max(peaks(run).values()) < 1.1 * size
    assert most[0] < 1.1 * size


def test_a_paused_source_holds_one_split_and_no_more():
    flow, source = Pipeline("p", max_bytes=MEGABYTE), Numbers(10**9, bounded=False, split_rows=10)
    made = []
    read = source.read

    def counting(split):
        made.append(split.what)
        return read(split)

    source.read = counting
    flow.source(source).to(FunctionSink(lambda chunks: None))
    with flow.start() as run:
        eventually(lambda: made, "the first split")
        run.pause("numbers")
        before = len(made)
        eventually(lambda: run.stats().stages["FunctionSink"].queue_rows == 0, "an empty stage")
        assert len(made) <= before + 1


def test_limits_of_plans_follow_the_room():
    limits, source = [], Numbers(5_000)
    plan = source.plan

    def noting(start, limit):
        limits.append(limit)
        return plan(start, limit)

    source.plan = noting
    flow, sink = Pipeline("p", max_bytes=MEGABYTE), Kept()
    flow.source(source).to(sink)
    flow.run()
    assert limits[0] == (2_000, MEGABYTE)
    assert all(1 <= limit.rows <= 2_000 and 1 <= limit.bytes <= MEGABYTE for limit in limits)


def test_the_narrowest_branch_limits_plans():
    limits, source = [], Numbers(500)
    plan = source.plan

    def noting(start, limit):
        limits.append(limit)
        return plan(start, limit)

    source.plan = noting
    flow = Pipeline("p")
    numbers = flow.source(source)
    numbers.map(lambda chunk: chunk, workers=3).to(Kept())
    numbers.to(Kept(batch_rows=5_000))
    flow.run()
    assert limits[0].rows == 6_000  # three workers; the sink has room for twice its batch


def test_slices_of_a_large_batch_count_their_own_bytes():
    big = pa.record_batch({"n": list(range(100_000))})
    flow, sink = Pipeline("p", max_bytes=MEGABYTE), Kept()
    flow.source(IterableSource(lambda: [big], split_rows=100_000)).to(sink)
    with flow.start() as run:
        assert run.wait(WAIT_S).complete
    assert sink.numbers == list(range(100_000))
    assert peaks(run)["Kept"] <= 2_000 * 8 + 500
