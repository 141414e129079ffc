"""Copies a source until it ends, slowly enough to be killed in between.

Usage: python -m pipeline_support.table_copy FOLDER, where FOLDER/source.pickle holds the source.
The sink is in FOLDER/sink.pickle; without that, rows are copied into the files of FOLDER/copy.
"""

import pickle
import sys
import time
from pathlib import Path

import pyarrow as pa

from batchqueue.pipeline import FileSink, Pipeline


def slowly(chunk: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.02)
    return chunk


def main(folder: str) -> None:
    source = pickle.loads(Path(folder, "source.pickle").read_bytes())
    given = Path(folder, "sink.pickle")
    sink = pickle.loads(given.read_bytes()) if given.exists() else FileSink(f"{folder}/copy")
    copy = Pipeline("copy", checkpoint=f"{folder}/state", cut_interval_s=0.1)
    copy.source(source, name="table").map(slowly).to(sink)
    copy.run()


if __name__ == "__main__":
    main(sys.argv[1])
