"""What becomes of a partition for which the server refuses a call. Under the lock.

The partition waits, as one whose handler has failed does: nothing of it is read or handled until
the call, made again with the pauses of the worker's `RetryPolicy`, has succeeded. The others
continue. A partition that is to be given up has one more attempt.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from batchqueue._background_log import BackgroundLog
from batchqueue.groups.errors import HandlerFailedError
from batchqueue.groups.failure import OnFailure
from batchqueue.groups.messages import Failed
from batchqueue.groups.worker.attempts import Attempts, Verdict
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.letters import described

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership

_log = BackgroundLog("batchqueue")

_REPEATED_LOG_S = 60.0


def wait_after(
    member: "Membership",
    held: HeldPartition,
    failure: Failed,
    again: Callable[[], None],
    on_failure: OnFailure = OnFailure.BLOCK,
) -> Verdict:
    """Let a partition wait, and make its call again later.

    Args:
        member: The membership.
        held: The partition.
        failure: What the server replied.
        again: Makes the call again.
        on_failure: What happens after the last attempt: BLOCK or STOP.
    """
    if held.refused is None:
        held.refused = Attempts(1, member.settings.attempts, on_failure)
    held.refused.begin()
    verdict, wait_ms = held.refused.failed(failure.error)
    held.again.append(again)
    _note(member, held, failure.error)
    if verdict is not Verdict.STOP:
        member.call_at(member.now_ms() + wait_ms, partial(call_again, held))
    return verdict


def call_again(held: HeldPartition) -> None:
    """Make the calls that were refused again."""
    calls, held.again = held.again, []
    if not held.is_over:
        for call in calls:
            call()


def accepted(member: "Membership", held: HeldPartition) -> None:
    """Let a partition continue after a call that was not refused, unless another one waits."""
    if held.refused is not None and not held.again:
        held.refused = None
        member.resume(held)


def commit_refused(member: "Membership", held: HeldPartition, failure: Failed) -> None:
    """Take the reply to a commit that was refused.

    Commands that ran are not sent again. Under `OnFailure.STOP` the worker stops after the last
    attempt; otherwise the partition waits whatever `on_failure` says, because its records cannot
    be set aside or skipped: their handler has returned, and some of their commands have run.
    """
    first, last = held.refuse(failure.ran)
    if held.is_draining:
        _note(member, held, failure.error)
        held.is_given_up = True
        member.check_drained(held)
        return
    held.waits_to_commit = True
    is_stop = member.settings.on_failure is OnFailure.STOP
    verdict = wait_after(
        member,
        held,
        failure,
        partial(_commit_again, member, held),
        OnFailure.STOP if is_stop else OnFailure.BLOCK,
    )
    if verdict is Verdict.STOP:
        assert held.refused is not None
        tries = held.refused.pieces[0].tries
        position = (member.stream, held.partition)
        cause = failure.error
        member.fail(HandlerFailedError(*position, first=first, last=last, tries=tries, cause=cause))


def _commit_again(member: "Membership", held: HeldPartition) -> None:
    held.waits_to_commit = False
    member.dirty[held] = None
    member.commits_due.notify()


def _note(member: "Membership", held: HeldPartition, error: Exception) -> None:
    key = f"{held.partition}:{'given up' if held.is_draining else 'refused'}"
    skipped = member.notes.may_log(key, member.now_ms(), _REPEATED_LOG_S)
    if skipped is None:
        return
    _log.warning(
        "%s/%d: the partition %s%s: %s",
        member.stream,
        held.partition,
        "is given up, and what was not committed comes again"
        if held.is_draining
        else "waits, and the call is made again",
        f"; {skipped} more like it since the last line" if skipped else "",
        described(error),
    )
