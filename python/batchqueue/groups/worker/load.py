"""What the partitions of a worker cost, and what the member that plans makes of it.

The weight of a partition is the time that its handlers are busy, in seconds per second, plus the
time that its lag would take them if they were to catch up within a minute; and a hundredth of a
second for all else, so that partitions with little to do count alike.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from batchqueue.groups.messages import Ticket

_MEMORY_S = 30.0
"""After this time, what was measured before counts 1/e."""

_SHORTEST_S = 0.1

_CATCH_UP_S = 60.0

_LEAST = 0.01
"""Busy seconds per second that each partition counts for: below, what is measured is noise."""


class Load(NamedTuple):
    """What a partition costs, a moving average.

    Attributes:
        busy: Seconds per second that its handlers are busy.
        rate: Records per second.
    """

    busy: float
    rate: float

    def weight(self, lag: int | None) -> float:
        """Return the weight of a partition that lags by so many records."""
        seconds_per_record = self.busy / self.rate if self.rate > 0 else 0.0
        return _LEAST + self.busy + (lag or 0) * seconds_per_record / _CATCH_UP_S


class LoadMeter:
    """The load per partition: a moving average with exponential weights.

    All of it is used under the lock of the membership.
    """

    def __init__(self) -> None:
        self._new: dict[int, tuple[float, int]] = {}
        self._loads: dict[int, Load] = {}
        self._since_ms: float | None = None

    def add(self, partition: int, records: int, busy_ms: float) -> None:
        """Note that a handler was busy with a partition.

        Args:
            partition: The partition.
            records: The records that it got.
            busy_ms: For how long.
        """
        busy, count = self._new.get(partition, (0.0, 0))
        self._new[partition] = (busy + busy_ms, count + records)

    def measure(self, partitions: Iterable[int], now_ms: float) -> Mapping[int, Load]:
        """Return the load of partitions; empty until there is something to compare with.

        Args:
            partitions: Those that the worker holds; it forgets the others.
            now_ms: The time.
        """
        if self._since_ms is None:
            self._since_ms = now_ms
            return {}
        seconds = (now_ms - self._since_ms) / 1_000
        if seconds >= _SHORTEST_S:
            self._since_ms = now_ms
            share = 1 - math.exp(-seconds / _MEMORY_S)
            new, self._new = self._new, {}
            before, self._loads = self._loads, {}
            for partition in partitions:
                busy_ms, records = new.get(partition, (0.0, 0))
                latest = Load(busy_ms / 1_000 / seconds, records / seconds)
                old = before.get(partition, latest)
                self._loads[partition] = Load(
                    *(was + share * (now - was) for was, now in zip(old, latest, strict=True))
                )
        return self._loads


def weigh(ticket: Ticket) -> dict[int, float | None]:
    """Return the weights of partitions, from what the members have reported.

    A partition that no member reports keeps the weight of the last plan. What cannot be read is
    left out: a worker of another version may have written it.
    """
    weights: dict[int, float | None] = dict(ticket.weights)
    for stats in ticket.stats.values():
        try:
            reported = json.loads(stats)["weights"]
            weights.update({int(each): float(weight) for each, weight in reported.items()})
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return {each: weight for each, weight in weights.items() if 0 <= each < ticket.partitions}
