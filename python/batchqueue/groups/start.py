"""`Start`: where a group that is new to a partition begins."""

import enum


class Start(enum.Enum):
    """Where a group begins in a partition in which it has no position yet.

    The first owner stores the position before it reads, so the choice is made once per group and
    partition. After that the group continues where it was, whatever a worker is given.
    """

    EARLIEST = "earliest"
    """With the oldest record that the partition still has: the group gets all of them. The default.
    """

    LATEST = "latest"
    """With the first record that is added after the first owner has opened the partition.

    Older records are not read by this group.
    """
