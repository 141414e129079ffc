"""`HeldPartition`: a partition from its grant until it is released or lost.

It has two states: its `Life`, and its `Revocation` if it is to be given up in an orderly way. Only
the `Membership` takes a step; a step that is not in `STEPS` is an error.

```text
           to_open           opened            announced           taken
 granted ──────────▶ opening ────────▶ open ─────────────▶ announced ─────▶ taken
    ▲                   │              ▲  │ factory raised  ▲  │ on_assign raised
    └─────refused───────┘      retried │  ▼         retried │  ▼
                                    postponed            declined

 none ──▶ draining ──nothing runs──▶ revoking ──on_revoke has returned──▶ handed over
```

Any life ends as *over*. A partition may be lost in each state. It is released immediately if its
revocation begins before `on_assign` was called; otherwise once it was handed over and everything
done is committed. `on_assign` may still run when the revocation begins: the partition is then taken
or declined, and none of its records is read. After a call of `on_assign`, even one that raised, the
user is notified of the end once: by `on_revoke`, or by `on_lost` if the partition was lost before
`on_revoke` was called.
"""

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchqueue.groups.backend import CommitRequest
from batchqueue.groups.messages import Command, SentRecord
from batchqueue.groups.record import Assignment
from batchqueue.groups.worker.settings import Attempts
from batchqueue.groups.worker.tracker import PartitionTracker, RecordCounts
from batchqueue.queues.handlers import HandlerOpening


class Life(enum.Enum):
    """The progress of a partition towards being handled."""

    GRANTED = "granted"
    """It has to be opened."""

    OPENING = "opening"
    """A call to open it is under way."""

    OPEN = "open"
    """Its handler has to be made; then `on_assign` is called."""

    POSTPONED = "postponed"
    """The factory of its handler raised, and will be called again later."""

    ANNOUNCED = "announced"
    """`on_assign` is being called."""

    DECLINED = "declined"
    """`on_assign` raised, and will be called again later."""

    TAKEN = "taken"
    """`on_assign` has returned: its records are read and handled, unless it is being given up."""

    OVER = "over"
    """It was released or lost; anything still running is ignored."""


class Revocation(enum.Enum):
    """The progress of an orderly end."""

    NONE = "none"
    """It is kept."""

    DRAINING = "draining"
    """Work that has started may finish."""

    REVOKING = "revoking"
    """Nothing of it runs any more, and `on_revoke` is being called."""

    HANDED_OVER = "handed over"
    """`on_revoke` has returned; it is released once the last commit is acknowledged."""


State = Life | Revocation

STEPS: Mapping[State, frozenset[State]] = {
    Life.GRANTED: frozenset({Life.OPENING, Life.OVER}),
    Life.OPENING: frozenset({Life.GRANTED, Life.OPEN, Life.OVER}),
    Life.OPEN: frozenset({Life.POSTPONED, Life.ANNOUNCED, Life.OVER}),
    Life.POSTPONED: frozenset({Life.OPEN, Life.OVER}),
    Life.ANNOUNCED: frozenset({Life.DECLINED, Life.TAKEN, Life.OVER}),
    Life.DECLINED: frozenset({Life.ANNOUNCED, Life.OVER}),
    Life.TAKEN: frozenset({Life.OVER}),
    Life.OVER: frozenset(),
    Revocation.NONE: frozenset({Revocation.DRAINING}),
    Revocation.DRAINING: frozenset({Revocation.REVOKING}),
    Revocation.REVOKING: frozenset({Revocation.HANDED_OVER}),
    Revocation.HANDED_OVER: frozenset(),
}
"""The states that may follow each state."""


class ReadState(enum.Enum):
    """What the reader knows about a partition."""

    BEHIND = "behind"
    """It may have more records."""

    CAUGHT_UP = "caught up"
    """The last read found nothing."""

    FULL = "full"
    """Its credits are used up; it is read again when half of them are free."""


class Committing(enum.Enum):
    """What happens to records that are done."""

    CALM = "calm"
    """They are committed."""

    REFUSED = "refused"
    """The server has refused their commit, which will be repeated later."""

    GIVEN_UP = "given up"
    """The commit was refused while the partition was drained: they come again after the release."""


