"""An error of a source, an operator or a sink ends the run, names its place, and loses nothing."""

import pickle
import threading

import pyarrow as pa
import pytest

from batchqueue.exceptions import ConfigError, QueueForkedError
from batchqueue.pipeline import (
    FileSource,
    FunctionSink,
    GraphError,
    Pipeline,
    PipelineError,
    SourceChangedError,
    StageFailedError,
)
from core_support.waits import WAIT_S, eventually
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Kept, Ledger


class Broken(Exception):
    pass


def failing_at(number):
    """An operator that raises when it sees a number."""

    def check(chunk):
        if number in chunk["n"].to_pylist():
            raise Broken(f"met {number}")
        return chunk

    return check


def rerun_is_exact(tmp_path, break_it):
    """Runs a pipeline twice on one checkpoint, broken at first."""
    for is_broken in (True, False):
        source, sink = Numbers(3_000), Ledger(tmp_path / "ledger.db")
        flow = Pipeline("p", checkpoint=str(tmp_path / "state"), cut_interval_s=0.1)
        if is_broken:
            break_it(flow, source, sink)
            with pytest.raises(StageFailedError) as raised:
                flow.run()
        else:
            flow.source(source).to(sink, name="ledger")
            flow.run()
            assert sink.numbers == list(range(3_000))
    return raised.value


def test_operator_that_raises(tmp_path):
    def break_it(flow, source, sink):
        flow.source(source).map(failing_at(1_234)).to(sink, name="ledger")

    error = rerun_is_exact(tmp_path, break_it)
    assert error.stage == "map(check)"
    assert error.position == '{"split": 12}'
    assert isinstance(error.__cause__, Broken)
    assert "chunk 0 of '0' at {\"split\": 12}: map(check) raised Broken: met 1234" in str(error)
    assert "the next one continues behind the last cut" in str(error)


def test_operator_that_raises_at_a_flush(tmp_path):
    class Flushing:
        def process(self, chunk):
            return chunk

        def flush(self):
            raise Broken("flush")

    def break_it(flow, source, sink):
        flow.source(source).map(Flushing()).to(sink, name="ledger")

    error = rerun_is_exact(tmp_path, break_it)
    assert (error.stage, error.position) == ("map(Flushing)", None)
    assert isinstance(error.__cause__, Broken)


def test_sink_that_raises_in_write(tmp_path):
    def break_it(flow, source, sink):
        def write(chunks):
            if chunks[0]["n"][0].as_py() >= 2_000:
                raise Broken("disk")

        numbers = flow.source(source)
        numbers.to(FunctionSink(write, batch_rows=1), name="broken")
        numbers.to(sink, name="ledger")

    error = rerun_is_exact(tmp_path, break_it)
    assert (error.stage, error.position) == ("broken", '{"split": 20}')
    assert isinstance(error.__cause__, Broken)


def test_sink_that_raises_in_commit(tmp_path):
    def break_it(flow, source, sink):
        class Refusing(Ledger):
            def commit(self, cut, positions):
                raise Broken("locked")

        flow.source(source).to(Refusing(sink.path), name="ledger")

    error = rerun_is_exact(tmp_path, break_it)
    assert (error.stage, error.position) == ("ledger", None)


@pytest.mark.parametrize("method", ["plan", "read", "commit"])
def test_source_that_raises(method, tmp_path):
    def break_it(flow, source, sink):
        def broken(*args):
            raise SourceChangedError("the file is gone")

        setattr(source, method, broken)
        flow.source(source).to(sink, name="ledger")

    error = rerun_is_exact(tmp_path, break_it)
    assert error.stage == "numbers"
    assert isinstance(error.__cause__, SourceChangedError)
    assert "the file is gone" in str(error)


def test_source_that_raises_in_the_middle_of_a_split(tmp_path):
    def break_it(flow, source, sink):
        whole = source.read

        def read(split):
            yield from whole(split)
            if split.start == {"split": 15}:
                raise Broken("torn")

        source.read = read
        flow.source(source).to(sink, name="ledger")

    assert isinstance(rerun_is_exact(tmp_path, break_it).__cause__, Broken)


def test_key_that_is_missing_names_the_stage_of_the_key():
    flow = Pipeline("p")
    flow.source(Numbers(300)).map(lambda chunk: chunk).key_by("city").map(keep).to(Kept())
    with pytest.raises(StageFailedError, match="'city'") as raised:
        flow.run()
    assert raised.value.stage == "key_by(city)"


def keep(chunk):
    return chunk


@pytest.mark.parametrize("kind", ["sink", "operator"])
def test_nothing_is_handled_after_the_first_error(kind):
    flow, seen, is_full = Pipeline("p"), [], threading.Event()

    def fail(chunks):
        seen.append(len(chunks))
        assert is_full.wait(WAIT_S)
        raise Broken

    numbers = flow.source(Numbers(5_000))
    if kind == "sink":
        numbers.to(FunctionSink(fail, batch_rows=1), name="fail")
    else:
        numbers.map(fail).to(Kept())
    run = flow.start()
    stage = next(iter(run.stages.values()))
    eventually(lambda: stage.waited_for.is_open and stage.gate.held().rows > 100, "a full stage")
    is_full.set()
    with pytest.raises(StageFailedError):
        run.wait()
    assert len(seen) == 1


