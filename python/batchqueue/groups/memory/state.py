"""`GroupState`: all that a group stores."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from batchqueue.groups.messages import Event, Member

HISTORY = 1_000
"""Events that are kept."""


class Owner(NamedTuple):
    """The session that owns a partition, and the token of its grant."""

    session: str
    token: int


@dataclass
class GroupState:
    """All that a group stores. Only `GroupScripts` changes it, under its lock.

    Attributes:
        partitions: The partitions of the stream, 0 before the first join.
        version: Changes with everything that a member must learn.
        member_version: The version of the last change of members or partitions.
        token: The last token that was granted.
        dirty: Whether members have changed since the last plan.
        since_ms: The first of these changes.
        plan_at_ms: When the changes have settled.
        ticket_ms: When a ticket was given out; None if none is out.
        planned_ms: When the last plan was stored.
        leases: The end of the lease, by session.
        lease_ms: The length of the lease, by session.
        members: What joined, by session; the same sessions as in `leases`.
        owners: The owners of partitions.
        targets: The sessions that are to own the partitions.
        last_owner: The names of the last owners: a name keeps its partitions across sessions.
        weights: Those of the last plan: the partitions of a dead member keep theirs.
        stats: What the members reported last.
        numbers: The number of the last beat or sync, by session.
        events: The history.
    """

    partitions: int = 0
    version: int = 0
    member_version: int = 0
    token: int = 0
    dirty: bool = False
    since_ms: int = 0
    plan_at_ms: int = 0
    ticket_ms: int | None = None
    planned_ms: int = 0
    leases: dict[str, int] = field(default_factory=dict)
    lease_ms: dict[str, int] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    owners: dict[int, Owner] = field(default_factory=dict)
    targets: dict[int, str] = field(default_factory=dict)
    last_owner: dict[int, str] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    stats: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=HISTORY))
