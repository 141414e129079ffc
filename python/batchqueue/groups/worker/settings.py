"""`WorkerSettings`: the settings of a worker, checked."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from batchqueue._core import ThreadPolicy
from batchqueue.base.checks import check_finite, check_whole
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.groups.plan import GroupBalancer
from batchqueue.groups.record import Assignment, Codec, Start, check_name, codec_of
from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.queues.config import RetryPolicy

# `OnFailure`: what becomes of records whose handler raised in their last attempt.


class OnFailure(enum.Enum):
    """What happens to records whose handler raised in every attempt of the `RetryPolicy`.

    A record that does not decode is treated in the same way, alone. Other partitions continue in
    any case.
    """

    BLOCK = "block"
    """The batch is tried again, `max_backoff_ms` apart, until it succeeds. The default.

    Its partition waits, and no record is skipped. The log and `blocked_partitions` name the
    partition.
    """

    DEAD_LETTER = "dead_letter"
    """The bad records are set aside in the group's dead letters, and the partition continues.

    The batch is halved until the bad records stand alone. A half that succeeded is not called
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

    The position stays before the batch, so that the next owner of the partition begins with it.
    """


Callback = Callable[[list[Assignment]], Any]

_MOST_ITEMS = 100_000_000
_LEAST_LEASE_MS, _LONGEST_LEASE_MS = 500, 60_000


class OnGap(Enum):
    """What happens when records were trimmed from the stream before the group had read them."""

    FAIL = "fail"
    """The worker leaves the group, and `run` raises TruncatedError. The default."""

    SKIP = "skip"
    """The missing records are counted in `lost_records` and logged, and the worker continues."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker. `Worker` says what they mean."""

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
        """How a batch whose handler raised is tried again."""
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
