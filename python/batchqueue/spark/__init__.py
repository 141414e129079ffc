"""Spark: an exactly-once sink that aggregates on queues, rows for handlers, a local session.

The way of one micro-batch, from the job to the store:

```text
 DRIVER            job/          what you declare; it pickles
   │               format/       register(...), df.write and writeStream: the job as a data source
   │               writer/       MetricsWriter: the sink for foreachBatch, L1 in Spark SQL, shards
   │
   │ pickled job
   ▼
 TASK              task/         rows become items, L1 merges them, a message takes the partials
   │               stage/        one queue: opened, fed, closed, and its counts
   │
   │ message: partials and counts
   ▼
 COMMIT            commit/       L2 merges the partials of all tasks, one transaction for each epoch
   │               stage/        two queues: L2, and the writer of the store
   ▼
 store             batchqueue.outputs: results, and the ledger of applied epochs
```

The commit runs in a Python process beside the driver for a format, in the driver for
`MetricsWriter`, and in tasks when the sink has shards.

Beside the way stand `handlers/`, rows for handlers of your own, at least once, delivered in the
tasks; `monitoring/`, which reads the ledger; and `local/`, Spark on this machine.
"""

# First: it names a missing package before anything else imports that.
from batchqueue.spark.requirements import MissingPackageError  # isort: split

from batchqueue.spark.errors import DeliveryError, SinkError
from batchqueue.spark.format.registration import register
from batchqueue.spark.handlers.delivery import TaskInfo
from batchqueue.spark.handlers.foreach import for_each_partition, foreach_batch
from batchqueue.spark.handlers.summary import DeliverySummary
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.bad_rows import DeadLetters
from batchqueue.spark.job.steps import ArrowAggregation, ArrowHandler
from batchqueue.spark.job.watermark import Watermark
from batchqueue.spark.local.dry_run import dry_run
from batchqueue.spark.local.java import find_java_home
from batchqueue.spark.local.session import local_session
from batchqueue.spark.monitoring.listener import LedgerListener
from batchqueue.spark.monitoring.progress import show_progress
from batchqueue.spark.monitoring.prometheus import LedgerCollector
from batchqueue.spark.writer.metrics_writer import MetricsWriter

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
