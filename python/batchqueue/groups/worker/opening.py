"""Partitions that were granted are opened under their tokens. Under the lock."""

from functools import partial
from typing import TYPE_CHECKING

from batchqueue.groups.backend import Opening
from batchqueue.groups.messages import Failed, Fenced, Opened
from batchqueue.groups.record import Assignment
from batchqueue.groups.tracker import PartitionTracker
from batchqueue.groups.worker.gaps import skips
from batchqueue.groups.worker.handover import Task
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.refused import accepted, wait_after

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership


def to_open(member: "Membership") -> list[tuple[HeldPartition, Opening]]:
    """Return the partitions to open now."""
    found = [(each, Opening(each.partition, each.token, each.session)) for each in member.to_open]
    member.to_open = []
    for held, _ in found:
        held.is_opening = True
    return [(held, opening) for held, opening in found if not held.is_over]


def opened(member: "Membership", held: HeldPartition, reply: Opened | Fenced | Failed) -> None:
    """Take the reply to an opening."""
    held.is_opening = False
    if held.is_over:
        return
    if isinstance(reply, Fenced):
        member.fenced(held, reply.token)
    elif held.is_draining:
        member.release(held)
    elif isinstance(reply, Failed):
        wait_after(member, held, reply, partial(member.open, held))
    else:
        accepted(member, held)
        _assign(member, held, reply)


def _assign(member: "Membership", held: HeldPartition, reply: Opened) -> None:
    held.done_before = reply.done
    lost = max(0, reply.added - reply.length - reply.done)
    if lost and not skips(member, held, reply.offset, lost):
        return
    position, settings = reply.offset, member.settings
    held.tracker = PartitionTracker(
        position, prefetch=settings.prefetch, prefetch_bytes=settings.prefetch_bytes
    )
    since = member.now_ms() - member.notes.started_ms + member.notes.started_at * 1_000
    held.assignment = Assignment(held.partition, held.token, position, since / 1_000)
    member.handover.put(Task.ASSIGN, held)
