"""The cost of a worker's partitions, and how the planning member uses it.

The weight of a partition is the time that its handlers are busy, in seconds per second, plus the
time that its lag would take them if they had to catch up within a minute, plus a hundredth of a
second for everything else, so that partitions with little to do count alike.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from batchqueue.groups.messages import Ticket

_MEMORY_S = 30.0
"""After this time, earlier measurements count 1/e."""

_SHORTEST_S = 0.1

_KNOWN_AFTER_S = 5.0
"""Until then, the last plan knows better: a partition that has just moved was idle for a while."""

_CATCH_UP_S = 60.0

_LEAST = 0.01
"""Busy seconds per second that each partition counts for; smaller measurements are noise."""


class Load(NamedTuple):
    """The cost of a partition, as a moving average.

    Attributes:
        busy: Seconds per second that its handlers are busy.
        rate: Records per second.
        seconds: How long it was measured, in seconds.
    """

    busy: float
    rate: float
    seconds: float

    @property
    def is_known(self) -> bool:
        """Whether it was measured for long enough to plan with."""
        return self.seconds >= _KNOWN_AFTER_S

    def weight(self, lag: int | None) -> float:
        """Return the weight of a partition with this lag in records."""
        seconds_per_record = self.busy / self.rate if self.rate > 0 else 0.0
        return _LEAST + self.busy + (lag or 0) * seconds_per_record / _CATCH_UP_S

    def averaged(self, busy_s: float, records: int, seconds: float) -> "Load":
        """Return the average after another measurement.

        At first it is the mean of all measurements.

        Args:
            busy_s: How long handlers were busy, in seconds.
            records: The number of records that they got.
            seconds: The measured time in seconds.
        """
        total = self.seconds + seconds
        share = max(1 - math.exp(-seconds / _MEMORY_S), seconds / total)
        return Load(
            self.busy + share * (busy_s / seconds - self.busy),
            self.rate + share * (records / seconds - self.rate),
            total,
        )


class LoadMeter:
    """The load per partition: a moving average with exponential weights.

    A call counts while it runs, so that a slow handler has weight before its first call returns.
    All of it is used under the lock of the membership.
    """

    def __init__(self) -> None:
        self._calls: dict[object, tuple[int, float]] = {}
        # Since the last measurement, by partition.
        self._busy_ms: defaultdict[int, float] = defaultdict(float)
        self._records: defaultdict[int, int] = defaultdict(int)
        self._loads: dict[int, Load] = {}
        self._since_ms = -math.inf

    def begin(self, call: object, partition: int, now_ms: float) -> None:
        """Record that a handler is called.

        Args:
            call: Identifies the call among all that run.
            partition: The partition whose records it gets.
            now_ms: The time.
        """
        self._calls[call] = partition, now_ms

    def end(self, call: object, records: int, now_ms: float) -> None:
        """Record that a call has returned.

        Args:
            call: Identifies the call, as for `begin`.
            records: The number of records that it got.
            now_ms: The time.
        """
        partition, since_ms = self._calls.pop(call)
        self._busy_ms[partition] += now_ms - since_ms
        self._records[partition] += records

    def measure(self, partitions: Iterable[int], now_ms: float) -> Mapping[int, Load]:
        """Return the load of partitions, except those new since the last measurement.

        Args:
            partitions: The partitions that the worker holds; all others are forgotten.
            now_ms: The time.
        """
        seconds = (now_ms - self._since_ms) / 1_000
        if seconds >= _SHORTEST_S:
            self._since_ms = now_ms
            self._count_running(now_ms)
            before, self._loads = self._loads, {}
            for partition in partitions:
                load = before.get(partition)
                self._loads[partition] = (
                    Load(0.0, 0.0, 0.0)
                    if load is None
                    else load.averaged(
                        self._busy_ms[partition] / 1_000, self._records[partition], seconds
                    )
                )
            self._busy_ms.clear()
            self._records.clear()
        return {each: load for each, load in self._loads.items() if load.seconds > 0}

    def _count_running(self, now_ms: float) -> None:
        for call, (partition, since_ms) in self._calls.items():
            self._busy_ms[partition] += now_ms - since_ms
            self._calls[call] = partition, now_ms


def weigh(ticket: Ticket) -> dict[int, float | None]:
    """Return the weights of partitions, from the reports of the members.

    A partition that no member reports, or has measured for long enough, keeps the weight of the
    last plan. Unreadable reports are skipped: a worker of another version may have written them.
    """
    weights: dict[int, float | None] = dict(ticket.weights)
    for stats in ticket.stats.values():
        try:
            reported = json.loads(stats)["weights"]
            weights.update({int(each): float(weight) for each, weight in reported.items()})
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return {each: weight for each, weight in weights.items() if 0 <= each < ticket.partitions}