class Effect(NamedTuple):
    """A command that runs with the commit of its batch.

    Attributes:
        first: The offset of the first record of the batch.
        last: The offset of the last record of the batch.
        command: The command.
    """

    first: int
    last: int
    command: Command


class Sent(NamedTuple):
    """Records that are stored with the commit of their batch.

    Attributes:
        first: The offset of the first record of the batch.
        last: The offset of the last record of the batch.
        records: The records.
    """

    first: int
    last: int
    records: tuple[SentRecord, ...]


@dataclass(slots=True, eq=False)
class HeldPartition:
    """A partition under one token. All of it is used under the lock of the membership.

    Attributes:
        partition: Its number.
        token: The token of the grant.
        session: The session that it was granted to.
        life: Its progress towards being handled.
        revocation: Its progress towards its end.
        reading: What the reader knows about it.
        committing: What happens to records that are done.
        assignment: The assignment that the user sees; None until it is open.
        tracker: Tracks which records are done; None until it is open.
        done_before: The number of records done when it was opened.
        record_bytes: The mean size of the records of the last read; None before the first.
        handler: The handler that a factory made for it, or None.
        postponements: How often its factory or `on_assign` has raised.
        committed: The number of records of this assignment whose commit was acknowledged.
        commit: The commit that was sent and has no reply yet.
        refused: The attempts at a call that the server refused, or None. The partition waits
            meanwhile.
        again: Functions that repeat the refused calls, each called once.
    """

    partition: int
    token: int
    session: str
    life: Life = Life.GRANTED
    revocation: Revocation = Revocation.NONE
    reading: ReadState = ReadState.BEHIND
    committing: Committing = Committing.CALM
    assignment: Assignment | None = None
    tracker: PartitionTracker | None = None
    done_before: int = 0
    record_bytes: float | None = None
    handler: HandlerOpening | None = None
    postponements: int = 0
    committed: int = 0
    commit: CommitRequest | None = None
    refused: Attempts | None = None
    again: list[Callable[[], None]] = field(default_factory=list)
    _sent: int = 0
    _effects: list[Effect] = field(default_factory=list)
    _records: list[Sent] = field(default_factory=list)

    def step(self, state: State) -> None:
        """Enter a state. Only the membership calls this.

        Raises:
            AssertionError: The state may not follow the current one.
        """
        before: State = self.life if isinstance(state, Life) else self.revocation
        if state not in STEPS[before]:
            raise AssertionError(f"partition {self.partition}: {before} is not left for {state}")
        if isinstance(state, Life):
            self.life = state
        else:
            self.revocation = state

    @property
    def is_over(self) -> bool:
        """Whether it was released or lost; anything still running is ignored."""
        return self.life is Life.OVER

    @property
    def is_draining(self) -> bool:
        """Whether it is to be given up; work that has started may finish."""
        return self.revocation is not Revocation.NONE

    @property
    def is_running(self) -> bool:
        """Whether its records are read."""
        return self.life is Life.TAKEN and self.revocation is Revocation.NONE

    @property
    def is_known(self) -> bool:
        """Whether the user has been notified of it, and not yet of its end."""
        is_announced = self.life in (Life.ANNOUNCED, Life.DECLINED, Life.TAKEN)
        return is_announced and self.revocation in (Revocation.NONE, Revocation.DRAINING)

    def run_with_commit(self, first: int, last: int, commands: Sequence[Command]) -> None:
        """Run commands of a batch with the commit that covers the batch."""
        self._effects += [Effect(first, last, command) for command in commands]

    def send_with_commit(self, first: int, last: int, records: tuple[SentRecord, ...]) -> None:
        """Store records of a batch with the commit that covers the batch."""
        self._records.append(Sent(first, last, records))

    def next_commit(self) -> CommitRequest | None:
        """Return what to commit now; None if the commit waits, or all done records are committed.

        A commit without a reply is returned unchanged until `acknowledge` (R17). No commit ends
        between two records of a batch with effects: after a crash, only the later ones would come
        again, and the effects of the earlier ones would be lost.
        """
        if (
            self.commit is None
            and self.tracker is not None
            and self.committing is not Committing.REFUSED
        ):
            mark = self.tracker.to_commit()
            if mark is not None and not self._is_inside_batch(mark.offset):
                self._sent = mark.records
                self.commit = CommitRequest(
                    self.partition,
                    self.token,
                    self.session,
                    mark.offset,
                    self.done_before + mark.records,
                    tuple(each.command for each in self._effects if each.last <= mark.offset),
                    tuple(
                        record
                        for each in self._records
                        if each.last <= mark.offset
                        for record in each.records
                    ),
                )
        return self.commit

    def _is_inside_batch(self, offset: int) -> bool:
        """Return whether a batch with effects has records on both sides of an offset's end."""
        batches: list[Effect | Sent] = [*self._effects, *self._records]
        return any(each.first <= offset < each.last for each in batches)

    def acknowledge(self) -> None:
        """Handle the reply to the commit that was sent."""
        assert self.commit is not None
        assert self.tracker is not None
        offset = self.commit.offset
        self.committed = self._sent
        self.tracker.acknowledge(offset)
        self._effects = [each for each in self._effects if each.last > offset]
        self._records = [each for each in self._records if each.last > offset]
        self.commit = None

    def refuse(self, ran: int) -> tuple[int, int]:
        """Handle the refusal of a commit. The next commit may cover more records.

        Args:
            ran: How many of its commands ran; they are not sent again.

        Returns:
            The offsets of the batch whose command failed; without a command, the offset that was to
            be committed, twice.
        """
        assert self.commit is not None
        offset, self.commit = self.commit.offset, None
        sent = [each for each in self._effects if each.last <= offset]
        later = [each for each in self._effects if each.last > offset]
        self._effects = sent[ran:] + later
        return (sent[ran].first, sent[ran].last) if ran < len(sent) else (offset, offset)

    @property
    def unfinished(self) -> int:
        """Records in hand, or done and not committed; they come again if it is given up now."""
        if self.tracker is None:
            return 0
        return self.tracker.counts.in_hand + self.tracker.mark.records - self.committed

    @property
    def is_idle(self) -> bool:
        """Whether none of its records is in hand."""
        return self.tracker is None or self.tracker.counts.in_hand == 0

    @property
    def is_half_free(self) -> bool:
        """Whether half of its credits are free."""
        return self.tracker is not None and self.tracker.fill <= 0.5

    @property
    def is_drained(self) -> bool:
        """Whether it can be released."""
        if self.tracker is None or self.commit is not None:
            return self.tracker is None
        if self.tracker.drained:
            return True
        # Once nothing is in hand, a mark that is inside a batch stays there.
        is_stuck = self._is_inside_batch(self.tracker.mark.offset)
        return self.is_idle and (is_stuck or self.committing is Committing.GIVEN_UP)


