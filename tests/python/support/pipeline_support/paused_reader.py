"""Opens a source, reads one batch of its first split, pauses, and prints what that took in memory.

Usage: python -m pipeline_support.paused_reader FILE, where FILE holds a pickled source.
"""

import json
import pickle
import sys
import time
from pathlib import Path

import pyarrow as pa

from batchqueue.pipeline.contract import Limit

PAUSE_S = 3.0
"""Far longer than a scan that reads ahead takes for the whole table."""


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def main(file: str) -> None:
    source = pickle.loads(Path(file).read_bytes())
    source.schema()
    plan = source.plan(source.initial(), Limit(1, 1))
    pa.array([b""])  # pyarrow imports pandas for it, which takes 40 MB
    before = resident_bytes()
    batches = source.read(plan.splits[0])
    batch = next(batches)
    most = 0
    until = time.monotonic() + PAUSE_S
    while time.monotonic() < until:  # what must not happen cannot be waited for
        most = max(most, resident_bytes())
        time.sleep(0.05)
    split_bytes = batch.nbytes + sum(more.nbytes for more in batches)
    print(json.dumps({"before": before, "paused": most, "split": split_bytes}))


if __name__ == "__main__":
    main(sys.argv[1])
