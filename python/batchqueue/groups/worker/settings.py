"""`WorkerSettings`, the settings of a worker; `Attempts`, how they treat failures."""

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from batchqueue._core import ThreadPolicy
from batchqueue.base.checks import check_finite, check_whole
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.groups.plan import GroupBalancer
from batchqueue.groups.record import Assignment, Codec, Start, check_name, codec_of
from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.queues.config import RetryPolicy, longest_wait_ms, wait_ms

# `OnFailure`: what happens to records whose handler raised in their last attempt.


class OnFailure(enum.Enum):
    """What happens to records whose handler raised in every attempt of the `RetryPolicy`.

    A record that cannot be decoded is treated in the same way, alone. Other partitions continue in
    any case.
    """

    BLOCK = "block"
    """The batch is retried every `max_backoff_ms` until it succeeds. The default.

    Its partition waits, and no record is skipped. The log and `blocked_partitions` name the
    partition.
    """

    DEAD_LETTER = "dead_letter"
    """The bad records are set aside in the group's dead letters, and the partition continues.

    The batch is halved until the bad records stand alone. A half that succeeded is not handled
    again. A dead letter is stored together with the position that covers it, so neither is lost
    without the other.
    """

    SKIP = "skip"
    """The batch is counted and logged, and the partition continues without it: it is lost.

    With `RetryPolicy(bisect=True)` it is halved until the bad records stand alone, and only these
    are lost.
    """

    STOP = "stop"
    """The worker leaves the group, and `run` raises HandlerFailedError.

    The position stays before the batch, so the next owner of the partition begins with it.
    """


Callback = Callable[[list[Assignment]], Any]

_MOST_ITEMS = 100_000_000
_LEAST_LEASE_MS, _LONGEST_LEASE_MS = 500, 60_000


class OnGap(enum.Enum):
    """What happens when records were trimmed from the stream before the group read them."""

    FAIL = "fail"
    """The worker leaves the group, and `run` raises TruncatedError. The default."""

    SKIP = "skip"
    """The missing records are counted in `lost_records` and logged, and the worker continues."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker; `Worker` describes them."""

    group: str
    name: str | None = None
    codec: str | Codec = "bytes"
    threads: ThreadPolicy = field(default_factory=lambda: ThreadPolicy.cpu_cores(1.0))
    capacity: float = 1.0
    lease_ms: int = 5_000
    grace: float = 30
    prefetch: int = 10_000
    prefetch_bytes: int = 16 << 20
    max_batch_items: int = 10_000
    retry: RetryPolicy | None = None
    on_failure: OnFailure = OnFailure.BLOCK
    on_gap: OnGap = OnGap.FAIL
    start: Start = Start.EARLIEST
    balancer: GroupBalancer = field(default_factory=GroupBalancer.load_weighted)
    skew: SkewDetectionConfig = field(default_factory=SkewDetectionConfig)
    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None

    def __post_init__(self) -> None:
        check_name("the group", self.group)
        if self.name is not None:
            check_name("the worker", self.name)
        codec_of(self.codec)
        self._check_kinds()
        self._check_numbers()
        for name in ("on_assign", "on_revoke", "on_lost"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigError(f"{name} is {function!r}; give a function, or leave it out")

    @property
    def attempts(self) -> RetryPolicy:
        """The retry policy of a batch whose handler raised."""
        return self.retry or RetryPolicy()

    def _check_kinds(self) -> None:
        expected: dict[str, tuple[type, ...]] = {
            "threads": (ThreadPolicy,),
            "retry": (RetryPolicy, type(None)),
            "on_failure": (OnFailure,),
            "on_gap": (OnGap,),
            "start": (Start,),
            "balancer": (GroupBalancer,),
            "skew": (SkewDetectionConfig,),
        }
        for name, kinds in expected.items():
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise ConfigError(f"{name} is {value!r}, {a_type(value)}; give {kinds[0].__name__}")

    def _check_numbers(self) -> None:
        remedy = f"an int from 1 to {_MOST_ITEMS:_}"
        for name in ("prefetch", "prefetch_bytes", "max_batch_items"):
            check_whole(name, getattr(self, name), 1, _MOST_ITEMS, remedy)
        remedy = f"an int from {_LEAST_LEASE_MS:_} to {_LONGEST_LEASE_MS:_}"
        check_whole("lease_ms", self.lease_ms, _LEAST_LEASE_MS, _LONGEST_LEASE_MS, remedy)
        check_finite("grace", self.grace, 0, ", for instance 30")
        check_finite("capacity", self.capacity, 1e-6, ", for instance 1.0")


# How failures treat records under these settings. Pure: no locks, clock, input or output.


_LEAST_PAUSE_MS = 10
"""The shortest delay of a blocked piece, whatever its policy says: it is retried forever."""


class Verdict(enum.Enum):
    """What happens to a piece whose handler raised."""

    AGAIN = "again"
    """It is retried after a delay."""

    BLOCKED = "blocked"
    """Its attempts are used up; it is retried after the longest delay."""

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
    """The records of one call.

    Attributes:
        begin: The index of the first record.
        end: The index after the last record.
        tries: The number of attempts so far.
        is_half: Whether it came from halving; it then has one attempt.
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
        pieces: The pieces that are left, in order.
        is_blocked: Whether the attempts of the first piece are used up, and it is retried.
    """

    def __init__(self, count: int, retry: RetryPolicy, on_failure: OnFailure) -> None:
        """Start with all records in one piece.

        Args:
            count: The number of records.
            retry: How often, and when, a piece is retried.
            on_failure: What happens to it after the last attempt.
        """
        self.pieces = deque([RunPiece(0, count)])
        self.is_blocked = False
        self._retry = retry
        self._on_failure = on_failure

    def begin(self) -> RunPiece:
        """Return the first piece, to be attempted next."""
        piece = self.pieces[0]
        piece.tries += 1
        return piece

    def succeeded(self) -> None:
        """Remove the first piece, which succeeded."""
        self.pieces.popleft()
        self.is_blocked = False

    def failed(self, error: BaseException) -> tuple[Verdict, float]:
        """Return what happens to the first piece, and the delay before it is retried.

        Args:
            error: The error of its handler.

        Returns:
            The verdict, and milliseconds. A piece that is dead or skipped is removed.
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
