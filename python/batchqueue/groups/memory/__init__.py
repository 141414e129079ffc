"""Partition groups in memory: the scripts of the ownership protocol as Python methods.

The rules are in `batchqueue/groups/README.md`.
"""

from batchqueue.groups.memory.group import GroupScripts
from batchqueue.groups.memory.partition import FenceState, PartitionScripts, PartitionState
from batchqueue.groups.memory.state import GroupState, Owner

__all__ = [
    "FenceState",
    "GroupScripts",
    "GroupState",
    "Owner",
    "PartitionScripts",
    "PartitionState",
]
