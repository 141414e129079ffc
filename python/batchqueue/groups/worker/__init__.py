"""A worker: its threads, and the path of a record through them.

| file | holds |
|---|---|
| `worker.py` | what the user sees; how a worker begins and ends |
| `settings.py` | its settings, and what becomes of records that fail |
| `routes.py` | what handlers get, and which handler gets what |
| `membership.py`, `held.py` | what the threads share, and a partition of it |
| `loops.py`, `handover.py` | the threads |
| `lanes.py` | on the drain threads: decoding, and calls of handlers |
| `tracker.py` | what of a partition is done |
| `load.py` | what partitions cost |
| `metrics.py` | what a worker says about itself |

A record: `loops.read_loop` → `tracker` → `DecodingLane` → `HandlerLane` → the handler → `tracker` →
`loops.commit_loop`.
"""

from batchqueue.groups.worker.metrics import WorkerMetrics, WorkerPartitionMetrics, WorkerSummary
from batchqueue.groups.worker.routes import Batch
from batchqueue.groups.worker.settings import OnGap
from batchqueue.groups.worker.worker import Worker

__all__ = ["Batch", "OnGap", "Worker", "WorkerMetrics", "WorkerPartitionMetrics", "WorkerSummary"]
