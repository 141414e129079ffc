"""Partitions of a stream that workers share across processes.

| file | holds |
|---|---|
| `plan.py`, `balancer.py` | which worker owns which partition |
| `control.py` | the worker's side of the ownership protocol; `README.md` has its rules |
| `messages.py`, `orders.py` | its calls and their replies; what its driver does |
| `backend.py`, `perform.py` | what a worker needs of a backend; from its calls to scripts |
| `memory/`, `redis/` | backends, with the group's side of the protocol |
| `worker/` | workers |
| `producer.py` | producers |
| `monitor.py`, `prometheus.py` | what a group does |
| `tracker.py` | what of a partition is done |
| `count.py` | how many partitions; names of groups |
| `skew.py` | partitions that lag behind the others |
| `record.py`, `codecs.py`, `offsets.py` | records, and what they are made of |
| `failure.py`, `start.py` | what a worker does with what fails, and where it starts |
| `fence.py` | sinks that take nothing twice, and nothing from a former owner |
| `metrics_sink.py` | the same for metrics in a store |
| `sink_l1.py` | what makes metrics of records |
| `errors.py` | errors |
"""

from batchqueue.groups.errors import (
    CallRefusedError,
    CodecError,
    HandlerFailedError,
    OffsetError,
    RecordTooLargeError,
    ReplacedError,
    StaleTokenError,
    StreamFullError,
    StreamUnavailableError,
    TruncatedError,
    UnhandledRecordError,
)
from batchqueue.groups.memory import ManualClock, MemoryStreams
from batchqueue.groups.monitor import GroupMetrics, GroupMonitor
from batchqueue.groups.plan import GroupBalancer
from batchqueue.groups.producer import Codec, Producer, codec_of
from batchqueue.groups.record import Assignment, Record, Start, group_id, partition_count
from batchqueue.groups.redis import RedisStreams
from batchqueue.groups.sinks import Fence, MetricsSink
from batchqueue.groups.skew import SkewDetectionConfig, SkewDetector, skew_report
from batchqueue.groups.worker import Batch, OnGap, Worker, WorkerMetrics, WorkerSummary
from batchqueue.groups.worker.settings import OnFailure

__all__ = [
    "Assignment",
    "Batch",
    "CallRefusedError",
    "Codec",
    "CodecError",
    "Fence",
    "GroupBalancer",
    "GroupMetrics",
    "GroupMonitor",
    "HandlerFailedError",
    "ManualClock",
    "MemoryStreams",
    "MetricsSink",
    "OffsetError",
    "OnFailure",
    "OnGap",
    "Producer",
    "Record",
    "RecordTooLargeError",
    "RedisStreams",
    "ReplacedError",
    "SkewDetectionConfig",
    "SkewDetector",
    "StaleTokenError",
    "Start",
    "StreamFullError",
    "StreamUnavailableError",
    "TruncatedError",
    "UnhandledRecordError",
    "Worker",
    "WorkerMetrics",
    "WorkerSummary",
    "codec_of",
    "group_id",
    "partition_count",
    "skew_report",
]
