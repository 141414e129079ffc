"""`Control`, a worker's side of the ownership protocol.

`Control` is a pure state machine: no input or output, no threads, no clock. A driver passes the
time in, makes the calls that `next_call` returns, and obeys the orders that `orders` returns. All
times are milliseconds of the worker's own clock, which also counts while the machine is suspended.
The driver holds a lock during each call. The rules are in `batchqueue/groups/README.md`.
"""

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from batchqueue.exceptions import ConfigError
from batchqueue.groups.messages import (
    Beaten,
    Call,
    CallKind,
    Incarnation,
    Joined,
    Member,
    Refusal,
    Replaced,
    Reply,
    Synced,
    Ticket,
)
from batchqueue.groups.plan import GroupBalancer, plan

# The states of a worker and its partitions, and the orders from the control side to its driver.


class Phase(enum.Enum):
    """The state of a partition between its grant and its end under this token."""

    OPENING = "opening"
    RUNNING = "running"
    DRAINING = "draining"
    RELEASED = "released"
    LOST = "lost"


class Seat(enum.Enum):
    """The state of a worker between its start and its end."""

    JOINING = "joining"
    MEMBER = "member"
    LEFT = "left"
    REPLACED = "replaced"


class Loss(enum.Enum):
    """Why a partition was lost."""

    LEASE_OVER = "lease over"
    UNKNOWN = "session removed"
    OTHER_OWNER = "other owner"
    FENCED = "fenced"
    GIVEN_UP = "given up"


class OrderKind(enum.Enum):
    """What the driver has to do with a partition."""

    OPEN = "open"
    """Open it, retrying until that succeeds or is refused, and report `opened` or `fenced`."""

    DRAIN = "drain"
    """Start nothing new, commit what is done, and report `drained` once that is acknowledged."""

    DROP = "drop"
    """Forget it: start nothing, commit nothing, and ignore what still runs."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the driver has to do with a partition.

    Attributes:
        kind: What to do.
        partition: The partition.
        token: The token of the grant.
        session: The session that it was granted to.
        loss: Why it was lost, for `DROP`.
    """

    kind: OrderKind
    partition: int
    token: int
    session: str
    loss: Loss | None = None


@dataclass(slots=True)
class Holding:
    """A partition under one token.

    Attributes:
        partition: The partition.
        token: The token of the grant.
        phase: Its state.
    """

    partition: int
    token: int
    phase: Phase


BEATS_PER_LEASE = 4
BEATS_PER_SYNC = 10
"""A sync is due after this many beats even if the version has not changed."""

OWN_SHARE = 0.95
"""The share of the lease that a worker trusts, because clocks drift."""

PAUSE_MS = 50
"""The pause after a call that failed."""

Weigh = Callable[[Ticket], Mapping[int, float | None]]


