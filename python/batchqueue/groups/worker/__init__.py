"""A worker: its threads, and the way of a record through them.

| file | holds |
|---|---|
| `worker.py`, `settings.py` | what the user sees |
| `starting.py`, `leaving.py`, `process.py` | how a worker begins and ends; signals |
| `batch.py`, `routes.py` | what handlers get, and which handler gets what |
| `membership.py`, `held.py` | what the threads share, and a partition of it |
| `loops.py`, `handover.py` | the threads |
| `lanes.py`, `turns.py`, `decoding.py`, `handling.py`, `runs.py` | on the drain threads |
| `attempts.py`, `failures.py`, `letters.py`, `gaps.py` | records that fail, or are missing |
| `load.py`, `skew.py` | what partitions cost, and which lag behind |
| `metrics.py`, `summary.py`, `notes.py` | what a worker says about itself |

A record: `loops.read_loop` → `tracker` → `DecodingLane` → `HandlerLane` → the handler → `tracker` →
`loops.commit_loop`.
"""

from batchqueue.groups.worker.metrics import PartitionMetrics, WorkerMetrics, WorkerSummary
from batchqueue.groups.worker.routes import Batch
from batchqueue.groups.worker.settings import OnGap
from batchqueue.groups.worker.worker import Worker

__all__ = ["Batch", "OnGap", "PartitionMetrics", "Worker", "WorkerMetrics", "WorkerSummary"]
