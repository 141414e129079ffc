"""`FunctionSink`, and what `chunk_origin` says of the chunks that it gets."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline import (
    FunctionSink,
    Pipeline,
    SinkError,
    StageConfig,
    StageFailedError,
    chunk_origin,
)
from batchqueue.pipeline.spark.sinks import write_task
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Kept


def origins(build, **settings):
    """Runs a pipeline; returns the origins of the chunks and their rows, in order."""
    flow, found = Pipeline("p", **settings), []

    def note(chunks):
        found.extend((chunk_origin(chunk), chunk["n"].to_pylist()) for chunk in chunks)

    build(flow, FunctionSink(note))
    flow.run()
    return found


class Wrapped:
    """A sink whose `write` returns what a function returns."""

    batch_rows = 10

    def __init__(self, function):
        self._function = function

    def write(self, chunks):
        return self._function(chunks)


def test_calls_gather_what_is_there_up_to_batch_rows():
    gate, entered, calls = threading.Event(), threading.Event(), []

    def write(chunks):
        entered.set()
        gate.wait(WAIT_S)
        calls.append([chunk.num_rows for chunk in chunks])

    flow = Pipeline("p")
    flow.source(Numbers(1_000, split_rows=50)).to(FunctionSink(write, batch_rows=250))
    with flow.start() as run:
        assert entered.wait(WAIT_S)
        eventually(lambda: run.stats().sources["numbers"].rows_out_total == 1_000, "all rows")
        gate.set()
        run.wait()
    # What is there when the thread looks: some chunks before the first call, and later the others.
    assert sum(len(call) < 5 for call in calls) <= 2
    assert max(calls) == [50] * 5
    assert sum(sum(call) for call in calls) == 1_000


async def store(chunks):
    del chunks


def show(chunks):
    yield chunks


async def stream(chunks):
    yield chunks


class AsyncCalled:
    async def __call__(self, chunks):
        del chunks


@pytest.mark.parametrize("function", [store, show, stream, AsyncCalled()])
def test_function_that_would_write_nothing_is_refused(function):
    with pytest.raises(ConfigError, match=r"a call of it would write nothing; give a plain funct"):
        FunctionSink(function)


def submit(chunks):
    with ThreadPoolExecutor() as pool:
        return pool.submit(len, chunks)


def refuse_to_close(chunks):
    def rows():
        try:
            yield chunks
        finally:
            raise OSError("cannot close")

    begun = rows()
    next(begun)
    return begun


LATER = [store, show, stream, submit, refuse_to_close, lambda chunks: map(len, chunks)]


@pytest.mark.parametrize("function", LATER)
@pytest.mark.parametrize("wrap", [FunctionSink, Wrapped])
def test_function_that_returns_before_it_has_written_ends_the_run(wrap, function, recwarn):
    flow = Pipeline("p")
    flow.source(Numbers(50)).to(wrap(lambda chunks: function(chunks)))
    with pytest.raises(StageFailedError, match=r"returned an? \w+, and may not have written"):
        flow.run()
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("function", [store, show])
def test_function_that_returns_before_it_has_written_fails_its_task(function):
    sink = FunctionSink(lambda chunks: function(chunks))
    with pytest.raises(SinkError, match="may not have written everything"):
        write_task(sink, "p", [pa.record_batch({"n": [1]})])
    with pytest.raises(SinkError, match="may not have written everything"):
        write_task(Wrapped(function), "p", [pa.record_batch({"n": [1]})])


def test_a_call_does_not_wait_for_more():
    seen = []
    flow = Pipeline("p")
    flow.source(Numbers(50, bounded=False)).to(FunctionSink(seen.extend, batch_rows=100_000))
    with flow.start():
        eventually(lambda: seen, "the call")
    assert [chunk.num_rows for chunk in seen] == [50]


def test_a_chunk_larger_than_batch_rows_comes_alone():
    calls = []
    flow = Pipeline("p")
    source = Numbers(1_000, split_rows=200)
    flow.source(source).to(FunctionSink(lambda chunks: calls.append(len(chunks)), batch_rows=100))
    flow.run()
    assert calls == [1] * 5


def test_large_batches_are_gathered_from_small_chunks():
    gate, entered, calls = threading.Event(), threading.Event(), []

    def write(chunks):
        entered.set()
        gate.wait(WAIT_S)
        calls.append(sum(chunk.num_rows for chunk in chunks))

    flow = Pipeline("p", stage=StageConfig(chunk_rows=10))
    flow.source(Numbers(5_000)).to(FunctionSink(write, batch_rows=1_000))
    with flow.start() as run:
        assert entered.wait(WAIT_S)
        eventually(lambda: run.stats().stages["FunctionSink"].queue_rows == 2_000, "a full stage")
        gate.set()
        run.wait()
    assert max(calls) == 1_000


def test_origin_names_split_and_number():
    found = origins(
        lambda flow, sink: flow.source(Numbers(900, split_rows=300, partitions=2)).to(sink),
        stage=StageConfig(chunk_rows=200),
    )
    assert [(o.partition, o.position, o.number, len(rows)) for o, rows in found] == [
        ("0", {"split": 0}, 0, 200),
        ("0", {"split": 0}, 1, 100),
        ("1", {"split": 1}, 0, 200),
        ("1", {"split": 1}, 1, 100),
        ("0", {"split": 2}, 0, 200),
        ("0", {"split": 2}, 1, 100),
    ]
    assert {(o.pipeline, o.source, o.cut, o.part) for o, _ in found} == {("p", "numbers", 1, "")}


def three_times(chunk):
    return [chunk, chunk.slice(1), pa.record_batch({"n": list(range(1_000))})]


def test_origins_are_unique_whatever_operators_do_and_the_same_in_each_run():
    def build(flow, sink):
        step = flow.source(Numbers(1_000)).map(three_times)
        step.key_by("n", partitions=3).map(three_times).stage("next").map(three_times).to(sink)

    config = StageConfig(chunk_rows=400)
    first = dict_of(origins(build, stage=config))
    assert first == dict_of(origins(build, stage=config, cut_interval_s=0.1))
    assert len(first) > 100


def dict_of(found):
    """Returns the rows by origin, without its cut; fails if two chunks have the same origin."""
    by_origin = {repr(origin._replace(cut=0)): rows for origin, rows in found}
    assert len(by_origin) == len(found)
    return by_origin


def test_what_comes_again_after_a_failure_is_recognised(tmp_path):
    fails, table = [True], {}

    def write(chunks):
        for chunk in chunks:
            key = repr(chunk_origin(chunk)._replace(cut=0))
            assert table.setdefault(key, chunk["n"].to_pylist()) == chunk["n"].to_pylist()
        if len(table) > 40 and fails:
            fails.clear()
            raise ConnectionError

    flow = Pipeline("p", checkpoint=str(tmp_path / "state"), cut_interval_s=0.1)
    flow.source(Numbers(10_000)).key_by("n", partitions=2).to(FunctionSink(write))
    with pytest.raises(StageFailedError):
        flow.run()
    flow.run()
    assert sorted(n for numbers in table.values() for n in numbers) == list(range(10_000))


def test_what_is_emitted_at_a_cut_has_no_position():
    class Last:
        kept = None

        def process(self, chunk):
            self.kept = chunk

        def flush(self):
            yield from [] if self.kept is None else [self.kept]
            self.kept = None

    found = origins(lambda flow, sink: flow.source(Numbers(500)).map(Last()).to(sink))
    ((origin, rows),) = found
    assert (origin.partition, origin.position, origin.cut) == ("map(Last)/0", None, 1)
    assert rows == list(range(400, 500))


def test_metadata_of_the_schema_stays():
    flow, found = Pipeline("p"), []

    def mark(chunk):
        return chunk.replace_schema_metadata({b"mine": b"1"})

    flow.source(Numbers(10)).map(mark).to(FunctionSink(found.extend))
    flow.run()
    assert found[0].schema.metadata[b"mine"] == b"1"
    assert chunk_origin(found[0]).pipeline == "p"


def test_chunks_of_several_origins_make_a_table():
    flow, found = Pipeline("p"), []
    flow.source(Numbers(1_000)).to(FunctionSink(found.extend))
    flow.run()
    assert pa.Table.from_batches(found)["n"].to_pylist() == list(range(1_000))


def test_a_batch_without_origin_is_refused():
    with pytest.raises(ConfigError, match="no origin in the metadata"):
        chunk_origin(pa.record_batch({"n": [1]}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "function is 3; give a function"),
        ((print, 0), "batch_rows is 0; give an int from 1 to 1,000,000"),
        ((print, 1.5), "batch_rows is 1.5"),
    ],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        FunctionSink(*arguments)


def test_a_sink_that_needs_no_origins_gets_chunks_as_they_were_made():
    class Plain(Kept):
        needs_origins = False

    flow, sink = Pipeline("p"), Plain()
    flow.source(Numbers(10)).to(sink)
    flow.run()
    assert sink.numbers == list(range(10))
    assert sink.chunks[0].schema.metadata is None
    with pytest.raises(ConfigError, match="has no origin"):
        chunk_origin(sink.chunks[0])
