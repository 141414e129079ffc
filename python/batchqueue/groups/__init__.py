"""Partitions of a stream that workers share across processes.

| file | holds |
|---|---|
| `plan.py` | which worker owns which partition |
| `control.py` | the worker's side of the ownership protocol; `README.md` has its rules |
| `messages.py` | its calls and their replies |
| `backend.py` | the interface of backends |
| `memory.py`, `redis/` | backends, with the group's side of the protocol |
| `kafka/` | a backend whose broker decides who owns what |
| `worker/` | workers |
| `producer.py` | producers |
| `monitor.py`, `prometheus.py` | the state of a group, for users and Prometheus |
| `skew.py` | partitions that lag behind the others |
| `record.py` | records and their codecs, offsets, and where a group starts |
| `sinks.py` | sinks that store nothing twice, and nothing from a former owner |
| `errors.py` | errors |
"""

from batchqueue.groups.errors import (
    CallRefusedError,
    CodecError,
    HandlerFailedError,
    KafkaRefusedError,
    OffsetError,
    RecordTooLargeError,
    ReplacedError,
    StaleTokenError,
    StreamFullError,
    StreamUnavailableError,
    TruncatedError,
    UnhandledRecordError,
)
from batchqueue.groups.kafka import KafkaStreams
from batchqueue.groups.memory import ManualClock, MemoryStreams
from batchqueue.groups.monitor import GroupMetrics, GroupMonitor
from batchqueue.groups.plan import GroupBalancer
from batchqueue.groups.producer import Producer
from batchqueue.groups.record import (
    Assignment,
    Codec,
    Record,
    Start,
    codec_of,
    group_id,
    partition_count,
)
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
    "KafkaRefusedError",
    "KafkaStreams",
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
