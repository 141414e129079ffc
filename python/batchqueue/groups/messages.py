"""What the scripts take and return, in every backend: one control side drives all of them.

Times of the server are in milliseconds since 1970 (`*_ms`). Versions and tokens are microseconds
since 1970 or a little more, see `batchqueue/groups/README.md`.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Command = Sequence[bytes | str | int]
"""A command that a commit runs."""


class Entry(NamedTuple):
    """A record as the stream holds it."""

    offset: int
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Incarnation(NamedTuple):
    """Which of two sessions of a name is the newer one: the larger.

    Attributes:
        process: The time of the server, in microseconds, that the process read before its first
            join. It never changes, so a process that was replaced cannot evict its successor.
        session: The number of the session in that process, from 1.
    """

    process: int
    session: int


@dataclass(frozen=True, slots=True)
class Member:
    """What a session reports about itself when it joins.

    Attributes:
        name: The seat that it takes: a name has at most one session.
        incarnation: Larger than that of each earlier session of the name.
        capacity: The share of the load that it takes, relative to other members.
        host: The host of its process.
        pid: The process id.
        leaving: Whether it is to give up its partitions. `leaving` sets it, and it is never unset.
    """

    name: str
    incarnation: Incarnation
    capacity: float = 1.0
    host: str = ""
    pid: int = 0
    leaving: bool = False


class Refusal(enum.Enum):
    """Why a script did nothing."""

    UNKNOWN = "unknown"
    """The session is not a member: its lease is over, or it left or was replaced."""

    STALE = "stale"
    """The plan was made for members that have changed since, or names a session that is gone."""

    LATE = "late"
    """A beat or sync of the session with a larger number was here first, or the same; or a join was
    under way for so long that its worker has given it up."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The session is a member.

    Attributes:
        partitions: The partitions of the stream. The first member of all decided how many.
        version: The version of the group.
    """

    partitions: int
    version: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """A newer session has the name: the process that asks must end.

    Attributes:
        host: The host of the newer session.
        pid: The process id of the newer session.
    """

    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """The order to make a plan. No other member gets one for half a second.

    Attributes:
        member_version: To be returned with the plan.
        force: Whether members have changed, False for a periodic plan.
        partitions: The partitions of the stream.
        members: The members, by session.
        last_owner: The name of the last owner, by partition.
        weights: The weights of the last plan, by partition.
        stats: What the members reported last, by session.
    """

    member_version: int
    force: bool
    partitions: int
    members: Mapping[str, Member]
    last_owner: Mapping[int, str]
    weights: Mapping[int, float]
    stats: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Beaten:
    """The lease was renewed.

    Attributes:
        version: The version of the group. If it differs from that of the last sync, sync.
        next_ms: The time until something may be due that needs a beat: the end of another lease, or
            a plan. Beat then too, if it is earlier than the next regular beat.
        leaving: Whether the session is to leave.
        ticket: The order to make a plan, or None.
    """

    version: int
    next_ms: int
    leaving: bool
    ticket: Ticket | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """What changes for a session.

    Attributes:
        version: The version of the group.
        partitions: The partitions of the stream.
        grants: Partitions that the session owns from now on, with their tokens: open them.
        revoked: Partitions to drain and to release.
        lost: Partitions that the session held and does not own: drop them.
        next_ms: As in `Beaten`: the wake-up that led to this sync may have been about a plan.
    """

    version: int
    partitions: int
    grants: Mapping[int, int]
    revoked: tuple[int, ...]
    lost: tuple[int, ...]
    next_ms: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The partition takes commits under this token only.

    Attributes:
        offset: The offset up to which the group has everything done; read after it.
        done: The number of records up to there, counted from the beginning of the stream.
        end: The offset of the last record that was added, 0 before the first.
        added: The number of records that were ever added.
        length: The number of records that the stream still holds.
        first: The offset of the first of these, or None.
    """

    offset: int
    done: int
    end: int
    added: int
    length: int
    first: int | None


@dataclass(frozen=True, slots=True)
class Fenced:
    """The fence belongs to another token or session, so nothing was stored.

    Attributes:
        token: The token at the fence. Report it with the next sync.
    """

    token: int


class Commit(enum.Enum):
    """What a commit under the newest token did."""

    STORED = "stored"
    """The offset, the dead letters and the effects of the commands are stored."""

    OLD = "old"
    """The offset was stored before, so nothing was done."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The server refused the call for this partition. Those for other partitions are unaffected.

    Attributes:
        error: Why.
        ran: For a commit: the number of its commands that ran, all before the one that failed.
    """

    error: Exception
    ran: int = 0


class EventKind(enum.Enum):
    """What happened in a group."""

    JOIN = "join"
    LEAVING = "leaving"
    LEFT = "left"
    DEAD = "dead"
    REPLACED = "replaced"
    PLAN = "plan"
    FREE = "free"
    RESIZE = "resize"


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the history of a group. Each one changes the version, so it wakes the members.

    Attributes:
        kind: What happened.
        version: The version of the group from then on.
        at_ms: When it happened.
        session: The session that it happened to or that did it, or None.
        name: The name of that session, or None.
        partitions: The partitions that were freed or whose targets changed.
    """

    kind: EventKind
    version: int
    at_ms: int
    session: str | None = None
    name: str | None = None
    partitions: tuple[int, ...] = ()


class CallKind(enum.Enum):
    """The scripts that a worker calls; `TIME` reads the clock of the server."""

    TIME = "time"
    JOIN = "join"
    BEAT = "beat"
    PLAN = "plan"
    SYNC = "sync"
    RELEASE = "release"
    LEAVING = "leaving"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of a script. What it takes besides these is the same in all calls of a worker.

    Attributes:
        kind: The script.
        session: The session that asks.
        sent_ms: When `next_call` returned it: the lease is reckoned from here (R13).
        member: For a join.
        asked_us: For a join: the time of the server that was read just before.
        ticket: For a plan: the order to make it.
        member_version: For a plan.
        targets: For a plan; `Control.planned` adds them.
        weights: For a plan; likewise.
        number: For a beat and a sync: larger than all before in the session.
        seen: For a sync.
        held: For a sync: the token by partition.
        released: For a release: pairs of a partition and its token.
    """

    kind: CallKind
    session: str
    sent_ms: float
    member: Member | None = None
    asked_us: int = 0
    ticket: Ticket | None = None
    member_version: int = 0
    targets: Mapping[int, str] | None = None
    weights: Mapping[int, float] | None = None
    number: int = 0
    seen: int = 0
    held: Mapping[int, int] | None = None
    released: tuple[tuple[int, int], ...] = ()


Reply = Joined | Replaced | Beaten | Synced | Refusal | int
