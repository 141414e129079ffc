"""Partition groups in memory: the scripts of the ownership protocol as Python methods.

The rules are in `batchqueue/groups/README.md`.
"""

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from batchqueue.exceptions import BatchQueueError
from batchqueue.groups.backend import (
    Behind,
    CommitRequest,
    Fetch,
    Fetched,
    GroupInfo,
    MemberInfo,
    NewRecord,
    Opening,
    PartitionInfo,
    Redriven,
    SetAside,
    Unreadable,
    redrive,
)
from batchqueue.groups.control import BEATS_PER_LEASE, Control, perform
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.messages import (
    Beaten,
    Call,
    Command,
    Commit,
    Entry,
    Event,
    EventKind,
    Failed,
    Fenced,
    Joined,
    Member,
    Opened,
    Refusal,
    Replaced,
    Reply,
    Synced,
    Ticket,
)
from batchqueue.groups.producer import Key, Producer
from batchqueue.groups.record import (
    SEQUENCE_BITS,
    Decode,
    Record,
    Start,
    check_name,
    check_partitions,
    partition_count,
)

__all__ = [
    "FenceState",
    "GroupScripts",
    "GroupState",
    "ManualClock",
    "MemoryPartitionState",
    "MemoryStreams",
    "Owner",
    "PartitionScripts",
]


# `GroupScripts`: which session should own which partition. The rules are in `groups/README.md`.


SETTLE_MS = 50
"""The delay of a plan after the last join or leave: several of them need only one plan."""

LONGEST_SETTLE_MS = 500
"""The longest delay of a plan after the first join or leave."""

TICKET_MS = 500
"""The time that a member has to make a plan before another member may."""

LATE_SHARE = 4
"""A worker gives up on a call after this share of its lease, so a later join is refused."""


