"""What a checkpoint keeps, and whom it refuses."""

import os
import sqlite3
from contextlib import closing

import pytest

from batchqueue.pipeline import CheckpointError, CutError, GraphError, Pipeline, StageConfig
from batchqueue.pipeline.runner.checkpoint import Checkpoint
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Kept, Ledger

AT = {"orders": {"at": 1}}


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "a" / "state")


def test_it_keeps_the_last_two_cuts_with_their_state(directory):
    with closing(Checkpoint(directory, "p")) as checkpoint:
        assert checkpoint.cuts() == []
        checkpoint.store(0, AT, {})
        for number in (1, 2, 3):
            checkpoint.store(number, {"orders": {"at": number}}, {("s", 0): b"%d" % number})
    with closing(Checkpoint(directory, "p")) as checkpoint:
        assert checkpoint.cuts() == [(2, {"orders": {"at": 2}}), (3, {"orders": {"at": 3}})]
        assert checkpoint.state(2) == {("s", 0): b"2"}
        assert checkpoint.state(3) == {("s", 0): b"3"}
        assert checkpoint.state(1) == {}


def test_a_cut_that_is_taken_again_replaces_the_former_attempt(directory):
    with closing(Checkpoint(directory, "p")) as checkpoint:
        checkpoint.store(1, AT, {})
        checkpoint.store(2, AT, {("s", 0): b"old", ("t", 1): b"gone"})
        checkpoint.store(2, {"orders": {"at": 9}}, {("s", 0): b"new"})
        assert checkpoint.cuts() == [(1, AT), (2, {"orders": {"at": 9}})]
        assert checkpoint.state(2) == {("s", 0): b"new"}


def test_another_pipeline_is_refused(directory):
    Checkpoint(directory, "p").close()
    with pytest.raises(CheckpointError, match="belongs to pipeline 'p', and this one is 'q'"):
        Checkpoint(directory, "q")
    Checkpoint(directory, "p").close()  # the refused one has let go of it


def test_a_second_run_in_this_process_is_refused(directory):
    with (
        closing(Checkpoint(directory, "p")),
        pytest.raises(CheckpointError, match="is in use by a running pipeline"),
    ):
        Checkpoint(directory, "p")
    Checkpoint(directory, "p").close()


def test_a_forked_child_neither_has_the_checkpoint_nor_keeps_it(directory):
    with closing(Checkpoint(directory, "p")):
        child = os.fork()
        if child == 0:
            try:
                Checkpoint(directory, "p")
            except CheckpointError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # lives on when the parent has closed it
            os._exit(0)
        os.close(reader)
    Checkpoint(directory, "p").close()
    os.close(writer)
    os.waitpid(child, 0)


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "state").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot use checkpoint .*; give a directory"):
        Checkpoint(str(tmp_path / "state"), "p")


def test_a_damaged_database_is_refused(directory):
    Checkpoint(directory, "p").close()
    with open(f"{directory}/cuts.db", "wb") as file:
        file.write(b"not a database" * 1_000)
    for name in ("cuts.db-wal", "cuts.db-shm"):
        if os.path.exists(f"{directory}/{name}"):
            os.remove(f"{directory}/{name}")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"not a database; it is damaged: restore"):
            Checkpoint(directory, "p")


def test_a_newer_format_is_refused(directory):
    Checkpoint(directory, "p").close()
    with closing(sqlite3.connect(f"{directory}/cuts.db")) as connection, connection:
        connection.execute("UPDATE pipeline SET version = 2")
    with pytest.raises(CheckpointError, match=r"has format 2, and this version .* knows 1"):
        Checkpoint(directory, "p")


class Summing:
    def __init__(self):
        self.total = 0

    def process(self, chunk):
        self.total += chunk.num_rows
        return chunk

    def snapshot(self):
        return str(self.total).encode()

    def restore(self, state):
        self.total = int(state)


def stateful(checkpoint, sink, partitions=2, name="summing", make=Summing, source="numbers"):
    flow = Pipeline("p", checkpoint=checkpoint)
    numbers = flow.source(Numbers(500), name=source).stage(name)
    numbers.key_by("n", partitions=partitions).stateful(make).to(sink, name="sink")
    return flow


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partitions": 3}, "has the state of 2 workers of stage 'summing', and now it has 3"),
        ({"name": "other"}, "has the state of 2 workers of stage 'summing', and now it has 0"),
        ({"source": "orders"}, "cut 1 has a position of source 'numbers', which is not in the"),
    ],
)
def test_a_graph_that_has_changed_is_refused(change, message, directory):
    stateful(directory, Kept()).run()
    with pytest.raises(GraphError, match=message):
        stateful(directory, Kept(), **change).run()
    assert stateful(directory, Kept()).run().complete


def test_state_without_its_checkpoint_is_refused(directory, tmp_path):
    path = tmp_path / "ledger.db"
    stateful(tmp_path / "first", Ledger(path)).run()
    with pytest.raises(CutError, match=r"sink 'sink' has cut 1, .* stage 'summing' has cut 0"):
        stateful(directory, Ledger(path)).run()
    with pytest.raises(GraphError, match=r"'summing' has state, and sink 'sink' stores"):
        stateful(None, Ledger(path)).run()


def test_a_checkpoint_without_its_sink_is_refused(directory, tmp_path):
    for _ in range(2):
        flow = Pipeline("p", checkpoint=directory, cut_interval_s=0.1)
        flow.source(Numbers(500)).to(Ledger(tmp_path / "ledger.db"), name="sink")
        flow.run()
        flow = Pipeline("p", checkpoint=directory)
        flow.source(Numbers(1_000)).to(Ledger(tmp_path / "ledger.db"), name="sink")
        flow.run()
    flow = Pipeline("p", checkpoint=directory)
    flow.source(Numbers(1_000)).to(Ledger(tmp_path / "other.db"), name="sink")
    with pytest.raises(CutError, match="sink 'sink' has cut 0 and Checkpoint"):
        flow.run()


def test_a_new_checkpoint_takes_over_the_positions_of_the_sink(directory, tmp_path):
    for checkpoint, rows in ((None, 500), (directory, 1_000), (directory, 1_500)):
        flow = Pipeline("p", checkpoint=checkpoint)
        flow.source(Numbers(rows)).to(Ledger(tmp_path / "ledger.db"))
        flow.run()
    assert Ledger(tmp_path / "ledger.db").numbers == list(range(1_500))


def test_a_source_may_be_added(directory):
    first, second = Kept(), Kept()
    flow = Pipeline("p", checkpoint=directory)
    flow.source(Numbers(500), name="one").to(first)
    flow.run()
    flow = Pipeline("p", checkpoint=directory, stage=StageConfig(chunk_rows=50))
    flow.source(Numbers(500), name="one").to(first)
    flow.source(Numbers(700), name="two").to(second)
    flow.run()
    assert (first.numbers, second.numbers) == (list(range(500)), list(range(700)))
