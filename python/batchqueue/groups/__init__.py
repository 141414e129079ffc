"""Partitions of a stream that workers share across processes.

| file | holds |
|---|---|
| `plan.py`, `balancer.py` | which worker owns which partition |
| `control.py` | the worker's side of the ownership protocol; `README.md` has its rules |
| `messages.py`, `orders.py` | its calls and their replies; what its driver does |
| `memory/` | the group's side, in memory |
| `tracker.py` | what of a partition is done |
| `count.py` | how many partitions; names of groups |
| `skew.py` | partitions that lag behind the others |
| `record.py`, `codecs.py`, `offsets.py` | records, and what they are made of |
| `failure.py`, `start.py` | what a worker does with what fails, and where it starts |
| `fence.py` | sinks that take nothing twice, and nothing from a former owner |
| `errors.py` | errors |
"""

from batchqueue.groups.balancer import GroupBalancer
from batchqueue.groups.codecs import Codec, codec_of
from batchqueue.groups.count import group_id, partition_count
from batchqueue.groups.errors import (
    CodecError,
    HandlerFailedError,
    OffsetError,
    RecordTooLargeError,
    ReplacedError,
    StaleTokenError,
    StreamFullError,
    StreamUnavailableError,
    TruncatedError,
)
from batchqueue.groups.failure import OnFailure
from batchqueue.groups.fence import Fence
from batchqueue.groups.record import Assignment, Record
from batchqueue.groups.skew import SkewDetectionConfig, SkewDetector, skew_report
from batchqueue.groups.start import Start

__all__ = [
    "Assignment",
    "Codec",
    "CodecError",
    "Fence",
    "GroupBalancer",
    "HandlerFailedError",
    "OffsetError",
    "OnFailure",
    "Record",
    "RecordTooLargeError",
    "ReplacedError",
    "SkewDetectionConfig",
    "SkewDetector",
    "StaleTokenError",
    "Start",
    "StreamFullError",
    "StreamUnavailableError",
    "TruncatedError",
    "codec_of",
    "group_id",
    "partition_count",
    "skew_report",
]