class GroupScripts:
    """The scripts of a group in memory. Each method is atomic, and safe to run late or twice.

    Attributes:
        state: What the group stores.
    """

    def __init__(self, clock: Callable[[], int], *, rebalance_ms: int = 30_000) -> None:
        """Start without members.

        Args:
            clock: Returns microseconds since 1970. It may be set back.
            rebalance_ms: The time between two plans while members do not change. Default: 30 s.
        """
        self.state = GroupState()
        self._clock = clock
        self._rebalance_ms = rebalance_ms
        self._changed = threading.Condition()

    def time(self) -> int:
        """Return the server's time in microseconds, used as the incarnation of a process."""
        return self._clock()

    def join(
        self, session: str, lease_ms: int, member: Member, partitions: int, *, asked_us: int
    ) -> Joined | Replaced | Refusal:
        """Make a session a member. An older session with the same name is removed.

        Args:
            session: The session, unique among all.
            lease_ms: How long it stays a member without a beat.
            member: The session's report about itself.
            partitions: The number of partitions of the stream, if the group has had no member yet.
            asked_us: The server's time, read just before.
        """
        with self._changed:
            now = self._expire()
            if self._is_late_join(lease_ms, asked_us):
                return Refusal.LATE
            for other, there in list(self.state.members.items()):
                if there.name != member.name or other == session:
                    continue
                if self._is_older(member, there):
                    return Replaced(there.host, there.pid)
                self._remove(other, EventKind.REPLACED, now)
            if session not in self.state.members:
                self.state.members[session] = member
                self.state.partitions = self.state.partitions or partitions
                self._change_members(EventKind.JOIN, now, session)
            self._renew(session, lease_ms, now)
            return Joined(self.state.partitions, self.state.version)

    def beat(self, session: str, number: int, lease_ms: int, stats: str = "") -> Beaten | Refusal:
        """Renew the lease of a member, and hand it a ticket if a plan is due.

        Args:
            session: The session.
            number: Larger than the number of every earlier beat and sync of the session.
            lease_ms: How long it stays a member without another beat.
            stats: Its report for the member that plans next, and for monitors.
        """
        with self._changed:
            now, state = self._expire(), self.state
            if refusal := self._refuse(session, number):
                return refusal
            self._renew(session, lease_ms, now)
            state.stats[session] = stats
            ticket = None
            if self._plan_in_ms(now) == 0:
                state.ticket_ms = now
                ticket = Ticket(
                    state.member_version,
                    state.dirty,
                    state.partitions,
                    dict(state.members),
                    dict(state.last_owner),
                    dict(state.weights),
                    dict(state.stats),
                )
            leaving = state.members[session].leaving
            return Beaten(state.version, self._next_ms(session, now), leaving, ticket)

    def plan(
        self,
        session: str,
        member_version: int,
        targets: Mapping[int, str],
        weights: Mapping[int, float] | None = None,
    ) -> int | Refusal:
        """Store the targets that a member planned, and return how many of them changed.

        Args:
            session: The session that planned.
            member_version: The member version of its ticket.
            targets: The assigned session, by partition.
            weights: The weights that the plan was based on, for the next plan.
        """
        with self._changed:
            now = self._now_ms()
            if not self._is_current(member_version, targets):
                return Refusal.STALE
            before, wanted = self.state.targets, dict(targets)
            moved = [p for p in sorted(before | wanted) if before.get(p) != wanted.get(p)]
            self.state.targets, self.state.weights = wanted, dict(weights or {})
            self.state.dirty, self.state.ticket_ms, self.state.planned_ms = False, None, now
            if moved:
                self._wake(EventKind.PLAN, now, session, moved)
            return len(moved)

    def sync(
        self, session: str, number: int, seen: int, held: Mapping[int, int]
    ) -> Synced | Refusal:
        """Compare what a session holds with what it owns and is assigned.

        Args:
            session: The session.
            number: Larger than the number of every earlier beat and sync of the session.
            seen: The largest token that refused a token of the worker, or 0; new tokens are larger.
            held: The tokens of the partitions that it holds, without released ones.
        """
        with self._changed:
            now, state = self._expire(), self.state
            if refusal := self._refuse(session, number):
                return refusal
            grants, revoked, freed = {}, [], []
            lost = [p for p, token in held.items() if state.owners.get(p) != (session, token)]
            for partition in range(state.partitions):
                owner = state.owners.get(partition)
                wanted = self._is_target(session, partition)
                if owner is not None and owner.session != session:
                    continue
                if owner is not None and held.get(partition) == owner.token:
                    if self._is_revoked(session, partition):
                        revoked.append(partition)
                elif wanted:
                    grants[partition] = self._grant(session, partition, seen)
                elif owner is not None:
                    freed.append(partition)
            self._free(freed, now, session)
            return Synced(
                state.version,
                state.partitions,
                grants,
                tuple(revoked),
                tuple(sorted(lost)),
                self._next_ms(session, now),
            )

    def release(self, session: str, released: Iterable[tuple[int, int]]) -> int:
        """Give up partitions, and return how many of them the session owned.

        Args:
            session: The session.
            released: Pairs of a partition and its token, whose commits have been acknowledged.
        """
        with self._changed:
            owned = [p for p, token in released if self.state.owners.get(p) == (session, token)]
            self._free(owned, self._now_ms(), session)
            return len(owned)

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions, and return the new number."""
        with self._changed:
            if partitions > self.state.partitions:
                self.state.partitions = partitions
                self._change_members(EventKind.RESIZE, self._now_ms(), None)
            return self.state.partitions

    def leaving(self, session: str) -> int | Refusal:
        """Begin to leave: all partitions are revoked. Return how many the session still owns."""
        with self._changed:
            if not self._is_member(session):
                return Refusal.UNKNOWN
            member = self.state.members[session]
            if not member.leaving:
                self.state.members[session] = replace(member, leaving=True)
                self._change_members(EventKind.LEAVING, self._now_ms(), session)
            return len(self._owned(session))

    def leave(self, session: str) -> int:
        """Remove a session, and return how many partitions it still owned."""
        with self._changed:
            if not self._is_member(session):
                return 0
            owned = len(self._owned(session))
            self._remove(session, EventKind.LEFT, self._now_ms())
            return owned

    def info(self) -> GroupInfo:
        """Return the members of the group, and the owners of its partitions."""
        with self._changed:
            now, state = self._expire(), self.state
            members = {
                session: MemberInfo(
                    member, state.leases[session] - now, state.stats.get(session, "")
                )
                for session, member in state.members.items()
            }
            owners = {partition: owner.session for partition, owner in state.owners.items()}
            targets, last = dict(state.targets), dict(state.last_owner)
            return GroupInfo(state.version, members, owners, targets, last)

    def history(self, after: int = 0) -> list[Event]:
        """Return the events whose version is larger than `after`."""
        with self._changed:
            return [event for event in self.state.events if event.version > after]

    def wait(
        self, version: int, timeout_s: float, is_over: Callable[[], bool] = lambda: False
    ) -> int:
        """Wait until the version differs from `version`, and return it.

        Args:
            version: The version that is known.
            timeout_s: The longest wait, in the operating system's time, whatever the clock is.
            is_over: Whether to stop waiting; called again after `notify`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.state.version != version or is_over(), timeout_s)
            return self.state.version

    def notify(self) -> None:
        """Make waiting threads call `is_over` again."""
        with self._changed:
            self._changed.notify_all()

    def _now_ms(self) -> int:
        return self._clock() // 1_000

    def _next(self, last: int) -> int:
        """A number above all earlier ones, including those that the server has forgotten (R2)."""
        return max(last + 1, self._clock())

    def _is_member(self, session: str) -> bool:
        return session in self.state.leases

    def _is_late_join(self, lease_ms: int, asked_us: int) -> bool:
        return self._clock() - asked_us > lease_ms * 1_000 // LATE_SHARE  # R6

    def _is_older(self, member: Member, there: Member) -> bool:
        return there.incarnation >= member.incarnation  # R6

    def _refuse(self, session: str, number: int) -> Refusal | None:
        """Return why a beat or sync does nothing; otherwise record its number."""
        if not self._is_member(session):
            return Refusal.UNKNOWN
        if self._is_late(session, number):
            return Refusal.LATE
        self.state.numbers[session] = number
        return None

    def _is_late(self, session: str, number: int) -> bool:
        return number <= self.state.numbers.get(session, 0)  # R5

    def _is_current(self, member_version: int, targets: Mapping[int, str]) -> bool:
        known = self.state.member_version == member_version
        return known and all(map(self._is_member, targets.values()))  # R10

    def _is_target(self, session: str, partition: int) -> bool:
        leaving = self.state.members[session].leaving  # R11
        return self.state.targets.get(partition) == session and not leaving

    def _is_revoked(self, session: str, partition: int) -> bool:
        # Without a target it stays: a member whose target died keeps the partition until the next
        # plan.
        leaving = self.state.members[session].leaving  # R11
        return leaving or self.state.targets.get(partition, session) != session

    def _grant(self, session: str, partition: int, seen: int) -> int:
        """A fresh token, even if the session owns the partition already (R4)."""
        token = self.state.token = self._next(max(self.state.token, seen))  # R3
        self.state.owners[partition] = Owner(session, token)
        self.state.last_owner[partition] = self.state.members[session].name
        return token

    def _owned(self, session: str) -> list[int]:
        return [p for p, owner in self.state.owners.items() if owner.session == session]

    def _free(self, partitions: list[int], now: int, session: str) -> None:
        for partition in partitions:
            del self.state.owners[partition]
        if partitions:
            self._wake(EventKind.FREE, now, session, partitions)

    def _renew(self, session: str, lease_ms: int, now: int) -> None:
        self.state.leases[session] = now + lease_ms
        self.state.lease_ms[session] = lease_ms

    def _expire(self) -> int:
        """Remove the sessions whose leases are over; return the time."""
        now, state = self._now_ms(), self.state
        for session, end in list(state.leases.items()):
            if end <= now:
                self._remove(session, EventKind.DEAD, now)
            else:
                # Otherwise the dead would stay for as long as the clock was set back.
                state.leases[session] = min(end, now + state.lease_ms[session])
        return now

    def _remove(self, session: str, kind: EventKind, now: int) -> None:
        state = self.state
        name = state.members[session].name
        owned = self._owned(session)
        for partition in owned:
            del state.owners[partition]
        # Partitions assigned to the dead would have no owner until the next plan.
        state.targets = {p: target for p, target in state.targets.items() if target != session}
        for stored in (state.leases, state.lease_ms, state.members, state.stats, state.numbers):
            stored.pop(session, None)
        self._change_members(kind, now, session, name, owned)

    def _change_members(
        self,
        kind: EventKind,
        now: int,
        session: str | None,
        name: str | None = None,
        partitions: Iterable[int] = (),
    ) -> None:
        state = self.state
        if not state.dirty:
            state.since_ms = now
        if kind is EventKind.DEAD:
            state.since_ms = now - LONGEST_SETTLE_MS  # its partitions have waited long enough
        state.dirty = True
        state.plan_at_ms = min(now + SETTLE_MS, state.since_ms + LONGEST_SETTLE_MS)
        state.ticket_ms = None  # its plan would be stale
        self._wake(kind, now, session, partitions, name)
        state.member_version = state.version

    def _wake(
        self,
        kind: EventKind,
        now: int,
        session: str | None,
        partitions: Iterable[int],
        name: str | None = None,
    ) -> None:
        state = self.state
        state.version = self._next(state.version)
        if name is None and session in state.members:
            name = state.members[session].name
        event = Event(kind, state.version, now, session, name, tuple(partitions))
        state.events.append(event)
        self._changed.notify_all()

    def _next_ms(self, session: str, now: int) -> int:
        """The time until a member should beat again: its regular beats may be seconds apart."""
        others = (end - now for other, end in self.state.leases.items() if other != session)
        return min((self._plan_in_ms(now), *others))

    def _plan_in_ms(self, now: int) -> int:
        """The time until a plan is due and no ticket is out."""
        state = self.state
        if state.dirty:
            due, longest = state.plan_at_ms, LONGEST_SETTLE_MS
        else:
            due, longest = state.planned_ms + self._rebalance_ms, self._rebalance_ms
        if state.ticket_ms is not None:
            due, longest = max(due, state.ticket_ms + TICKET_MS), max(longest, TICKET_MS)
        # A longer time remains only after the clock was set back.
        return max(0, due - now) if due - now <= longest else 0


