"""The number of rows for the next epoch. Pure: no clock, no Spark.

Spark plans an epoch when the last one is committed, so a slow sink already holds back its source.
Only the size is missing, because the limits of a query are fixed when it starts. The law:

    rows = rows of the last epoch * clamp(goal / busy time of the last epoch, 0.2, 2)
    goal = max(target, 6 * fixed cost of an epoch, 0.8 * trigger interval)

Busy time excludes waiting for a trigger; otherwise the size would shrink to nothing under a long
trigger. The fixed cost is what an epoch takes regardless of its rows, the intercept of time over
rows. Without that term, an engine with expensive epochs would do nothing but begin epochs.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import NamedTuple


class EpochSize:
    """The size of the epochs of one run of a query, from one to the next.

    Attributes:
        rows: The most rows of the next epoch.
        fixed_s: The fixed cost of an epoch, in seconds; 0 while it is unknown.
    """

    def __init__(self, goal: "EpochGoal") -> None:
        self._goal = goal
        self._epochs: deque[SizedEpoch] = deque(maxlen=_HISTORY)
        self.rows = min(goal.first_rows, goal.max_rows)
        self.fixed_s = 0.0
        self._has_begun = False

    @property
    def goal_s(self) -> float:
        """How long an epoch should take, in seconds."""
        return goal_seconds(self._goal, self.fixed_s)

    def after(self, rows: int, busy_s: float) -> None:
        """Record an epoch.

        Args:
            rows: Its rows, at least 0.
            busy_s: The seconds that it took.
        """
        if rows < 1:
            return
        if self._has_begun:
            self._epochs.append(SizedEpoch(rows, busy_s))
            fixed_s = fixed_seconds(self._epochs)
            if fixed_s is not None:
                self.fixed_s = fixed_s
        # The first epoch starts Spark's workers, which would look like the cost of its rows.
        self._has_begun = True
        self._set(rows, resized(rows, busy_s, self.goal_s), is_on_time=busy_s <= self.goal_s)

    def after_a_kept_trigger(self, rows: int) -> None:
        """Record an epoch that ended before the next trigger, with an unknown busy time.

        Args:
            rows: Its rows, at least 0.
        """
        if rows >= 1:
            self._set(rows, round(rows * CAUTIOUS_RATIO) + 1, is_on_time=True)

    def _set(self, last: int, rows: int, *, is_on_time: bool) -> None:
        # An epoch may be small because the source had no more rows, which says nothing against the
        # limit.
        if is_on_time and last < _SHARE_OF_LIMIT * self.rows:
            rows = max(rows, self.rows)
        self.rows = max(1, min(rows, self._goal.max_rows))


LEAST_RATIO = 0.2
MOST_RATIO = 2.0
CAUTIOUS_RATIO = 1.25
"""Growth where the busy time is only known to be shorter than the trigger interval."""

_FIXED_COSTS = 6
"""Even where epochs are expensive, their sink is thus used for five sixths of the time."""
_SHARE_OF_TRIGGER = 0.8
_HISTORY = 16
_LEAST_SPREAD = 1.5
_SHARE_OF_LIMIT = 0.5


class SizedEpoch(NamedTuple):
    """An epoch that has ended."""

    rows: int
    busy_s: float
    """Seconds from its planning to its commit."""


@dataclass(frozen=True, kw_only=True)
class EpochGoal:
    """The goals for epochs.

    Attributes:
        target_s: Seconds that an epoch should take.
        trigger_s: Seconds between two triggers; 0 if epochs follow one another.
        first_rows: Rows of the first epoch of a run.
        max_rows: The most rows of an epoch.
    """

    target_s: float = 2.0
    trigger_s: float = 0.0
    first_rows: int = 10_000
    max_rows: int = 10_000_000


def goal_seconds(goal: EpochGoal, fixed_s: float) -> float:
    """Return how long an epoch should take, in seconds.

    Args:
        goal: The settings.
        fixed_s: The fixed cost of an epoch, in seconds.
    """
    return max(goal.target_s, _FIXED_COSTS * fixed_s, _SHARE_OF_TRIGGER * goal.trigger_s)


def resized(rows: int, busy_s: float, goal_s: float) -> int:
    """Return the rows of the next epoch, if nothing else limits it.

    Args:
        rows: The rows of the last one.
        busy_s: The seconds that it took.
        goal_s: The seconds that it should have taken.
    """
    ratio = MOST_RATIO if busy_s <= 0 else goal_s / busy_s
    return max(1, round(rows * min(max(ratio, LEAST_RATIO), MOST_RATIO)))


def fixed_seconds(epochs: Sequence[SizedEpoch]) -> float | None:
    """Return the fixed cost of an epoch, at most the median of their busy times.

    The line through the epochs is the Theil-Sen estimator, whose slope is the median of the slopes
    between any two points, so that a single slow epoch does not tilt it.

    Returns None if the epochs are too much alike.
    """
    slopes = [
        (b.busy_s - a.busy_s) / (b.rows - a.rows)
        for a, b in combinations(epochs, 2)
        if max(a.rows, b.rows) >= _LEAST_SPREAD * min(a.rows, b.rows)
    ]
    if not slopes:
        return None
    slope = median(slopes)
    intercept = median(epoch.busy_s - slope * epoch.rows for epoch in epochs)
    return min(max(intercept, 0.0), median(epoch.busy_s for epoch in epochs))
