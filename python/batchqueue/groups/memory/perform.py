"""`perform`: run the script that a worker's control side calls."""

from batchqueue.groups.control import Control
from batchqueue.groups.memory.group import GroupScripts
from batchqueue.groups.messages import Call, CallKind, Reply


def perform(scripts: GroupScripts, control: Control, call: Call) -> Reply:
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