# `PartitionScripts`: the records of a partition, and who may commit. See `groups/README.md`.


@dataclass
class FenceState:
    """The session that may commit for a group, and the offset up to which everything is done.

    Attributes:
        token: The newest token that opened the partition.
        session: The session that holds it.
        offset: The offset up to which every record is done.
        done: The number of records up to `offset`, counted from the beginning of the stream.
        aside: The offsets above `offset` whose records are in the dead letters.
    """

    token: int
    session: str
    offset: int
    done: int
    aside: set[int] = field(default_factory=set)


@dataclass
class MemoryPartitionState:
    """The complete state of a partition, in one place (R8). Only `PartitionScripts` changes it.

    Attributes:
        entries: The records, by ascending offset.
        end: The offset of the last record that was added.
        added: The number of records ever added.
        fences: The fences, by group: these groups read the partition.
        dead: The dead letters, by group.
        effects: The commands of commits, in the order of the commits. They are not run, only kept
            for tests to read.
    """

    entries: list[Entry] = field(default_factory=list)
    end: int = 0
    added: int = 0
    fences: dict[str, FenceState] = field(default_factory=dict)
    dead: dict[str, list[Entry]] = field(default_factory=dict)
    effects: list[Command] = field(default_factory=list)


class PartitionScripts:
    """The scripts of a partition in memory.

    Each method is atomic. All but `add`, which adds another record, are safe to run late or twice.

    Attributes:
        state: What the partition stores.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        """Start without records.

        Args:
            clock: Returns microseconds since 1970.
        """
        self.state = MemoryPartitionState()
        self._clock = clock
        self._lock = threading.Lock()

    def add(
        self,
        value: bytes,
        key: bytes | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
        *,
        max_len: int | None = None,
    ) -> int | None:
        """Add a record, and return its offset; None if the partition is full.

        Args:
            value: The record.
            key: Its key, or None.
            headers: Its headers.
            max_len: The most records that some group has not done; without any group, the most
                records that the partition holds. Default: None, no limit.
        """
        with self._lock:
            if max_len is not None and self._unread() >= max_len:
                return None
            return self._append(value, key, headers)

    def read(self, after: int, count: int) -> list[Entry]:
        """Return the first `count` records whose offsets are larger than `after`."""
        with self._lock:
            begin = bisect_right(self.state.entries, after, key=lambda entry: entry.offset)
            return self.state.entries[begin : begin + count]

    def open(
        self, group: str, token: int, session: str, start: Start = Start.EARLIEST
    ) -> Opened | Fenced:
        """Make a token the only one that may commit.

        Args:
            group: The group.
            token: The token of the grant.
            session: The session that it was granted to.
            start: Where a group begins if it has no position here yet.
        """
        with self._lock:
            state = self.state
            fence = state.fences.get(group)
            if fence is None:
                offset, done = 0, state.added - len(state.entries)
                if start is Start.LATEST:
                    offset, done = state.end, state.added
                fence = state.fences[group] = FenceState(token, session, offset, done)
            elif not self._may_open(fence, token, session):
                return Fenced(fence.token)
            fence.token, fence.session = token, session
            first = state.entries[0].offset if state.entries else None
            length = len(state.entries)
            return Opened(fence.offset, fence.done, state.end, state.added, length, first)

    def commit(
        self,
        group: str,
        token: int,
        session: str,
        offset: int,
        done: int,
        *,
        commands: Sequence[Command] = (),
    ) -> Commit | Fenced:
        """Store an offset together with its effects.

        Repeat a commit without a reply unchanged: with more commands, those that had run would run
        again.

        Args:
            group: The group.
            token: The token under which the session opened the partition.
            session: The session.
            offset: Every record up to this offset is done.
            done: The number of records up to `offset`, counted from the beginning of the stream.
            commands: The commands passed to `Batch.commit_with`.
        """
        with self._lock:
            fence = self.state.fences.get(group)
            if fence is None or not self._may_commit(fence, token, session):
                return Fenced(0 if fence is None else fence.token)
            if not self._is_new(fence, offset):
                return Commit.OLD
            self.state.effects.extend(commands)
            fence.offset, fence.done = offset, done
            fence.aside = {each for each in fence.aside if each > offset}
            return Commit.STORED

    def set_aside(
        self, group: str, token: int, session: str, letters: Sequence[Entry]
    ) -> int | Fenced:
        """Store dead letters, none twice, and return how many were new.

        Args:
            group: The group.
            token: The token under which the session opened the partition.
            session: The session.
            letters: The records, under the offsets that they have in the stream.
        """
        with self._lock:
            fence = self.state.fences.get(group)
            if fence is None or not self._may_commit(fence, token, session):
                return Fenced(0 if fence is None else fence.token)
            known = fence.aside
            new = [each for each in letters if self._is_new(fence, each.offset)]
            new = [each for each in new if each.offset not in known]
            known.update(each.offset for each in new)
            self.state.dead.setdefault(group, []).extend(new)
            return len(new)

    def info(self, group: str) -> PartitionInfo:
        """Return the position of the group in the partition."""
        with self._lock:
            state = self.state
            known = state.fences.get(group)
            start = state.added - len(state.entries)
            fence = known or FenceState(0, "", 0, start)
            return PartitionInfo(
                token=fence.token,
                session=fence.session,
                offset=fence.offset,
                done=fence.done,
                end=state.end,
                added=state.added,
                length=len(state.entries),
                dead=len(state.dead.get(group, ())),
                is_new=known is None,
            )

    def reset(self, group: str, offset: int, done: int) -> None:
        """Let a group continue after an offset. Its token stays, so a former owner cannot commit.

        Args:
            group: The group.
            offset: The offset.
            done: The number of records up to `offset`, counted from the beginning of the stream.
        """
        with self._lock:
            fence = self.state.fences.setdefault(group, FenceState(0, "", 0, 0))
            fence.session, fence.offset, fence.done, fence.aside = "", offset, done, set()

    def forget(self, group: str) -> None:
        """Remove a group and its dead letters."""
        with self._lock:
            self.state.fences.pop(group, None)
            self.state.dead.pop(group, None)

    def letters(self, group: str, limit: int) -> list[Entry]:
        """Return the oldest dead letters."""
        with self._lock:
            return self.state.dead.get(group, [])[:limit]

    def send_back(self, group: str, letters: Sequence[Entry]) -> int:
        """Add the oldest dead letters as new records, and remove them; return how many.

        Args:
            group: The group.
            letters: The result of `letters`, possibly with other headers. If the oldest letters
                have changed since, nothing is done.
        """
        with self._lock:
            waiting = self.state.dead.get(group, [])
            oldest = [each.offset for each in waiting[: len(letters)]]
            if oldest != [each.offset for each in letters]:
                return 0
            del waiting[: len(letters)]
            for each in letters:
                self._append(each.value, each.key, each.headers)
            return len(letters)

    def trim(self, groups: Collection[str]) -> int:
        """Remove the records that every group has done, and return how many.

        Args:
            groups: The groups that read the stream. If the partition knows another group, or one of
                these has not opened it yet, nothing is removed.
        """
        with self._lock:
            state = self.state
            if not groups or state.fences.keys() != set(groups):
                return 0
            done = min(fence.offset for fence in state.fences.values())
            count = bisect_right(state.entries, done, key=lambda entry: entry.offset)
            del state.entries[:count]
            return count

    def _append(
        self, value: bytes, key: bytes | None, headers: tuple[tuple[str, bytes], ...]
    ) -> int:
        state = self.state
        # Like the ids of Redis: the time, and always above the previous one.
        state.end = max(state.end + 1, self._clock() // 1_000 << SEQUENCE_BITS)
        state.added += 1
        state.entries.append(Entry(state.end, value, key, headers))
        return state.end

    def _unread(self) -> int:
        done = [fence.done for fence in self.state.fences.values()]
        kept = len(self.state.entries)
        return min(kept, self.state.added - min(done)) if done else kept

    def _may_open(self, fence: FenceState, token: int, session: str) -> bool:
        return token > fence.token or (token, session) == (fence.token, fence.session)  # R3

    def _may_commit(self, fence: FenceState, token: int, session: str) -> bool:
        return (token, session) == (fence.token, fence.session)  # R1

    def _is_new(self, fence: FenceState, offset: int) -> bool:
        return offset > fence.offset  # R12


HISTORY = 1_000
"""The number of events that are kept."""


class Owner(NamedTuple):
    """The session that owns a partition, and the token of its grant."""

    session: str
    token: int


@dataclass
class GroupState:
    """The complete state of a group. Only `GroupScripts` changes it, under its lock.

    Attributes:
        partitions: The number of partitions of the stream, 0 before the first join.
        version: Changes with everything that members must learn about.
        member_version: The version of the last change of members or partitions.
        token: The last token that was granted.
        dirty: Whether members have changed since the last plan.
        since_ms: The time of the first of these changes.
        plan_at_ms: When the changes will have settled.
        ticket_ms: When a ticket was given out; None if no ticket is out.
        planned_ms: When the last plan was stored.
        leases: The end of the lease, by session.
        lease_ms: The length of the lease, by session.
        members: The members, by session; the same sessions as in `leases`.
        owners: The owners of partitions.
        targets: The assigned session, by partition.
        last_owner: The names of the last owners: a name keeps its partitions across sessions.
        weights: The weights of the last plan: the partitions of a dead member keep theirs.
        stats: The last report of each member.
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