class Control:
    """The control side of a worker, across all of its successive sessions.

    Attributes:
        name: The worker's name in its group.
        seat: The state of the worker.
        session: Its current session, or the one that it is about to join with.
        holdings: The partitions that it holds.
        partitions: The number of partitions of the stream, as far as known.
        lease_ms: The time after which the group gives up on a silent worker.
        deadline_ms: The end of the lease as this worker sees it; handlers start only before it.
        replaced_by: The session that took over the name, or None.
        stats: Returns what a beat reports.
        plan_error: Why the balancer failed to plan when last asked, or None. The partitions were
            then planned as by `GroupBalancer.load_weighted()`, so that each has an owner.
    """

    def __init__(
        self,
        name: str,
        *,
        nonce: str,
        lease_ms: int = 5_000,
        partitions: int = 1,
        capacity: float = 1.0,
        host: str = "",
        pid: int = 0,
        balancer: GroupBalancer | None = None,
        weigh: Weigh | None = None,
        stats: Callable[[], str] = str,
    ) -> None:
        """Start before the first join.

        Args:
            name: The name. A worker that joins under it replaces an older one.
            nonce: A text that no other worker of this name uses; it makes the sessions unique.
            lease_ms: The time after which the group gives up on a silent worker. Default: 5 s.
            partitions: The number of partitions of a new stream. Default: 1.
            capacity: The share of the load that it takes, relative to other workers. Default: 1.
            host: The worker's host, for messages.
            pid: The worker's process id, for messages.
            balancer: Makes the plan when this worker is asked for one. Default:
                `GroupBalancer.load_weighted()`.
            weigh: Returns the weight of each partition for a plan. Default: all are unknown.
            stats: Returns what a beat reports. Default: nothing.
        """
        self.name = name
        self.seat = Seat.JOINING
        self.holdings: dict[int, Holding] = {}
        self.partitions = partitions
        self.deadline_ms = -math.inf
        self.replaced_by: Replaced | None = None
        self.plan_error: ConfigError | None = None
        self._nonce = nonce
        self.lease_ms = lease_ms
        self._about = (capacity, host, pid)
        self._balancer = balancer or GroupBalancer.load_weighted()
        self._weigh = weigh
        self.stats = stats
        self._process: int | None = None
        self._asked_us: int | None = None
        self._sessions = 0
        self._seen = 0
        self._leaving = self._given_up = False
        self._orders: list[Order] = []
        self._released: list[Holding] = []
        self._ticket: Ticket | None = None
        self._under_way: Call | None = None
        self._not_before_ms = -math.inf
        self._begin_session()

    @property
    def timeout_ms(self) -> float:
        """The time after which the driver reports a call as failed."""
        return self.lease_ms / BEATS_PER_LEASE

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.seat in (Seat.LEFT, Seat.REPLACED)

    @property
    def is_leaving(self) -> bool:
        """Whether it gives up its partitions, or was asked to."""
        return self._leaving

    def next_call(self, now_ms: float) -> Call | None:
        """Return the next call to make; None if one is under way, or nothing is due.

        Send what `planned` returns for it, and report the call itself with `reply` or `failed`.
        """
        self.check_deadline(now_ms)
        if self._under_way is None and not self.ended and now_ms >= self._not_before_ms:
            self._under_way = self._choose(now_ms)
            return self._under_way
        return None

    def due_ms(self, now_ms: float) -> float:
        """Return when to call `next_call` again if nothing happens before; infinity after the end.

        A call that is under way has its own timeout, which the driver watches.
        """
        if self.ended:
            return math.inf
        if self.seat is Seat.JOINING:
            return math.inf if self._under_way else max(now_ms, self._not_before_ms)
        if self._under_way is not None:
            return self.deadline_ms
        due = now_ms if self._has_work() else self._beat_at_ms
        return min(self.deadline_ms, max(due, self._not_before_ms))

    def planned(self, call: Call) -> Call:
        """Return a call to send; a plan gets its targets. Hold no lock: planning may take long."""
        ticket = call.ticket
        if ticket is None:
            return call
        weights: dict[int, float | None] = dict.fromkeys(range(ticket.partitions))
        weights.update(self._weigh(ticket) if self._weigh else {})
        sessions = {m.name: s for s, m in ticket.members.items() if not m.leaving}
        capacity = {m.name: m.capacity for m in ticket.members.values() if m.name in sessions}
        self.plan_error = None
        try:
            owners = self._balancer.plan(weights, ticket.last_owner, capacity, force=ticket.force)
        except ConfigError as error:
            self.plan_error = error
            owners = plan(weights, ticket.last_owner, capacity, force=ticket.force)
        return replace(
            call,
            targets={partition: sessions[name] for partition, name in owners.items()},
            weights={p: weight for p, weight in weights.items() if weight is not None},
        )

    @property
    def is_settled(self) -> bool:
        """Whether the worker is a member, and all that it owns is known and open."""
        opening = any(held.phase is Phase.OPENING for held in self.holdings.values())
        return self.seat is Seat.MEMBER and not (self._sync_due or self._under_way or opening)

    def reply(self, call: Call, reply: Reply, now_ms: float) -> None:
        """Handle the reply of a call; ignore it if the call failed or its session is over."""
        if call is not self._under_way:
            return
        self._under_way = None
        if reply is Refusal.UNKNOWN:
            self._end_session(Loss.UNKNOWN)
        elif isinstance(reply, Joined):
            self.seat = Seat.MEMBER
            self.partitions = reply.partitions
            self._extend(call)
            self._beat_at_ms = now_ms
        elif isinstance(reply, Replaced):
            self.seat, self.replaced_by = Seat.REPLACED, reply
        elif isinstance(reply, Beaten):
            self._take_beat(call, reply, now_ms)
        elif isinstance(reply, Synced):
            self._take_sync(call, reply, now_ms)
        elif call.kind is CallKind.TIME and isinstance(reply, int):
            self._asked_us = reply
            self._process = reply if self._process is None else self._process
        elif call.kind is CallKind.LEAVING:
            self._leaving_known = True
            self._sync_due = True
        elif call.kind is CallKind.LEAVE:
            self.seat = Seat.LEFT
        elif call.kind in (CallKind.PLAN, CallKind.SYNC):  # stored or stale, late
            self._sync_due = True
            self._beat_at_ms = min(self._beat_at_ms, now_ms + PAUSE_MS)
        self.check_deadline(now_ms)

    def failed(self, call: Call, now_ms: float) -> None:
        """Report a call that raised or got no reply in time. The call may still take effect."""
        if call is not self._under_way:
            return
        self._under_way = None
        self._not_before_ms = now_ms + PAUSE_MS
        self._sync_due = True  # whatever the call was to change, a sync settles it
        if call.kind is CallKind.BEAT:
            self._beat_at_ms = now_ms

    def notice(self, version: int) -> None:
        """Handle a wake-up: a version read from the history. Missing one costs a beat."""
        # Recorded as a due sync, not as a version: the reply of an earlier beat may follow.
        self._sync_due = self._sync_due or version != self._synced

    def check_deadline(self, now_ms: float) -> None:
        """Drop everything if the lease is over, then join again under the same name."""
        if self.seat is Seat.MEMBER and now_ms >= self.deadline_ms:
            self._end_session(Loss.LEASE_OVER)

    def may_work(self, partition: int, token: int, now_ms: float) -> bool:
        """Return whether the partition is held. Ask before each fetch, handler call and commit."""
        held = self._held(partition, token)
        return held is not None and held.phase is not Phase.OPENING and now_ms < self.deadline_ms

    def opened(self, partition: int, token: int) -> bool:
        """Report that a partition was opened. Returns whether to run it."""
        held = self._held(partition, token)
        if held is None or held.phase is not Phase.OPENING:
            return False
        held.phase = Phase.RUNNING
        return True

    def drained(self, partition: int, token: int) -> None:
        """Report that nothing of a partition runs and its last commit was acknowledged (R12)."""
        held = self._held(partition, token)
        if held is not None and held.phase is Phase.DRAINING:
            del self.holdings[partition]
            held.phase = Phase.RELEASED
            self._released.append(held)

    def fenced(self, partition: int, token: int, seen: int) -> None:
        """Report that an open, a commit or a sink refused a token; nothing was stored (R9).

        Args:
            partition: The partition.
            token: The token that was refused.
            seen: The token that refused it.
        """
        self._seen = max(self._seen, seen)
        held = self._held(partition, token)
        if held is not None:
            self._drop(held, Loss.FENCED)
            self._sync_due = True

    def leave(self) -> None:
        """Begin to leave: everything is drained and released, then the session ends."""
        self._leaving = True

    def give_up(self) -> None:
        """Leave without waiting for what has not been drained."""
        self._leaving = self._given_up = True
        for held in list(self.holdings.values()):
            self._drop(held, Loss.GIVEN_UP)

    def orders(self) -> list[Order]:
        """Return the orders since the last call, to be obeyed in this order."""
        orders, self._orders = self._orders, []
        return orders

    def _choose(self, now_ms: float) -> Call | None:
        if self.seat is Seat.JOINING:
            return self._choose_to_join(now_ms)
        if now_ms >= self._beat_at_ms:
            return self._call(CallKind.BEAT, now_ms, number=self._next_number())
        if self._released:
            released = tuple((held.partition, held.token) for held in self._released)
            self._released.clear()  # a sync that does not name them releases them as well
            return self._call(CallKind.RELEASE, now_ms, released=released)
        if self._leaving and not self.holdings and (self._leaving_known or self._given_up):
            return self._call(CallKind.LEAVE, now_ms)
        if self._leaving and not self._leaving_known:
            return self._call(CallKind.LEAVING, now_ms)
        return self._choose_to_change(now_ms)

    def _choose_to_join(self, now_ms: float) -> Call | None:
        if self._leaving:
            self.seat = Seat.LEFT
            return None
        if self._process is None or self._asked_us is None:
            return self._call(CallKind.TIME, now_ms)
        capacity, host, pid = self._about
        incarnation = Incarnation(self._process, self._sessions)
        member = Member(self.name, incarnation, capacity, host, pid)
        asked_us, self._asked_us = self._asked_us, None  # each attempt reads the time again
        return self._call(CallKind.JOIN, now_ms, member=member, asked_us=asked_us)

    def _choose_to_change(self, now_ms: float) -> Call | None:
        if self._ticket is not None:
            ticket, self._ticket = self._ticket, None
            version = ticket.member_version
            return self._call(CallKind.PLAN, now_ms, ticket=ticket, member_version=version)
        if self._sync_due:
            self._sync_due = False
            held = {partition: held.token for partition, held in self.holdings.items()}
            return self._call(
                CallKind.SYNC, now_ms, number=self._next_number(), seen=self._seen, held=held
            )
        return None

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _has_work(self) -> bool:
        leaving = self._leaving and not (self._leaving_known and self.holdings)
        waiting = self._released or self._ticket is not None
        return bool(leaving or waiting or self._sync_due)

    def _call(self, kind: CallKind, now_ms: float, **fields: object) -> Call:
        return Call(kind, self.session, now_ms, **fields)  # type: ignore[arg-type]

    def _take_beat(self, call: Call, reply: Beaten, now_ms: float) -> None:
        self._extend(call)
        self._beats += 1
        if self._beats % BEATS_PER_SYNC == 0:
            self._sync_due = True
        self.notice(reply.version)
        self._ticket = reply.ticket
        self._leaving = self._leaving or reply.leaving
        self._leaving_known = reply.leaving  # a server that lost its last writes has forgotten it
        regular = call.sent_ms + self.lease_ms / BEATS_PER_LEASE
        self._beat_at_ms = min(regular, now_ms + max(1, reply.next_ms))

    def _take_sync(self, call: Call, reply: Synced, now_ms: float) -> None:
        self._beat_at_ms = min(self._beat_at_ms, now_ms + max(1, reply.next_ms))
        self._synced = reply.version
        self.partitions = reply.partitions
        for partition in reply.lost:
            held = self._held(partition, (call.held or {})[partition])
            if held is not None:
                self._drop(held, Loss.OTHER_OWNER)
        for partition in reply.revoked:
            held = self.holdings.get(partition)
            if held is not None and held.phase is not Phase.DRAINING:
                held.phase = Phase.DRAINING
                self._order(OrderKind.DRAIN, held)
        if self._given_up:
            return  # the end of the session gives late grants back
        for partition, token in reply.grants.items():
            held = self.holdings[partition] = Holding(partition, token, Phase.OPENING)
            self._order(OrderKind.OPEN, held)

    def _extend(self, call: Call) -> None:
        # Counted from the time of sending: the server's lease began later, so it ends later (R13).
        self.deadline_ms = max(self.deadline_ms, call.sent_ms + OWN_SHARE * self.lease_ms)

    def _held(self, partition: int, token: int) -> Holding | None:
        held = self.holdings.get(partition)
        return held if held is not None and held.token == token else None

    def _order(self, kind: OrderKind, held: Holding, loss: Loss | None = None) -> None:
        self._orders.append(Order(kind, held.partition, held.token, self.session, loss))

    def _drop(self, held: Holding, loss: Loss) -> None:
        del self.holdings[held.partition]
        held.phase = Phase.LOST
        self._order(OrderKind.DROP, held, loss)

    def _end_session(self, loss: Loss) -> None:
        for held in list(self.holdings.values()):
            self._drop(held, loss)
        self._begin_session()

    def _begin_session(self) -> None:
        self._sessions += 1
        self.session = f"{self.name}:{self._nonce}:{self._sessions}"
        self.seat = Seat.JOINING
        self.deadline_ms = -math.inf
        self._beat_at_ms = -math.inf
        self._under_way = None
        self._asked_us = None
        self._ticket = None
        self._released.clear()
        self._leaving_known = False
        self._sync_due = True
        self._number = self._beats = 0
        self._synced = 0


