"""A worker: its threads, and the path of a record through them.

| file | holds |
|---|---|
| `worker.py` | the user's interface; how a worker begins and ends |
| `settings.py` | its settings, and what happens to records that fail |
| `routes.py` | batches, and which handler gets which records |
| `membership.py`, `held.py` | the state that the threads share, and that of a partition |
| `loops.py`, `handover.py` | the threads |
| `lanes.py` | on the drain threads: decoding, and calls of handlers |
| `tracker.py` | which records of a partition are done |
| `load.py` | the cost of partitions |
| `metrics.py` | a worker's reports about itself |

A record: `loops.read_loop` → `tracker` → `DecodingLane` → `HandlerLane` → the handler → `tracker` →
`loops.commit_loop`.
"""

from batchqueue.groups.worker.metrics import WorkerMetrics, WorkerPartitionMetrics, WorkerSummary
from batchqueue.groups.worker.routes import Batch
from batchqueue.groups.worker.settings import OnGap
from batchqueue.groups.worker.worker import Worker

__all__ = ["Batch", "OnGap", "Worker", "WorkerMetrics", "WorkerPartitionMetrics", "WorkerSummary"]