class MemoryConnection:
    """A worker's connection to a stream in memory; see `backend.Connection`."""

    runs_commands = True
    stores_records = False

    def __init__(
        self,
        streams: "MemoryStreams",
        group: str,
        scripts: GroupScripts,
        name: str,
        timeout_s: float,
    ) -> None:
        self._streams = streams
        self._timeout_s = timeout_s
        self._group = group
        self._scripts = scripts
        self._name = name
        self._closed = False
        self.longest_wait_s = streams.clock.longest_wait_s
        self.lease_ms = round(timeout_s * BEATS_PER_LEASE * 1_000)

    def now_ms(self) -> float:
        """Return the time of the stream's clock."""
        return self._streams.clock.now_us() / 1_000

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions of the stream."""
        return self._streams.partitions(given)

    def perform(self, control: Control, call: Call) -> Reply:
        """Run the script of a call."""
        self._check()
        reply = perform(self._scripts, control, call)
        self._check()
        return reply

    def wait(self, version: int, timeout_s: float) -> int:
        """Wait for a change of the group."""
        self._check()
        version = self._scripts.wait(version, timeout_s, lambda: self._closed)
        self._check()
        return version

    def open(self, openings: Sequence[Opening], start: Start) -> list[Opened | Fenced | Failed]:
        """Open partitions."""
        self._check()
        return [
            self._streams.script(partition).open(self._group, token, session, start)
            for partition, token, session in openings
        ]

    def commit(self, commits: Sequence[CommitRequest]) -> list[Commit | Fenced | Failed]:
        """Commit partitions."""
        self._check()
        return [
            self._streams.script(each.partition).commit(
                self._group,
                each.token,
                each.session,
                each.offset,
                each.done,
                commands=each.commands,
            )
            for each in commits
        ]

    def set_aside(self, requests: Sequence[SetAside]) -> list[int | Fenced | Failed]:
        """Store dead letters."""
        self._check()
        return [
            self._streams.script(each.partition).set_aside(
                self._group, each.token, each.session, each.letters
            )
            for each in requests
        ]

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo | Failed]:
        """Return the positions in the partitions."""
        self._check()
        return [self._streams.script(each).info(self._group) for each in partitions]

    def read(self, fetches: Sequence[Fetch], wait_ms: int) -> list[Fetched | Behind | Unreadable]:
        """Read records of partitions."""
        self._check()
        found = self._streams.read(fetches, wait_ms, lambda: self._closed)
        self._check()
        return list(found)

    def close(self) -> None:
        """Make waiting calls return."""
        self._closed = True
        self._streams.notify()
        self._scripts.notify()

    def _check(self) -> None:
        if self._closed:
            raise StreamUnavailableError(self._streams.stream, "the connection is closed")
        self._streams.check(self._name, self._timeout_s)


class MemoryWriter:
    """A producer's connection to a stream in memory; see `backend.Writer`."""

    chooses_partition = False

    def __init__(self, streams: "MemoryStreams") -> None:
        self._streams = streams

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions of the stream."""
        return self._streams.partitions(given)

    def add(self, records: Sequence[NewRecord], max_len: int | None) -> list[int | None]:
        """Add records."""
        full: set[int] = set()
        offsets: list[int | None] = []
        for record in records:
            offset = None if record.partition in full else self._streams.add(record, max_len)
            if offset is None:
                full.add(record.partition)
            offsets.append(offset)
        return offsets

    def close(self) -> None:
        """Do nothing, because there is no connection."""


class MemoryAdministration:
    """A command's or monitor's access to a group in memory; see `backend.Administration`."""

    lacks: Mapping[str, str] = MappingProxyType({})
    counts_by_offset = False

    def __init__(self, streams: "MemoryStreams", group: str, scripts: GroupScripts) -> None:
        self._streams = streams
        self._group = group
        self._scripts = scripts

    def partitions(self) -> int:
        """Return the number of partitions of the stream."""
        return self._streams.partition_count

    def group(self) -> GroupInfo:
        """Return the members of the group, and the owners of its partitions."""
        return self._scripts.info()

    def infos(self, partitions: Sequence[int]) -> list[PartitionInfo]:
        """Return the positions in the partitions."""
        return [self._streams.script(each).info(self._group) for each in partitions]

    def history(self, after: int) -> list[Event]:
        """Return the last events."""
        return self._scripts.history(after)

    def drain(self, session: str) -> bool:
        """Let a member leave."""
        return self._scripts.leaving(session) is not Refusal.UNKNOWN

    def trim(self) -> int:
        """Remove the records that all groups have done."""
        return self._streams.trim()

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions."""
        return self._streams.resize(partitions)

    def reset(self, partition: int, offset: int, done: int) -> None:
        """Let the group continue after an offset."""
        self._streams.script(partition).reset(self._group, offset, done)

    def delete(self) -> None:
        """Forget the group."""
        self._streams.forget(self._group)

    def redrive(self, partition: int | None, limit: int | None, redriven: Redriven) -> None:
        """Send dead letters back as new records."""
        redrive(self, partition, limit, redriven)

    def dead_letters(self, partition: int, limit: int) -> list[Entry]:
        """Return the oldest dead letters of a partition."""
        return self._streams.script(partition).letters(self._group, limit)

    def send_back(self, partition: int, letters: Sequence[Entry]) -> int:
        """Add dead letters as new records."""
        sent = self._streams.script(partition).send_back(self._group, letters)
        self._streams.notify()
        return sent

    def close(self) -> None:
        """Do nothing, because there is no connection."""


