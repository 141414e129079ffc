"""Spark: an exactly-once sink that aggregates on queues, rows for handlers, a local session.

The path of one micro-batch, from the job to the store:

```text
 DRIVER            job, steps    what you declare; it pickles
   │               driver/       register(...), df.write and writeStream: the job as a data source;
   │                             MetricsWriter: the sink for foreachBatch, L1 in Spark SQL, shards
   │
   │ pickled job
   ▼
 TASK              task/         rows become items, L1 merges them, a message takes the partials
   │               stage         one queue: opened, fed, closed, and its counts
   │
   │ message: partials and counts
   ▼
 COMMIT            commit/       L2 merges the partials of all tasks, one transaction for each epoch
   │               stage         two queues: L2, and the writer of the store
   ▼
 store             batchqueue.outputs: results, and the ledger of applied epochs
```

With a format the commit runs in a Python process beside the driver, with `MetricsWriter` in the
driver, and in tasks when the sink has shards.

The other modules of `driver/` are `handlers`, which delivers rows to handlers of your own, at least
once, in the tasks; `progress` and `prometheus`, which read the ledger; and `local`, which runs
Spark on this machine.
"""

# First: names a missing package before another import fails on it.
from batchqueue.spark.requirements import MissingPackageError  # isort: split

from batchqueue.spark.driver.handlers import (
    DeliverySummary,
    TaskInfo,
    for_each_partition,
    foreach_batch,
)
from batchqueue.spark.driver.local import dry_run, find_java_home, local_session
from batchqueue.spark.driver.metrics_writer import MetricsWriter
from batchqueue.spark.driver.progress import LedgerListener, show_progress
from batchqueue.spark.driver.prometheus import LedgerCollector
from batchqueue.spark.driver.registration import register
from batchqueue.spark.job import AggregationJob, DeadLetters, Watermark
from batchqueue.spark.requirements import DeliveryError, SinkError
from batchqueue.spark.steps import ArrowAggregation, ArrowHandler

__all__ = [
    "AggregationJob",
    "ArrowAggregation",
    "ArrowHandler",
    "DeadLetters",
    "DeliveryError",
    "DeliverySummary",
    "LedgerCollector",
    "LedgerListener",
    "MetricsWriter",
    "MissingPackageError",
    "SinkError",
    "TaskInfo",
    "Watermark",
    "dry_run",
    "find_java_home",
    "for_each_partition",
    "foreach_batch",
    "local_session",
    "register",
    "show_progress",
]
