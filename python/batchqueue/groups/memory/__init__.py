"""Partition groups in memory: the scripts of the ownership protocol as Python methods.

The rules are in `batchqueue/groups/README.md`.
"""

from batchqueue.groups.memory.group import GroupScripts
from batchqueue.groups.memory.partition import Entry, Fence, PartitionScripts, PartitionState
from batchqueue.groups.memory.state import GroupState, Owner

__all__ = [
    "Entry",
    "Fence",
    "GroupScripts",
    "GroupState",
    "Owner",
    "PartitionScripts",
    "PartitionState",
]
