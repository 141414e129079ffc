"""A pipeline whose source is paused: prints how much the process grew meanwhile, as JSON."""

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
from workload import same

from batchqueue.pipeline import FileSource, FunctionSink, Pipeline


def resident_bytes() -> int:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    """Pause a second after the start, for the seconds that are given."""
    pattern, seconds = sys.argv[1], float(sys.argv[2])
    flow = Pipeline("paused")
    slow = FunctionSink(lambda chunks: time.sleep(0.005))
    flow.source(FileSource(pattern), name="files").map(same).to(slow)
    before = resident_bytes()
    with flow.start() as run:
        time.sleep(1)
        run.pause("files")
        time.sleep(seconds)
        grown = resident_bytes() - before
        held = sum(stage.queue_bytes for stage in run.stats().stages.values())
        run.abandon()
    print(json.dumps({"grown": grown, "held": held, "arrow": pa.total_allocated_bytes()}))


if __name__ == "__main__":
    main()
