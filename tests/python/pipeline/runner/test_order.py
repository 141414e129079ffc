"""The order that a run keeps: of the source, of each source partition, of each key."""

import json
import random
import threading

import pyarrow as pa
import pytest

from batchqueue.pipeline import Pipeline, StageConfig
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Kept

ROWS = 20_000


def uneven(chunk):
    """Takes longer for some chunks, so that workers overtake each other."""
    threading.Event().wait(random.Random(chunk["n"][0].as_py()).choice([0, 0, 0.003]))
    return chunk


def test_one_worker_keeps_the_order_of_the_source():
    flow, sink = Pipeline("p"), Kept()
    flow.source(Numbers(ROWS)).map(uneven).stage("next").map(uneven).to(sink)
    flow.run()
    assert sink.numbers == list(range(ROWS))


def by_partition(chunks):
    found = {}
    for chunk in chunks:
        for row in chunk.to_pylist():
            found.setdefault(row["partition"], []).append(row["n"])
    return found


@pytest.mark.parametrize("partitions", [1, 3, 11])
def test_keep_order_keeps_it_per_source_partition(partitions):
    config = StageConfig(max_workers=4, keep_order=True)
    flow, sink = Pipeline("p", stage=config), Kept()
    flow.source(Numbers(ROWS, partitions=partitions)).map(uneven).to(sink)
    flow.run()
    found = by_partition(sink.chunks)
    assert found == {
        str(p): [n for n in range(ROWS) if n // 100 % partitions == p] for p in range(partitions)
    }


def test_keep_order_uses_all_workers():
    workers, lock = set(), threading.Lock()

    def note(chunk):
        with lock:
            workers.add(threading.get_ident())
        return chunk

    config = StageConfig(max_workers=4, keep_order=True)
    flow = Pipeline("p", stage=config)
    flow.source(Numbers(ROWS, partitions=4)).map(note).to(Kept())
    flow.run()
    assert len(workers) == 4


def test_key_by_keeps_the_order_of_each_key_over_several_stages():
    def with_key(chunk):
        keys = pa.array([n * 7919 % 13 for n in chunk["n"].to_pylist()])
        return pa.record_batch({"n": chunk["n"], "partition": keys})

    flow, sink = Pipeline("p"), Kept()
    keyed = flow.source(Numbers(ROWS)).map(with_key).key_by("partition", partitions=5)
    keyed.map(uneven).key_by("partition", partitions=3).map(uneven).to(sink)
    flow.run()
    found = by_partition(sink.chunks)
    assert found == {key: [n for n in range(ROWS) if n * 7919 % 13 == key] for key in range(13)}


def test_rows_of_a_key_meet_one_worker():
    meetings, lock = {}, threading.Lock()

    class Meeting:
        def process(self, chunk):
            with lock:
                for key in chunk["partition"].to_pylist():
                    meetings.setdefault(key, set()).add(id(self))
            return chunk

    flow = Pipeline("p")
    source = Numbers(ROWS, partitions=21)  # not a multiple of the workers
    flow.source(source).key_by("partition", partitions=4).stateful(Meeting).to(Kept())
    flow.run()
    assert len(meetings) == 21
    assert {len(workers) for workers in meetings.values()} == {1}
    assert len({next(iter(workers)) for workers in meetings.values()}) == 4


class Numbering:
    """Checks that it has seen all earlier rows of each partition, also those of former runs."""

    def __init__(self):
        self.seen = {}

    def process(self, chunk):
        for row in chunk.to_pylist():
            partition = int(row["partition"])
            before = [n for n in range(row["n"]) if n // 100 % 5 == partition]
            assert self.seen.get(row["partition"], 0) == len(before)
            self.seen[row["partition"]] = len(before) + 1
        return chunk

    def snapshot(self):
        return json.dumps(self.seen).encode()

    def restore(self, state):
        self.seen = json.loads(state)


def test_state_stays_with_its_source_partitions_over_restarts(tmp_path):
    source = Numbers(0, partitions=5)
    for splits in (3, 4, 8, 13):  # each run begins with another partition
        source.rows = splits * 100
        config = StageConfig(max_workers=3, keep_order=True)
        flow, sink = Pipeline("p", checkpoint=str(tmp_path / "state"), stage=config), Kept()
        flow.source(source).stateful(Numbering).to(sink)
        flow.run()


def test_a_worker_is_never_inside_its_operator_twice_and_stays_on_its_thread():
    class Alone:
        def __init__(self):
            self.threads = {threading.get_ident()}
            self.inside = 0

        def process(self, chunk):
            self.note()
            return chunk

        def flush(self):
            self.note()
            return ()

        def snapshot(self):
            self.note()
            assert len(self.threads) == 1
            return b""

        def restore(self, state):
            self.note()

        def note(self):
            self.inside += 1
            self.threads.add(threading.get_ident())
            threading.Event().wait(0.001)
            assert self.inside == 1
            self.inside -= 1

    flow, sink = Pipeline("p", cut_interval_s=0.1), Kept()
    flow.source(Numbers(ROWS)).key_by("n", partitions=4).stateful(Alone).to(sink)
    assert flow.run().complete
    assert sorted(sink.numbers) == list(range(ROWS))