# The clocks of groups in memory.


class Clock(Protocol):
    """A clock in microseconds since 1970."""

    longest_wait_s: float
    """The longest that a thread may wait before it reads the clock again, in seconds."""

    def now_us(self) -> int:
        """Return the time."""
        ...


class SystemClock:
    """The time of the operating system, never set back."""

    longest_wait_s = float("inf")

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_us(self) -> int:
        """Return the time."""
        return (self._offset_ns + time.monotonic_ns()) // 1_000


class ManualClock:
    """A clock that a test moves, so that the test decides when leases end and handlers are retried.

    Example:
        >>> from batchqueue.groups.memory import ManualClock
        >>> clock = ManualClock()
        >>> before = clock.now_us()
        >>> clock.advance(1.5)
        >>> clock.now_us() - before
        1500000
    """

    longest_wait_s = 0.005

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        """Start at a moment.

        Args:
            now_us: Microseconds since 1970. Default: a moment in 2023.
        """
        self._now_us = now_us
        self._lock = threading.Lock()

    def now_us(self) -> int:
        """Return the time."""
        with self._lock:
            return self._now_us

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Threads that wait for it notice within a few milliseconds."""
        with self._lock:
            self._now_us += round(seconds * 1_000_000)


class MemoryStreams:
    """A stream in the memory of this process: for tests, and for programs of a single process.

    Give the same object to all workers and producers of the stream. It has everything that a stream
    on Redis has, except that it ends with the process, and that the commands of `commit_with` are
    recorded instead of run.

    Attributes:
        stream: The name of the stream.
        partition_count: The number of its partitions.
        clock: Its clock.
        commands: The commands of `Batch.commit_with` in committed batches, by partition.

    Example:
        >>> from batchqueue.groups import MemoryStreams, Worker
        >>> orders = MemoryStreams("orders", partitions=4)
        >>> with orders.producer(codec="json", key=lambda order: order["id"]) as producer:
        ...     producer.send_many([{"id": 1, "cents": 250}, {"id": 2, "cents": 999}])
        2
        >>> worker = Worker("billing", orders, codec="json")
        >>> cents = []
        >>> @worker.handler
        ... def store(batch):
        ...     cents.extend(order["cents"] for order in batch.values)
        >>> worker.run(until_idle=0.1).handled
        2
        >>> sorted(cents)
        [250, 999]
    """

    def __init__(self, stream: str, *, partitions: int = 1, clock: Clock | None = None) -> None:
        """Start without records.

        Args:
            stream: The name.
            partitions: The number of partitions, 1 to 16,384. Default: 1.
            clock: A `ManualClock`, for tests. Default: None, the time of the operating system.

        Raises:
            ConfigError: The name or the number of partitions is invalid.
        """
        self.stream = check_name("the stream", stream)
        self.partition_count = partition_count(partitions)
        self.clock = clock or SystemClock()
        self._scripts = [PartitionScripts(self.clock.now_us) for _ in range(partitions)]
        self._groups: dict[str, GroupScripts] = {}
        self._arrived = threading.Condition()
        self._crashed: set[str] = set()
        self._stalled: set[str] = set()
        self._reached = threading.Condition()

    @property
    def commands(self) -> dict[int, list[Sequence[bytes | str | int]]]:
        """The commands of `Batch.commit_with` in committed batches, by partition."""
        scripts = enumerate(self._scripts)
        return {number: list(each.state.effects) for number, each in scripts if each.state.effects}

    def dead_letters(self, group: str) -> dict[int, list[Entry]]:
        """Return the dead letters of a group, by partition, without partitions that have none."""
        scripts = enumerate(self._scripts)
        found = ((number, each.state.dead.get(group, [])) for number, each in scripts)
        return {number: list(letters) for number, letters in found if letters}

    def producer(
        self,
        *,
        codec: Any = "bytes",
        key: Key | None = None,
        max_len: int | None = None,
        partitions: int | None = None,
    ) -> Producer:
        """Return a producer of the stream; see `Producer`."""
        return Producer(self, codec=codec, key=key, max_len=max_len, partitions=partitions)

    def crash(self, name: str) -> None:
        """Cut a worker off permanently: to the group, its process was killed."""
        with self._reached:
            self._crashed.add(name)
            self._stalled.discard(name)
            self._reached.notify_all()

    def stall(self, name: str) -> None:
        """Let all calls of a worker time out until `wake`, as if its network were cut."""
        with self._reached:
            self._stalled.add(name)

    def wake(self, name: str) -> None:
        """End the stall of a worker."""
        with self._reached:
            self._stalled.discard(name)
            self._reached.notify_all()

    def connect(self, group: str, *, lease_ms: int, name: str) -> MemoryConnection:
        """Connect a worker. The worker calls this when it starts."""
        timeout_s = lease_ms / BEATS_PER_LEASE / 1_000
        return MemoryConnection(self, group, self._group(group), name, timeout_s)

    def open_writer(self) -> MemoryWriter:
        """Connect a producer. The producer calls this when it is created."""
        return MemoryWriter(self)

    def open_administration(self, group: str) -> MemoryAdministration:
        """Connect a monitor. The monitor calls this when it is created."""
        return MemoryAdministration(self, group, self._group(group))

    def partitions(self, given: int | None) -> int:
        """Return the number of partitions; raise ConfigError if another number is given."""
        check_partitions(self.stream, self.partition_count, given)
        return self.partition_count

    def read(
        self, fetches: Sequence[Fetch], wait_ms: int, is_over: Callable[[], bool]
    ) -> list[Fetched]:
        """Read records of partitions, waiting if there are none."""
        end = time.monotonic() + wait_ms / 1_000
        with self._arrived:
            while True:
                found = [each for each in map(self._fetch, fetches) if each is not None]
                left = end - time.monotonic()
                if found or left <= 0 or is_over():
                    return found
                self._arrived.wait(left)

    def __repr__(self) -> str:
        """Say which stream it is."""
        return f"MemoryStreams({self.stream!r}, partitions={self.partition_count})"

    def _fetch(self, fetch: Fetch) -> Fetched | None:
        entries = self._scripts[fetch.partition].read(fetch.after, fetch.limit)
        if not entries:
            return None
        size = sum(map(_size, entries))
        return Fetched(fetch.partition, MemoryEntries(entries), size)

    def add(self, record: NewRecord, max_len: int | None) -> int | None:
        """Add a record, and return its offset; None if the partition is full."""
        script = self._scripts[record.partition]
        offset = script.add(record.value, record.key, record.headers, max_len=max_len)
        if offset is not None:
            self.notify()
        return offset

    def _readers(self) -> list[str]:
        """The groups that have had members."""
        with self._arrived:
            return [name for name, group in self._groups.items() if group.state.partitions]

    def _group(self, name: str) -> GroupScripts:
        with self._arrived:
            if name not in self._groups:
                self._groups[name] = GroupScripts(self.clock.now_us)
            return self._groups[name]

    def notify(self) -> None:
        """Wake the threads that wait for records."""
        with self._arrived:
            self._arrived.notify_all()

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions, and return the new number."""
        partition_count(partitions)
        with self._arrived:
            while len(self._scripts) < partitions:
                self._scripts.append(PartitionScripts(self.clock.now_us))
            self.partition_count = len(self._scripts)
            groups = list(self._groups.values())
        for group in groups:
            group.resize(partitions)
        return self.partition_count

    def trim(self) -> int:
        """Remove the records that all groups have done, and return how many."""
        return sum(script.trim(self._readers()) for script in self._scripts)

    def forget(self, group: str) -> None:
        """Remove a group."""
        with self._arrived:
            self._groups.pop(group, None)
        for script in self._scripts:
            script.forget(group)

    def script(self, partition: int) -> PartitionScripts:
        """Return the scripts of a partition."""
        return self._scripts[partition]

    def check(self, name: str, timeout_s: float) -> None:
        """Raise StreamUnavailableError if a worker crashed, or is stalled for the whole timeout."""
        if not (self._crashed or self._stalled):
            return
        with self._reached:
            if not self._reached.wait_for(lambda: name not in self._stalled, timeout_s):
                reason = f"worker {name} is stalled, so no call returned in {timeout_s:g} s"
                raise StreamUnavailableError(self.stream, reason)
            if name in self._crashed:
                raise StreamUnavailableError(self.stream, f"worker {name} has crashed")


