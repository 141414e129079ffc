"""A fork while other threads use the bindings for the first time leaves nothing half made.

This holds for the bindings only. pyarrow has its own lazy statics and a lock in each record batch,
which its threads hold without the interpreter, so no thread or child of these tests enters it.
"""

import pytest

from core_support.scripts import run_script

FORKS = """
warnings.simplefilter("ignore")
sys.setswitchinterval(1e-4)
begin = threading.Event()

def use_first():
    begin.wait()
    use()

for _ in range(8):
    threading.Thread(target=use_first, daemon=True).start()
begin.set()
children = []
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        use()
        os._exit(0)
    children.append(pid)
say(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
os._exit(0)
"""

CONVERSIONS = """
import os, signal, sys, threading, warnings
import pyarrow as pa
from batchqueue.aggregation import Aggregation, Aggregator, Count, QuantileBuckets

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

class Exported:
    def __init__(self, batch):
        self.capsules = batch.__arrow_c_array__()
    def __arrow_c_array__(self, requested_schema=None):
        return self.capsules

# Each can be imported once in a process: a thread takes its own, and the forks leave the last.
exported = [Exported(pa.record_batch({"key": [1]})) for _ in range(9)]
sys.modules["pyarrow"] = None  # as if it were not installed

def use():
    aggregation = Aggregation(
        keys=["key"], measures={"n": Count(), "buckets": QuantileBuckets("key")}
    )
    counts = Aggregator(aggregation)
    counts.update(exported.pop())
    counts.update(counts.result())
"""
"""Imports nothing of the package but what it uses: a queue would prepare more."""


@pytest.mark.parametrize("attempt", range(16))
def test_children_convert_arrow_data(attempt):
    exit_code, out, err = run_script(FORKS, header=CONVERSIONS)
    assert exit_code == 0, err
    assert out == [" ".join("0" * 10)]
