"""What the log says when a handler raised, and what `run` raises. Under the lock."""

from typing import TYPE_CHECKING

from batchqueue._background_log import BackgroundLog
from batchqueue.groups.errors import HandlerFailedError, StaleTokenError
from batchqueue.groups.worker.attempts import Verdict
from batchqueue.groups.worker.batch import Batch
from batchqueue.groups.worker.held import HeldPartition
from batchqueue.groups.worker.letters import CallFailure

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership

_log = BackgroundLog("batchqueue")

_REPEATED_LOG_S = 60.0
_FIRST_REFUSAL_MS, _LONGEST_REFUSAL_MS = 50.0, 5_000.0
"""The time between two refusals of a partition by its sink."""

_BECOMES = {
    Verdict.AGAIN: "it is tried again",
    Verdict.BLOCKED: "the partition waits, and it is tried again",
    Verdict.DEAD: "it goes to the dead letters",
    Verdict.SKIPPED: "it is skipped",
    Verdict.STOP: "the worker stops",
}


def note_failure(member: "Membership", batch: Batch, verdict: Verdict, text: str) -> None:
    """Count and log that a handler raised."""
    member.notes.failed += 1
    if verdict is Verdict.HALVED:
        return
    key, now = f"{batch.partition}:{verdict.name}", member.now_ms()
    skipped = member.notes.may_log(key, now, _REPEATED_LOG_S)
    if skipped is None:
        return
    tries = "once" if batch.attempt == 1 else f"{batch.attempt} times"
    _log.warning(
        "%s/%d: offsets %d..%d failed %s (%s)%s, last: %s",
        batch.stream,
        batch.partition,
        batch.first,
        batch.last,
        tries,
        _BECOMES[verdict],
        f"; {skipped} more like it since the last line" if skipped else "",
        text,
    )


def stop_with(member: "Membership", batch: Batch, failure: CallFailure) -> None:
    """Leave the group because a handler failed for good."""
    if not isinstance(failure.error, Exception):
        member.fail(failure.error)
        return
    error = HandlerFailedError(
        batch.stream,
        batch.partition,
        first=batch.first,
        last=batch.last,
        tries=batch.attempt,
        cause=failure.error,
        reason=failure.reason,
    )
    member.fail(error)


def refused_by_sink(member: "Membership", held: HeldPartition, error: StaleTokenError) -> None:
    """A sink has seen a newer token: get a larger one, later if that has not helped before."""
    refusals = member.refusals.get(held.partition, 0)
    member.refusals[held.partition] = refusals + 1
    if refusals == 0:
        member.fenced(held, error.seen)
        return
    now = member.now_ms()
    if member.notes.may_log(f"{held.partition}:stale", now, _REPEATED_LOG_S) is not None:
        _log.warning("%s; refused %d times in a row", error, refusals + 1)
    wait_ms = min(_FIRST_REFUSAL_MS * 2 ** min(refusals, 10), _LONGEST_REFUSAL_MS)
    member.call_at(now + wait_ms, lambda: member.fenced(held, error.seen))