def _size(entry: Entry) -> int:
    _, value, key, headers = entry
    size = len(value) + (0 if key is None else len(key))
    return size + sum(len(name) + len(data) for name, data in headers) if headers else size


class MemoryEntries:
    """Records of one partition; see `record.Entries`."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self._entries[0].offset

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self._entries[-1].offset

    def values(
        self, decode: Decode, plain: int | None = None
    ) -> tuple[list[Any], BaseException | None]:
        """Decode the values, up to the first record that cannot be decoded."""
        most = -1 if plain is None else plain
        values: list[Any] = []
        for offset, data, _, _ in self._entries:
            try:
                values.append(data if len(data) <= most else decode(data, offset))
            except BatchQueueError as error:
                return values, error
        return values, None

    def records(self, values: list[Any]) -> list[Record[Any]]:
        """Return the first records, with the given values."""
        return [
            Record(value, key, offset, offset >> SEQUENCE_BITS, headers)
            for value, (offset, _, key, headers) in zip(values, self._entries, strict=False)
        ]

    def entry(self, offset: int) -> Entry:
        """Return the entry with this offset."""
        return self._entries[bisect_left(self._entries, offset, key=lambda entry: entry.offset)]

    def __getitem__(self, places: slice) -> "MemoryEntries":
        """Return a slice of the records."""
        return MemoryEntries(self._entries[places])

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._entries)
