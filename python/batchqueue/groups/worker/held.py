"""`HeldPartition`: a partition from its grant until it is released or lost."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchqueue.groups.backend import CommitRequest
from batchqueue.groups.messages import Command
from batchqueue.groups.record import Assignment
from batchqueue.groups.worker.attempts import Attempts
from batchqueue.groups.worker.tracker import PartitionTracker, RecordCounts
from batchqueue.queues.handlers import HandlerOpening


class Effect(NamedTuple):
    """A command that runs with the commit of its batch.

    Attributes:
        first: The offset of the first record of the batch.
        last: The offset of the last one.
        command: The command.
    """

    first: int
    last: int
    command: Command


@dataclass(slots=True, eq=False)
class HeldPartition:
    """A partition under one token. All of it is used under the lock of the membership.

    Attributes:
        partition: Its number.
        token: The token of the grant.
        session: The session that it was granted to.
        assignment: What the user sees of it; None until it is open.
        tracker: What is done of it; None until it is open.
        done_before: The records that were done when it was opened.
        is_opening: Whether it was sent to be opened, and there is no reply yet.
        is_announced: Whether `on_assign` was called.
        is_postponed: Whether `on_assign` or the factory raised, and is called again later.
        is_taken: Whether `on_assign` has returned.
        is_running: Whether its records are read.
        is_paused: Whether the user has paused it.
        is_draining: Whether it is to be given up: what has started may end.
        is_told: Whether the handover was asked to call `on_revoke`.
        is_handed_over: Whether `on_revoke` has returned.
        is_over: Whether it was released or lost: whatever still runs is ignored.
        is_caught_up: Whether the last read found nothing.
        record_bytes: The mean size of the records of the last read; None before the first.
        is_full: Whether the reader waits until half of its credits are free.
        handler: The handler that a factory made for it, or None.
        committed: The records of this assignment whose commit was acknowledged.
        commit: The commit that was sent and has no reply yet.
        refused: The attempts at a call that the server refused, or None: the partition waits.
        again: Makes the calls that were refused again, each once.
        waits_to_commit: Whether a commit is among these.
        is_given_up: Whether its last commit was refused while it was drained: it is released, and
            what was not committed comes again.
    """

    partition: int
    token: int
    session: str
    assignment: Assignment | None = None
    tracker: PartitionTracker | None = None
    done_before: int = 0
    is_opening: bool = False
    is_announced: bool = False
    is_postponed: bool = False
    is_taken: bool = False
    is_running: bool = False
    is_paused: bool = False
    is_draining: bool = False
    is_told: bool = False
    is_handed_over: bool = False
    is_over: bool = False
    is_caught_up: bool = False
    record_bytes: float | None = None
    is_full: bool = False
    handler: HandlerOpening | None = None
    committed: int = 0
    commit: CommitRequest | None = None
    refused: Attempts | None = None
    again: list[Callable[[], None]] = field(default_factory=list)
    waits_to_commit: bool = False
    is_given_up: bool = False
    _sent: int = 0
    _effects: list[Effect] = field(default_factory=list)

    def run_with_commit(self, first: int, last: int, commands: Sequence[Command]) -> None:
        """Run commands of a batch with the commit that covers it."""
        self._effects += [Effect(first, last, command) for command in commands]

    def next_commit(self) -> CommitRequest | None:
        """Return what to commit now; None if that waits, or everything that is done is committed.

        A commit without a reply is returned unchanged until `acknowledge` (R17).
        """
        if self.commit is None and self.tracker is not None and not self.waits_to_commit:
            mark = self.tracker.to_commit()
            if mark is not None:
                self._sent = mark.records
                self.commit = CommitRequest(
                    self.partition,
                    self.token,
                    self.session,
                    mark.offset,
                    self.done_before + mark.records,
                    tuple(each.command for each in self._effects if each.last <= mark.offset),
                )
        return self.commit

    def acknowledge(self) -> None:
        """Take the reply of the commit that was sent."""
        assert self.commit is not None
        assert self.tracker is not None
        offset = self.commit.offset
        self.committed = self._sent
        self.tracker.acknowledge(offset)
        self._effects = [each for each in self._effects if each.last > offset]
        self.commit = None

    def refuse(self, ran: int) -> tuple[int, int]:
        """Take the reply of a commit that was refused: the next one may have more records.

        Args:
            ran: How many of its commands ran. They are not sent again.

        Returns:
            The offsets of the batch whose command failed; without a command, the one that was to be
            committed.
        """
        assert self.commit is not None
        offset, self.commit = self.commit.offset, None
        sent = [each for each in self._effects if each.last <= offset]
        later = [each for each in self._effects if each.last > offset]
        self._effects = sent[ran:] + later
        return (sent[ran].first, sent[ran].last) if ran < len(sent) else (offset, offset)

    @property
    def is_held_up(self) -> bool:
        """Whether nothing of it is read or handled: it is paused, or a call was refused."""
        return self.is_paused or self.refused is not None

    @property
    def unfinished(self) -> int:
        """Records in hand, or done and not committed: they come again if it is given up now."""
        if self.tracker is None:
            return 0
        return self.tracker.counts.in_hand + self.tracker.mark.records - self.committed

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is in hand."""
        return self.tracker is None or self.tracker.counts.in_hand == 0

    @property
    def is_drained(self) -> bool:
        """Whether it can be released."""
        if self.tracker is None or self.commit is not None:
            return self.tracker is None
        return self.tracker.drained or (self.is_given_up and self.is_idle)


class Notes:
    """Counts of one worker. All of it is used under the lock of the membership.

    Attributes:
        started_ms: When the worker was started, by its own clock.
        started_at: The same in seconds since 1970.
        ended: The counts of partitions that it does not hold any more.
        assigned: Partitions that were assigned.
        lost: Partitions that were lost.
        fenced: Tokens that were refused.
        failed: Attempts that raised.
        late_beats: Heartbeats that were sent after half of the lease.
        lost_records: Records that were trimmed before they were read.
        unfinished: Records in hand when a partition was given up at the end, by partition.
    """

    def __init__(self, now_ms: float) -> None:
        self.started_ms = now_ms
        self._active_at = time.monotonic()
        self.started_at = time.time()
        self.ended = RecordCounts()
        self.assigned = self.lost = self.fenced = self.failed = self.late_beats = 0
        self.lost_records = 0
        self.unfinished: dict[int, int] = {}
        self._logged: dict[str, tuple[float, int]] = {}

    def touch(self) -> None:
        """Note that records were fetched or ended, or a partition was assigned."""
        self._active_at = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last `touch`, whatever the clock of the worker is."""
        return time.monotonic() - self._active_at

    def may_log(self, key: str, now_ms: float, every_s: float) -> int | None:
        """Return how many lines of a kind were left out before this one; None to leave it out.

        Args:
            key: The kind.
            now_ms: The time.
            every_s: Seconds between two lines of the kind.
        """
        last_ms, left_out = self._logged.get(key, (float("-inf"), 0))
        if now_ms - last_ms < every_s * 1_000:
            self._logged[key] = (last_ms, left_out + 1)
            return None
        self._logged[key] = (now_ms, 0)
        return left_out