def test_the_first_of_several_errors_is_raised_and_the_others_are_dropped():
    flow = Pipeline("p")
    numbers = flow.source(Numbers(5_000))
    for _ in range(8):
        numbers.map(failing_at(0)).to(Kept())
    with pytest.raises(StageFailedError) as raised:
        flow.run()
    assert raised.value.stage.startswith("map(check)")


def test_error_is_kept_by_the_run_and_pickles():
    flow = Pipeline("p")
    flow.source(Numbers(5_000)).map(failing_at(0)).to(Kept())
    run = flow.start()
    for call in (run.wait, run.stop):
        with pytest.raises(StageFailedError):
            call()
    assert run.stats().state == "failed"
    assert run.stats().stages["map(check)"].chunks_failed_total == 1
    copy = pickle.loads(pickle.dumps(run.failed))
    assert (str(copy), copy.stage) == (str(run.failed), "map(check)")


def test_an_error_in_the_block_stops_the_run_and_stays_the_error():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(1_000_000, bounded=False)).to(sink)
    with pytest.raises(Broken), flow.start() as run:
        raise Broken
    assert not run.running
    assert sorted(sink.numbers) == list(range(len(sink.numbers)))


def test_position_that_is_not_json():
    source = Numbers(1_000)
    plan = source.plan
    source.plan = lambda start, limit: plan(start, limit)._replace(end={"split": {1, 2}})
    flow = Pipeline("p")
    flow.source(source).to(Kept())
    with pytest.raises(StageFailedError, match="is not JSON"):
        flow.run()


def test_operators_of_a_wrong_kind_are_refused_before_anything_is_read():
    flow, source = Pipeline("p"), Numbers(100)
    flow.source(source).key_by("n").stateful(lambda: 3).to(Kept())
    with pytest.raises(GraphError):
        flow.run()
    assert source.reads == []


def test_a_factory_of_operators_that_raises(tmp_path):
    def make():
        raise Broken("no memory")

    flow = Pipeline("p", checkpoint=str(tmp_path))
    flow.source(Numbers(100)).stateful(make).to(Kept())
    for _ in range(2):  # the checkpoint is free again
        with pytest.raises(StageFailedError, match="no memory") as raised:
            flow.run()
        assert isinstance(raised.value.__cause__, Broken)


class Stateful:
    def process(self, chunk):
        return chunk

    def snapshot(self):
        return b""

    def restore(self, state):
        pass


def test_state_that_no_checkpoint_keeps_is_refused_before_anything_is_read(tmp_path):
    """Its sink would continue at its last cut in the next run, and the state would be lost."""
    flow, source, ledger = Pipeline("p"), Numbers(100), Ledger(tmp_path / "ledger.db")
    flow.source(source).stateful(Stateful).to(ledger)
    for _ in range(2):
        with pytest.raises(GraphError, match=r"'stateful\(Stateful\)' has state.*'Ledger'.*check"):
            flow.run()
    assert (source.reads, ledger.cuts) == ([], [])


def test_state_without_a_checkpoint_begins_anew_where_no_sink_keeps_cuts():
    flow, kept = Pipeline("p"), Kept()
    flow.source(Numbers(100)).stateful(Stateful).to(kept)
    for _ in range(2):
        assert flow.run().rows_written == 100


def test_a_run_that_cannot_begin_logs_nothing(tmp_path, caplog):
    flow = Pipeline("p")
    flow.source(FileSource(tmp_path / "missing.parquet")).filter(len).to(FunctionSink(print))
    with pytest.raises(ConfigError, match="does not exist"):
        flow.run()
    assert caplog.messages == []


def test_a_run_can_follow_one_that_failed_with_the_same_sink(tmp_path):
    path = tmp_path / "ledger.db"
    fails = [True]

    class Once(Ledger):
        def commit(self, cut, positions):
            if fails.pop() if fails else False:
                raise Broken
            super().commit(cut, positions)

    flow = Pipeline("p", checkpoint=str(tmp_path / "state"))
    flow.source(Numbers(1_000)).to(Once(path))
    with pytest.raises(StageFailedError):
        flow.run()
    flow.run()
    assert Ledger(path).numbers == list(range(1_000))


def test_a_second_run_at_the_same_time_is_refused():
    flow = Pipeline("p")
    flow.source(Numbers(1_000, bounded=False)).to(Kept())
    with (
        flow.start(),
        pytest.raises(PipelineError, match="pipeline 'p' runs already; stop that run first"),
    ):
        flow.start()
    with flow.start():
        pass


def test_a_forked_child_does_not_use_the_run(tmp_path):
    import os

    flow = Pipeline("p", checkpoint=str(tmp_path))
    flow.source(Numbers(1_000, bounded=False)).to(Kept())
    with flow.start() as run:
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (run.stop, run.wait, run.stats, run.request_stop):
                try:
                    call()
                except QueueForkedError:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        assert run.running


def test_a_schema_is_not_needed_for_chunks_of_changing_columns():
    flow, columns = Pipeline("p"), set()

    def change(chunk):
        return pa.record_batch({f"n{chunk['n'][0].as_py() % 200}": chunk["n"]})

    def note(chunks):
        columns.update(chunk.schema.names[0] for chunk in chunks)

    flow.source(Numbers(1_000)).map(change).to(FunctionSink(note))
    flow.run()
    assert columns == {"n0", "n100"}
