"""The arguments and replies of the scripts, the same for every backend.

Server times are in milliseconds since 1970 (`*_ms`). Versions and tokens are microseconds since
1970 or slightly larger; see `batchqueue/groups/README.md`.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Command = Sequence[bytes | str | int]
"""A command that a commit runs."""

Headers = tuple[tuple[str, bytes], ...]


class Entry(NamedTuple):
    """A record as the stream holds it."""

    offset: int
    value: bytes
    key: bytes | None = None
    headers: Headers = ()


PREFIX = "dead-"
"""The prefix of the headers that a dead letter adds."""


def without_origin(headers: Headers) -> Headers:
    """Return the headers of a dead letter that its record had."""
    return tuple(pair for pair in headers if not pair[0].startswith(PREFIX))


class SentRecord(NamedTuple):
    """A record that a commit stores in another topic; see `Batch.send`."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Incarnation(NamedTuple):
    """The order of the sessions of a name: the larger one is newer.

    Attributes:
        process: The server's time in microseconds, which the process read before its first join. It
            never changes, so a process that was replaced cannot evict its successor.
        session: The number of the session within that process, from 1.
    """

    process: int
    session: int


@dataclass(frozen=True, slots=True)
class Member:
    """What a session reports about itself when it joins.

    Attributes:
        name: The name that it takes; a name has at most one session.
        incarnation: Larger than that of each earlier session of the name.
        capacity: The share of the load that it takes, relative to other members.
        host: The host of its process.
        pid: The process id.
        leaving: Whether it has to give up its partitions. `leaving` sets it, and it is never unset.
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
    """The plan was made before a change of members, or names a session that is gone."""

    LATE = "late"
    """A beat or sync with the same or a larger number came first, or a join was under way so long
    that its worker has given it up."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The session is a member.

    Attributes:
        partitions: The number of partitions of the stream. The first member decided it.
        version: The version of the group.
    """

    partitions: int
    version: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """A newer session has the name, so the calling process must end.

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
        member_version: The version to return with the plan.
        force: Whether members have changed; False for a periodic plan.
        partitions: The number of partitions of the stream.
        members: The members, by session.
        last_owner: The name of the last owner, by partition.
        weights: The weights of the last plan, by partition.
        stats: The last report of each member, by session.
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
        version: The version of the group. The worker syncs if it differs from the last sync's.
        next_ms: The time until something may need a beat: the end of another lease, or a plan. The
            worker beats then too, if that is earlier than its next regular beat.
        leaving: Whether the session has to leave.
        ticket: The order to make a plan, or None.
    """

    version: int
    next_ms: int
    leaving: bool
    ticket: Ticket | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """The changes for a session.

    Attributes:
        version: The version of the group.
        partitions: The number of partitions of the stream.
        grants: Partitions that the session owns from now on, with their tokens; to be opened.
        revoked: Partitions to drain and release.
        lost: Partitions that the session held but does not own; to be dropped.
        next_ms: As in `Beaten`: the wake-up that led to this sync may have announced a plan.
    """

    version: int
    partitions: int
    grants: Mapping[int, int]
    revoked: tuple[int, ...]
    lost: tuple[int, ...]
    next_ms: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The partition now takes commits only under this token.

    Attributes:
        offset: The group has done every record up to this offset; reading starts after it.
        done: The number of records up to `offset`, counted from the beginning of the stream.
        end: The offset of the last record that was added, 0 before the first.
        added: The number of records ever added.
        length: The number of records that the stream still holds.
        first: The offset of the first record that it still holds, or None.
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
        token: The token at the fence, to be reported with the next sync.
    """

    token: int


class Commit(enum.Enum):
    """The effect of a commit under the newest token."""

    STORED = "stored"
    """The offset, the dead letters and the effects of the commands are stored."""

    OLD = "old"
    """The offset had been stored before, so nothing was done."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The server refused the call for this partition. Calls for other partitions are unaffected.

    Attributes:
        error: The reason.
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
    """An entry in the history of a group. Each one changes the version, so it wakes the members.

    Attributes:
        kind: What happened.
        version: The new version of the group.
        at_ms: When it happened.
        session: The session that it concerns, or that caused it, or None.
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
    """A call of a script. All other arguments are the same in all calls of a worker.

    Attributes:
        kind: The script.
        session: The calling session.
        sent_ms: When `next_call` returned it; the lease is counted from here (R13).
        member: For a join.
        asked_us: For a join: the server's time, read just before.
        ticket: For a plan: the order to make it.
        member_version: For a plan.
        targets: For a plan; `Control.planned` adds them.
        weights: For a plan; likewise.
        number: For a beat and a sync: larger than all earlier ones of the session.
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
