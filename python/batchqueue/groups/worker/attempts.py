"""`Attempts`: what is left to do of a run of records, and what a failure makes of it.

It is pure: no lock, clock, or input and output.
"""

import enum
from collections import deque
from dataclasses import dataclass

from batchqueue.groups.worker.settings import OnFailure
from batchqueue.queues.config import RetryPolicy, longest_wait_ms, wait_ms

_LEAST_PAUSE_MS = 10
"""A blocked piece waits at least this long, whatever its policy says: it is tried for ever."""


class Verdict(enum.Enum):
    """What becomes of a piece whose handler raised."""

    AGAIN = "again"
    """It is tried again after a wait."""

    BLOCKED = "blocked"
    """Its attempts are used up, and it is tried again after the longest wait."""

    HALVED = "halved"
    """Each half is tried once, immediately."""

    DEAD = "dead"
    """It is a single record, which is set aside."""

    SKIPPED = "skipped"
    """It is left out."""

    STOP = "stop"
    """The worker stops."""


@dataclass(slots=True)
class RunPiece:
    """Records that one call gets.

    Attributes:
        begin: The place of the first record.
        end: The place after the last one.
        tries: The attempts so far.
        is_half: Whether it came from halving: it has one attempt.
    """

    begin: int
    end: int
    tries: int = 0
    is_half: bool = False

    def __len__(self) -> int:
        """Return the number of records."""
        return self.end - self.begin


class Attempts:
    """The pieces of a run of records, from the first one that is left.

    Attributes:
        pieces: What is left to do, in order.
        is_blocked: Whether the attempts of the first piece are used up, and it is tried again.
    """

    def __init__(self, count: int, retry: RetryPolicy, on_failure: OnFailure) -> None:
        """Begin with all records in one piece.

        Args:
            count: The number of records.
            retry: How often, and when, a piece is tried again.
            on_failure: What becomes of it then.
        """
        self.pieces = deque([RunPiece(0, count)])
        self.is_blocked = False
        self._retry = retry
        self._on_failure = on_failure

    def begin(self) -> RunPiece:
        """Return the first piece, for an attempt at it."""
        piece = self.pieces[0]
        piece.tries += 1
        return piece

    def succeeded(self) -> None:
        """Take the first piece off."""
        self.pieces.popleft()
        self.is_blocked = False

    def failed(self, error: BaseException) -> tuple[Verdict, float]:
        """Return what becomes of the first piece, and how long to wait before it is tried again.

        Args:
            error: What its handler raised.

        Returns:
            The verdict, and milliseconds. A piece that is dead or skipped is taken off.
        """
        piece, retry = self.pieces[0], self._retry
        is_used_up = retry.attempts is not None and piece.tries >= retry.attempts
        is_last = piece.is_half or is_used_up
        if not isinstance(error, Exception):
            return Verdict.STOP, 0.0
        if not is_last and isinstance(error, retry.retry_on):
            return Verdict.AGAIN, wait_ms(retry, piece.tries)
        if self._on_failure is OnFailure.BLOCK:
            self.is_blocked = True
            return Verdict.BLOCKED, max(_LEAST_PAUSE_MS, longest_wait_ms(retry))
        return self._give_up(piece), 0.0

    def _give_up(self, piece: RunPiece) -> Verdict:
        if self._on_failure is OnFailure.STOP:
            return Verdict.STOP
        self.pieces.popleft()
        is_dead = self._on_failure is OnFailure.DEAD_LETTER
        if len(piece) == 1 or not (is_dead or self._retry.bisect):
            return Verdict.DEAD if is_dead else Verdict.SKIPPED
        middle = (piece.begin + piece.end) // 2
        self.pieces.appendleft(RunPiece(middle, piece.end, piece.tries, is_half=True))
        self.pieces.appendleft(RunPiece(piece.begin, middle, piece.tries, is_half=True))
        return Verdict.HALVED
