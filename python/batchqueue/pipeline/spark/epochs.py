"""`Epochs`: where the epochs of one query begin and end, and which tasks read them.

It is a stream reader without Spark: it plans one source in the process of one query. All positions
that it returns are JSON with sorted keys, because Spark compares them as texts.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batchqueue.pipeline.contract import Limit, Plan, Position, Source, Split, checked_position
from batchqueue.pipeline.sources.splits import within
from batchqueue.pipeline.spark.control import DriverControl
from batchqueue.pipeline.spark.epoch_size import EpochGoal, EpochSize

_log = logging.getLogger("batchqueue.pipeline")

_NO_LIMIT = 2**62
_PAUSE_S = 0.2
_BETWEEN_EMPTY_PLANS_S = 0.1
_CHECK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """How to plan the epochs of one query. It pickles.

    Attributes:
        query: The name of the query in the control directory.
        goal: The size of epochs.
        max_bytes: The most bytes of an epoch, as far as the source knows them.
        max_tasks: The most tasks that read an epoch.
        commits: Whether the source is notified of what has been stored. False if several queries
            read it, since one may be behind another.
    """

    query: str
    goal: EpochGoal
    max_bytes: int
    max_tasks: int
    commits: bool


@dataclass
class _Running:
    """The epoch that was planned last."""

    end: str
    splits: int
    rows: int | None
    began_s: float


class Epochs:
    """Plans the epochs of one query over one source. One thread uses it."""

    def __init__(
        self,
        source: Source,
        settings: EpochSettings,
        control: DriverControl,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin a run.

        Args:
            source: What to read.
            settings: How to plan.
            control: Says when to pause, and how long epochs were busy.
            clock: Returns seconds since an arbitrary time.
            wait: Waits for some seconds.
        """
        self._source = source
        self._settings = settings
        self._control = control
        self._clock = clock
        self._wait = wait
        self._size = EpochSize(settings.goal)
        self._running: _Running | None = None
        self._planned: tuple[str, str, tuple[Split, ...]] | None = None
        self._ends_now = False
        self._ahead: list[Split] | None = None
        self._was_empty_s: float | None = None
        self._rows_of_split: int | None = None
        self._parent = os.getppid()

    def initial(self) -> Position:
        """Return the position of the first epoch."""
        return self._sorted(self._source.initial())

    def end_with_what_is_there(self) -> None:
        """End the query once it has read what exists at its first epoch (`availableNow`)."""
        self._ends_now = True

    def next_end(self, start: Position, *, everything: bool) -> Position:
        """Return the end of the next epoch; `start` if there is none now.

        Under `availableNow`, returning `start` ends the query, so during a pause this waits until
        the pause is over, and returns `start` only after the last row.

        Args:
            start: The end of the last epoch.
            everything: Take everything that exists, regardless of the target size (`once`).
        """
        self._note_last_epoch(self._text(start))
        if self._control.reason() is not None:
            must_not_end = self._ends_now or everything
            self._wait_while_paused(None if must_not_end else _PAUSE_S)
            if not must_not_end and self._control.reason() is not None:
                return self._sorted(start)
        if everything:
            return self._planned_to(start, all_splits(self._source, start))
        return self._planned_to(start, self._next_plan(start))

    def tasks(self, start: Position, end: Position) -> list[tuple[Split, ...]]:
        """Begin an epoch: return the splits of each task, in order; the same after a restart."""
        begin, to = self._text(start), self._text(end)
        if begin == to:
            return []
        if self._planned is not None and self._planned[:2] == (begin, to):
            splits: Sequence[Split] = self._planned[2]
        else:
            splits = self._source.between(start, end)
        self._running = _Running(to, len(splits), rows_of(splits), self._clock())
        return grouped(splits, self._settings.max_tasks)

    def commit(self, end: Position) -> None:
        """Record that everything before a position has been stored.

        Spark reports this when it plans the next epoch, so a source trims one epoch late.
        """
        if self._settings.commits:
            self._source.commit(end)

    def _note_last_epoch(self, start: str) -> None:
        last, self._running = self._running, None
        if last is None or last.end != start:
            return
        trigger_s = self._settings.goal.trigger_s
        elapsed_s = self._clock() - last.began_s
        report = self._control.last_epoch(self._settings.query)
        if report is not None and report.end == start:
            # Not the rows of the report if the plan has them: a sink may have read rows twice.
            self._size.after(report.rows if last.rows is None else last.rows, report.busy_s)
            self._rows_of_split = max(1, report.rows // last.splits)
        else:
            rows = self._size.rows if last.rows is None else last.rows
            if elapsed_s > trigger_s:
                self._size.after(rows, elapsed_s)
            else:
                # The rest of the interval was a wait for the trigger, of unknown length.
                self._size.after_a_kept_trigger(rows)
        _log.debug(
            "query %s: the next epoch has up to %d rows; goal %.1f s, fixed cost %.2f s",
            *(self._settings.query, self._size.rows, self._size.goal_s, self._size.fixed_s),
        )

    def _next_plan(self, start: Position) -> Plan:
        limit = Limit(self._size.rows, self._settings.max_bytes)
        if self._ends_now and not self._source.bounded:
            return self._plan_ahead(start, limit)
        now = self._clock()
        if self._was_empty_s is not None and now - self._was_empty_s < _BETWEEN_EMPTY_PLANS_S:
            # Spark asks every 10 ms; listing files is too expensive for that.
            self._wait(_BETWEEN_EMPTY_PLANS_S - (now - self._was_empty_s))
        plan = self._source.plan(start, limit)
        self._was_empty_s = None if plan.splits else self._clock()
        return self._with_more_of_unknown_size(plan)

    def _with_more_of_unknown_size(self, plan: Plan) -> Plan:
        """Add splits to one of unknown size, which ends a plan, up to the rows of an epoch.

        The number of rows of such splits is known once Spark has reported an epoch of them.
        """
        if self._rows_of_split is None or not plan.splits or plan.splits[-1].rows is not None:
            return plan
        splits = list(plan.splits)
        while (len(splits) + 1) * self._rows_of_split <= self._size.rows:
            more = self._source.plan(splits[-1].end, Limit(self._size.rows, _NO_LIMIT)).splits
            if not more:
                break
            splits.append(more[0])
        return Plan(tuple(splits), splits[-1].end)

    def _plan_ahead(self, start: Position, limit: Limit) -> Plan:
        """Plan a part of what existed when the query began, and nothing that arrived later."""
        if self._ahead is None:
            self._ahead = list(all_splits(self._source, start).splits)
        plan = within(iter(self._ahead), start, limit)
        del self._ahead[: len(plan.splits)]
        return plan

    def _planned_to(self, start: Position, plan: Plan) -> Position:
        if not plan.splits:
            return self._sorted(start)
        end = self._sorted(plan.end)
        self._planned = (self._text(start), self._text(end), plan.splits)
        return end

    def _wait_while_paused(self, at_most_s: float | None) -> None:
        waited_s = 0.0
        while self._control.reason() is not None and (at_most_s is None or waited_s < at_most_s):
            if os.getppid() != self._parent:
                raise SystemExit("the process that started this reader has ended")
            self._wait(_CHECK_S)
            waited_s += _CHECK_S

    def _text(self, position: Position) -> str:
        return checked_position(position, self._source.name)

    def _sorted(self, position: Position) -> Position:
        result: Position = json.loads(self._text(position))
        return result


def rows_of(splits: Sequence[Split]) -> int | None:
    """Return the rows of all splits together, or None if any of them is unknown."""
    known = [split.rows for split in splits if split.rows is not None]
    return sum(known) if len(known) == len(splits) else None


def all_splits(source: Source, start: Position) -> Plan:
    """Return a plan of everything that exists now."""
    # Without this limit, records that arrive faster than they are planned would make this endless.
    there = None if source.bounded else _records_behind(source, start)
    splits: list[Split] = []
    end, rows = start, 0
    while there is None or rows < there:
        plan = source.plan(end, Limit(_NO_LIMIT, _NO_LIMIT))
        if not plan.splits:
            break
        splits += plan.splits
        rows += rows_of(plan.splits) or 0
        end = plan.end
    return Plan(tuple(splits), end)


def _records_behind(source: Source, start: Position) -> int | None:
    records = [lag.records for lag in source.lag(start).values()]
    known = [count for count in records if count is not None]
    return sum(known) if known and len(known) == len(records) else None


def grouped(splits: Sequence[Split], most: int) -> list[tuple[Split, ...]]:
    """Divide splits into groups of adjacent ones, with about the same number in each."""
    count = min(most, len(splits))
    return [
        tuple(splits[number * len(splits) // count : (number + 1) * len(splits) // count])
        for number in range(count)
    ]