class ControlScripts(Protocol):
    """The scripts of a group that workers call; `memory.GroupScripts` describes them."""

    def time(self) -> int:
        """Return the time of the server in microseconds."""
        ...

    def join(
        self, session: str, lease_ms: int, member: Member, partitions: int, *, asked_us: int
    ) -> Joined | Replaced | Refusal:
        """Make a session a member."""
        ...

    def beat(self, session: str, number: int, lease_ms: int, stats: str = "") -> Beaten | Refusal:
        """Renew the lease of a member."""
        ...

    def plan(
        self,
        session: str,
        member_version: int,
        targets: Mapping[int, str],
        weights: Mapping[int, float] | None = None,
    ) -> int | Refusal:
        """Store the targets that a member planned."""
        ...

    def sync(
        self, session: str, number: int, seen: int, held: Mapping[int, int]
    ) -> Synced | Refusal:
        """Compare what a session holds with what it owns and is assigned."""
        ...

    def release(self, session: str, released: Iterable[tuple[int, int]]) -> int:
        """Give up partitions."""
        ...

    def leaving(self, session: str) -> int | Refusal:
        """Begin to leave."""
        ...

    def leave(self, session: str) -> int:
        """Remove a session."""
        ...


def perform(scripts: ControlScripts, control: Control, call: Call) -> Reply:
    """Run the script of a call, and return its reply.

    Args:
        scripts: The scripts of the group.
        control: The control side that returned the call from `next_call`.
        call: The call.
    """
    session, lease_ms = call.session, control.lease_ms
    reply: Reply
    match call.kind:
        case CallKind.TIME:
            reply = scripts.time()
        case CallKind.JOIN:
            assert call.member is not None
            reply = scripts.join(
                session, lease_ms, call.member, control.partitions, asked_us=call.asked_us
            )
        case CallKind.BEAT:
            reply = scripts.beat(session, call.number, lease_ms, control.stats())
        case CallKind.PLAN:
            reply = scripts.plan(session, call.member_version, call.targets or {}, call.weights)
        case CallKind.SYNC:
            reply = scripts.sync(session, call.number, call.seen, call.held or {})
        case CallKind.RELEASE:
            reply = scripts.release(session, call.released)
        case CallKind.LEAVING:
            reply = scripts.leaving(session)
        case CallKind.LEAVE:
            reply = scripts.leave(session)
    return reply
