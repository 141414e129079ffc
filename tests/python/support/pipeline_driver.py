"""A driver that runs a pipeline on Spark until all rows are stored, unless it is killed before.

Usage: pipeline_driver.py FOLDER STOP

FOLDER/source.pickle holds a source of numbers in a column `id`; the checkpoint, the store and the
notes are in that folder as well. The task that comes to number STOP notes so in FOLDER/stopped, and
continues when FOLDER/killed exists: until then its epoch cannot end.
"""

import pickle
import sys
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle

import spark_support
from batchqueue.outputs import SqliteStore
from batchqueue.pipeline import MetricsSink, Pipeline, Source
from batchqueue.spark import local_session
from spark_support.numbered_rows import BY_CITY, ORDERS, REVENUE, HalfAndHalf, revenue, rows_with
from spark_support.waits import wait_until

EPOCH_ROWS = 2_000
"""The most rows of an epoch."""


class StopsAt:
    """Makes the rows of numbers, and stops at one of them."""

    def __init__(self, folder: Path, stop: int) -> None:
        self.folder, self.stop = folder, stop

    def __call__(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        ids = chunk["id"].to_pylist()
        if self.stop in ids and not (self.folder / "killed").exists():
            (self.folder / "stopped").touch()
            wait_until((self.folder / "killed").exists)
        return rows_with(ids)


def store_of(folder: Path) -> SqliteStore:
    """The store that the driver writes to."""
    return SqliteStore(folder / "metrics.db")


def pipeline(folder: Path, stop: int) -> Pipeline:
    """The pipeline of the driver."""
    source: Source = pickle.loads((folder / "source.pickle").read_bytes())
    sink = MetricsSink(store_of(folder), revenue, sink_id="shop", metrics=[ORDERS, REVENUE])
    flow = Pipeline("revenue", checkpoint=str(folder / "state"))
    rows = flow.source(source).map(StopsAt(folder, stop)).map(HalfAndHalf())
    rows.key_by("city").aggregate(BY_CITY).to(sink)
    return flow


OPTIONS = {"first_epoch_rows": 500, "max_epoch_rows": EPOCH_ROWS}

if __name__ == "__main__":
    cloudpickle.register_pickle_by_value(spark_support)
    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    spark = local_session("driver", "local[2,4]")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    pipeline(Path(sys.argv[1]), int(sys.argv[2])).on_spark(spark, **OPTIONS).run()
    spark.stop()