_REPEATED_LOG_MS = 60_000.0
"""The time between two log lines of a kind."""


class Notes:
    """The counts of one worker. All of it is used under the lock of the membership.

    Attributes:
        started_ms: When the worker was started, by its own clock.
        started_at: The same moment in seconds since 1970.
        ended: The counts of partitions that it no longer holds.
        assigned: Partitions that were assigned.
        lost: Partitions that were lost.
        fenced: The number of refused tokens.
        failed: The number of attempts that raised.
        late_beats: Heartbeats sent after half of the lease had passed.
        lost_records: Records that were trimmed before they were read.
        unfinished: Records in hand when a partition was given up at the end, by partition.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self.started_ms = now_ms()
        self._active_at = time.monotonic()
        self.started_at = time.time()
        self.ended = RecordCounts()
        self.assigned = self.lost = self.fenced = self.failed = self.late_beats = 0
        self.lost_records = 0
        self.unfinished: dict[int, int] = {}
        self._logged: dict[str, tuple[float, int]] = {}

    def touch(self) -> None:
        """Record that records were fetched or ended, or that a partition was assigned."""
        self._active_at = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last `touch`, by the system's clock, not the worker's."""
        return time.monotonic() - self._active_at

    def may_log(self, key: str) -> int | None:
        """Return how many lines of a kind were left out before this one; None to leave it out.

        At most one line of each kind is logged per minute.
        """
        now_ms = self._now_ms()
        last_ms, left_out = self._logged.get(key, (float("-inf"), 0))
        if now_ms - last_ms < _REPEATED_LOG_MS:
            self._logged[key] = (last_ms, left_out + 1)
            return None
        self._logged[key] = (now_ms, 0)
        return left_out
