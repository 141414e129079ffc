"""A driver that runs a pipeline on Spark until all rows are stored, unless it is killed before.

Usage: driver.py CHECKPOINT STORE ROWS NOTES
"""

import sys
from pathlib import Path

from pyspark import cloudpickle

import spark_support
from batchqueue.outputs import SqliteStore
from batchqueue.spark import local_session
from spark_support.numbered_rows import NumberedRows, into_store

if __name__ == "__main__":
    checkpoint, store, rows, notes = sys.argv[1:]
    cloudpickle.register_pickle_by_value(spark_support)
    spark = local_session("driver", "local[2,4]")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    source = NumberedRows(int(rows), notes=Path(notes))
    flow = into_store(source, SqliteStore(store))
    flow.on_spark(spark, checkpoint=checkpoint, first_epoch_rows=500, max_epoch_rows=2000).run()
    spark.stop()
