"""`LoadMeter`: what the partitions of a worker cost, for the member that plans."""

import json
import math
from collections.abc import Mapping

from batchqueue.groups.messages import Ticket

_MEMORY_S = 30.0
"""After this time, what was measured before counts 1/e."""

_SHORTEST_S = 0.1


class LoadMeter:
    """Busy time per partition: a moving average with exponential weights.

    All of it is used under the lock of the membership.
    """

    def __init__(self) -> None:
        self._busy_ms: dict[int, float] = {}
        self._busy: dict[int, float] = {}
        self._since_ms: float | None = None

    def add(self, partition: int, records: int, busy_ms: float) -> None:
        """Note that a handler was busy with a partition.

        Args:
            partition: The partition.
            records: The records that it got.
            busy_ms: For how long.
        """
        del records
        self._busy_ms[partition] = self._busy_ms.get(partition, 0.0) + busy_ms

    def measure(self, partitions: list[int], now_ms: float) -> dict[int, float]:
        """Return the busy seconds per second of partitions.

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
            measured, self._busy_ms = self._busy_ms, {}
            before, self._busy = self._busy, {}
            for partition in partitions:
                busy = measured.get(partition, 0.0) / 1_000 / seconds
                old = before.get(partition, busy)
                self._busy[partition] = old + share * (busy - old)
        return self._busy


def report(busy: Mapping[int, float]) -> str:
    """Return what a beat says about the load of a worker."""
    return json.dumps({"busy": {str(each): round(share, 6) for each, share in busy.items()}})


def weigh(ticket: Ticket) -> dict[int, float | None]:
    """Return the weights of partitions, from what the members have reported.

    A partition that nobody reports keeps the weight of the last plan. What cannot be read is left
    out: a worker of another version may have written it.
    """
    weights: dict[int, float | None] = dict(ticket.weights)
    for stats in ticket.stats.values():
        try:
            busy = json.loads(stats)["busy"]
            weights.update({int(partition): float(share) for partition, share in busy.items()})
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return {each: weight for each, weight in weights.items() if each < ticket.partitions}
