"""`push` returns when a cut has the rows; what it does not confirm is refused."""

import asyncio
import contextlib
import pickle
import threading

import pyarrow as pa
import pytest

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline import Limit, Pipeline, PipelineError, PushSource, StageFailedError
from core_support.waits import WAIT_S, eventually
from pipeline_support.crashing import each_step
from pipeline_support.sinks import Gated, Kept, Ledger


def batch(*numbers):
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.db")


def pipeline(ledger, tmp_path, **settings):
    flow = Pipeline("p", checkpoint=str(tmp_path / "state"), **settings)
    flow.source(PushSource()).to(Ledger(ledger.path))
    return flow


def test_what_push_has_confirmed_is_stored(ledger, tmp_path):
    with pipeline(ledger, tmp_path, cut_interval_s=1_000).start() as run:
        for number in range(5):
            run.push(batch(number))
            assert ledger.numbers == list(range(number + 1))


def test_threads_share_cuts(ledger, tmp_path):
    with pipeline(ledger, tmp_path, cut_interval_s=1_000).start() as run:
        threads = [
            threading.Thread(
                target=lambda first=first: [run.push(batch(first * 10 + n)) for n in range(10)]
            )
            for first in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert ledger.numbers == list(range(200))
        assert run.stats().cuts_total < 200


def test_runs_follow_each_other(ledger, tmp_path):
    flow = pipeline(ledger, tmp_path)
    for number in range(3):
        with flow.start() as run:
            run.push(batch(number))
    assert (ledger.numbers, ledger.cuts) == ([0, 1, 2], [1, 2, 3])


def test_tables_and_empty_batches():
    flow, sink = Pipeline("p"), Kept()
    flow.source(PushSource()).to(sink)
    with flow.start() as run:
        run.push(pa.Table.from_batches([batch(1), batch(2, 3)]))
        run.push(batch())
        run.push(pa.table({"n": pa.array([], pa.int64())}))
    assert sink.numbers == [1, 2, 3]


def test_timeout_leaves_the_rows_in_the_run():
    flow, sink = Pipeline("p"), Gated()
    flow.source(PushSource()).to(sink)
    with flow.start() as run:
        with pytest.raises(
            TimeoutError, match=r"had 1 row pushed to 'push' after 0.05 s; they may"
        ):
            run.push(batch(1), timeout=0.05)
        with pytest.raises(ConfigError, match="timeout is 'x'; give a finite number"):
            run.push(batch(1), timeout="x")
        sink.gate.set()
        eventually(lambda: sink.numbers == [1], "the write")


def test_a_run_that_fails_refuses_what_no_cut_has(ledger, tmp_path):
    class Broken(Ledger):
        def commit(self, cut, positions):
            raise ConnectionError("gone")

    flow = Pipeline("p", checkpoint=str(tmp_path / "state"))
    flow.source(PushSource()).to(Broken(ledger.path), name="Ledger")
    run = flow.start()
    with pytest.raises(PipelineError, match="before a cut had the batch of 2 rows") as raised:
        run.push(batch(1, 2))
    assert isinstance(raised.value.__cause__, StageFailedError)
    with pytest.raises(StageFailedError):
        run.wait()
    with pytest.raises(PipelineError, match="push it again to the next run"):
        run.push(batch(3))
    with pipeline(ledger, tmp_path).start() as again:
        again.push(batch(1, 2))
    assert ledger.numbers == [1, 2]


def test_a_run_that_ended_refuses_and_the_next_accepts(ledger, tmp_path):
    flow = pipeline(ledger, tmp_path)
    with flow.start() as run:
        pass
    with pytest.raises(PipelineError, match="the run has ended"):
        run.push(batch(1))
    with flow.start() as run:
        run.push(batch(2))
    assert ledger.numbers == [2]


def test_a_stop_confirms_or_refuses_what_is_on_its_way(ledger, tmp_path):
    results, lock = {}, threading.Lock()
    run = pipeline(ledger, tmp_path).start()

    def push(first):
        for number in range(first, first + 1_000):
            try:
                run.push(batch(number))
            except PipelineError:
                return
            with lock:
                results[number] = True

    threads = [threading.Thread(target=push, args=(k * 1_000,)) for k in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(results) > 10, "some pushes")
    assert run.stop().complete
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert set(results) <= set(ledger.numbers)
    assert len(ledger.numbers) == len(set(ledger.numbers))


def test_a_cut_that_only_one_sink_has_is_pushed_again(tmp_path):
    left, right = Ledger(tmp_path / "left.db"), Ledger(tmp_path / "right.db")

    def two_sinks():
        flow = Pipeline("p", checkpoint=str(tmp_path / "state"))
        pushed = flow.source(PushSource())
        pushed.to(Ledger(left.path), name="left")
        pushed.to(Ledger(right.path), name="right")
        return flow

    def fail(step):
        if step == "commit left":
            raise ConnectionError

    with each_step(fail), pytest.raises(PipelineError):
        two_sinks().start().push(batch(1))
    assert (left.numbers, right.numbers) == ([1], [])
    with two_sinks().start() as run:
        run.push(batch(1))
    # At least once: `left` had it already, and its row was never confirmed.
    assert (left.numbers, right.numbers) == ([1, 1], [1])
    assert left.last_cut() == right.last_cut()


def test_which_source_is_meant():
    flow, sinks = Pipeline("p"), (Kept(), Kept())
    for name, sink in zip(("a", "b"), sinks, strict=True):
        flow.source(PushSource(), name=name).to(sink)
    with flow.start() as run:
        with pytest.raises(ConfigError, match="these PushSources: 'a', 'b'"):
            run.push(batch(1))
        with pytest.raises(ConfigError, match="source='c'"):
            run.push(batch(1), source="c")
        run.push(batch(1), source="b")
    assert [sink.numbers for sink in sinks] == [[], [1]]


@pytest.mark.parametrize(
    ("data", "message"),
    [(3, "push got an int"), (pa.record_batch({"m": [1]}), r"push got columns \['m'\]")],
)
def test_what_does_not_fit_is_refused(data, message):
    flow = Pipeline("p")
    flow.source(PushSource(schema=batch().schema)).to(Kept())
    with flow.start() as run:
        with pytest.raises(ConfigError, match=message):
            run.push(data)
        run.push(batch(1))


def test_it_pickles_without_what_waits():
    source = PushSource(name="orders", schema=batch().schema)
    source.push(batch(1))
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.name, copy.schema()) == ("orders", batch().schema)
    assert copy.lag(copy.initial())["0"].records == 0


def test_caller_that_gives_up_does_not_end_the_run(ledger):
    flow = Pipeline("p", cut_interval_s=0.1)
    source = PushSource()
    flow.source(source).to(ledger)
    with flow.start() as run:
        assert not source.push(batch(1)).cancel()

        async def give_up():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(source.push(batch(2))), 0)

        asyncio.run(give_up())
        run.push(batch(3))
    assert ledger.numbers == [1, 2, 3]


def test_lag_is_what_follows_the_position():
    source = PushSource()
    for rows in (1, 2, 4):
        source.push(pa.record_batch({"n": range(rows)}))
    source.plan({"batches": 0}, Limit(rows=3, bytes=1 << 20))
    assert [source.lag({"batches": at})["0"].records for at in range(3)] == [7, 6, 4]
