"""Records that were trimmed from the stream before they were read. Under the lock."""

from typing import TYPE_CHECKING

from batchqueue._background_log import BackgroundLog
from batchqueue.groups.backend import PartitionInfo
from batchqueue.groups.errors import TruncatedError
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.settings import OnGap

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership

_log = BackgroundLog("batchqueue")


def check_gap(member: "Membership", held: HeldPartition, info: PartitionInfo) -> None:
    """Notice records of a partition that were trimmed before they were read."""
    tracker = held.tracker
    if tracker is None or held.is_over or info.added is None:
        return
    seen = held.done_before + tracker.counts.fetched
    is_at_end = info.end == tracker.position
    lost = (info.added if is_at_end else info.added - info.length) - seen
    if lost <= 0:
        return
    if not info.has_deletions:
        skips(member, held, tracker.position, lost)
    elif is_at_end:
        held.done_before += lost  # deleted, not trimmed: the lag is right again from here on


def skips(member: "Membership", held: HeldPartition, offset: int, lost: int) -> bool:
    """Note that records are missing; return whether to continue without them."""
    error = TruncatedError(member.stream, held.partition, offset, lost)
    if member.settings.on_gap is OnGap.FAIL:
        member.fail(error)
        return False
    held.done_before += lost
    member.notes.lost_records += lost
    _log.warning("%s", error)
    return True
