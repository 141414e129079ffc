"""A pipeline with state and two transactional sinks, which can be ended at any step of a cut.

Run as a program, it kills its process there: `-m pipeline_support.crashing DIRECTORY STEP CUT`,
where CUT counts the cuts of this process from 1; without a step it runs to the end.
"""

import os
import pickle
import signal
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from batchqueue.aggregation import SumMetrics, metric_type
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import FunctionSink, MetricsSink, Pipeline
from batchqueue.pipeline.runner import PipelineRun
from batchqueue.pipeline.runner.cuts import Cutter
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Ledger

ROWS = 3_000
KEYS = 5
TOTALS = metric_type("totals", SumMetrics, columns={"total": int})
STEPS = [
    "hold",
    "positions",
    "flush key_by(key)",
    "flush ledger",
    "flush metrics",
    "snapshots",
    "store",
    "commit ledger",
    "commit metrics",
    "release",
]


def each_step(on_step):
    """Calls a function after each step of each cut inside the block, with the name of the step."""
    return patch.object(Cutter, "_on_step", staticmethod(on_step))


class Running:
    """Numbers the rows of each key, and keeps the last row back until the next flush."""

    def __init__(self):
        self.seen = {}
        self.last = None

    def process(self, chunk):
        rows = []
        for row in chunk.to_pylist():
            seen = self.seen.get(row["key"], 0)
            self.seen[row["key"]] = seen + 1
            rows.append({"n": row["n"] * 1_000_000 + seen, "key": row["key"]})
        if self.last is not None:
            rows.insert(0, self.last)
        self.last = rows.pop()
        return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)

    def flush(self):
        if self.last is not None:
            yield pa.RecordBatch.from_pylist([self.last], schema=SCHEMA)
            self.last = None

    def snapshot(self):
        return pickle.dumps(self.seen)

    def restore(self, state):
        self.seen = pickle.loads(state)


SCHEMA = pa.schema({"n": pa.int64(), "key": pa.int64()})


def with_key(chunk):
    keys = pa.array([n % KEYS for n in chunk["n"].to_pylist()])
    return pa.record_batch({"n": chunk["n"], "key": keys})


def to_metrics(chunk):
    for row in chunk.to_pylist():
        yield TOTALS(str(row["key"]), 0, row["n"])


def ledger(directory):
    return Ledger(Path(directory) / "ledger.db")


def pipeline(directory, seconds_per_write=0.0, interval_s=0.1):
    flow = Pipeline("p", checkpoint=f"{directory}/state", cut_interval_s=interval_s)
    numbers = flow.source(Numbers(ROWS, split_rows=50, partitions=3)).map(with_key)
    keyed = numbers.key_by("key", partitions=2).stateful(Running)
    keyed.to(ledger(directory), name="ledger")
    store = SqliteStore(f"{directory}/metrics.db")
    keyed.to(MetricsSink(store, to_metrics), name="metrics")
    keyed.to(FunctionSink(lambda chunks: time.sleep(seconds_per_write)), name="slow")
    return flow


def check(directory):
    """Compares what the sinks have with what follows from the numbers alone."""
    expected = [n * 1_000_000 + n // KEYS for n in range(ROWS)]
    assert ledger(directory).numbers == expected
    totals = {str(key): 0 for key in range(KEYS)}
    for n, value in enumerate(expected):
        totals[str(n % KEYS)] += value
    stored = SqliteStore(f"{directory}/metrics.db").read(TOTALS)
    assert {each.entity: each.total for each in stored} == totals


def main(directory, step=None, cut="0"):
    seen = []

    def on_step(name):
        if name == step:
            seen.append(name)
            if len(seen) == int(cut):
                os.kill(os.getpid(), signal.SIGKILL)

    with each_step(on_step):
        run = PipelineRun(pipeline(directory, seconds_per_write=0.02).settings)
        assert run.wait().complete


if __name__ == "__main__":
    main(*sys.argv[1:])
