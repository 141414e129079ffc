"""`perform`: run the script that a worker's control side calls, in any backend."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from batchqueue.groups.control import Control
from batchqueue.groups.messages import (
    Beaten,
    Call,
    CallKind,
    Joined,
    Member,
    Refusal,
    Replaced,
    Reply,
    Synced,
)


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
        """Compare what a session holds with what it owns and is to own."""
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
    """Run the script of a call, and return what it replied.

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
