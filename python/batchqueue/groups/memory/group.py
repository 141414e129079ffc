"""`GroupScripts`: who should own which partition. The rules are those of `groups/README.md`."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from batchqueue.groups.backend import GroupInfo, MemberInfo
from batchqueue.groups.memory.state import GroupState, Owner
from batchqueue.groups.messages import (
    Beaten,
    Event,
    EventKind,
    Joined,
    Member,
    Refusal,
    Replaced,
    Synced,
    Ticket,
)

SETTLE_MS = 50
"""A plan waits this long after the last join or leave: several of them need only one plan."""

LONGEST_SETTLE_MS = 500
"""A plan waits no longer than this after the first join or leave."""

TICKET_MS = 500
"""The time that a member has to make a plan before another one may."""

LATE_SHARE = 4
"""A worker gives a call up after this share of its lease, so a join is late then."""


class GroupScripts:
    """The scripts of a group in memory. Each method is atomic, and safe to run late or twice.

    Attributes:
        state: What the group stores.
    """

    def __init__(self, clock: Callable[[], int], *, rebalance_ms: int = 30_000) -> None:
        """Begin without members.

        Args:
            clock: Returns microseconds since 1970. It may be set back.
            rebalance_ms: The time between two plans while members do not change. Default: 30 s.
        """
        self.state = GroupState()
        self._clock = clock
        self._rebalance_ms = rebalance_ms
        self._changed = threading.Condition()

    def time(self) -> int:
        """Return the time of the server in microseconds: the incarnation of a process."""
        return self._clock()

    def join(
        self, session: str, lease_ms: int, member: Member, partitions: int, *, asked_us: int
    ) -> Joined | Replaced | Refusal:
        """Make a session a member. It takes the name from an older session, which is removed.

        Args:
            session: The session, unlike any other.
            lease_ms: The time for which it is a member without a beat.
            member: What it reports about itself.
            partitions: The partitions of the stream, if this is the first join of all.
            asked_us: The time of the server that was read just before.
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
        """Renew the lease of a member, and make it plan if that is due.

        Args:
            session: The session.
            number: Larger than that of each beat and sync it sent before.
            lease_ms: The time for which it stays a member without another beat.
            stats: What it reports to the member that plans next, and to monitors.
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
            member_version: That of its ticket.
            targets: The session that is to own it, by partition.
            weights: The weights that it reckoned with, for the next plan.
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
        """Compare what a session holds with what it owns and is to own.

        Args:
            session: The session.
            number: Larger than that of each beat and sync it sent before.
            seen: The largest token that refused a token of the worker, or 0: new ones are larger.
            held: The tokens of the partitions that it holds, released ones left out.
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
            released: Pairs of a partition and its token. Commits have been acknowledged.
        """
        with self._changed:
            owned = [p for p, token in released if self.state.owners.get(p) == (session, token)]
            self._free(owned, self._now_ms(), session)
            return len(owned)

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions, and return the number from now on."""
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
        """Return who is there, and who owns what."""
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
            timeout_s: The longest wait, in the time of the operating system, whatever the clock is.
            is_over: Whether to wait no longer; asked again after `notify`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.state.version != version or is_over(), timeout_s)
            return self.state.version

    def notify(self) -> None:
        """Let those that wait ask whether to wait no longer."""
        with self._changed:
            self._changed.notify_all()

    def _now_ms(self) -> int:
        return self._clock() // 1_000

    def _next(self, last: int) -> int:
        """A number above all earlier ones, also above those that the server has forgotten (R2)."""
        return max(last + 1, self._clock())

    def _is_member(self, session: str) -> bool:
        return session in self.state.leases

    def _is_late_join(self, lease_ms: int, asked_us: int) -> bool:
        return self._clock() - asked_us > lease_ms * 1_000 // LATE_SHARE  # R6

    def _is_older(self, member: Member, there: Member) -> bool:
        return there.incarnation >= member.incarnation  # R6

    def _refuse(self, session: str, number: int) -> Refusal | None:
        """Why a beat or sync does nothing; otherwise its number is noted."""
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
        # Without a target it stays: a member whose target died has it until there is a plan.
        leaving = self.state.members[session].leaving  # R11
        return leaving or self.state.targets.get(partition, session) != session

    def _grant(self, session: str, partition: int, seen: int) -> int:
        """A fresh token, also if the session owns the partition already (R4)."""
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
                # Else the dead stay for as long as the clock was set back.
                state.leases[session] = min(end, now + state.lease_ms[session])
        return now

    def _remove(self, session: str, kind: EventKind, now: int) -> None:
        state = self.state
        name = state.members[session].name
        owned = self._owned(session)
        for partition in owned:
            del state.owners[partition]
        # What the dead are to own would be without an owner until the next plan.
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
        # A longer time only remains after the clock was set back.
        return max(0, due - now) if due - now <= longest else 0
