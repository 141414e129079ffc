"""Partition groups in memory: the scripts of the ownership protocol as Python methods.

The rules are in `batchqueue/groups/README.md`.
"""

from batchqueue.groups.memory.clock import ManualClock
from batchqueue.groups.memory.group import GroupScripts
from batchqueue.groups.memory.partition import FenceState, PartitionScripts, PartitionState
from batchqueue.groups.memory.state import GroupState, Owner
from batchqueue.groups.memory.streams import MemoryStreams

__all__ = [
    "FenceState",
    "GroupScripts",
    "GroupState",
    "ManualClock",
    "MemoryStreams",
    "Owner",
    "PartitionScripts",
    "PartitionState",
]
